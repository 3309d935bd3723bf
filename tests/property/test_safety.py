"""Plans are safe, in whatever order they are carried out."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec import structs

from examples import Dice, tried
from lucid.binder.binder import Binder
from lucid.binder.contention import contention_speeds
from lucid.config.policy import OverheadSettings, PolicySettings
from lucid.core.job import Job, JobProfile
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.ports import Capability, Predictor
from lucid.core.prediction import StageTimes
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.planner import make_policies
from lucid.orchestrator.registry import BUILT_IN
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.truth import Interleaving, OraclePredictor
from lucid.simulator.engine import run
from lucid.simulator.predictors import DryRunPredictor, GivenPredictor
from lucid.simulator.traces.record import Trace, TraceJob
from safety_rules import INTERLEAVING, Watcher, could_run, outline
from scenes.crowded import some_crowded_vc
from scenes.jobs import HEAVY, LIGHT, VC, at, nodes, waits
from scenes.plans import FixedPredictor, guess, part, policy
from scenes.plans import settings as rules_of
from scenes.replays import a_cluster, a_trace

PLAIN = ("fifo", "backfill", "sjf", "srtf", "srsf", "qssf", "muri-s", "muri-l", "muri-l-2", "lucid")
SECTIONS: dict[str, Mapping[str, Any]] = {
    **{name: {} for name in PLAIN},
    "backfill, EASY, weighted": {
        "backfill": {"depth": 1, "weight_age": 1000.0, "weight_size": 500.0, "max_age_s": 600.0}
    },
    "tiresias": {"tiresias": {"threshold_gpu_s": 600.0}},
    "muri-l, no unpacking": {"muri": {"unpack": False}},
    "lucid, gss 0": {"packing": {"gss": 0}},
    "lucid, gss 1": {"packing": {"gss": 1}},
    "lucid, gss 4, anything goes": {
        "packing": {"gss": 4, "least_pair_speed": 0.0, "least_partner_remaining_s": 0.0}
    },
    "lucid, first partner": {"packing": {"partner": "first", "priority_ratio": 2.0}},
    "lucid, no reservations": {"reservation": {"enabled": False}},
    "lucid, plain order": {"fairness": {"estimates": "never"}},
    "lucid, no profiling": {"profiling": {"enabled": False}},
    "lucid, restarts on request": {"profiling": {"restarts": "asked"}},
    "lucid, no restarts, all overflow": {
        "profiling": {"restarts": "never"}, "packing": {"unparted_harm": 1.0},
    },
    "lucid, no restarts, bounded": {"profiling": {"restarts": "never"}, "fairness": {"beyond_plain_s": 500.0}},
    "lucid, short patience": {"profiling": {"max_wait_s": 100.0, "carry_on_share": 1.0, "n_prof": 4}},
    "lucid, bounded": {"fairness": {"beyond_plain_s": 500.0}},
    "lucid, bounded late": {"fairness": {"beyond_plain_s": 1000.0, "keep_from": 1.0}},
    "lucid, fifo and backfill elsewhere": {"fairness": {"beyond_plain_s": 500.0}},
    "lucid, time-aware": {"profiling": {"time_aware": True}},
    "lucid, pairs when calm": {"packing": {"when_calm": True}},
}  # fmt: skip
VARIANTS = {name: (name.partition(",")[0], sections) for name, sections in SECTIONS.items()}
"""Policy and settings, by variant."""

OWN = {"lucid, fifo and backfill elsewhere": {"other": "fifo", "third": "backfill"}}
"""Policies of single partitions, by variant."""

HEAD_OF_LINE = {"fifo", "sjf", "srtf", "srsf", "qssf", "tiresias"}
"""One job that waits for a node to come back may hold up everybody behind it."""


@dataclass(frozen=True)
class Scene:
    """One random cluster and its jobs."""

    layout: Mapping[str, tuple[Node, ...]]
    profiling_nodes: tuple[Node, ...]
    crowded: bool
    oracle: bool
    trace: Trace = field(default_factory=a_trace)
    estimates_s: Mapping[str, float] = field(default_factory=dict)

    def predictor(self) -> Predictor:
        if self.oracle:
            return DryRunPredictor(self.trace, OraclePredictor(self.trace, contention_speeds))
        given = GivenPredictor("given", self.estimates_s, self.trace, HistoryPredictor(500.0))
        return DryRunPredictor(self.trace, given)

    def cluster(self, policy: Any, rules: PolicySettings) -> SimulatedCluster:
        return a_cluster(
            self.trace,
            self.layout,
            profiling_nodes=self.profiling_nodes if rules.profiling.enabled else (),
            profiled=policy.profiled,
            profiling=rules.profiling,
            overheads=OverheadSettings(),
            interleaving=Interleaving() if Capability.INTERLEAVE in policy.needs else None,
            agents=Capability.ADAPT in policy.needs,
        )


def some_nodes(rng: random.Random, prefix: str, most: int) -> tuple[Node, ...]:
    size, mixed = rng.choice([1, 2, 4, 8]), rng.random() < 0.25
    host = {"cpus": rng.choice([0, 0, 8, 32]), "mem_mib": rng.choice([0, 0, 64000])}
    made = []
    for i in range(rng.randint(1, most)):
        gpus, mem_mib = (rng.choice([1, 2, 4, 8]), rng.choice([24576, 24576, 11000])) if mixed else (size, 24576)
        made.append(Node(f"{prefix}{i}", gpus, mem_mib, available=rng.random() > 0.1, **host))
    return tuple(made)


def some_profile(rng: random.Random, crowded: bool) -> JobProfile | None:
    if crowded:
        return JobProfile(rng.choice([0.0, 20.0, 60.0]), 5.0, rng.choice([3000.0, 10000.0, 16000.0]))
    if rng.random() < 0.15:
        return None
    return JobProfile(
        gpu_util=rng.choice([0.0, 5.0, 20.0, 60.0, 100.0]),
        mem_util=rng.choice([0.0, 5.0, 30.0, 100.0]),
        gpu_mem_mib=rng.choice([0.0, 3000.0, 10000.0, 12288.0, 24000.0, 90000.0]),
        unstable=rng.random() < 0.15,
    )


def some_item(rng: random.Random, number: int, submit_s: float, scene: Scene) -> TraceJob:
    vc = rng.choice(list(scene.layout))
    have = sum(node.gpus for node in scene.layout[vc])
    crowded = scene.crowded
    gpus = rng.choice([1, 1, 1, 1, 2, 2, 2, 4] if crowded else [1, 1, 1, 2, 4, 8, rng.randint(1, 20), have, have + 1])
    limited = rng.random() < (0.2 if crowded else 0.5)
    job = Job(
        f"j{number}",
        vc,
        gpus,
        submit_s,
        rank=number,
        user=rng.choice(["ann", "bob", ""]),
        name=rng.choice(["train", "debug", ""]),
        cpus=gpus * rng.choice([1, 2, 4]) if limited else 0,
        mem_mib=gpus * rng.choice([1000, 8000, 40000]) if limited else 0,
        requeueable=rng.random() > 0.15,
        long_cold_start=rng.random() < 0.1,
        shareable=crowded or rng.random() > 0.1,
        restart_asked=rng.random() < 0.3,
        **rng.choice([*[{}] * 9, {"tier": 1}, {"nice": 5}]),
    )
    long_s = rng.randint(600, 3000) + 0.5
    short_s = rng.choice([0.0, 1.0, 30.0, 80.0, 90.0, 300.0])
    label = rng.choice([None, 0, 0, 1, 2])
    duration_s = long_s if rng.random() < (0.8 if crowded else 0.4) else short_s
    return TraceJob(job, duration_s, "", some_profile(rng, crowded), label)


def some_scene(rng: random.Random, most_jobs: int = 14, most_nodes: int = 3) -> Scene:
    """Half of the scenes are crowded with jobs that could share, half are as odd as possible."""
    crowded = rng.random() < 0.5
    names = [VC, "other", "third"][: rng.randint(1, 2 if crowded else 3)]
    layout = {name: some_nodes(rng, f"{name}-", 1 if crowded else most_nodes) for name in names}
    profiling_nodes = () if rng.random() < 0.2 else some_nodes(rng, "prof-", 2)
    scene = Scene(layout, profiling_nodes, crowded, oracle=rng.random() < 0.3)
    items, submit_s, estimates = [], 0.0, {}
    for number in range(rng.randint(most_jobs // 2 if crowded else 1, most_jobs)):
        submit_s += rng.choice([0.0, 0.0, 0.0, 1.0, 10.0, 60.0, 333.3])
        items.append(some_item(rng, number, submit_s, scene))
    for item in (item for item in items if rng.random() < 0.8):
        estimates[item.job.id] = rng.choice([1.0, 60.0, item.duration_s + 1.0, item.duration_s + 1.0, 5000.0])
    return replace(scene, trace=a_trace(*items), estimates_s=estimates)


def with_stages(trace: Trace) -> Trace:
    """The trace with stage times for most jobs, the same for the same number and GPU count."""
    items = []
    for item in trace.jobs:
        rng = random.Random(f"{item.job.id} {item.job.gpus}")
        times = tuple(rng.choice([0.1, 1.0, 5.0]) for _ in range(4))
        known = StageTimes(times, sum(times), rng.choice([0.0, 5.0, 20.0]))
        items.append(replace(item, stages=known if rng.random() < 0.9 else None))
    return replace(trace, jobs=tuple(items))


def play(scene: Scene, variant: str, compare_cold: bool = True) -> tuple[Watcher, dict[str, JobOutcome]]:
    (name, sections), own = VARIANTS[variant], OWN.get(variant, {})
    if not scene.profiling_nodes:
        sections = {**sections, "profiling": {**sections.get("profiling", {}), "enabled": False}}
    if name in INTERLEAVING:
        scene = replace(scene, trace=with_stages(scene.trace))
    rules, predictor = rules_of(**sections), scene.predictor()
    policy = make_policies(name, own, rules, predictor)
    cluster = scene.cluster(policy, rules)
    assert policy.needs <= cluster.capabilities | {Capability.PROFILE}
    watcher = Watcher(name, rules, predictor, compare_cold, own)
    result = run(cluster, policy, predictor, watcher, settings=rules)
    return watcher, {outcome.job.id: outcome for outcome in result.outcomes}


def check_end(scene: Scene, variant: str, watcher: Watcher, outcomes: Mapping[str, JobOutcome]) -> None:
    """Nothing was lost, all that could run did, and the books balance."""
    assert outcomes.keys() == {item.job.id for item in scene.trace.jobs}
    for item in scene.trace.jobs:
        job, outcome = item.job, outcomes[item.job.id]
        machines = scene.layout[job.vc]
        ended = watcher.ended.get(job.id)
        assert (ended is None) == (outcome.end_s < 0)
        if ended is None:
            assert not could_run(job, machines) or waits_for_repair(scene, variant, job.vc), f"{job.id} starved"
            continue
        assert outcome.end_s == ended.end_s
        assert watcher.starts[job.id] >= 1
        assert outcome.queue_s >= 0
        # all of a job's time is either waiting or running
        assert outcome.queue_s + ended.ran_s == pytest.approx(outcome.jct_s, abs=1e-4)
        # no pair is faster than alone, so nobody does his work in less time than it takes
        assert ended.ran_s >= item.duration_s - 1e-4
        assert outcome.profiled_s <= ended.ran_s + 1e-6
        assert outcome.packed_s <= ended.ran_s + 1e-6
        assert outcome.packed or outcome.packed_s == 0
        if variant.startswith("lucid"):
            assert outcome.preemptions == 0, "Lucid never preempts"
            assert watcher.starts[job.id] <= 3, "a job may come home from profiling once and be parted once"


def waits_for_repair(scene: Scene, variant: str, vc: str) -> bool:
    """Head-of-line policies may wait for a job that needs a node which is down."""
    here, jobs = scene.layout[vc], [item.job for item in scene.trace.jobs if item.job.vc == vc]
    up = [replace(node, available=True) for node in here]
    in_line = OWN.get(variant, {}).get(vc, VARIANTS[variant][0]) in HEAD_OF_LINE
    return in_line and any(could_run(job, up) and not could_run(job, here) for job in jobs)


@pytest.mark.parametrize("variant", VARIANTS)
@tried(25)
def test_every_cycle_of_every_policy_is_safe(variant: str, rng: random.Random) -> None:
    every_cycle_is_safe(variant, rng)


def test_a_job_that_comes_home_as_its_equal_arrives_has_one_place() -> None:
    """The cluster showed it last, and a queue carried from plan to plan had it first."""
    every_cycle_is_safe("lucid, gss 4, anything goes", Dice(2003))


def every_cycle_is_safe(variant: str, rng: random.Random) -> None:
    scene = some_scene(rng)
    watcher, outcomes = play(scene, variant)
    check_end(scene, variant, watcher, outcomes)


REACHES: dict[str, dict[str, int]] = {
    "lucid": {"beside": 9},
    "lucid, restarts on request": {"lent": 5, "unmeasured in slots": 5, "beside": 1, "restarts": 5},
    "lucid, no restarts, all overflow": {"lent": 6, "unmeasured in slots": 6},
    "muri-l": {"Regroup": 51, "largest group": 4},
}


@pytest.mark.parametrize("variant", REACHES)
def test_the_random_scenes_reach_what_they_are_for(variant: str) -> None:
    found: Counter[str] = Counter()
    for seed in range(10):
        scene = some_scene(random.Random(seed), 30)
        found += play(scene, variant, False)[0].tally
    assert {what for what, least in REACHES[variant].items() if found[what] < least} == set(), found
    assert "no restarts" not in variant or not found["restarts"], "whoever asked: never is never"


@pytest.mark.nightly
@pytest.mark.skipif(not os.environ.get("LUCID_NIGHTLY"), reason="set LUCID_NIGHTLY=1")
@pytest.mark.parametrize("variant", VARIANTS)
def test_twenty_thousand_random_cycles_are_safe(variant: str) -> None:
    cycles, seed = 0, 0
    while cycles < 20_000:
        seed += 1
        scene = some_scene(random.Random(f"{variant} {seed}"), most_jobs=60, most_nodes=6)
        watcher, outcomes = play(scene, variant, compare_cold=seed % 4 == 0)
        check_end(scene, variant, watcher, outcomes)
        cycles += watcher.cycles


@pytest.mark.parametrize("name", BUILT_IN)
@tried(25)
def test_the_order_of_the_input_does_not_matter(name: str, rng: random.Random) -> None:
    """Of jobs of which no two have the same submit time, estimate or estimate x GPUs."""
    seen = some_crowded_vc(rng)
    room = seen.partitions[VC]
    primes = rng.sample([p for p in range(101, 1000) if all(p % n for n in range(2, 32))], len(seen.predictions))
    said = zip(primes, seen.predictions.items(), strict=True)
    known = {job: structs.replace(one, duration_s=float(prime)) for prime, (job, one) in said}
    plans = []
    for _ in range(2):
        given = replace(seen, partitions={VC: room}, predictions=known)
        plans.append(outline(policy(name, FixedPredictor()).plan(given)))
        room = replace(room, pending=tuple(rng.sample(room.pending, len(room.pending))))
    assert plans[0] == plans[1]


def test_a_job_starts_in_slots_if_and_only_if_another_may_join_it() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        gpus, gss = rng.choice([1, 2, 4]), rng.choice([0, 1, 2, 4])
        profile = replace(rng.choice([LIGHT, HEAVY]), unstable=rng.random() < 0.2)
        entry = waits("j", gpus, profile=profile, shareable=rng.random() < 0.7, alone=rng.random() < 0.3)
        known = {"j": guess(1000.0, rng.choice([0, 1, 2])), "p": guess(10.0, 0)}
        vc, packing = part(nodes(3, 2)), rules_of(packing={"gss": gss}).packing
        placement = at("n1:0-1 n2:0-1") if gpus == 4 else at("n1:0") if gpus == 1 else at("n1:0-1")
        binder = Binder(vc, Ledger(vc), known, FixedPredictor(), packing, 0.0)
        in_slots = binder.in_slots(entry, known["j"].share_score, len(placement))
        binder.started(entry, placement)
        guest, beside = waits("p", gpus, profile=LIGHT), None
        if binder.bars(guest, 0, gss) is None or gpus == 4:  # a job of two nodes is barred anyway
            beside, _ = binder.partner(guest, 10.0, 0, gss)
        assert bool(in_slots) is (beside is not None), f"seed {seed}: {in_slots}"
