"""Quotas in random pools: only who may borrow and jobs whose turn has come go beyond them."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from examples import tried
from lucid.core.decision import Hold, Requeue, Start
from lucid.core.node import Node
from lucid.core.placement import placement_gpus
from lucid.core.reasons.queue import Borrows, PlainOrder
from lucid.orchestrator.policies.lucid.plan import promises_by_vc
from lucid.simulator.traces.record import Trace, TraceJob
from scenes.jobs import HEAVY, LIGHT, a_job, nodes
from scenes.plans import FixedPredictor
from scenes.replays import Tape, a_trace, replay


def some_pool(rng: random.Random) -> tuple[Trace, dict[str, tuple[Node, ...]]]:
    """Two or three VCs of one to three nodes, more work than they can do for a while."""
    size = rng.choice([1, 2, 4])
    layout = {vc: nodes(rng.randint(1, 3), size, vc) for vc in ("a", "b", "c")[: rng.randint(2, 3)]}
    items, submit_s = [], 0.0
    for number in range(rng.randint(5, 30)):
        submit_s += rng.choice([0, 0, 5, 20, 60])
        vc = rng.choice([*layout, "a"])
        gpus = min(rng.choice([1, 1, 2, size, size * 2]), size * len(layout[vc]))
        profile = rng.choice([None, LIGHT, LIGHT, HEAVY])
        length_s = float(rng.choice([10, 50, 100, 300, 900]))
        items.append(TraceJob(a_job(f"j{number}", gpus, submit_s, vc, rank=number), length_s, profile=profile))
    return a_trace(*items), layout


def wrong(rng: random.Random, trace: Trace) -> FixedPredictor:
    return FixedPredictor(
        {item.job.id: item.duration_s * rng.choice([0.1, 0.5, 1, 2, 10]) for item in trace.jobs},
        speed=lambda a, b: (0.95, 0.95),
    )


def check_quotas_kept(tape: Tape, borrows: bool) -> Counter[str]:
    """The test's own books: how did jobs start that took GPUs of the pool?"""
    seen: Counter[str] = Counter()
    for snapshot, plan, _ in tape.cycles:
        pool = snapshot.partitions["pool"]
        leaving = {a.job_id for a in plan.actions if isinstance(a.decision, Requeue)}
        held: Counter[str] = Counter()
        there = set()
        for entry in pool.running:
            if entry.job.id not in leaving and entry.placement not in there:
                there.add(entry.placement)
                held[entry.job.vc] += placement_gpus(entry.placement)
        jobs = {entry.job.id: entry.job for entry in pool.pending}
        for action in plan.partitions["pool"].actions:
            start = action.decision
            if not isinstance(start, Start) or start.beside is not None:
                continue
            job = jobs[action.job_id]
            held[job.vc] += job.gpus
            if held[job.vc] <= pool.quotas[job.vc]:
                seen["within"] += 1
            elif any(isinstance(item, PlainOrder) and item for item in start.reasons):
                seen["in turn"] += 1
            else:
                assert borrows, job
                assert job.gpus <= pool.quotas[job.vc]
                seen["borrows"] += 1
    return seen


@tried(25)
def test_only_who_may_borrow_and_jobs_in_turn_go_beyond_a_quota(rng: random.Random) -> None:
    trace, layout = some_pool(rng)
    mode = rng.choice(["quota", "borrow"])
    profiling = {"enabled": rng.random() < 0.5}
    machines = nodes(1, 4, "p") if profiling["enabled"] else ()
    outcomes, tape = replay(
        "lucid", trace, layout, predictor=wrong(rng, trace), lending={"mode": mode}, profiling=profiling,
        fairness={"beyond_plain_s": rng.choice([None, 100.0, 400.0])}, profiling_nodes=machines,
    )  # fmt: skip
    check_quotas_kept(tape, mode == "borrow")
    assert all(outcome.end_s > 0 for outcome in outcomes.values())


@tried(25)
def test_nobody_borrows_what_a_job_within_its_quota_waits_for(rng: random.Random) -> None:
    """Without nodes kept for some, a job has no claim to GPUs but by its VC's quota."""
    trace, layout = some_pool(rng)
    _, tape = replay(
        "lucid", trace, layout, predictor=wrong(rng, trace), lending={"mode": "borrow", "turn_s": None},
        profiling={"enabled": False}, reservation={"enabled": False},
    )  # fmt: skip
    for snapshot, plan, _ in tape.cycles:
        part, pool = plan.partitions["pool"], snapshot.partitions["pool"]
        jobs = {entry.job.id: entry.job for entry in (*pool.pending, *pool.running)}
        leaving = {a.job_id for a in part.actions if isinstance(a.decision, Requeue)}
        held: Counter[str] = Counter()
        for placement, vc in {
            e.placement: e.job.vc for e in reversed(pool.running) if e.job.id not in leaving
        }.items():
            held[vc] += placement_gpus(placement)
        alone = [a for a in part.actions if isinstance(a.decision, Start) and a.decision.beside is None]
        held.update({vc: sum(jobs[a.job_id].gpus for a in alone if jobs[a.job_id].vc == vc) for vc in pool.quotas})
        loans = [jobs[a.job_id].gpus for a in alone if any(isinstance(r, Borrows) for r in a.decision.reasons)]
        holds = [job for job_id, job in jobs.items() if isinstance(part.decisions.get(job_id), Hold)]
        entitled = [job for job in holds if held[job.vc] + job.gpus <= pool.quotas[job.vc]]
        assert not any(job.gpus <= most for job in entitled for most in loans), (snapshot.now_s, entitled, loans)


@pytest.mark.parametrize("name", ["fifo", "sjf", "qssf", "backfill", "srtf", "tiresias"])
@tried(8)
def test_other_policies_never_go_beyond_a_quota(name: str, rng: random.Random) -> None:
    trace, layout = some_pool(rng)
    outcomes, tape = replay(name, trace, layout, predictor=wrong(rng, trace), lending={"mode": "borrow"})
    assert set(check_quotas_kept(tape, borrows=False)) <= {"within"}
    assert all(outcome.end_s > 0 for outcome in outcomes.values())


@tried(25)
def test_with_right_estimates_and_one_gpu_each_nobody_is_past_a_lenders_bound(rng: random.Random) -> None:
    """A job of one GPU in its turn has the first GPU that comes free: none is held for longer than 900 s."""
    trace, layout = some_pool(rng)
    small = [
        TraceJob(a_job(i.job.id, 1, i.job.submit_s, i.job.vc, rank=i.job.rank), i.duration_s) for i in trace.jobs
    ]
    bound_s = 2000.0
    _, tape = replay(
        "lucid", a_trace(*small), layout, profiling={"enabled": False}, packing={"gss": 0},
        lending={"mode": "borrow"}, fairness={"beyond_plain_s": bound_s},
    )  # fmt: skip
    kept = promises_by_vc(tape.cycles[-1][1].memory)
    assert set(kept) == set(layout)
    assert sum(item.jobs for item in kept.values()) == len(trace.jobs)
    assert all(item.past == 0 for item in kept.values())


def test_the_pools_reach_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        rng = random.Random(seed)
        trace, layout = some_pool(rng)
        _, tape = replay(
            "lucid", trace, layout, predictor=wrong(rng, trace), lending={"mode": "borrow"},
            fairness={"beyond_plain_s": 60.0}, profiling={"enabled": False},
        )  # fmt: skip
        seen += check_quotas_kept(tape, borrows=True)
    assert seen["within"] > 100
    assert seen["borrows"] > 20
    assert seen["in turn"] > 5
