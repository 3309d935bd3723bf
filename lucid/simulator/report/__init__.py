"""The report page; to be written."""

__all__ = ["write_report"]


def write_report(*a: object, **k: object) -> None:
    """Nothing yet."""
