"""The safety rules once more, written from the acceptance rows and not from the code that they judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lucid.config.policy import PolicySettings
from lucid.core.decision import Decision, EndProfiling, Hold, Keep, PartitionPlan, Plan, Regroup, Requeue, Start
from lucid.core.job import Ended, Job, Pending, Running
from lucid.core.node import Node
from lucid.core.placement import Placement
from lucid.core.ports import Applied, Predictor
from lucid.core.prediction import Prediction
from lucid.core.reason import Reason
from lucid.core.reasons.queue import Reserved
from lucid.core.reasons.sharing import PairHarm
from lucid.core.snapshot import WAITING_ORDER, Partition, Snapshot
from lucid.orchestrator.planner import make_policies
from lucid.orchestrator.policy import Policy

PREEMPTIVE = {"srtf", "srsf", "tiresias"}
INTERLEAVING = {"muri-s": 4, "muri-l": 4, "muri-l-2": 2, "muri-l-3": 3}
"""Most jobs that these may put on the same GPUs."""


def gpu_set(entry: Running) -> frozenset[tuple[str, int]]:
    """The GPUs of a running job, one by one."""
    return frozenset((part.node, gpu) for part in entry.placement for gpu in range(64) if part.mask >> gpu & 1)


def on_host(total: int, here: int, gpus: int) -> float:
    """The least that a job can need of a host resource on one node: its part by GPUs."""
    return total * here / gpus


def could_run(job: Job, machines: Sequence[Node]) -> bool:
    """Do these nodes, all empty, hold the job in a consolidated place: one node, or whole nodes of the largest
    size and a remainder?"""
    size = max((m.gpus for m in machines), default=0)

    def holds(machine: Node, gpus: int) -> bool:
        cpus, mem = -(-job.cpus * gpus // job.gpus), -(-job.mem_mib * gpus // job.gpus)
        return (
            machine.available
            and machine.gpus >= gpus
            and (not machine.cpus or cpus <= machine.cpus)
            and (not machine.mem_mib or mem <= machine.mem_mib)
        )

    if job.gpus <= size:
        return any(holds(m, job.gpus) for m in machines)
    whole, rest = divmod(job.gpus, size)
    full = [m for m in machines if m.gpus == size and holds(m, size)]
    if len(full) < whole or not rest:
        return len(full) >= whole
    small = [m for m in machines if m.gpus != size and holds(m, rest)]
    return bool(small) or len(full) > whole


def check_state(
    partitions: Mapping[str, Partition],
    predictions: Mapping[str, Prediction],
    settings: PolicySettings,
    most: int = 1,
) -> None:
    """What must hold of every state that a policy brings about."""
    seen: set[str] = set()
    for partition in partitions.values():
        machines = {m.name: m for m in partition.nodes}
        on_gpu: dict[tuple[str, int], list[Running]] = defaultdict(list)
        cpus: dict[str, float] = defaultdict(float)
        mem: dict[str, float] = defaultdict(float)
        for entry in (*partition.pending, *partition.running):
            assert entry.job.id not in seen, f"{entry.job.id} is in two places"
            seen.add(entry.job.id)
        waiting = sorted(partition.pending, key=WAITING_ORDER)
        assert [*partition.pending] == waiting, f"those who wait in {partition.name} are not in order"
        for entry in partition.running:
            gpus = gpu_set(entry)
            assert len(gpus) == entry.job.gpus, f"{entry.job.id} holds {len(gpus)} GPUs"
            for name, gpu in gpus:
                assert machines[name].available, f"{entry.job.id} on {name}, which is down"
                assert gpu < machines[name].gpus
                on_gpu[name, gpu].append(entry)
                cpus[name] += on_host(entry.job.cpus, 1, entry.job.gpus)
                mem[name] += on_host(entry.job.mem_mib, 1, entry.job.gpus)
        for (name, gpu), entries in on_gpu.items():
            if any(entry.group for entry in entries):
                check_group(entries, predictions, most)
                continue
            assert len(entries) <= 2, f"{len(entries)} jobs on {name}:{gpu}"
            if len(entries) == 2:
                check_pair(entries[0], entries[1], machines[name], predictions, settings)
            else:
                assert entries[0].partner is None
        for name, machine in machines.items():
            assert not machine.cpus or cpus[name] <= machine.cpus + 1e-6, f"CPUs of {name}"
            assert not machine.mem_mib or mem[name] <= machine.mem_mib + 1e-6, f"host memory of {name}"


def check_pair(
    a: Running, b: Running, machine: Node, predictions: Mapping[str, Prediction], settings: PolicySettings
) -> None:
    """The packing rules, of two jobs on one GPU."""
    names = f"{a.job.id} and {b.job.id}"
    assert gpu_set(a) == gpu_set(b), f"{names}: other GPUs"
    assert a.job.gpus == b.job.gpus, f"{names}: other GPU counts"
    assert (a.partner, b.partner) == (b.job.id, a.job.id), f"{names}: do not know of each other"
    assert len({part.node for part in a.placement}) == 1, f"{names}: distributed"
    scores = []
    for entry in (a, b):
        assert entry.profile is not None, f"{names}: unmeasured"
        assert entry.job.shareable, f"{names}: not shareable"
        assert not entry.alone, f"{names}: parted before"
        score = predictions[entry.job.id].share_score
        assert score is not None
        scores.append(score)
    assert a.profile.gpu_mem_mib + b.profile.gpu_mem_mib <= machine.gpu_mem_mib, f"{names}: GPU memory"
    assert settings.packing.gss > 0, f"{names}: sharing is off"
    assert sum(scores) <= settings.packing.gss, f"{names}: GSS"


def check_group(entries: Sequence[Running], predictions: Mapping[str, Prediction], most: int) -> None:
    """Jobs that take turns, all that are on one GPU."""
    names = sorted(entry.job.id for entry in entries)
    assert 2 <= len(entries) <= most, f"{names}: {len(entries)} on a GPU, at most {most}"
    for entry in entries:
        assert sorted(entry.group) == names, f"{entry.job.id} is in {entry.group}, on its GPU are {names}"
        assert gpu_set(entry) == gpu_set(entries[0]), f"{names}: other GPUs"
        assert entry.partner is None
        assert entry.job.shareable, f"{entry.job.id} is not shareable"
        assert predictions[entry.job.id].stages is not None, f"{entry.job.id} was never run dry"


def check_group_memory(
    group: Sequence[str], placement: Placement, members: Mapping[str, Pending | Running], machines: Sequence[Node]
) -> bool:
    """Do the memory peaks of a group fit, as far as they were measured?"""
    peaks = [members[job_id].profile for job_id in group]
    least = min(m.gpu_mem_mib for m in machines if any(m.name == part.node for part in placement))
    return sum(item.gpu_mem_mib for item in peaks if item is not None) <= least


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
        assert verdicts["Requeueable"] and broken if decision.part else left_out(verdicts)


def left_out(verdicts: Mapping[str, bool]) -> bool:
    """Jobs before this one leave it no GPUs: none of the quota, or no place."""
    return verdicts.get("Preempted", False) or not verdicts.get("FreeGpus", True)


def holds_back(item: Reason) -> bool:
    """Is this comparison, as it came out, one that keeps a job from starting?"""
    if item.kind in {"FreeGpus", "HostFits", "EverFits", "Backfill"}:
        return not item
    return item.kind in {"TooLarge", "Preempted", "BehindHead", "NextRound"} and bool(item)


def outline(plan: Plan) -> dict[str, object]:
    """A plan without its reasons and without its order of decisions: what will happen."""
    return {
        name: (
            {
                job_id: (type(d), getattr(d, "placement", None), getattr(d, "beside", None), getattr(d, "group", ()))
                for job_id, d in part.decisions.items()
            },
            [(a.job_id, type(a.decision)) for a in part.actions],
        )
        for name, part in plan.partitions.items()
    }


def _time_moves_kept_nodes(plan: PartitionPlan, partition: Partition, snapshot: Snapshot) -> bool:
    """Are nodes kept, and what guests may start there moves with every second? It does where a job runs for longer
    than was expected, and where a guest has to end in time even if it takes several times its estimate."""
    kept = [r for made in plan.decisions.values() for r in made.reasons if isinstance(r, Reserved)]
    return any(r.times > 1 for r in kept) or any(
        kept and e.elapsed_s(snapshot.now_s) + e.ran_s > snapshot.predictions[e.job.id].duration_s
        for e in partition.running
    )


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
    packed: int = 0
    regrouped: int = 0
    grouped: int = 0
    """Members of the largest group."""
    lent: int = 0
    """Starts of a VC's jobs on profiling nodes."""
    restarted: int = 0
    in_slots: int = 0
    """Starts in slots of jobs that nobody has measured."""
    ended: dict[str, Ended] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    outlines: list[object] = field(default_factory=list)
    last: Mapping[str, PartitionPlan] = field(default_factory=dict)

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        self.cycles += 1
        check_state(snapshot.partitions, snapshot.predictions, self.settings, INTERLEAVING.get(self.policy, 1))
        for item in snapshot.ended:
            assert item.job.id not in self.ended, f"{item.job.id} ended twice"
            self.ended[item.job.id] = item
        assert [item.action for item in applied] == plan.actions
        assert not [item for item in applied if item.refused]
        lent = self._overflow(snapshot, plan)
        for name, partition in snapshot.partitions.items():
            self._partition(partition, plan, name, lent)
        ids = [action.job_id for action in plan.actions]
        assert len(ids) == len(set(ids)), "two actions on one job"
        self.outlines.append(outline(plan))
        if self.compare_cold:
            kept, cold = outline(plan), outline(self.fresh().plan(snapshot))
            if self.policy in INTERLEAVING:
                # regroups at arrivals and ends only (M16), although attained service grows in between
                for name, part in plan.partitions.items():
                    if self.last.get(name) is part:
                        del kept[name], cold[name]
            for name in [n for n, part in plan.partitions.items() if self.last.get(n) is part]:
                if _time_moves_kept_nodes(plan.partitions[name], snapshot.partitions[name], snapshot):
                    del kept[name], cold[name]  # looked at anew after LOOK_AGAIN_S, decision 0005
            assert kept == cold, "a kept plan differs from a fresh one"
        self.last = plan.partitions

    def fresh(self) -> Policy:
        """The same policy without memory."""
        return make_policies(self.policy, self.own, self.settings, self.predictor)

    def _overflow(self, snapshot: Snapshot, plan: Plan) -> dict[str, Pending]:
        """Who waits in a VC and is started on a profiling node."""
        if snapshot.profiling is None:
            return {}
        theirs = {e.job.id for e in (*snapshot.profiling.pending, *snapshot.profiling.running)}
        lent = plan.partitions[snapshot.profiling.name].decisions.keys() - theirs
        found = {e.job.id: e for p in snapshot.partitions.values() for e in p.pending if e.job.id in lent}
        assert found.keys() == lent, "a job that waits nowhere"
        assert not lent or self.settings.profiling.restarts != "allowed", "all wait for profiling there"
        self.lent += len(lent)
        return found

    def may_restart(self, job: Job) -> bool:
        rule = self.settings.profiling.restarts
        return job.requeueable and (rule == "allowed" or (rule == "asked" and job.restart_asked))

    def _partition(self, partition: Partition, plan: Plan, name: str, lent: Mapping[str, Pending]) -> None:
        made = plan.partitions[name]
        members: dict[str, Pending | Running] = {e.job.id: e for e in (*partition.pending, *partition.running)}
        for pending in partition.pending:
            here, there = pending.job.id in made.decisions, pending.job.id in lent and not partition.profiling
            assert here is not there, f"{pending.job.id}: undecided, or decided twice"
        if partition.profiling:
            members |= lent
        acting = {a.job_id for a in made.actions}
        for running in partition.running:
            if running.partner is not None and running.profile is not None and running.profile.unstable:
                pair = (running, members[running.partner])
                assert any(e.job.id in acting for e in pair) or not any(self.may_restart(e.job) for e in pair), (
                    "not parted"
                )
            if running.group and not check_group_memory(running.group, running.placement, members, partition.nodes):
                assert acting & set(running.group), f"{running.group}: found to exceed the GPU's memory, and left so"
        for job_id, decision in made.decisions.items():
            entry = members[job_id]
            check_decision(entry, decision)
            assert isinstance(decision, Hold) != (job_id in acting), f"{job_id}: decision and action differ"
            if isinstance(decision, Start) and decision.beside is not None:
                partner = members[decision.beside]
                assert not any(e.profile is None or e.profile.unstable for e in (entry, partner)), (
                    f"{job_id}: unstable"
                )
                assert decision.slots
                if self.policy == "lucid" and not self.may_restart(entry.job) and not self.may_restart(partner.job):
                    bounds = [item for item in decision.reasons if isinstance(item, PairHarm)]
                    assert bounds, f"{job_id}: beside {decision.beside} for ever, and nobody asked at what cost"
                    assert 1.0 - bounds[0].worst <= self.settings.packing.unparted_harm + 1e-6
            if isinstance(decision, Start) and decision.slots:
                assert isinstance(entry, Pending)
                assert len(decision.placement) == 1
                assert entry.job.shareable
                assert not entry.alone
                self.in_slots += entry.profile is None
            if self.policy == "lucid" and isinstance(decision, Requeue | EndProfiling) and isinstance(entry, Running):
                assert self.may_restart(entry.job), f"{job_id} is started over, and may not be"
                self.restarted += 1
            if isinstance(decision, Start):
                self.starts[job_id] += 1
                self.packed += decision.beside is not None
            if entry.job.gpus > partition.gpus and not partition.profiling:
                assert isinstance(decision, Hold)
                assert [r.kind for r in decision.reasons] in (["TooLarge"], ["BehindHead"], ["NextRound"])
            if isinstance(decision, Requeue) and not decision.part:
                preempts = self.policy in PREEMPTIVE or self.policy in INTERLEAVING
                assert preempts, f"{self.policy} preempted {job_id}"
            if isinstance(decision, Regroup):
                assert self.policy in INTERLEAVING
                self.regrouped += 1
            if isinstance(decision, Start | Regroup) and decision.group:
                faster = any(item.kind == "Interleaved" and item for item in decision.reasons)
                assert faster or not self.settings.muri.unpack or self.policy not in ("muri-s", "muri-l")
                self.grouped = max(self.grouped, len(decision.group))
                assert check_group_memory(decision.group, decision.placement, members, partition.nodes), "GPU memory"
