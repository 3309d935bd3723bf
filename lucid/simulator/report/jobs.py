"""Every job of a simulation inside the page: where it ran under each policy, how long it waited, and its story.

The page unpacks two kinds of data when somebody looks: ``facts`` (columns over all jobs, for each policy the times
during which each job held GPUs of a node), and for each policy the stories. They are gzip in base64, so that 10,000
jobs stay below 5 MiB.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lucid.core.decision import DecisionRow
from lucid.simulator.cluster import PROFILING
from lucid.simulator.engine import Run
from lucid.simulator.record import DecisionLog
from lucid.simulator.state import JobOutcome

__all__ = ["MOST_BYTES", "MOST_JOBS", "JobPack", "TellStory", "pack_jobs"]

MOST_JOBS = 10_000
"""Jobs in one page: the first to be submitted, so that the timeline is whole up to the last of them."""
MOST_BYTES = 4_000_000
"""Of all that is packed here. Policies whose stories would not fit go without; ``lucidctl explain`` tells them."""

TellStory = Callable[[Run, JobOutcome], str]
"""The story of a job in words, its lines not wrapped."""

_STARTS = ("start", "resize", "regroup")
_ENDS = ("requeue", "part", "release")
ALONE, PROFILED, SHARED = 0, 1, 2
"""What a stay on a node is."""


@dataclass(frozen=True, slots=True)
class JobPack:
    """``facts``, ``stories`` by policy: packed. ``listed`` of ``jobs`` are in it. ``without``: policies whose stories
    did not fit. ``decided``: are there decisions, which say where a job stood when?"""

    facts: str
    stories: Mapping[str, str]
    listed: int
    jobs: int
    without: Sequence[str]
    decided: bool


def pack_jobs(
    runs: Sequence[Run],
    styles: Sequence[int],
    logs: Mapping[str, DecisionLog],
    tell: TellStory | None = None,
    first: str = "",
) -> JobPack:
    """The jobs of all runs. ``logs``: decisions by policy; without them a job stays where it ended. ``tell``: makes a
    story where there are decisions. ``first``: whose stories are packed first."""
    order = sorted(runs[0].outcomes, key=lambda o: (o.job.submit_s, o.job.id))[:MOST_JOBS]
    index = {o.job.id: i for i, o in enumerate(order)}
    names, nodes = _Words(), _Words()
    policies = [
        _policy(run, style, index, logs.get(run.policy), nodes) for run, style in zip(runs, styles, strict=True)
    ]
    facts = {
        "id": [o.job.id for o in order],
        "name": [names.of(o.job.name) for o in order],
        "user": [names.of(o.job.user) for o in order],
        "vc": [names.of(o.job.vc) for o in order],
        "gpus": [o.job.gpus for o in order],
        "submit": [round(o.job.submit_s) for o in order],
        "words": names.words,
        "nodes": nodes.words,
        "whole": len(order) == len(runs[0].outcomes),
        "policies": policies,
    }
    packed = _packed(facts)
    left, stories, without = MOST_BYTES - len(packed), {}, []
    for run in sorted(runs, key=lambda run: run.policy != first):
        if tell is None or run.policy not in logs:
            continue
        found = {o.job.id: o for o in run.outcomes}
        text = _packed([tell(run, found[o.job.id]) if o.job.id in found else "" for o in order])
        if len(text) > left:
            without.append(run.policy)
            continue
        left -= len(text)
        stories[run.policy] = text
    return JobPack(packed, stories, len(order), len(runs[0].outcomes), without, bool(logs))


class _Words:
    """Each word once; a number for each."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._known: dict[str, int] = {}

    def of(self, word: str) -> int:
        found = self._known.get(word)
        if found is None:
            found = self._known[word] = len(self.words)
            self.words.append(word)
        return found


def _packed(data: Any) -> str:
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def _policy(run: Run, style: int, index: Mapping[str, int], log: DecisionLog | None, nodes: _Words) -> dict[str, Any]:
    wait, jct, kind = [-1] * len(index), [-1] * len(index), [0] * len(index)
    stays: list[tuple[int, int, int, int, int, int]] = []
    for o in run.outcomes:
        i = index.get(o.job.id)
        if i is None:
            continue
        if o.end_s >= 0:
            wait[i], jct[i] = round(o.queue_s), round(o.jct_s)
        kind[i] = (1 if o.profiled_s > 0 else 0) + (2 if o.packed else 0) + (4 if o.preemptions else 0)
        for start_s, end_s, placement, what in _stays(o, [] if log is None else log.of(o.job.id)):
            for node, mask in placement:
                stays.append((i, nodes.of(node), mask, round(start_s), round(end_s - start_s), what))
    columns = [list(column) for column in zip(*stays, strict=True)] or [[] for _ in range(6)]
    return {"name": run.policy, "style": style, "wait": wait, "jct": jct, "kind": kind, "stays": columns}


def _stays(o: JobOutcome, rows: Sequence[DecisionRow]) -> list[tuple[float, float, list[tuple[str, int]], int]]:
    """When the job held which GPUs: from each start to the decision that ended it, or to the job's end."""
    if not any(row.verb in _STARTS for row in rows):
        if o.start_s < 0 or o.end_s < 0:
            return []
        return [(o.start_s, o.end_s, [(part.node, part.mask) for part in o.placement], SHARED if o.packed else ALONE)]
    found = []
    since: DecisionRow | None = None
    for row in rows:
        if row.verb not in _STARTS and row.verb not in _ENDS:
            continue
        if since is not None:
            found.append((since.at_s, row.at_s, _parsed(since.placement), _kind(since)))
        since = row if row.verb in _STARTS else None
    if since is not None and o.end_s >= 0:
        found.append((since.at_s, o.end_s, _parsed(since.placement), _kind(since)))
    return found


def _kind(row: DecisionRow) -> int:
    return PROFILED if row.partition == PROFILING else SHARED if row.beside else ALONE


def _parsed(placement: str) -> list[tuple[str, int]]:
    """The inverse of ``show_placement``: node and mask."""
    parts = []
    for part in placement.split():
        node, _, ranges = part.rpartition(":")
        mask = 0
        for run in ranges.split(","):
            low, _, high = run.partition("-")
            for gpu in range(int(low), int(high or low) + 1):
                mask |= 1 << gpu
        parts.append((node, mask))
    return parts
