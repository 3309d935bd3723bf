"""``KnownJobs``: reads only jobs that have changed, which it finds by the cheapest listing that Slurm has.

``squeue --json`` of 14,000 jobs is 186 MB: 11 s of CPU time for squeue, 4 s for lucidd. ``scontrol -o show job`` of
the same jobs is 15 MB and 0.6 s. But users write into those lines (names, comments), so nothing in them can be
believed: a line only serves as the *sign* of its job. Where the sign differs from that when the job was read, the job
is read anew, in JSON. A name with a line break can move a part of its job's line under the number of another job:
such lines are found (`Listed.doubtful`), and their jobs are read at every poll."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lucid.slurm.records.job import SlurmJob

_HEAD = re.compile(r"(\d{1,10}) (?:(?:ArrayJobId|HetJobId)=(\d{1,10}) )?")
_STATE = re.compile(r" JobState=(\w+)")
_IDLE = re.compile(r" (?:RunTime|LastSchedEval|AccrueTime|Priority=[1-9])\S*")
"""Fields that change all the time and that are not read here; of a priority only whether it is 0 matters."""
_START = "JobId="
_READ_AT_A_TIME = 1_000
"""Most jobs read at a time, which bounds the memory: the JSON of a job is 13 kB. Their numbers fit in one argument,
too."""
_ANEW_S = 600.0
"""Each job is read anew within this time, whatever its sign says."""


@dataclass(slots=True)
class Listed:
    """One listing: the sign of each group. A group is a job; the tasks of an array, or the parts of a heterogeneous
    job, are one group, since they are read together. ``doubtful``: groups whose sign cannot be trusted."""

    signs: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    """State words by job number."""
    before: dict[int, int] = field(default_factory=dict)
    """By group, the group listed just before it, whose line may have been cut."""
    doubtful: set[int] = field(default_factory=set)


def listed_from(text: str) -> Listed:
    """Read what ``scontrol --oneliner show job`` printed."""
    found = Listed()
    numbers: set[int] = set()
    last = 0
    for chunk in f"\n{text}".removesuffix("\n").split(f"\n{_START}")[1:]:
        head = _HEAD.match(chunk)
        if head is None:
            found.doubtful.add(last)
            continue
        number, group = int(head[1]), int(head[2] or head[1])
        if number in numbers or "\n" in chunk:
            found.doubtful |= {group, last, found.before.get(group, 0)}
        numbers.add(number)
        found.signs[group] = hash((found.signs.get(group), _IDLE.sub("", chunk)))
        if (state := _STATE.search(chunk)) is not None:
            found.states[number] = state[1]
        if last != group:
            found.before.setdefault(group, last)
        last = group
    found.doubtful.discard(0)
    return found


class KnownJobs:
    """The jobs as last read, by group. ``read`` asks Slurm for some groups, with all their tasks and parts."""

    def __init__(self, read: Callable[[Sequence[int]], Sequence[SlurmJob]], clock_s: Callable[[], float]) -> None:
        """``clock_s``: any clock that only goes forwards."""
        self._read = read
        self._clock_s = clock_s
        self._jobs: dict[int, tuple[SlurmJob, ...]] = {}
        self._signs: dict[int, int] = {}
        self._read_at_s: dict[int, float] = {}
        self._polled_at_s = clock_s()

    def forget(self) -> None:
        """Read everything anew at the next poll."""
        self._jobs, self._signs, self._read_at_s = {}, {}, {}

    def poll(self, listing: Callable[[], str]) -> list[SlurmJob]:
        """All jobs. Where some changed between the listing and their reading, both are done once more, so that no GPU
        shows two owners that had it one after the other."""
        for _ in range(2):
            listed = listed_from(listing())
            if self._read_changed(listed):
                break
        return [job for group in listed.signs for job in self._jobs.get(group, ())]

    def _read_changed(self, listed: Listed) -> bool:
        """Read what changed; returns whether all that was read agrees with the listing."""
        for group in self._signs.keys() - listed.signs.keys():
            self._drop(group)
        wanted = {group for group, sign in listed.signs.items() if self._signs.get(group) != sign}
        wanted |= listed.doubtful & listed.signs.keys()
        wanted |= {group for group, jobs in self._jobs.items() if any(job.unread for job in jobs)}
        wanted |= self._oldest(len(listed.signs))
        agrees, missing = self._read_groups(sorted(wanted), listed)
        if missing:  # ended meanwhile; or never there, and its line is the end of the one before it
            cut = {listed.before.get(group, 0) for group in missing} & listed.signs.keys() - wanted
            agrees = self._read_groups(sorted(cut), listed)[0] and agrees
        return agrees

    def _read_groups(self, groups: Sequence[int], listed: Listed) -> tuple[bool, set[int]]:
        agrees, missing, now_s = True, set[int](), self._clock_s()
        for first in range(0, len(groups), _READ_AT_A_TIME):
            some = groups[first : first + _READ_AT_A_TIME]
            by_group = self._grouped(self._read(some), set(some))
            for group in some:
                jobs = by_group.get(group)
                if jobs is None:
                    missing.add(group)
                    self._drop(group)
                    continue
                self._jobs[group], self._signs[group], self._read_at_s[group] = jobs, listed.signs[group], now_s
                told = ((job, listed.states.get(job.number, job.state)) for job in jobs)
                agrees = agrees and (
                    group in listed.doubtful or all(state == job.state or state in job.flags for job, state in told)
                )
        return agrees, missing

    def _grouped(self, jobs: Iterable[SlurmJob], asked: set[int]) -> Mapping[int, tuple[SlurmJob, ...]]:
        found: dict[int, list[SlurmJob]] = {}
        for job in jobs:
            array = job.id.partition("_")[0]
            groups = (int(array) if array else 0, job.het, job.number)
            group = next((one for one in groups if one in asked), None)
            if group is not None:
                found.setdefault(group, []).append(job)
        return {group: tuple(members) for group, members in found.items()}

    def _oldest(self, count: int) -> set[int]:
        """The groups that have to be read now so that each is read within `_ANEW_S`."""
        now_s = self._clock_s()
        share = min(max(now_s - self._polled_at_s, 0.0) / _ANEW_S, 1.0)
        self._polled_at_s = now_s
        return set(sorted(self._read_at_s, key=self._read_at_s.__getitem__)[: round(share * count)])

    def _drop(self, group: int) -> None:
        for known in (self._jobs, self._signs, self._read_at_s):
            known.pop(group, None)
