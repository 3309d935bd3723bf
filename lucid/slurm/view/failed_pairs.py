"""``FailedPairs``: nodes without further pairs, since Slurm drained them over a pair's Prolog or Epilog.

A site's script may take a GPU to be its job's alone. From the second such node of a partition on no pair is made in
the partition. The store keeps this until ``lucidctl mode PARTITION …`` is typed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lucid.core.codec import from_others, to_json
from lucid.core.decision import Start

if TYPE_CHECKING:  # `lucidctl status` knows the switches by it, and asks Slurm nothing
    from lucid.core.ports import Applied
    from lucid.core.snapshot import Partition
    from lucid.slurm.records.job import SlurmJob, SlurmNode
    from lucid.store.sqlite import SqliteStore

_LOG = logging.getLogger("lucidd")
KEY = "pairs.off."
"""The key of the store's switches, before the node's name."""
_ERROR = re.compile(r"\b(prolog|epilog) error", re.IGNORECASE)
_RECENT_S = 600.0
"""How long a prolog or epilog counts as possible: after this time a job that was started beside another has run its
prolog, and one that shared until then its epilog."""


@dataclass(frozen=True, slots=True)
class FailedPair:
    """Why no more pairs are made on a node: Slurm's ``reason``, when it was seen, the job, and the node's
    partitions."""

    node: str
    since_s: float
    job: str
    reason: str
    partitions: tuple[str, ...]


def failed_pairs_in(switches: Mapping[str, str]) -> dict[str, FailedPair]:
    """The failed pairs by node. Entries that cannot be read are left out."""
    found = {}
    for key, text in switches.items():
        if key.startswith(KEY):
            with suppress(ValueError):
                one = from_others(FailedPair, json.loads(text))
                found[one.node] = one
    return found


def unpaired(failed: Mapping[str, FailedPair]) -> set[str]:
    """The partitions in which no pair is made: those with at least two such nodes."""
    every = [name for one in failed.values() for name in one.partitions]
    return {name for name in every if every.count(name) > 1}


class FailedPairs:
    """Remembers from poll to poll which jobs share GPUs."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._sharing: dict[str, tuple[str, float, float]] = {}
        """By job: the node on which it shares or was started to share, when it was started (0: not seen), and until
        when it was there."""
        self._errors: frozenset[str] | None = None

    def started(self, applied: Iterable[Applied], now_s: float) -> None:
        """Take in the applied actions: which jobs start beside another."""
        for one in applied:
            start = one.action.decision
            if isinstance(start, Start) and one.refused is None and (start.beside or len(start.group) > 1):
                self._sharing[one.action.job_id] = start.placement[0].node, now_s, now_s

    def observe(self, partitions: Iterable[Partition], now_s: float) -> None:
        """Take in which jobs share at this poll."""
        for entry in (entry for partition in partitions for entry in partition.running):
            if (entry.partner is not None or len(entry.group) > 1) and entry.placement:
                _, told_s, _ = self._sharing.get(entry.job.id, ("", 0.0, 0.0))
                self._sharing[entry.job.id] = entry.placement[0].node, told_s, now_s

    def check(self, jobs: Mapping[str, SlurmJob], nodes: Sequence[SlurmNode], now_s: float) -> frozenset[str]:
        """The nodes on which no pair is to be made."""
        failing = {node.name: node for node in nodes if not node.available and _ERROR.search(node.reason)}
        for name in failing.keys() - (failing.keys() if self._errors is None else self._errors):
            node = failing[name]
            starts = "prolog" in node.reason.lower()
            for job_id, (where, told_s, _) in self._sharing.items():
                runs = job_id in jobs and jobs[job_id].state == "RUNNING"
                if where == name and not runs and (not starts or now_s - told_s < _RECENT_S):
                    self._note(FailedPair(name, now_s, job_id, node.reason, tuple(sorted(node.partitions))))
                    break
        self._errors = frozenset(failing)
        self._sharing = {i: kept for i, kept in self._sharing.items() if now_s - kept[2] < _RECENT_S}
        failed = failed_pairs_in(self._store.settings())
        shut = unpaired(failed)
        return frozenset(failed) | {node.name for node in nodes if not shut.isdisjoint(node.partitions)}

    def _note(self, failed: FailedPair) -> None:
        self._store.set_setting(KEY + failed.node, json.dumps(to_json(failed)))
        _LOG.error("Slurm drained a node over a pair: no more pairs there", extra={"facts": to_json(failed)})
