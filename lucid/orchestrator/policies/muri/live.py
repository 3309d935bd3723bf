"""Muri on a real cluster, where a move costs a restart: groups grow where they run; slow ones are not repeated.

Nobody is stopped, moved or parted. Waiting jobs get GPUs of their own as long as there are any (row M18). Jobs that
find none join jobs that run, or that start now, by rounds of maximum-weight matching on the interleaving efficiency
(M9-M12). A job joins only where its group then does more in all than without it. Jobs whose times are known only from
outside call nothing that would make them wait for their turn: such a job shares with one other at most, where both
rarely want the same resource at once (``muri/interleave.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lucid.binder.contention import memory_limit_mib
from lucid.core.decision import Action, Decision, Hold, PartitionPlan, Regroup, Start, earliest
from lucid.core.job import Job, Pending, Running, Stage
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.placement import Placement
from lucid.core.prediction import Prediction
from lucid.core.reason import Reason
from lucid.core.reasons.queue import BehindHead, FreeGpus, Priority
from lucid.core.reasons.sharing import Interleaved, Overlaps, SlowBefore
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.times import reached
from lucid.orchestrator.capacity.placement import Feasibility, consolidated, no_place
from lucid.orchestrator.policies.muri.grouping import Group, GroupingOptions, group_period
from lucid.orchestrator.policies.muri.interleave import MOST_CONFLICT, NO_OVERHEAD, MuriJob, conflict
from lucid.orchestrator.policies.muri.seen import SlowGroups, Turns

_MOST_PASSED = 64
"""Most jobs that fit nowhere and are passed over in one round: each is compared with every group, which takes
time."""
_MOST_FREE = 2
"""Most jobs on the same GPUs where one of them waits for no turn: nothing keeps three from wanting the same resource
at once."""


_LEAST_GAIN = 1.1
"""The least gain of a group by a job that joins, over the group without it and over its members one after the other.
Less is within the error of what is known: reports of stages that differ by a fifth count as the same."""


def member_speeds(jobs: Sequence[MuriJob], free: bool, options: GroupingOptions) -> list[float]:
    """Expected normalised speed of each member of a group: its iteration alone over the group's round (M4 to M8).
    ``free``: the group is two jobs that nobody makes wait for their turn."""
    if free:
        one, other = jobs
        return [Overlaps("", conflict(one, other), MOST_CONFLICT).speed] * 2
    period_s = group_period(Group(jobs[0].gpus, tuple(jobs)), options)
    return [job.solo_s / period_s for job in jobs]


def formula_s(group: Group, options: GroupingOptions) -> float:
    """A group's round by the formula alone (M5)."""
    return group_period(group, replace(options, overhead=NO_OVERHEAD))


@dataclass(frozen=True, slots=True)
class LiveRules:
    """The rules of live groups. ``options``: how groups are reckoned. ``patience_s``: after so long a wait no other
    job starts before this one. ``same_user``: only jobs of one user share."""

    options: GroupingOptions
    patience_s: float
    same_user: bool


@dataclass(frozen=True, slots=True)
class Line:
    """The jobs of one plan. ``waiting``: with the value by which each goes, smaller first. ``known``: what Muri knows
    of each job, by id. ``alone``: ids of jobs that share with nobody. ``why``: the sort key as a reason, by id.
    ``outside``: ids of jobs of which only shares of time are known, as their nodes measured them."""

    waiting: Sequence[tuple[float, Pending]]
    known: Mapping[str, MuriJob]
    alone: frozenset[str]
    why: Mapping[str, Priority]
    outside: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Host:
    """Jobs that hold the same GPUs, or will; the first ``here`` of them run already."""

    placement: Placement
    members: list[Pending | Running]
    here: int
    limit: int
    mem_mib: float
    free: FreeGpus | None = None
    """The comparison of free GPUs, for GPUs that were given out in this plan."""

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(entry.job.id for entry in self.members)


def plan_live(partition: Partition, snapshot: Snapshot, line: Line, rules: LiveRules) -> PartitionPlan:
    """The plan of a partition: starts only, and for jobs that are joined where they run the group that they are in
    from now on."""
    return _Plan(partition, snapshot, line, rules).made()


class _Plan:
    def __init__(self, partition: Partition, snapshot: Snapshot, line: Line, rules: LiveRules) -> None:
        self._partition, self._snapshot, self._line, self._rules = partition, snapshot, line, rules
        self._now_s = snapshot.now_s
        self._nodes: Mapping[str, Node] = {node.name: node for node in partition.nodes}
        self._ledger = Ledger(partition, snapshot.now_s)
        self._hosts = self._running_hosts()
        self._decisions: dict[str, Decision] = {}
        self._refusals: dict[str, Reason] = {}
        """By job, the best group that the job would not have been worth joining."""
        self._slow = SlowGroups(snapshot.memory.get(partition.name), snapshot.now_s)
        self._turns = Turns(snapshot.memory.get(partition.name), snapshot.now_s, rules.options.overhead)
        self._watch()

    def made(self) -> PartitionPlan:
        """The plan."""
        left, wake_s = self._give_gpus()
        joined = self._join(left)
        head = next((entry for entry in left if entry.job.id not in joined), None)
        if head is not None and not self._late(head):
            head = None
        actions = [action for host in self._hosts for action in self._actions(host)]
        for entry in left:
            if entry.job.id not in joined:
                self._decisions[entry.job.id] = self._hold(entry, head)
        decisions = {entry.job.id: self._decisions[entry.job.id] for _, entry in self._line.waiting}
        decisions.update({action.job_id: action.decision for action in actions})
        return PartitionPlan({**self._decisions, **decisions}, tuple(actions), wake_s, self._memory)

    @property
    def _memory(self) -> object:
        slow = self._slow.memory
        return (*(slow if isinstance(slow, tuple) else ()), *self._turns.memory) or None

    # -- GPUs of their own -------------------------------------------------------------------------------------

    def _late(self, entry: Pending) -> bool:
        """Whether the job has waited for so long that no other may start before it."""
        return reached(self._now_s - entry.since_s, self._rules.patience_s)

    def _order(self) -> tuple[list[Pending], float | None]:
        """The waiting jobs in order of service, and when the next one will have waited for ``patience_s``."""

        def stand(item: tuple[float, Pending]) -> tuple[float, ...]:
            value, entry = item
            late = self._late(entry)
            return (0.0 if late else 1.0, 0.0 if late else value, entry.job.submit_s, entry.job.rank)

        order = [entry for _, entry in sorted(self._line.waiting, key=stand)]
        due_s = earliest(*(entry.since_s + self._rules.patience_s for entry in order if not self._late(entry)))
        return order, due_s

    def _give_gpus(self) -> tuple[list[Pending], float | None]:
        """Give free GPUs to jobs in order; the next may start before one that does not fit (M17), until that has
        waited for ``patience_s``. Returns the jobs that got none, in order, and when the next will have waited so
        long. A job that would not fit on the nodes that are up, were they empty, waits for other nodes, and nobody
        waits behind it."""
        order, wake_s = self._order()
        feasible = Feasibility(self._partition, up_only=True)
        left: list[Pending] = []
        for entry in order:
            blocked = bool(left) and self._late(left[0])  # late jobs come first in the order
            placement = None
            if not blocked:
                placement = consolidated(self._ledger, entry.job, remainder_on_emptiest=True)
            if placement is None and feasible.bar(entry.job) is not None:
                self._decisions[entry.job.id] = Hold((*self._why(entry.job), *no_place(self._ledger, entry)))
                continue
            if placement is None:
                left.append(entry)
                continue
            host = self._host(placement, [entry], 0)
            host.free = FreeGpus(entry.job.gpus, self._ledger.largest, self._ledger.free, True)
            self._ledger.claim(entry.job, placement)
            self._hosts.append(host)
        return left, wake_s

    def _host(self, placement: Placement, members: list[Pending | Running], here: int) -> _Host:
        nodes = [self._nodes[part.node] for part in placement if part.node in self._nodes]
        open_to = len(placement) == 1 and bool(nodes) and all(self._may_share(entry) for entry in members)
        limit = min(self._rules.options.limit, *(node.slots for node in nodes)) if open_to else 1
        return _Host(placement, members, here, limit, min((node.gpu_mem_mib for node in nodes), default=0))

    def _running_hosts(self) -> list[_Host]:
        at: dict[Placement, list[Pending | Running]] = {}
        for entry in self._partition.running:
            at.setdefault(tuple(sorted(entry.placement)), []).append(entry)
        up = {node.name for node in self._partition.nodes if node.available}
        found = [self._host(placement, members, len(members)) for placement, members in at.items()]
        return [host for host in found if host.limit > len(host.members) and host.placement[0].node in up]

    def _watch(self) -> None:
        """Take in how fast the running groups are."""
        by_id = {entry.job.id: entry for entry in self._partition.running}
        for entry in self._partition.running:
            group = [by_id[job_id] for job_id in entry.group if job_id in by_id]
            whole = len(group) == len(entry.group) > 1 and group[0] is entry
            if whole and all(map(self._may_share, group)) and (len(group) == 2 or not self._free(group)):
                self._slow.observe(group, self._line.known, self._promised(group))
                if not self._free(group):
                    self._turns.observe(group, formula_s(self._group(group), self._rules.options))

    def _promised(self, members: Sequence[Pending | Running]) -> list[float]:
        """The normalised speed promised to each member of a group: by what the executor costs, whatever rounds of
        such groups took."""
        return member_speeds(self._group(members).jobs, self._free(members), self._rules.options)

    # -- groups -----------------------------------------------------------------------------------------------

    def _may_share(self, entry: Pending | Running) -> bool:
        """Whether the job's user opted in, and all is known of the job that sharing takes."""
        job = entry.job
        known = job.takes_turns and entry.profile is not None and job.id not in self._line.alone and not entry.alone
        known = known and job.min_nodes <= 1
        if isinstance(entry, Running):
            return known and entry.partner is None and entry.stage is Stage.MAIN
        return known

    def _join(self, left: Sequence[Pending]) -> set[str]:
        """Rounds in which each group takes in at most one more job; returns the jobs that joined. Once the first job
        that got no GPUs has waited for ``patience_s``, nobody joins before it does: groups end, and it gets their
        GPUs."""
        sharing = [entry for entry in left if self._may_share(entry)]
        if left and self._late(left[0]):
            sharing = sharing[:1] if sharing[:1] == [left[0]] else []
        joined: set[str] = set()
        for _ in range(self._rules.options.limit - 1):
            fresh = self._round([entry for entry in sharing if entry.job.id not in joined])
            if not fresh:
                break
            joined |= fresh
        return joined

    def _round(self, sharing: Sequence[Pending]) -> set[str]:
        joined: set[str] = set()
        for gpus in dict.fromkeys(entry.job.gpus for entry in sharing):
            hosts = [h for h in self._hosts if self._places(h) and h.members[0].job.gpus == gpus]
            fits, rows = self._first_that_fit([e for e in sharing if e.job.gpus == gpus], hosts)
            if not fits:
                continue
            worth = np.array(rows)
            from scipy.optimize import linear_sum_assignment

            for row, column in zip(*linear_sum_assignment(worth, maximize=True), strict=True):
                entry, host = fits[row], hosts[column]
                if worth[row, column] > 0:
                    host.members.append(entry)
                    self._ledger.claim(entry.job, host.placement)
                    joined.add(entry.job.id)
        return joined

    def _first_that_fit(
        self, line: Sequence[Pending], hosts: Sequence[_Host]
    ) -> tuple[list[Pending], list[list[float]]]:
        """As many of these jobs as there are places, by priority (M17), and the worth of each in each group. A job
        that fits nowhere takes no place."""
        places = sum(self._places(host) for host in hosts)
        fits: list[Pending] = []
        rows: list[list[float]] = []
        for entry in line[: places + _MOST_PASSED]:
            row = [self._worth(entry, host) for host in hosts]
            if any(row):
                fits.append(entry)
                rows.append(row)
            if len(fits) >= places:
                break
        return fits, rows

    def _free(self, members: Sequence[Pending | Running]) -> bool:
        """Whether any of these jobs is known only from outside, so that nobody makes it wait for its turn."""
        return any(entry.job.id in self._line.outside for entry in members)

    def _places(self, host: _Host) -> int:
        """How many more jobs may join the host's."""
        limit = min(host.limit, _MOST_FREE) if self._free(host.members) else host.limit
        return max(limit - len(host.members), 0)

    def _worth(self, entry: Pending, host: _Host) -> float:
        """The efficiency of the group with this job in it; 0 where the job may not join it, or is not worth it."""
        members = [*host.members, entry]
        if len(members) > _MOST_FREE and self._free(members):
            return 0.0
        if self._rules.same_user and len({item.job.user for item in members}) > 1:
            return 0.0
        need_mib = sum(_need_mib(item, host.mem_mib) for item in members)
        node = self._ledger.index[host.placement[0].node]
        if need_mib > host.mem_mib or not self._ledger.host_fits(node, entry.job, entry.job.gpus):
            return 0.0
        slow = self._slow.found([item.job for item in members], self._line.known)
        if slow is not None:
            ids = " ".join(item.job.id for item in members)
            self._refusals.setdefault(entry.job.id, SlowBefore(ids, slow.seen, slow.promised))
            return 0.0
        if self._free(members):
            return self._worth_free(members)
        before, group, period_s = self._interleaved(host.members), self._group(members), self._period_s(members)
        together = self._interleaved(members, _LEAST_GAIN * max(before.alone_s / before.period_s, 1.0))
        if not together:
            self._refusals.setdefault(entry.job.id, together)
            return 0.0
        if any(self._overruns(item, job.solo_s / period_s) for item, job in zip(members, group.jobs, strict=True)):
            return 0.0
        used = sum(sum(job.stages) for job in group.jobs)
        return used / (self._rules.options.k * period_s)

    def _period_s(self, members: Sequence[Pending | Running]) -> float:
        """The expected round of jobs that take turns, s."""
        found = formula_s(self._group(members), self._rules.options)
        return found * self._turns.factor([entry.job for entry in members])

    def _worth_free(self, members: Sequence[Pending | Running]) -> float:
        """The efficiency of two jobs that nobody makes wait for their turn; 0 where they may not share, or it is not
        worth it."""
        how = self._overlaps(members)
        if not how:
            self._refusals.setdefault(members[-1].job.id, how)
            return 0.0
        if any(self._overruns(item, how.speed) for item in members):
            return 0.0
        used = sum(sum(job.stages) / job.solo_s for job in self._group(members).jobs)
        return used * how.speed / self._rules.options.k

    def _group(self, members: Sequence[Pending | Running]) -> Group:
        return Group(members[0].job.gpus, tuple(self._line.known[entry.job.id] for entry in members))

    def _overruns(self, entry: Pending | Running, speed: float) -> bool:
        """Whether the job, at this speed, is expected to reach its time limit, at which Slurm ends it."""
        limit_s = entry.job.time_limit_s
        if limit_s is None:
            return False
        ran_s = entry.elapsed_s(self._now_s) if isinstance(entry, Running) else 0.0
        found: Prediction | None = self._snapshot.predictions.get(entry.job.id)
        left_s = limit_s if found is None else found.remaining_s(ran_s)
        return left_s / speed > limit_s - ran_s

    # -- words --------------------------------------------------------------------------------------------------

    def _overlaps(self, members: Sequence[Pending | Running]) -> Overlaps:
        one, other = self._group(members).jobs
        return Overlaps(" ".join(entry.job.id for entry in members), conflict(one, other), MOST_CONFLICT)

    def _reason(self, members: Sequence[Pending | Running]) -> Interleaved | Overlaps:
        if self._free(members):
            return self._overlaps(members)
        return self._interleaved(members)

    def _interleaved(self, members: Sequence[Pending | Running], least: float = _LEAST_GAIN) -> Interleaved:
        alone_s = sum(job.solo_s for job in self._group(members).jobs)
        ids = " ".join(entry.job.id for entry in members)
        return Interleaved(len(members), ids, self._period_s(members), alone_s, least)

    def _why(self, job: Job) -> tuple[Reason, ...]:
        found = self._line.why.get(job.id)
        return () if found is None else (found,)

    def _actions(self, host: _Host) -> list[Action]:
        """The changes for the jobs on the host's GPUs."""
        if len(host.members) == host.here:
            return []
        group = host.ids if len(host.members) > 1 else ()
        how: tuple[Reason, ...] = (self._reason(host.members),) if group else ()
        made: list[Action] = []
        for entry in host.members:
            free = () if host.free is None else (host.free,)
            why = (*self._why(entry.job), *how, *free)
            decision: Start | Regroup
            if isinstance(entry, Running):
                decision = Regroup(host.placement, why, group)
            else:
                slots = entry.job.takes_turns and len(host.placement) == 1
                decision = Start(host.placement, why, group=group, slots=slots)
                self._decisions[entry.job.id] = decision
            made.append(Action(entry.job.id, self._partition.name, decision))
        return made

    def _hold(self, entry: Pending, head: Pending | None) -> Hold:
        """The decision that the job waits. ``head``: the job before which no other may start, if there is one."""
        refused = self._refusals.get(entry.job.id)
        words: tuple[Reason, ...] = () if refused is None else (refused,)
        if head is not None and head is not entry:
            return Hold((*self._why(entry.job), *words, BehindHead(head.job.id)))
        return Hold((*self._why(entry.job), *words, *no_place(self._ledger, entry)))


def _need_mib(entry: Pending | Running, card_mib: float) -> float:
    """GPU memory that is kept for a job: its fence under MPS, its measured peak and some slack, so that all of a
    group may reach theirs at once. The whole card where the job has none."""
    fence = memory_limit_mib(entry.profile, card_mib)
    return card_mib if fence is None else fence
