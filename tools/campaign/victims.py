"""Whom Slurm preempted for jobs that Lucid had sent to GPUs of others: those that Lucid chose, and any others."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from campaign.slurmctld_log import seconds

Claim = tuple[float, str, frozenset[str]]
"""When a job was told to start, its id, and the ids of those that Lucid chose to give way to it."""
_ID = r"JobId=(\d+(?:_\d+)?)"
_SENT = re.compile(rf"\[[\d:.T-]+\] .*setting tres_per_node:(\S+) for {_ID}")
_PREEMPTED = re.compile(rf"\[([\d:.T-]+)\] (?:\w+: )?preempted {_ID}\S* has been .* for {_ID}")
_STARTS = "SELECT at_s, job_id, detail FROM actions WHERE verb = 'start' ORDER BY id"
_BOUND_S = 120.0
"""A start that is older has been taken back since."""


def claims_in(store: Path) -> list[Claim]:
    """From lucidd's store; none where a fault has damaged it."""
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as base:
            rows = base.execute(_STARTS).fetchall()
    except sqlite3.Error:
        return []
    found = []
    for at_s, job, detail in rows:
        chosen = str(detail).partition(", preempting ")[2].partition(",")[0]
        found.append((float(at_s), str(job), frozenset(chosen.split())))
    return found


def unchosen(log: str, claims: Iterable[Claim]) -> tuple[int, list[str]]:
    """How many jobs Slurm preempted for those that asked for GPUs by their addresses as Lucid told them, and in words
    those of them that Lucid had not chosen. ``log``: slurmctld's (times of UTC)."""
    known, by_address, count, found = list(claims), set[str](), 0, []
    for line in log.splitlines():
        if match := _SENT.match(line):
            (by_address.add if re.match(r"gres/gpu:g\d", match[1]) else by_address.discard)(match[2])
        elif (match := _PREEMPTED.match(line)) and match[3] in by_address:
            at_s, victim, owner = seconds(match[1]), match[2], match[3]
            last = [chosen for told_s, job, chosen in known if job == owner and 0 <= at_s + 1 - told_s < _BOUND_S][
                -1:
            ]
            count += bool(last)
            if last and victim not in last[0]:
                found.append(f"job {victim} for job {owner}, for which Lucid had chosen {' '.join(sorted(last[0]))}")
    return count, found
