"""What no plan may do and no state may be, whatever the policy says: written from docs/write-a-policy.md and the
acceptance rows, and not from the code that it judges."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lucid.config.policy import PolicySettings
from lucid.core.decision import (
    Decision,
    EndProfiling,
    Hold,
    Keep,
    PartitionPlan,
    Plan,
    Regroup,
    Requeue,
    Resize,
    Start,
)
from lucid.core.job import Ended, Job, JobProfile, Pending, Running
from lucid.core.node import Node
from lucid.core.placement import Placement, placement_gpus
from lucid.core.ports import Applied, Predictor
from lucid.core.reason import Reason
from lucid.core.reasons.queue import Reserved
from lucid.core.reasons.sharing import PairHarm
from lucid.core.snapshot import WAITING_ORDER, Partition, Snapshot
from lucid.orchestrator.planner import make_policies
from lucid.orchestrator.policy import PolicyRules, rules_of

INTERLEAVING = {"muri-s": 4, "muri-l": 4, "muri-l-2": 2, "muri-l-3": 3}
"""Most jobs that these may put on the same GPUs."""


class Held(NamedTuple):
    """What a job holds, and with whom."""

    entry: Pending | Running
    where: Placement
    partner: str | None = None
    group: tuple[str, ...] = ()


def holdings(room: Partition) -> dict[str, Held]:
    """By job, as a partition shows it."""
    return {e.job.id: Held(e, e.placement, e.partner, e.group) for e in room.running}


def may_restart(job: Job, made: PolicySettings) -> bool:
    """Whether the administrator and the user let a job be started over."""
    rule = made.profiling.restarts
    return job.requeueable and (rule == "allowed" or (rule == "asked" and job.restart_asked))


def check_held(
    room: Partition,
    held: Mapping[str, Held],
    jobs: Sequence[str],
    seen: Snapshot,
    rules: PolicyRules,
    made: PolicySettings,
) -> None:
    """The rules of GPUs and hosts, of these of the jobs that hold something."""
    nodes = {node.name: node for node in room.nodes}
    on_gpu: dict[tuple[str, int], set[str]] = defaultdict(set)
    cpus, mem_mib = defaultdict[str, float](float), defaultdict[str, float](float)
    for job_id, (entry, where, _, _) in held.items():
        for name, mask in where:
            share = mask.bit_count() / max(entry.job.gpus, 1)
            cpus[name] += entry.job.cpus * share
            mem_mib[name] += entry.job.mem_mib * share
            on_gpu.update({(name, i): on_gpu[name, i] | {job_id} for i in range(64) if mask >> i & 1})
    for job_id in jobs:
        (_, where, _, group), job = held[job_id], held[job_id].entry.job
        count = placement_gpus(where)
        least, most = (job.gpus, job.gpus) if job.elastic is None else (job.elastic.min_gpus, job.elastic.max_gpus)
        assert least <= count <= most, f"{job_id} holds {count} GPUs"
        for name, mask in where:
            node = nodes[name]
            assert node.available, f"{job_id} on {name}, which is down"
            assert not mask >> node.gpus
            assert not (node.cpus and job.cpus) or cpus[name] <= node.cpus + 1e-6, f"CPUs of {name}"
            assert not (node.mem_mib and job.mem_mib) or mem_mib[name] <= node.mem_mib + 1e-6, f"memory of {name}"
            for gpu in (i for i in range(node.gpus) if mask >> i & 1):
                here = {other: held[other] for other in on_gpu[name, gpu]}
                if group:
                    _check_group(here, node, rules, made)
                elif len(here) == 2:
                    _check_pair(here, node, made, seen)
                else:
                    assert here.keys() == {job_id}, f"{sorted(here)} on {name}:{gpu}"


def _check_group(here: Mapping[str, Held], node: Node, rules: PolicyRules, made: PolicySettings) -> None:
    names = sorted(here)
    assert 2 <= len(here) <= (min(node.slots, rules.group_limit) if node.slots else rules.group_limit), names
    members = [one.entry for one in here.values()]
    for one in here.values():
        assert sorted(one.group) == names, f"{one.entry.job.id} is in {one.group}, on its GPU are {names}"
        assert len({tuple(sorted(other.where)) for other in here.values()}) == 1, f"{names}: other GPUs"
        assert one.partner is None
        assert one.entry.job.shareable, f"{one.entry.job.id} is not shareable"
    if node.slots:
        assert all(entry.job.takes_turns and entry.profile for entry in members)
        assert len({entry.job.user for entry in members}) == 1 or not made.packing.same_user_only


def _check_pair(here: Mapping[str, Held], node: Node, made: PolicySettings, seen: Snapshot) -> None:
    names, (a, b) = sorted(here), here.values()
    assert (a.partner, b.partner) == (b.entry.job.id, a.entry.job.id), f"{names}: do not know of each other"
    assert sorted(a.where) == sorted(b.where), f"{names}: other GPUs"
    assert a.entry.job.gpus == b.entry.job.gpus, f"{names}: other GPU counts"
    assert len(a.where) == 1, f"{names}: distributed"
    assert node.slots != 1
    scores, peaks_mib = 0, 0.0
    for entry in (a.entry, b.entry):
        assert entry.profile is not None, f"{names}: unmeasured"
        assert entry.job.shareable, f"{names}: not shareable"
        assert not entry.alone, f"{names}: parted before"
        score = seen.predictions[entry.job.id].share_score
        assert score is not None
        scores += score
        peaks_mib += entry.profile.gpu_mem_mib
    assert 0 < made.packing.gss >= scores, f"{names}: GSS"
    assert peaks_mib <= node.gpu_mem_mib, f"{names}: GPU memory"
    assert not made.packing.same_user_only or a.entry.job.user == b.entry.job.user


def judge(seen: Snapshot, plan: Plan, stated: PolicyRules, made: PolicySettings, tally: Counter[str]) -> None:
    """Hold a plan to all of it. ``tally``: how often it does what."""
    done: set[str] = set()
    waiting = {e.job.id: (name, e) for name, room in seen.partitions.items() for e in room.pending}
    for name, room in seen.partitions.items():
        part, rules, after, placed = plan.partitions[name], stated.for_partition(name), holdings(room), list[str]()
        for action in part.actions:
            assert action.job_id not in done, "two actions on one job"
            done.add(action.job_id)
            decision, here = action.decision, after.get(action.job_id)
            tally[type(decision).__name__ + (" part" if isinstance(decision, Requeue) and decision.part else "")] += 1
            if isinstance(decision, Start):
                home, entry = waiting[action.job_id]
                _judge_start(decision, entry, home != name, room, rules, tally)
                after[action.job_id] = Held(entry, decision.placement, decision.beside, decision.group)
                if decision.beside is not None:
                    host = after[decision.beside]
                    assert host.partner is None, f"{action.job_id} is the third"
                    assert not any(e.profile is None or e.profile.unstable for e in (entry, host.entry))
                    after[decision.beside] = host._replace(partner=action.job_id)
            elif isinstance(decision, Requeue | EndProfiling) and here is not None:
                job, protected = here.entry.job, not may_restart(here.entry.job, made)
                pairs = rules.pairs and isinstance(here.entry, Running) and here.entry.partner
                tally["restarts"] += 1
                if isinstance(decision, EndProfiling) or decision.part:
                    assert rules.profiles if isinstance(decision, EndProfiling) else pairs
                    assert not protected, f"{job.id} is started over, and may not be"
                else:
                    assert rules.preempts == "anybody" or (rules.preempts == "elastic" and job.elastic)
                    assert not protected or not room.live or job.elastic
                del after[action.job_id]
                after |= {i: one._replace(partner=None) for i, one in after.items() if one.partner == job.id}
            elif isinstance(decision, Resize | Regroup):
                assert here is not None
                assert here.partner is None
                if isinstance(decision, Resize):
                    assert rules.resizes
                    assert here.entry.job.elastic is not None
                else:
                    assert rules.interleaves
                    assert not room.live or set(here.where) == set(decision.placement)
                group = getattr(decision, "group", here.group)
                after[action.job_id] = here._replace(where=decision.placement, group=group)
            else:
                assert rules.profiles
                assert room.profiling
            if isinstance(decision, Start | Resize | Regroup):
                placed.append(action.job_id)
            if isinstance(decision, Start | Regroup) and decision.group:
                tally["largest group"] = max(tally["largest group"], len(decision.group))
        check_held(room, after, placed, seen, rules, made)
        for one in (after[job_id] for job_id in placed if after[job_id].group):
            assert fit([after[i].entry.profile for i in one.group], one.where, room), f"{one.group}: GPU memory"
        if room.quotas:
            _judge_quotas(room, part, seen.now_s, rules, made, tally)
    decided = Counter(job_id for part in plan.partitions.values() for job_id in part.decisions)
    assert all(decided[job_id] == 1 for job_id in waiting), "undecided, or decided twice"


def _judge_start(
    start: Start, entry: Pending, lent: bool, room: Partition, rules: PolicyRules, tally: Counter[str]
) -> None:
    assert not lent or (room.profiling and rules.profiles and not entry.home_only)
    assert not entry.barred
    assert start.beside is None or rules.pairs
    assert not start.group or rules.interleaves
    assert not start.slots or rules.pairs or rules.interleaves
    tally["lent"] += lent
    tally["beside"] += start.beside is not None
    tally["group"] += bool(start.group)
    tally["unmeasured in slots"] += start.slots and entry.profile is None


def fit(peaks: Sequence[JobProfile | None], where: Placement, room: Partition) -> bool:
    """Whether these peaks fit on each GPU of a placement together."""
    least = min(node.gpu_mem_mib for node in room.nodes if any(node.name == part.node for part in where))
    return sum(item.gpu_mem_mib for item in peaks if item is not None) <= least


def _judge_quotas(
    room: Partition, part: PartitionPlan, now_s: float, rules: PolicyRules, made: PolicySettings, tally: Counter[str]
) -> None:
    moved = {a.job_id for a in part.actions if not isinstance(a.decision, Start | Keep)}
    held, first = Counter[str](), set[Placement]()
    for entry in room.running:
        if entry.job.id not in moved and entry.placement not in first:
            first.add(entry.placement)
            held[entry.job.vc] += placement_gpus(entry.placement)
    jobs = {entry.job.id: entry.job for entry in room.listed()}
    for action in part.actions:
        decision, job = action.decision, jobs[action.job_id]
        if not isinstance(decision, Start | Resize | Regroup) or getattr(decision, "beside", None) is not None:
            continue
        held[job.vc] += placement_gpus(decision.placement)
        if held[job.vc] > room.quotas[job.vc]:
            tally["beyond"] += 1
            assert rules.borrows
            assert job.gpus <= room.quotas[job.vc]
            turn_s = (made.fairness.beyond_plain_s or math.inf) / 2
            assert made.lending.mode == "borrow" or now_s - job.submit_s >= turn_s


def could_run(job: Job, machines: Sequence[Node]) -> bool:
    """Do these nodes, all empty, hold the job in a consolidated place: one node, or whole nodes of the largest
    size and a remainder?"""
    size = max((m.gpus for m in machines), default=0)

    def holds(machine: Node, gpus: int) -> bool:
        cpus, mem = -(-job.cpus * gpus // job.gpus), -(-job.mem_mib * gpus // job.gpus)
        room = cpus <= (machine.cpus or math.inf) and mem <= (machine.mem_mib or math.inf)
        return machine.available and machine.gpus >= gpus and room

    if job.gpus <= size:
        return any(holds(m, job.gpus) for m in machines)
    whole, rest = divmod(job.gpus, size)
    full = [m for m in machines if m.gpus == size and holds(m, size)]
    if len(full) < whole or not rest:
        return len(full) >= whole
    small = [m for m in machines if m.gpus != size and holds(m, rest)]
    return bool(small) or len(full) > whole


def check_decision(entry: Pending | Running, decision: Decision) -> None:
    """The decision fits the state of the job, and its reasons agree with it."""
    assert decision.reasons, f"{entry.job.id}: no reason"
    verdicts: dict[str, bool] = {item.kind: bool(item) for item in decision.reasons}
    waiting = isinstance(entry, Pending)
    if isinstance(decision, Start):
        assert waiting
        slots = verdicts.pop("InSlots", None)
        assert slots is None or slots is decision.slots
        if decision.beside is None:
            assert verdicts["FreeGpus"]
        else:
            assert all(verdicts.values()), f"{entry.job.id} packed although {verdicts}"
            assert {"ShareScores", "GpuMemory", "PartnerOutlasts", "SameGpus"} <= verdicts.keys()
    elif isinstance(decision, Regroup):
        assert not waiting
        assert verdicts["FreeGpus"]
        assert entry.placement != decision.placement or set(entry.group) != set(decision.group), "nothing changes"
    elif isinstance(decision, Hold):
        assert waiting
        assert any(holds_back(item) for item in decision.reasons), f"{entry.job.id} held although {verdicts}"
    elif isinstance(decision, EndProfiling):
        assert verdicts.get("ProfileTime", False) != waiting
        if "HomeHasRoom" in verdicts:  # measured at home: in a burst, or wherever home has room
            assert waiting
            assert verdicts["HomeHasRoom"]
        else:
            assert not waiting or verdicts.get("WaitedForProfiling") or not verdicts.get("ProfilingFits", True)
    elif isinstance(decision, Keep):
        assert not waiting
        assert verdicts["ProfileTime"]
        assert not verdicts.get("Requeueable", True) or (verdicts["HomeWaits"] and verdicts["NobodyWaits"])
    else:
        assert not waiting
        parted = {"Stable", "SeenSpeed", "GpuMemory"} & verdicts.keys()
        broken = len(parted) == 1 and not verdicts[parted.pop()]
        # jobs before this one leave it no GPUs: none of the quota, or no place
        left_out = verdicts.get("Preempted", False) or not verdicts.get("FreeGpus", True)
        assert verdicts["Requeueable"] and broken if decision.part else left_out


def holds_back(item: Reason) -> bool:
    """Is this comparison, as it came out, one that keeps a job from starting?"""
    if item.kind in {"FreeGpus", "HostFits", "EverFits", "Backfill"}:
        return not item
    return item.kind in {"TooLarge", "Preempted", "BehindHead", "NextRound"} and bool(item)


def outline(plan: Plan) -> dict[str, object]:
    """A plan without its reasons and without its order of decisions: what will happen."""
    return {name: outline_of(part) for name, part in plan.partitions.items()}


def outline_of(part: PartitionPlan) -> object:
    """Of one partition."""
    told = ("placement", "beside", "group")
    decided = {job_id: (type(d), *(getattr(d, it, None) for it in told)) for job_id, d in part.decisions.items()}
    return decided, [(a.job_id, type(a.decision)) for a in part.actions]


def _time_moves_kept_nodes(plan: PartitionPlan, room: Partition, seen: Snapshot) -> bool:
    """Are nodes kept, and what guests may start there moves with every second? It does where a job runs for longer
    than was expected, and where a guest has to end in time even if it takes several times its estimate."""
    kept = [r for made in plan.decisions.values() for r in made.reasons if isinstance(r, Reserved)]
    late = (e.elapsed_s(seen.now_s) + e.ran_s > seen.predictions[e.job.id].duration_s for e in room.running)
    return any(r.times > 1 for r in kept) or (bool(kept) and any(late))


@dataclass
class Watcher:
    """A recorder that judges every cycle."""

    policy: str
    settings: PolicySettings
    predictor: Predictor
    compare_cold: bool = True
    own: Mapping[str, str] = field(default_factory=dict)
    """By partition, the policy of those that have another."""
    cycles: int = 0
    tally: Counter[str] = field(default_factory=Counter)
    ended: dict[str, Ended] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)
    outlines: list[object] = field(default_factory=list)
    last: Mapping[str, PartitionPlan] = field(default_factory=dict)

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        self.cycles += 1
        fresh = make_policies(self.policy, self.own, self.settings, self.predictor)
        rules, seen = rules_of(fresh), set[str]()
        for name, room in snapshot.partitions.items():
            held = holdings(room)
            check_held(room, held, [*held], snapshot, rules.for_partition(name), self.settings)
            here = [entry.job.id for entry in room.listed()]
            assert len({*seen, *here}) == len(seen) + len(here), "a job is in two places"
            seen.update(here)
            assert all(snapshot.predictions[i].stages for e in room.running for i in e.group), "never run dry"
            assert [*room.pending] == sorted(room.pending, key=WAITING_ORDER), f"those who wait in {name}"
        for item in snapshot.ended:
            assert item.job.id not in self.ended, f"{item.job.id} ended twice"
            self.ended[item.job.id] = item
        assert [item.action for item in applied] == plan.actions
        assert not [item for item in applied if item.refused]
        judge(snapshot, plan, rules, self.settings, self.tally)
        waiting = {e.job.id: e for room in snapshot.partitions.values() for e in room.pending}
        for name, room in snapshot.partitions.items():
            self._partition(room, plan.partitions[name], waiting)
        self.outlines.append(outline(plan))
        if self.compare_cold:
            cold = fresh.plan(snapshot)
            for name, part in plan.partitions.items():
                again = cold.partitions[name]
                if self.last.get(name) is not part:  # with every reason, in order
                    assert [*part.decisions.items()] == [*again.decisions.items()], "what is carried on differs"
                    assert (part.actions, part.wake_s) == (again.actions, again.wake_s)
                    assert getattr(part.memory, "shadow", None) == getattr(again.memory, "shadow", None)
                # regroups at arrivals and ends only (M16), although attained service grows in between; and kept nodes
                # are looked at anew after LOOK_AGAIN_S, decision 0005
                elif self.policy not in INTERLEAVING:
                    moves = _time_moves_kept_nodes(part, snapshot.partitions[name], snapshot)
                    assert moves or outline_of(part) == outline_of(again), "a kept plan differs from a fresh one"
        self.last = plan.partitions

    def _partition(self, room: Partition, made: PartitionPlan, waiting: Mapping[str, Pending]) -> None:
        running = {e.job.id: e for e in room.running}
        members: dict[str, Pending | Running] = {**waiting, **running}
        acting = {a.job_id for a in made.actions}
        for entry in room.running:
            if entry.partner is not None and entry.profile is not None and entry.profile.unstable:
                pair = (entry, running[entry.partner])
                parted = any(e.job.id in acting for e in pair)
                assert parted or not any(may_restart(e.job, self.settings) for e in pair), "not parted"
            if entry.group and not fit([running[i].profile for i in entry.group], entry.placement, room):
                assert acting & set(entry.group), f"{entry.group}: found to exceed the GPU's memory, and left so"
        for job_id, decision in made.decisions.items():
            entry = members[job_id]
            check_decision(entry, decision)
            assert isinstance(decision, Hold) != (job_id in acting), f"{job_id}: decision and action differ"
            if isinstance(decision, Start):
                self.starts[job_id] += 1
                if decision.slots:
                    assert len(decision.placement) == 1
                    assert entry.job.shareable
                    assert not entry.alone  # type: ignore[union-attr]
            if isinstance(decision, Start) and decision.beside is not None:
                assert decision.slots
                pair = (entry, members[decision.beside])  # type: ignore[assignment]
                if self.policy == "lucid" and not any(may_restart(e.job, self.settings) for e in pair):
                    bounds = [item for item in decision.reasons if isinstance(item, PairHarm)]
                    assert bounds, f"{job_id}: beside {decision.beside} for ever, and nobody asked at what cost"
                    assert 1.0 - bounds[0].worst <= self.settings.packing.unparted_harm + 1e-6
            if entry.job.gpus > room.gpus and not room.profiling:
                assert isinstance(decision, Hold)
                assert [r.kind for r in decision.reasons] in (["TooLarge"], ["BehindHead"], ["NextRound"])
            if isinstance(decision, Start | Regroup) and decision.group:
                faster = any(item.kind == "Interleaved" and item for item in decision.reasons)
                assert faster or not self.settings.muri.unpack or self.policy not in ("muri-s", "muri-l")
