"""``Reason``, the base of all reasons: a comparison that keeps what it compared."""

from __future__ import annotations

from typing import Any, ClassVar

from lucid.core.codec import from_json, to_json

REASONS: dict[str, type[Reason]] = {}


class Reason:
    """Base of all reasons, which are frozen. ``bool(reason)`` is the outcome of the comparison."""

    __slots__ = ()
    kind: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        # slots=True makes dataclass build the class twice; the second, final one wins
        cls.kind = cls.__name__
        REASONS[cls.__name__] = cls

    def __bool__(self) -> bool:
        return True

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Reason:
        """The reason that ``reason_to_dict`` wrote, of whatever kind. A value that an older version did not write has
        its default.

        Raises: KeyError: the kind is unknown. ValueError: a value without a default is missing."""
        return from_json(REASONS[data["kind"]], data)


def reason_to_dict(reason: Reason) -> dict[str, Any]:
    """A reason as JSON: its kind, the compared values, and the outcome."""
    return {"kind": reason.kind, **to_json(reason), "holds": bool(reason)}
