"""Plans by lot, with every lie that a plan can tell, of policies that state rules by lot: what the safety check lets
through breaks no rule.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from examples import examples
from lucid.config.policy import PolicySettings
from lucid.core.decision import (
    Action,
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
from lucid.core.job import Elastic, Job, JobProfile, Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, Placement
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policy import PolicyRules
from lucid.orchestrator.safety.check import SafetyCheck
from safety_rules import judge
from scenes.hostile import LIES
from scenes.plans import ANYTHING, guess, settings


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
            Requeue(LIES), Requeue(LIES, part=True), EndProfiling(LIES), Keep(LIES), Start(where, LIES),
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
    parts, everybody = {}, [entry for room in seen.partitions.values() for entry in room.listed()]
    for name, room in seen.partitions.items():
        decisions: dict[str, Decision] = {entry.job.id: Hold(LIES) for entry in room.pending}
        own = room.listed()
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
    lent = {job_id for job_id, made in parts["p"].decisions.items() if isinstance(made, Start) and rng.random() < 0.7}
    home = {job_id: made for job_id, made in parts["a"].decisions.items() if job_id not in lent}
    acts = tuple(action for action in parts["a"].actions if action.job_id not in lent)
    return Plan(seen.now_s, {**parts, "a": PartitionPlan(home, acts)})


def some_scene(rng: random.Random) -> tuple[Snapshot, PolicyRules, PolicySettings]:
    slots = rng.choice([0, 0, 1, 2, 4])
    vcs = rng.choice([("a",), ("va", "vb")])
    rooms = [a_room(rng, "a", vcs, slots, False), a_room(rng, "p", vcs, slots, True)]
    rooms[1] = replace(rooms[1], quotas={})
    entries = [entry.job.id for room in rooms for entry in room.listed()]
    known = {job: guess(rng.choice([50.0, 500.0]), rng.choice([None, 0, 0, 1, 2])) for job in entries}
    seen = Snapshot(float(rng.choice([500, 600, 900])), {room.name: room for room in rooms}, predictions=known)
    rules = rng.choice([PolicyRules(), ANYTHING, ANYTHING])
    for name in ("pairs", "profiles", "resizes", "borrows"):
        rules = replace(rules, **{name: getattr(rules, name) is not (rng.random() < 0.2)})
    if rules.preempts != "nobody":
        rules = replace(rules, preempts=rng.choice(["elastic", "anybody"]))
    made = settings(
        packing={"gss": rng.choice([0, 1, 2]), "same_user_only": rng.random() < 0.5},
        profiling={"restarts": rng.choice(["never", "asked", "allowed"])},
        lending={"mode": rng.choice(["off", "quota", "borrow", "borrow"])},
        fairness={"beyond_plain_s": 400.0},
    )
    return seen, rules, made


def test_what_is_left_of_a_hostile_plan_breaks_no_rule() -> None:
    """And they do everything there is: else nothing is left of them whose rules could be broken."""
    tally: Counter[str] = Counter()
    for seed in range(examples(2000, 900)):
        seen, rules, made = some_scene(rng := random.Random(seed))
        left, unsafe = SafetyCheck(rules, made).safe_part(seen, some_plan(rng, seen))
        tally["refused"] += len(unsafe)
        judge(seen, left, rules, made, tally)
        SafetyCheck(rules, made)(seen, left)
    kinds = {"Start", "Requeue", "Requeue part", "Resize", "Regroup", "EndProfiling", "Keep"}
    kinds |= {"beside", "group", "beyond", "lent"}
    assert {kind for kind in kinds if tally[kind] < 3} == set(), tally
    assert tally["refused"] > 1000
