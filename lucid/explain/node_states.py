"""Nodes in words: those that sleep or boot, and windows, of the whole cluster under the queue, and what a job that is
held by one could ask for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lucid.core import reason as why
from lucid.core.ahead import Seen, windows_of
from lucid.core.node import Node, Window
from lucid.core.reason import Closes, Reason
from lucid.core.snapshot import Snapshot
from lucid.explain.quantities import duration, when

__all__ = [
    "boots",
    "ends_in_time_s",
    "limit_words",
    "power_words",
    "reaches_words",
    "window_dicts",
    "window_words",
    "windows_ahead",
]

_SLACK_S = 60.0
"""A shorter limit that is proposed leaves so long to ask for it."""
_NAMED = 8


def windows_ahead(snapshot: Snapshot) -> list[Seen]:
    """Those of all partitions, each once, the earliest first."""
    found: dict[Window, Seen] = {}
    for partition in snapshot.partitions.values():
        for one in windows_of(partition):
            had = found.get(one.window)
            nodes, jobs = ((), ()) if had is None else (had.nodes, had.reaching)
            reaching = tuple(dict.fromkeys((*jobs, *one.reaching)))
            found[one.window] = Seen(one.window, (*nodes, *one.nodes), reaching)
    return sorted(found.values(), key=lambda one: (one.window.from_s, one.window.end_s, one.window.why))


def window_words(one: Seen, now_s: float) -> str:
    """``maintenance of n[1-4] (w) from … to …; jobs 17 and 18 may still run then``."""
    window = one.window
    begun = window.from_s <= now_s
    until = "" if window.until_s is None else f" {'until' if begun else 'to'} {when(window.until_s)}"
    words = f"{window.why or 'closed'}{' now,' if begun else f' from {when(window.from_s)}'}{until}".rstrip(",")
    if not one.reaching:
        return words
    jobs = f"job{'s' if len(one.reaching) > 1 else ''} {', '.join(one.reaching[:_NAMED])}"
    more = len(one.reaching) - _NAMED
    return f"{words}; {jobs}{f' and {more} more' if more > 0 else ''} may {'run on' if begun else 'still run then'}"


def window_dicts(found: Sequence[Seen]) -> list[dict[str, Any]]:
    """JSON form."""
    return [
        {
            "from_s": one.window.from_s,
            "until_s": one.window.until_s,
            "why": one.window.why,
            "nodes": list(one.nodes),
            "reaching": list(one.reaching),
        }
        for one in found
    ]


def reaches_words(snapshot: Snapshot, job_id: str) -> list[str]:
    """Of a running job: the windows into which it may last."""
    return [
        f"may last into: {window_words(Seen(one.window, one.nodes, ()), snapshot.now_s)}"
        for one in windows_ahead(snapshot)
        if job_id in one.reaching
    ]


def ends_in_time_s(reasons: Sequence[Reason], at_s: float) -> float | None:
    """The longest time limit, in whole minutes, with which a job that a window keeps waiting would end before it.
    ``at_s``: when the reasons were found; a picture stands for as long as nothing changes."""
    room_s = max((r.room_s for r in reasons if isinstance(r, Closes) and not r), default=0.0)
    minutes = (room_s - max(time.time() - at_s, 0.0) - _SLACK_S) // 60
    return minutes * 60 if minutes >= 1 else None


def limit_words(limit_s: float) -> str:
    """As ``--time`` takes it: ``0:45:00``."""
    hours, rest = divmod(round(limit_s), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


# Nodes that sleep or boot, in words.


def boots(r: why.Boots) -> str:
    """``n3 sleeps; a boot takes about 4 min``."""
    more = f"; {r.others} more of its nodes {'is' if r.others == 1 else 'are'} not awake" if r.others else ""
    return f"{r.node} {_words(r.asleep, r.delay_s)}{more}"


def power_words(node: Node, now_s: float) -> str:
    """``sleeps; a boot takes about 4 min``, or ``boots, about 2 min``; empty for a node that is awake."""
    return _words(node.boots_since_s is None, node.delay_s(now_s)) if node.boot_s else ""


def _words(asleep: bool, delay_s: float) -> str:
    left = f"about {duration(delay_s)}" if delay_s >= 1.0 else "any moment now"
    return f"sleeps; a boot takes {left}" if asleep else f"boots, {left}"
