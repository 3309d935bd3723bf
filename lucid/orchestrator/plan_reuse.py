"""The plans of all partitions, carried from one plan to the next by those that changed."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from lucid.core.changes import changed_names, key_of
from lucid.core.decision import PartitionPlan, Parts
from lucid.core.snapshot import Partition

__all__ = ["KeptParts"]


class KeptParts:
    """Which partitions a policy has to look at, where the plans of VCs depend on nothing else: those that changed,
    those whose plan acts or is due, and profiling. What follows is the same as if it had looked at all."""

    def __init__(self) -> None:
        self._last: Parts | None = None
        self._seen: object | None = None
        self._place: dict[str, int] = {}
        self._profiling: list[str] = []
        self._wakes: list[tuple[float, str]] = []
        """A heap; an entry is void where the plan has another time by now."""

    def to_look_at(self, partitions: Mapping[str, Partition], now_s: float, *, alone: bool) -> Collection[str]:
        """Names, in order. ``alone``: does the plan of each, but for profiling, depend on its partition alone?"""
        changed = changed_names(self._seen if alone else None, partitions)
        self._seen = None  # a plan that fails leaves some not looked at
        if self._last is None or len(changed) == len(partitions):
            self._last = None
            return partitions.keys()
        names = {*changed, *self._last.acting, *self._profiling}
        while self._wakes and self._wakes[0][0] <= now_s:
            names.add(heapq.heappop(self._wakes)[1])
        return sorted(names, key=self._place.__getitem__)

    def with_fresh(self, partitions: Mapping[str, Partition], looked: Mapping[str, PartitionPlan]) -> Parts:
        """All plans. ``looked``: of the partitions that were looked at, new or as before."""
        last = self._last
        if last is None:
            self._place = {name: at for at, name in enumerate(partitions)}
            self._profiling = [name for name, partition in partitions.items() if partition.profiling]
            self._wakes = []
            made, memory = Parts(looked), dict[str, object]()
        else:
            fresh = {name: part for name, part in looked.items() if last[name] is not part}
            made, memory = Parts(last, last.key, fresh), dict(last.memory)
        for name, part in looked.items():
            if part.wake_s is not None:
                heapq.heappush(self._wakes, (part.wake_s, name))
            if part.memory is not None:
                memory[name] = part.memory
            else:
                memory.pop(name, None)
        while self._wakes and made[self._wakes[0][1]].wake_s != self._wakes[0][0]:
            heapq.heappop(self._wakes)
        made.acting, made.memory = [name for name, part in looked.items() if part.actions], memory
        made.wake_s = self._wakes[0][0] if self._wakes else None
        self._last, self._seen = made, key_of(partitions)
        return made
