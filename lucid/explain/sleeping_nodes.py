"""Nodes that sleep or boot, in words. ``duration`` says seconds in words."""

from __future__ import annotations

from collections.abc import Callable

from lucid.core import reason as why
from lucid.core.node import Node

__all__ = ["boots", "power_words"]


def boots(r: why.Boots, duration: Callable[[float], str]) -> str:
    """``n3 sleeps; a boot takes about 4 min``."""
    more = f"; {r.others} more of its nodes {'is' if r.others == 1 else 'are'} not awake" if r.others else ""
    return f"{r.node} {_words(r.asleep, r.delay_s, duration)}{more}"


def power_words(node: Node, now_s: float, duration: Callable[[float], str]) -> str:
    """``sleeps; a boot takes about 4 min``, or ``boots, about 2 min``; empty for a node that is awake."""
    return _words(node.boots_since_s is None, node.delay_s(now_s), duration) if node.boot_s else ""


def _words(asleep: bool, delay_s: float, duration: Callable[[float], str]) -> str:
    left = f"about {duration(delay_s)}" if delay_s >= 1.0 else "any moment now"
    return f"sleeps; a boot takes {left}" if asleep else f"boots, {left}"
