"""What stands in a page's address, read without trust."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["NotShown", "number", "text"]


class NotShown(Exception):
    """There is nothing there, or nothing that this viewer may see: both are told in the same words."""


def text(asked: Mapping[str, str], key: str, most: int = 200) -> str:
    """A text, cut to ``most`` characters."""
    return asked.get(key, "").strip()[:most]


def number(asked: Mapping[str, str], key: str, otherwise: int, least: int = 0, most: int = 1_000_000) -> int:
    """A whole number between two bounds; ``otherwise`` where there is none."""
    try:
        return min(max(int(asked.get(key, "")), least), most)
    except ValueError:
        return otherwise
