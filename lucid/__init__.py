"""Lucid: non-intrusive, explainable scheduling of deep-learning jobs on GPU clusters."""

__all__ = ["Replay", "Runs", "__version__", "replay"]


def __getattr__(name: str) -> object:
    """Load ``lucid.api`` names when asked for: the parts of Lucid that run beside jobs import none of it. Types: the
    stub file."""
    from importlib import import_module

    if name == "__version__":
        return str(import_module("importlib.metadata").version("lucid-scheduler"))
    if name in __all__:
        return getattr(import_module("lucid.api"), name)
    raise AttributeError(f"module 'lucid' has no attribute {name!r}")
