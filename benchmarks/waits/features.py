"""What is known of a job's wait when it is submitted: of what it asks for, the queue, and the waits before it.

A wait is known from its job's start on, an end from the end on; of jobs that wait still only their age is known. All
features follow from the other rows' times in that way, in one pass over the log.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import exp, inf, log, log10, nan
from statistics import median

import numpy as np

from benchmarks.waits.table import Floats, WaitTable

__all__ = ["FEATURES", "WaitHistory", "features_of"]

_DAY_S = 86400.0
_USAGE_S = 7 * _DAY_S
_RECENT = 31
_FLOOR_S = 1.0

_KEYS = ("account", "account_partition", "account_shape", "partition", "partition_shape", "all")
_QUEUES = ("all", "account", "partition", "account_partition")

FEATURES: tuple[str, ...] = (
    "cpus", "mem", "nodes", "gpus", "limit", "cpu_hours", "partition", "hour", "weekday",
    *(f"{key}_{what}" for key in _KEYS for what in ("fast", "slow", "recent", "last", "since")),
    "account_median",
    *(f"{queue}_{what}" for queue in _QUEUES for what in ("pending", "pending_hours", "oldest", "running", "cpus")),
    "account_usage", "account_share", "burst", "newest_age",
)  # fmt: skip
"""Names of the columns of ``features_of``."""


@dataclass(slots=True)
class _Waits:
    """Waits of jobs that have started, log10 of seconds."""

    fast: float = nan
    slow: float = nan
    last: float = nan
    at_s: float = nan
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))

    def took(self, wait: float, at_s: float) -> None:
        first = self.fast != self.fast  # not a number yet
        self.fast = wait if first else self.fast + 0.2 * (wait - self.fast)
        self.slow = wait if first else self.slow + 0.02 * (wait - self.slow)
        self.last, self.at_s = wait, at_s
        self.recent.append(wait)

    def row(self, now_s: float) -> tuple[float, ...]:
        if not self.recent:
            return (nan,) * 5
        return self.fast, self.slow, median(self.recent), self.last, _log(now_s - self.at_s)


@dataclass(slots=True)
class _Queue:
    """Jobs that wait and run."""

    pending: int = 0
    pending_hours: float = 0.0
    running: int = 0
    cpus: float = 0.0
    submits: deque[tuple[float, int]] = field(default_factory=deque)

    def row(self, now_s: float, waits: Callable[[int], bool]) -> tuple[float, ...]:
        while self.submits and not waits(self.submits[0][1]):
            self.submits.popleft()
        oldest = _log(now_s - self.submits[0][0]) if self.submits else nan
        return _log(self.pending), _log(self.pending_hours), oldest, _log(self.running), _log(self.cpus)


class WaitHistory:
    """The log so far, as it was known at the last job's submission."""

    def __init__(self, table: WaitTable) -> None:
        self._table = table
        self._waits: defaultdict[Hashable, _Waits] = defaultdict(_Waits)
        self._queues: defaultdict[Hashable, _Queue] = defaultdict(_Queue)
        self._sorted: defaultdict[int, list[float]] = defaultdict(list)
        """Of each account, all waits so far in order; under -1, of all."""
        self._usage: defaultdict[int, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        self._starts: list[tuple[float, int]] = []
        self._ends: list[tuple[float, int]] = []
        self._waiting: set[int] = set()
        self._burst: dict[int, tuple[float, int]] = {}

    def row(self, i: int) -> list[float]:
        """Features of job ``i``; jobs must be asked for in order. The job then counts among those that wait."""
        table = self._table
        now_s = float(table.submit_s[i])
        self._until(now_s)
        account = int(table.account[i])
        cpus, mem, nodes, gpus, limit_s = (float(asked) for asked in table.asked[i])
        day_s = now_s % _DAY_S
        found = [
            _log(cpus), _log(mem), _log(nodes), _log(gpus), _log(limit_s), _log(cpus * limit_s / 3600.0),
            float(table.partition[i]), day_s / 3600.0, float(int(now_s / _DAY_S) % 7),
        ]  # fmt: skip
        for key in self._keys(i):
            found += self._waits[key].row(now_s) if key in self._waits else (nan,) * 5
        found.append(self.account_median(account))
        for key in self._of_queue(i):
            found += self._queues[key].row(now_s, self._waiting.__contains__)
        mine, all_of_it = self._used(account, now_s), self._used(-1, now_s)
        began_s, count = self._burst.get(account, (-inf, 0))
        together = count + 1 if now_s - began_s <= 60.0 else 1
        newest = _log(now_s - began_s) if count else nan
        found += (_log(mine / 3600.0), mine / all_of_it if all_of_it else 0.0, _log(together), newest)
        self._burst[account] = (now_s, together)
        self._joins(i, now_s)
        return found

    def account_median(self, account: int) -> float:
        """log10 of the median wait of the account's jobs that have started, s; of all jobs for a new account."""
        of = self._sorted.get(account) or self._sorted.get(-1)
        return of[len(of) // 2] if of else nan

    def _keys(self, i: int) -> tuple[Hashable, ...]:
        table = self._table
        account, partition = int(table.account[i]), int(table.partition[i])
        cpus, mem, _, gpus, limit_s = table.asked[i]
        shape = (round(log(cpus + 1)), round(log(mem + 1)), gpus > 0, round(log(limit_s + 1)))
        return (
            ("a", account), ("ap", account, partition), ("as", account, shape),
            ("p", partition), ("ps", partition, shape), "all",
        )  # fmt: skip

    def _of_queue(self, i: int) -> tuple[Hashable, ...]:
        account, partition = int(self._table.account[i]), int(self._table.partition[i])
        return "all", ("a", account), ("p", partition), ("ap", account, partition)

    def _joins(self, i: int, now_s: float) -> None:
        table = self._table
        self._waiting.add(i)
        for key in self._of_queue(i):
            queue = self._queues[key]
            queue.pending += 1
            queue.pending_hours += self._hours(i)
            queue.submits.append((now_s, i))
        if table.start_s[i] < inf:
            heappush(self._starts, (float(table.start_s[i]), i))

    def _hours(self, i: int) -> float:
        return float(self._table.asked[i, 0] * self._table.asked[i, 4]) / 3600.0

    def _until(self, now_s: float) -> None:
        """Learn of every start and end before ``now_s``."""
        table = self._table
        while self._starts and self._starts[0][0] <= now_s:
            at_s, i = heappop(self._starts)
            self._waiting.discard(i)
            wait = log10(max(at_s - float(table.submit_s[i]), _FLOOR_S))
            for key in self._keys(i):
                self._waits[key].took(wait, at_s)
            insort(self._sorted[int(table.account[i])], wait)
            insort(self._sorted[-1], wait)
            for key in self._of_queue(i):
                queue = self._queues[key]
                queue.pending -= 1
                queue.pending_hours -= self._hours(i)
                queue.running += 1
                queue.cpus += float(table.asked[i, 0])
            if table.end_s[i] < inf:
                heappush(self._ends, (max(float(table.end_s[i]), at_s), i))
        while self._ends and self._ends[0][0] <= now_s:
            at_s, i = heappop(self._ends)
            cpus = float(table.asked[i, 0])
            for key in self._of_queue(i):
                queue = self._queues[key]
                queue.running -= 1
                queue.cpus -= cpus
            used = cpus * (at_s - float(table.start_s[i]))
            for account in (int(table.account[i]), -1):
                self._usage[account] = (self._used(account, at_s) + used, at_s)

    def _used(self, account: int, now_s: float) -> float:
        """CPU-seconds of ended jobs, halved with every week."""
        used, at_s = self._usage[account]
        return used * exp(-log(2.0) * (now_s - at_s) / _USAGE_S)


def features_of(table: WaitTable, progress: Callable[[int, int], None] | None = None) -> Floats:
    """Features of every job at its submission, shape (n, len(FEATURES)); not a number where nothing is known."""
    history, every = WaitHistory(table), max(len(table) // 50, 1)
    rows = np.empty((len(table), len(FEATURES)))
    for i in range(len(table)):
        rows[i] = history.row(i)
        if progress is not None and i % every == 0:
            progress(i, len(table))
    return rows


def _log(value: float) -> float:
    return log10(1.0 + max(value, 0.0))
