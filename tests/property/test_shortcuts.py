"""A shortcut changes nothing: each plan is made with and without what spares it work, over random clusters."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

import pytest

from examples import examples
from lucid.binder import candidates
from lucid.binder.binder import Binder
from lucid.binder.rules import ORDER, Guest
from lucid.config.policy import PackingSettings, PolicySettings
from lucid.core.decision import Plan, Start
from lucid.core.job import Job, JobProfile, Running
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.reasons.sharing import GpuMemory, PairSpeed, PartnerOutlasts, Stable
from lucid.core.snapshot import Partition
from lucid.orchestrator.capacity import timeline
from lucid.orchestrator.capacity.placement import Feasibility, consolidated
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.orchestrator.order.queue_order import QueueOrder, QueueRow
from lucid.orchestrator.policies import backfill
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid.plan import VcBooks, plan_vc
from lucid.orchestrator.policies.lucid.policy import LucidPolicy
from lucid.orchestrator.safety.check import SafetyCheck
from safety_rules import outline
from scenes.crowded import some_crowded_vc, some_traits, some_waiting
from scenes.jobs import VC, a_job, nodes, runs, waits
from scenes.plans import FixedPredictor, decide, guess, part, snap
from scenes.plans import settings as rules_of

SCENES = examples(300)


class EachByItself(QueueOrder):
    """The order in which no job has the shape of another: what stopped one says nothing of the next."""

    def __call__(self, *args: Any) -> list[QueueRow]:
        return [(row[0], -at, *row[2:]) for at, row in enumerate(super().__call__(*args))]


class BooksByItself(VcBooks):
    """What plans take over from each other, with that order."""

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        packing, restarts = settings.packing, settings.profiling.restarts
        self.order = EachByItself(packing.same_user_only, settings.fairness.share_bound, restarts)


def without_shapes(settings: PolicySettings, predictor: FixedPredictor) -> LucidPolicy:
    """Lucid's policy, that decides every job by itself."""
    made = LucidPolicy(settings, predictor)
    made._books = defaultdict(lambda: BooksByItself(settings))
    return made


def some_rules(rng: random.Random) -> PolicySettings:
    """Settings under which the speed of a pair decides nothing: a shape does not know it, by decision."""
    packing = {"gss": rng.choice([1, 2, 2, 4]), "same_user_only": rng.random() < 0.3}
    packing |= {"priority_ratio": rng.choice([None, 1.0]), "unparted_harm": rng.choice([0.0, 1.0])}
    return rules_of(
        profiling={"enabled": False, "restarts": rng.choice(["allowed", "asked", "never"])},
        packing=packing | {"partner": rng.choice(["best", "first"])},
        fairness={"share_bound": rng.choice([1.0, 2.0])},
        reservation={"enabled": rng.random() < 0.5, "most_share": 0.9},
    )


def test_what_stopped_a_job_of_the_same_shape_would_stop_this_one() -> None:
    """And jobs start behind others that are held: what this is for happens often enough in the scenes."""
    behind = 0
    for seed in range(max(SCENES, 100)):
        rng = random.Random(seed)
        snapshot, rules = some_crowded_vc(rng), some_rules(rng)
        quick = LucidPolicy(rules, FixedPredictor()).plan(snapshot)
        every = without_shapes(rules, FixedPredictor()).plan(snapshot)
        assert outline(quick) == outline(every), f"seed {seed}"
        SafetyCheck(LucidPolicy.rules, rules)(snapshot, quick)
        decisions = quick.partitions[VC].decisions
        for job_id, decision in decisions.items():
            for why in decision.reasons:  # a reason that names the job is told of no other
                assert not isinstance(why, Stable) or why.job == job_id, f"seed {seed}"
        queue = QueueOrder()(snapshot.partitions[VC], snapshot.predictions)
        started = [isinstance(decisions[row[4]], Start) for row in queue]
        behind += any(later and not first for first, later in pairwise(started))
    assert behind > 8


def test_an_order_that_remembers_is_the_order_made_anew() -> None:
    """Through arrivals, ends, profiles, new estimates and new shares of accounts."""
    for seed in range(40):
        rng = random.Random(seed)
        by_user, bound = rng.random() < 0.5, rng.choice([1.0, 2.0])
        remembers = QueueOrder(by_user, bound, "asked")
        snapshot = some_crowded_vc(rng)
        partition, known = snapshot.partitions[VC], dict(snapshot.predictions)
        pending, shares = list(partition.pending), snapshot.fair_share
        for step in range(6):
            partition = replace(partition, pending=tuple(sorted(pending, key=attrgetter("since_s", "job.rank"))))
            anew = QueueOrder(by_user, bound, "asked")(partition, known, shares)
            kept = remembers(partition, known, shares)
            assert [(row[0], *row[2:]) for row in kept] == [(row[0], *row[2:]) for row in anew]
            shapes = {(one[1], other[1]) for one, other in zip(kept, anew, strict=True)}
            assert len(shapes) == len({one for one, _ in shapes}) == len({other for _, other in shapes})
            usual = some_traits(rng)
            entry, known[f"p{100 + step}"] = some_waiting(rng, 100 + step, usual)
            if rng.random() < 0.5:
                known[rng.choice(pending).job.id] = guess(rng.choice([50.0, 5000.0]), rng.choice([0, 1, 2]))
            pending = [replace(e, alone=not e.alone) if rng.random() < 0.1 else e for e in pending]
            pending = [entry, *rng.sample(pending, len(pending) - 1)]
            if rng.random() < 0.5:
                shares = {key: rng.random() for key in shares}


def test_the_end_of_room_in_plain_order_is_the_end_for_all_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(100):
        rng = random.Random(seed)
        snapshot = some_crowded_vc(rng)
        plain = rules_of(backfill={"depth": rng.choice([1, 100]), "weight_size": rng.choice([0.0, 10.0])}).backfill
        quick = BackfillPolicy(plain).plan(snapshot)
        with monkeypatch.context() as patch:  # however few GPUs the jobs behind need, each is looked at
            patch.setattr(backfill, "_small_until", lambda queue, *_: len(queue))
            assert outline(quick) == outline(BackfillPolicy(plain).plan(snapshot)), f"seed {seed}"


def test_a_limit_to_the_search_for_partners_is_none_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom a share score rules out does not count; with as many candidates as the limit, all are looked at."""
    usual, fast = (JobProfile(util, 5.0, 3000.0) for util in (20.0, 5.0))
    hosts = {"full1": usual, "full2": usual, "slow": usual, "fast": fast}
    running = [runs(name, f"n{i + 1}:0", profile=profile) for i, (name, profile) in enumerate(hosts.items())]
    known = {name: guess(9000.0, 2 if name.startswith("full") else 0) for name in hosts} | {"p": guess(100.0, 1)}
    snapshot = snap(1000.0, part(nodes(4, 1), [waits("p", profile=usual)], running), predictions=known)
    predictor = FixedPredictor(speed=lambda _, other: (1.0, 1.0) if other.gpu_util < 10 else (0.9, 0.9))
    for limit in (2, 3, 256):
        monkeypatch.setattr(candidates, "SCAN_LIMIT", limit)
        start = decide("lucid", snapshot, predictor, profiling={"enabled": False}).decisions["p"]
        assert start.beside == "fast", f"limit {limit}"


# -- single decisions ------------------------------------------------------------------------------------------------


def some_empty_vc(rng: random.Random) -> tuple[Partition, list[Job]]:
    """Nodes, some of other sizes or with limits of CPUs, and jobs of all kinds."""
    same, machines, wanted = rng.random() < 0.5, list[Node](), list[Job]()
    for i in range(rng.randint(1, 3)):
        gpus, cpus = (4, 0) if same else (rng.choice([2, 4]), rng.choice([0, 8]))
        machines.append(Node(f"n{i}", gpus, 24576, available=rng.random() > 0.2, cpus=cpus))
    for i in range(8):
        gpus = rng.choice([1, 2, 3, 4, 6, 12])
        wanted.append(a_job(f"j{i}", gpus, cpus=rng.choice([0, 4, 40]), min_nodes=min(rng.choice([1, 1, 2]), gpus)))
    return part(machines), wanted


def test_a_job_is_barred_if_and_only_if_it_finds_no_place_and_placing_needs_no_look_at_every_node() -> None:
    """What ``Feasibility`` says at once, or remembers of a like job, is what trying on empty nodes says."""
    for seed in range(300):
        room, wanted = some_empty_vc(random.Random(seed))
        feasible, up = Feasibility(room), part([replace(node, available=True) for node in room.nodes])
        quick, slow = Ledger(room), Ledger(room)
        for job in wanted:
            assert (feasible.bar(job) is None) is (consolidated(Ledger(up), job) is not None), f"seed {seed}: {job}"
            placement = consolidated(quick, job)
            assert placement == consolidated(slow, job, lambda _: True), f"seed {seed}: {job}"
            if placement is not None:
                quick.claim(job, placement)
                slow.claim(job, placement)


def test_ends_that_count_as_one_make_nobody_start_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many ends of running jobs neighbours count as the later of them; below, each counts."""
    for seed in range(100):
        rng = random.Random(seed)
        snapshot = some_crowded_vc(rng)
        room = snapshot.partitions[VC]
        ends = [(1000.0 + rng.choice([10.0, 20.0, 30.0, 500.0]), e.job, e.placement) for e in room.running]
        wanted = [entry.job for entry in room.pending]
        exact = Timeline(Ledger(room, 1000.0), 1000.0, ends)
        with monkeypatch.context() as patch:
            patch.setattr(timeline, "_MOST_STEPS", rng.choice([1, 2, 4]))
            coarse = Timeline(Ledger(room, 1000.0), 1000.0, ends)
            fine = len({end_s for end_s, _, _ in ends}) <= timeline._MOST_STEPS
        for job in wanted:
            first, later = exact.find(job, 100.0), coarse.find(job, 100.0)
            for_good = any(w.until_s is None for node in room.nodes for w in node.windows)
            assert first is not None or later is None
            assert later is not None or first is None or (for_good and not fine)  # the node closes before, for good
            if first is not None and later is not None:
                assert later.start_s >= first.start_s
                assert not fine or later == first


def test_a_vc_that_is_not_planned_because_nobody_waits_there_would_decide_nothing() -> None:
    """Except that an unstable pair is parted there too."""
    parted = 0
    for seed in range(100):
        rng = random.Random(seed)
        snapshot, rules = some_crowded_vc(rng), some_rules(rng)
        running = list(snapshot.partitions[VC].running)
        if running:
            host, profile = running.pop(), JobProfile(20.0, 5.0, 3000.0, unstable=rng.random() < 0.5)
            job, partner = a_job("guest", host.job.gpus), host.job.id
            guest = Running(job, 500.0, host.placement, profile=profile, partner=partner)
            running += [replace(host, partner="guest"), guest]
        room = replace(snapshot.partitions[VC], pending=(), running=tuple(running))
        known = {**snapshot.predictions, "guest": guess(900.0, 0)}
        empty = replace(snapshot, partitions={VC: room}, predictions=known)
        made = plan_vc(room, empty, rules, FixedPredictor(), VcBooks(rules))
        parted += bool(made.actions)
        assert outline(LucidPolicy(rules, FixedPredictor()).plan(empty)) == outline(Plan(1000.0, {VC: made}))
    assert parted > 5


def some_packing(rng: random.Random) -> PackingSettings:
    """Any limits to the rules between two jobs, in any order."""
    limits = {
        "unparted_harm": rng.choice([0.0, 0.3, 1.0]),
        "priority_ratio": rng.choice([None, 0.5, 2.0]),
        "least_pair_speed": rng.choice([0.0, 0.54, 0.85, 1.0]),
        "least_partner_remaining_s": rng.choice([0.0, 300.0, 1e4]),
    }
    return some_rules(rng).packing.changed(limits)


def test_a_pair_is_judged_as_the_reasons_tell_it() -> None:
    """A candidate passes if and only if all comparisons with it hold; who fails a later rule has more of them."""
    passed, refused, scenes = 0, Counter[str](), examples(300, 100)
    for seed in range(scenes):
        rng = random.Random(seed)
        snapshot, packing = some_crowded_vc(rng), some_packing(rng)
        room = snapshot.partitions[VC]
        for entry in room.pending:
            known = snapshot.predictions[entry.job.id]
            if entry.profile is None or known.share_score is None:
                continue
            pairs = ((0.8, 1.0), (1.0, 0.9), (0.54, 0.54), (0.57, 0.53), (0.6, 0.3), (0.9, 0.2), "failed", None)
            predictor = FixedPredictor(speed=partial(lambda speeds, *_: speeds, rng.choice(pairs)))
            restarts, ledger = rng.choice(["allowed", "never"]), Ledger(room, 1000.0)
            binder = Binder(room, ledger, snapshot.predictions, predictor, packing, 1000.0, restarts)
            made = (known.duration_s, known.share_score, packing.gss, rng.choice([packing.least_pair_speed, 0.5]))
            wish = Guest(
                replace(entry, since_s=rng.choice([entry.since_s, 1000.0, -1e6])),
                replace(entry.profile, gpu_mem_mib=rng.choice([entry.profile.gpu_mem_mib, 20000.0])),
                *made,
                binder._compared.may_restart(entry.job),
                waits=rng.random() < 0.7,
                duration_s=known.duration_s,
            )
            candidates = binder._candidates(entry.job)
            far: list[tuple[int, int]] = []
            for other in (*candidates.lasting.values(), *candidates.ending.values()):
                told, speed, refused_by = found = binder._compared.judge(wish, other)
                if other.entry.job.id in candidates.ending:
                    fits = binder._compared.fit(wish, other)
                    assert isinstance(told[-1], PartnerOutlasts if fits else GpuMemory)
                    continue
                assert all(told[:-1]), f"seed {seed}: {told}"
                assert (found.failed == len(ORDER)) is (refused_by is None) is all(told)
                passed += all(told)
                if not all(told):
                    refused[type(told[-1]).__name__] += 1
                    far.append((found.failed, len(told)))
                else:
                    speeds = [(r.own, r.other) for r in told if isinstance(r, PairSpeed)]
                    assert speed == (2.0 if speeds[0][0] is None else sum(speeds[0]))
            for (failed, reasons), (later, more) in pairwise(sorted(far)):
                assert (failed < later) is (reasons < more)
    assert passed > scenes / 2
    assert {*refused} == {"GpuMemory", "HostFits", "PartnerLeaves", "PairSpeed", "PairWork", "PairHarm"}
