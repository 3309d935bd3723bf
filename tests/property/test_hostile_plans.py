"""Plans by lot, with every lie that a plan can tell, of policies that state rules by lot: what the safety check lets
through breaks no rule. The rules are written once more here, from what docs/policies.md promises.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

from examples import tried
from lucid.config import PolicySettings
from lucid.core.decision import (
    Action,
    Decision,
    Hold,
    Keep,
    PartitionPlan,
    Plan,
    Regroup,
    Release,
    Requeue,
    Resize,
    Start,
)
from lucid.core.job import Elastic, Job, JobProfile, Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement, placement_gpus
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.check import SafetyCheck
from lucid.orchestrator.rules import PolicyRules
from scenes.hostile import LIES
from scenes.plans import ANYTHING, guess, settings

LONGEST_S, BOUND_S = 100.0, 400.0


def a_job(rng: random.Random, name: str, gpus: int, vcs: tuple[str, ...]) -> Job:
    return Job(
        name, rng.choice(vcs), gpus, float(rng.randrange(500)), user=rng.choice(["ada", "ada", "eve"]),
        cpus=rng.choice([0, 1, 2]), requeueable=rng.random() < 0.8, restart_asked=rng.random() < 0.5,
        shareable=rng.random() < 0.8, takes_turns=rng.random() < 0.7,
        elastic=Elastic(4) if rng.random() < 0.25 else None,
    )  # fmt: skip


def a_profile(rng: random.Random) -> JobProfile | None:
    made = JobProfile(9.0, 9.0, rng.choice([3000.0, 3000.0, 14000.0]), unstable=rng.random() < 0.1)
    return made if rng.random() < 0.85 else None


def a_room(rng: random.Random, name: str, vcs: tuple[str, ...], slots: int, profiling: bool) -> Partition:
    """Some nodes with jobs alone and in pairs on them, and some that wait."""
    machines = [
        Node(f"{name}{i}", 4, cpus=rng.choice([0, 8]), available=rng.random() < 0.85, slots=slots)
        for i in range(rng.randint(1, 3))
    ]
    running: list[Running] = []
    for node in machines:
        for gpu in range(0, 4, 2):
            gpus, draw = rng.choice([1, 2]), rng.random()
            if draw < 0.4:
                continue
            where = (NodeGpus(node.name, (1 << gpus) - 1 << gpu),)
            ids = [f"{node.name}r{gpu}"] if draw < 0.7 else [f"{node.name}r{gpu}", f"{node.name}s{gpu}"]
            stage = Stage.PROFILE if profiling and len(ids) == 1 else Stage.MAIN
            grouped = len(ids) == 2 and rng.random() < 0.3
            for i, made in enumerate(ids):
                running.append(
                    Running(
                        a_job(rng, made, gpus, vcs), 0.0, where, stage, a_profile(rng), alone=rng.random() < 0.1,
                        partner=ids[1 - i] if len(ids) == 2 and not grouped else None,
                        group=tuple(ids) if grouped else (),
                    )
                )  # fmt: skip
    pending = [
        Pending(
            a_job(rng, f"{name}p{i}", rng.choice([1, 1, 2, 2, 4, 8]), vcs), 0.0, a_profile(rng),
            alone=rng.random() < 0.1, barred=rng.choice([*[""] * 7, "Licenses"]), home_only=rng.random() < 0.2,
        )
        for i in range(rng.randint(2, 6))
    ]  # fmt: skip
    quotas = {vc: rng.choice([0, 1, 2, 8]) for vc in vcs} if len(vcs) > 1 else {}
    return Partition(name, tuple(machines), tuple(pending), tuple(running), profiling, quotas=quotas)


def somewhere(rng: random.Random, room: Partition, gpus: int) -> Placement:
    """GPUs of the room, more often than not free ones."""
    used = {(name, mask) for entry in room.running for name, mask in entry.placement}
    nodes = rng.sample(room.nodes, min(len(room.nodes), -(-gpus // 4)))
    where = []
    for node in nodes:
        masks = [(1 << min(gpus, 4)) - 1 << shift & 15 or 1 for shift in range(4)]
        free = [m for m in masks if not any(name == node.name and m & other for name, other in used)]
        where.append(NodeGpus(node.name, rng.choice(free if free and rng.random() < 0.8 else masks)))
    return tuple(where)


def some_decision(rng: random.Random, room: Partition, entry: Pending | Running) -> Decision:
    gpus = entry.job.gpus
    where = somewhere(rng, room, gpus)
    hosts = [other for other in room.running if other is not entry and other.job.gpus == gpus]
    if isinstance(entry, Pending) and rng.random() < 0.9:
        if hosts and rng.random() < 0.5:
            host = rng.choice(hosts)
            return Start(host.placement, LIES, host.job.id, slots=True)
        return Start(where, LIES, slots=rng.random() < 0.2)
    stays = entry.placement if isinstance(entry, Running) else where
    return rng.choice(
        [
            Requeue(LIES), Requeue(LIES, part=True), Release(LIES), Keep(LIES), Start(where, LIES),
            Resize(somewhere(rng, room, rng.randint(1, 5)), LIES), Regroup(where, LIES), Regroup(stays, LIES),
        ]
    )  # fmt: skip


def some_group(rng: random.Random, room: Partition) -> dict[str, Decision]:
    """One that waits joins those on some GPUs; now and then one of them is not told."""
    host, guest = rng.choice(room.running), rng.choice(room.pending)
    members = host.group or (host.job.id,)
    group, where = (*members, guest.job.id), host.placement
    told: dict[str, Decision] = {guest.job.id: Start(where, LIES, group=group, slots=True)}
    return told | {job: Regroup(where, LIES, group) for job in members if rng.random() < 0.9}


def some_plan(rng: random.Random, seen: Snapshot) -> Plan:
    parts = {}
    everybody: list[Pending | Running] = []
    for room in seen.partitions.values():
        everybody += [*room.pending, *room.running]
    for name, room in seen.partitions.items():
        decisions: dict[str, Decision] = {entry.job.id: Hold(LIES) for entry in room.pending}
        own: list[Pending | Running] = [*room.pending, *room.running]
        for entry in rng.sample(own, rng.randint(0, min(len(own), 5))):
            decisions[entry.job.id] = some_decision(rng, room, entry)
        if room.running and rng.random() < 0.4:
            decisions |= some_group(rng, room)
        if rng.random() < 0.3:
            stranger = rng.choice(everybody)
            decisions[stranger.job.id] = some_decision(rng, room, stranger)
        acts = [Action(job_id, name, made) for job_id, made in decisions.items() if not isinstance(made, Hold)]
        rng.shuffle(acts)
        parts[name] = PartitionPlan(decisions, tuple(acts))
    return Plan(seen.now_s, parts)


def some_scene(rng: random.Random) -> tuple[Snapshot, PolicyRules, PolicySettings]:
    slots = rng.choice([0, 0, 1, 2, 4])
    vcs = rng.choice([("a",), ("va", "vb")])
    rooms = [a_room(rng, "a", vcs, slots, False), a_room(rng, "p", vcs, slots, True)]
    rooms[1] = replace(rooms[1], quotas={})
    entries = [entry for room in rooms for entry in (*room.pending, *room.running)]
    known = {e.job.id: guess(rng.choice([50.0, 500.0]), rng.choice([None, 0, 0, 1, 2])) for e in entries}
    seen = Snapshot(float(rng.choice([500, 600, 900])), {room.name: room for room in rooms}, predictions=known)
    rules = rng.choice([PolicyRules(), ANYTHING, ANYTHING])
    for name in ("pairs", "profiles", "resizes", "borrows"):
        rules = replace(rules, **{name: getattr(rules, name) is not (rng.random() < 0.2)})
    if rules.preempts != "nobody":
        rules = replace(rules, preempts=rng.choice(["elastic", "anybody"]))
    made = settings(
        packing={"gss": rng.choice([0, 1, 2]), "same_user_only": rng.random() < 0.5},
        profiling={"restarts": rng.choice(["never", "asked", "allowed"])},
        lending={
            "mode": rng.choice(["off", "quota", "borrow", "borrow"]),
            "longest_s": LONGEST_S,
            "bound_s": BOUND_S,
        },
    )
    return seen, rules, made


def judge(seen: Snapshot, plan: Plan, rules: PolicyRules, made: PolicySettings, tally: Counter[str]) -> None:
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
                assert decision.beside is None or rules.pairs
                assert not decision.group or rules.interleaves
                assert not decision.slots or rules.pairs or rules.interleaves
                after[action.job_id] = waits, decision.placement
                groups[action.job_id] = decision.group
                if decision.beside is not None:
                    paired.add(action.job_id)
                    tally["beside"] += 1
                tally["group"] += bool(decision.group)
            elif isinstance(decision, Requeue | Release) and isinstance(entry, Running):
                job, rule = entry.job, made.profiling.restarts
                protected = not job.requeueable or rule == "never" or (rule == "asked" and not job.restart_asked)
                if isinstance(decision, Release) or decision.part:
                    assert rules.profiles if isinstance(decision, Release) else rules.pairs and entry.partner
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
    undecided = {i for i in waiting if not any(i in part.decisions for part in plan.partitions.values())}
    assert not undecided


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
        line = sorted((e.job.submit_s, e.job.id) for e in room.pending if e.job.vc == job.vc and e.job.gpus > 4)
        short = seen.predictions[job.id].duration_s <= LONGEST_S
        lends = made.lending.mode == "borrow" and (short or (line and job.gpus > 4))
        turn = made.lending.mode != "off" and seen.now_s - job.submit_s >= BOUND_S / 2
        assert lends or turn


def one(rng: random.Random, tally: Counter[str]) -> None:
    seen, rules, made = some_scene(rng)
    left, unsafe = SafetyCheck(rules, made).safe_part(seen, some_plan(rng, seen))
    tally["refused"] += len(unsafe)
    judge(seen, left, rules, made, tally)
    SafetyCheck(rules, made)(seen, left)


@tried(400, 60)
def test_what_is_left_of_a_hostile_plan_breaks_no_rule(rng: random.Random) -> None:
    one(rng, Counter())


def test_hostile_plans_do_everything_there_is() -> None:
    """Else nothing is left of them whose rules could be broken."""
    tally: Counter[str] = Counter()
    for seed in range(400):
        one(random.Random(seed), tally)
    kinds = {"Start", "Requeue", "Requeue part", "Resize", "Regroup", "Release", "Keep", "beside", "group", "beyond"}
    assert {kind for kind in kinds if tally[kind] < 3} == set(), tally
    assert tally["refused"] > 1000
