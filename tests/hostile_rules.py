"""What no plan may do, whatever its policy says: written from docs/write-a-policy.md, not from the judged code."""

from __future__ import annotations

from collections import Counter, defaultdict

from lucid.config.policy import PolicySettings
from lucid.core.decision import EndProfiling, Keep, PartitionPlan, Plan, Regroup, Requeue, Resize, Start
from lucid.core.job import Pending, Running
from lucid.core.node import Node
from lucid.core.placement import Placement, placement_gpus
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policy import PolicyRules

BOUND_S = 400.0
"""``policy.fairness.beyond_plain_s``."""


def judge(seen: Snapshot, plan: Plan, rules: PolicyRules, made: PolicySettings, tally: Counter[str]) -> None:
    """Hold a plan to all of it. ``tally``: how often it does what."""
    done: set[str] = set()
    waiting = {e.job.id: (name, e) for name, room in seen.partitions.items() for e in room.pending}
    for name, room in seen.partitions.items():
        part, live = plan.partitions[name], any(node.slots for node in room.nodes)
        after: dict[str, tuple[Pending | Running, Placement]] = {e.job.id: (e, e.placement) for e in room.running}
        groups: dict[str, tuple[str, ...]] = {e.job.id: e.group for e in room.running}
        paired: set[str] = set()
        placed: set[str] = set()
        for action in part.actions:
            assert action.job_id not in done
            done.add(action.job_id)
            decision, entry = action.decision, after.get(action.job_id, (None,))[0]
            kind = type(decision).__name__ + (" part" if isinstance(decision, Requeue) and decision.part else "")
            tally[kind] += 1
            if isinstance(decision, Start):
                home, waits = waiting[action.job_id]
                assert home == name or (room.profiling and rules.profiles and not waits.home_only)
                assert not waits.barred
                tally["lent"] += home != name
                assert decision.beside is None or rules.pairs
                assert not decision.group or rules.interleaves
                assert not decision.slots or rules.pairs or rules.interleaves
                after[action.job_id] = waits, decision.placement
                groups[action.job_id] = decision.group
                if decision.beside is not None:
                    paired.add(action.job_id)
                    tally["beside"] += 1
                tally["group"] += bool(decision.group)
            elif isinstance(decision, Requeue | EndProfiling) and isinstance(entry, Running):
                job, rule = entry.job, made.profiling.restarts
                protected = not job.requeueable or rule == "never" or (rule == "asked" and not job.restart_asked)
                if isinstance(decision, EndProfiling) or decision.part:
                    assert rules.profiles if isinstance(decision, EndProfiling) else rules.pairs and entry.partner
                    assert not protected
                else:
                    assert rules.preempts == "anybody" or (rules.preempts == "elastic" and job.elastic)
                    assert not protected or not live or job.elastic
                del after[action.job_id]
            elif isinstance(decision, Resize | Regroup):
                assert isinstance(entry, Running)
                assert entry.partner is None
                if isinstance(decision, Resize):
                    assert rules.resizes
                    assert entry.job.elastic is not None
                else:
                    assert rules.interleaves
                    assert not live or set(entry.placement) == set(decision.placement)
                    groups[action.job_id] = decision.group
                after[action.job_id] = entry, decision.placement
            else:
                assert rules.profiles
                assert room.profiling
            if isinstance(decision, Start | Resize | Regroup):
                placed.add(action.job_id)
        _judge_gpus(room, seen, after, groups, paired, placed, made)
        if room.quotas:
            _judge_quotas(room, part, seen, rules, made, tally)
    decided = Counter(job_id for part in plan.partitions.values() for job_id in part.decisions)
    assert all(decided[job_id] == 1 for job_id in waiting), "undecided, or decided twice"


def _judge_gpus(
    room: Partition,
    seen: Snapshot,
    after: dict[str, tuple[Pending | Running, Placement]],
    groups: dict[str, tuple[str, ...]],
    paired: set[str],
    placed: set[str],
    made: PolicySettings,
) -> None:
    nodes = {node.name: node for node in room.nodes}
    holds: dict[tuple[str, int], set[str]] = defaultdict(set)
    for job_id, (_, where) in after.items():
        for name, mask in where:
            for gpu in range(8):
                if mask >> gpu & 1:
                    holds[name, gpu].add(job_id)
    for job_id in placed:
        entry, where = after[job_id]
        job, count = entry.job, placement_gpus(where)
        assert count == job.gpus if job.elastic is None else 1 <= count <= 4
        for name, mask in where:
            assert nodes[name].available
            assert not mask >> nodes[name].gpus
            for gpu in range(4):
                if not mask >> gpu & 1:
                    continue
                here = holds[name, gpu]
                if groups.get(job_id):
                    assert here == set(groups[job_id])
                    assert all(sorted(after[other][1]) == sorted(where) for other in here)
                    assert all(after[other][0].job.shareable for other in here)
                    assert nodes[name].slots == 0 or len(here) <= nodes[name].slots
                    if nodes[name].slots:
                        assert all(after[other][0].job.takes_turns and after[other][0].profile for other in here)
                        users = {after[other][0].job.user for other in here}
                        assert len(users) == 1 or not made.packing.same_user_only
                elif len(here) == 2:
                    assert here & paired
                    _judge_pair([after[other] for other in here], seen, nodes[name], made)
                else:
                    assert here == {job_id}


def _judge_pair(
    pair: list[tuple[Pending | Running, Placement]], seen: Snapshot, node: Node, made: PolicySettings
) -> None:
    entries = [entry for entry, _ in pair]
    assert sorted(pair[0][1]) == sorted(pair[1][1])
    assert len(pair[0][1]) == 1
    assert node.slots != 1
    scores, peaks_mib = 0, 0.0
    for entry in entries:
        assert entry.profile is not None
        assert not entry.profile.unstable
        assert entry.job.shareable
        assert not entry.alone
        score = seen.predictions[entry.job.id].share_score
        assert score is not None
        scores += score
        peaks_mib += entry.profile.gpu_mem_mib
    assert 0 < made.packing.gss >= scores
    assert peaks_mib <= node.gpu_mem_mib
    assert not made.packing.same_user_only or len({entry.job.user for entry in entries}) == 1


def _judge_quotas(
    room: Partition,
    part: PartitionPlan,
    seen: Snapshot,
    rules: PolicyRules,
    made: PolicySettings,
    tally: Counter[str],
) -> None:
    moved = {a.job_id for a in part.actions if not isinstance(a.decision, Start | Keep)}
    held: Counter[str] = Counter()
    first: dict[Placement, str] = {}
    for entry in room.running:
        if entry.job.id not in moved and entry.placement not in first:
            first[entry.placement] = entry.job.vc
            held[entry.job.vc] += placement_gpus(entry.placement)
    entries: list[Pending | Running] = [*room.pending, *room.running]
    jobs = {entry.job.id: entry.job for entry in entries}
    for action in part.actions:
        decision, job = action.decision, jobs[action.job_id]
        if not isinstance(decision, Start | Resize | Regroup) or (
            isinstance(decision, Start) and decision.beside is not None
        ):
            continue
        held[job.vc] += placement_gpus(decision.placement)
        if held[job.vc] <= room.quotas[job.vc]:
            continue
        tally["beyond"] += 1
        assert rules.borrows
        assert job.gpus <= room.quotas[job.vc]
        assert made.lending.mode == "borrow" or seen.now_s - job.submit_s >= BOUND_S / 2
