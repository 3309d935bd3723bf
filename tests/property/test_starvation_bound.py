"""The starvation bound: what plain order would have done is reckoned right, and nobody passes out of turn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from examples import tried
from lucid.config.policy import BackfillSettings
from lucid.core.decision import Start
from lucid.core.node import Node
from lucid.core.snapshot import Snapshot
from lucid.orchestrator.capacity.reservations import PATIENCE_S
from lucid.orchestrator.policies import shadow as plain_step
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid.plan import LucidMemory
from lucid.orchestrator.policies.shadow import Seen, Shadow, advance
from lucid.simulator.traces.record import Trace, TraceJob
from scenes.jobs import a_job, nodes, waits
from scenes.plans import FixedPredictor, part, snap
from scenes.replays import Tape, a_trace, replay

ALONE: Mapping[str, Any] = {"profiling": {"enabled": False}, "packing": {"gss": 0}}


def some_stream(rng: random.Random) -> tuple[Trace, dict[str, tuple[Node, ...]]]:
    """Two to four nodes, more work than they can do for a while, whole seconds."""
    size = rng.choice([1, 2, 4])
    machines = nodes(rng.randint(2, 4), size)
    items, submit_s = [], 0.0
    for number in range(rng.randint(5, 25)):
        submit_s += rng.choice([0, 0, 5, 20, 60])
        gpus = min(rng.choice([1, 1, 1, 2, size, size * 2]), size * len(machines))
        length_s = float(rng.choice([10, 50, 100, 300, 900]))
        items.append(TraceJob(a_job(f"j{number}", gpus, submit_s, rank=number), length_s))
    return a_trace(*items), {"vc": machines}


def shadow_of(memory: Mapping[str, object]) -> Shadow | None:
    found = memory.get("vc")
    return found.shadow if isinstance(found, LucidMemory) else None


def wrong(rng: random.Random, trace: Trace) -> FixedPredictor:
    """Estimates that are off by up to ten times, either way."""
    return FixedPredictor({item.job.id: item.duration_s * rng.choice([0.1, 0.5, 1, 2, 10]) for item in trace.jobs})


@tried(25)
def test_where_reality_is_plain_order_the_shadow_is_reality_however_wrong_estimates_are(rng: random.Random) -> None:
    trace, layout = some_stream(rng)
    limits = {"limit_factor": 20.0, "least_limit_s": 1.0}  # made of wrong estimates, and no job outlives its own
    outcomes, tape = replay("backfill", trace, layout, predictor=wrong(rng, trace), backfill=limits)
    plain, shadow = BackfillPolicy(BackfillSettings(**limits)), None
    starts: dict[str, float] = {}
    for snapshot, _, _ in tape.cycles:
        shadow = advance(shadow, snapshot.partitions["vc"], (), snapshot, plain, 1e6)
        starts.update({job: entry.start_s for job, entry in shadow.running.items()})
    assert starts == {job: outcomes[job].start_s for job in starts}
    assert len(starts) == len(outcomes)


@tried(25)
def test_no_job_leaves_the_shadow_before_it_really_ended_and_none_ends_sooner_there(rng: random.Random) -> None:
    trace, layout = some_stream(rng)
    rules = {"beyond_plain_s": rng.choice([30.0, 400.0, 1e6])}
    outcomes, tape = replay("lucid", trace, layout, predictor=wrong(rng, trace), fairness=rules, **ALONE)
    before: dict[str, float] = {}
    for _, plan, _ in tape.cycles:
        shadow = shadow_of(plan.memory)
        here = {job: entry.start_s for job, entry in shadow.running.items()}
        for job in before.keys() - here.keys():
            assert plan.now_s >= outcomes[job].end_s - 1e-6, job
            assert plan.now_s >= before[job] + outcomes[job].duration_s - 1e-6, job
        before = here


@tried(25)
def test_what_a_shadow_is_made_of_is_kept_and_changes_nothing(rng: random.Random) -> None:
    """Jobs come from profiling nodes, and go back to none."""
    trace, layout = some_stream(rng)
    rules = {"fairness": {"beyond_plain_s": 400.0}, "profiling": {"t_prof_s": 40.0}, "packing": {"gss": 0}}
    machines = nodes(1, 2, "p")
    _, tape = replay("lucid", trace, layout, predictor=wrong(rng, trace), profiling_nodes=machines, **rules)
    plain, kept = BackfillPolicy(BackfillSettings()), dict[str, Seen]()
    shadow, anew = None, None
    for snapshot, _, _ in tape.cycles:
        profiling = snapshot.profiling
        newcomers = () if profiling is None else (*profiling.pending, *profiling.running)
        shadow = advance(shadow, snapshot.partitions["vc"], newcomers, snapshot, plain, 400.0, kept)
        anew = advance(anew, snapshot.partitions["vc"], newcomers, snapshot, plain, 400.0)
        assert shadow == anew


def test_the_shadow_tests_as_many_jobs_of_its_queue_as_slurm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    room = part(nodes(1, 4), [waits(name, gpus, at) for at, (name, gpus) in enumerate(QUEUE)])
    plain = BackfillPolicy(BackfillSettings())
    for most, started in ((2, ["first"]), (3, ["first", "small"])):
        monkeypatch.setattr(plain_step, "_TESTED", most)
        assert [*advance(None, room, (), snap(50.0, room), plain, 400.0).running] == started


QUEUE = (("first", 3), ("large", 4), ("small", 1))


def check_nobody_passes(tape: Tape) -> int:
    """Rules of the test's own, for every start of every cycle. How often were nodes kept?"""
    kept = 0
    for snapshot, plan, _ in tape.cycles:
        before, after = shadow_of(snapshot.memory), shadow_of(plan.memory)
        if before is None or after is None:
            continue
        for holder, fence in after.fences.items():
            kept += 1
            for action in plan.actions:
                start = action.decision
                if not isinstance(start, Start) or not {p.node for p in start.placement} & {*fence.names}:
                    continue
                theirs_s = after.starts_s.get(action.job_id)
                if theirs_s is not None and goes_before(snapshot, action.job_id, theirs_s, holder, after):
                    continue
                waited_s = plan.now_s - next(
                    e.job.submit_s for e in snapshot.partitions["vc"].pending if e.job.id == holder
                )
                surely_s = snapshot.predictions[action.job_id].duration_s * max(waited_s / PATIENCE_S, 1.0)
                assert plan.now_s + surely_s <= fence.until_s + 1e-6, f"{action.job_id} passes {holder}"
    return kept


def goes_before(snapshot: Snapshot, job: str, plain_s: float, holder: str, shadow: Shadow) -> bool:
    entries = {e.job.id: e.job for e in snapshot.partitions["vc"].pending}
    a, b = entries[job], entries[holder]
    return (plain_s, a.submit_s, a.rank) < (shadow.starts_s[holder], b.submit_s, b.rank)


@tried(25)
def test_nobody_starts_on_kept_nodes_before_his_turn_however_wrong_estimates_are(rng: random.Random) -> None:
    trace, layout = some_stream(rng)
    bound = {"beyond_plain_s": rng.choice([30.0, 100.0, 400.0]), "keep_from": rng.choice([0.0, 0.5, 1.0])}
    outcomes, tape = replay("lucid", trace, layout, predictor=wrong(rng, trace), fairness=bound, **ALONE)
    check_nobody_passes(tape)
    assert all(o.end_s > 0 for o in outcomes.values())


@tried(25)
def test_with_right_estimates_a_job_starts_when_its_nodes_were_expected(rng: random.Random) -> None:
    """From when nodes are first kept for it, only jobs whose own bound is earlier can keep a job from starting as
    soon as what ran on them has ended: it starts by then, unless such a job goes before it meanwhile."""
    trace, layout = some_stream(rng)
    bound = {"beyond_plain_s": rng.choice([30.0, 100.0, 400.0]), "keep_from": rng.choice([0.0, 0.5, 1.0])}
    rules = {**ALONE, "reservation": {"enabled": False}}
    outcomes, tape = replay("lucid", trace, layout, fairness=bound, **rules)
    plain_s: dict[str, float] = {}
    first: dict[str, tuple[float, float]] = {}
    for _, plan, _ in tape.cycles:
        shadow = shadow_of(plan.memory)
        plain_s.update(shadow.starts_s)
        for job, fence in shadow.fences.items():
            first.setdefault(job, (plan.now_s, fence.until_s))

    def order(job: str) -> tuple[float, float, int]:
        return plain_s[job], outcomes[job].job.submit_s, outcomes[job].job.rank

    for job, (from_s, until_s) in first.items():
        before = [o for other, o in outcomes.items() if other in plain_s and order(other) < order(job)]
        by_right_s = [o.end_s for o in before if from_s <= o.start_s <= outcomes[job].start_s]
        assert outcomes[job].start_s <= max([until_s, *by_right_s]) + 1.0, job


def test_the_streams_reach_what_they_are_for() -> None:
    kept = past = late = 0
    for seed in range(20):
        rng = random.Random(seed)
        trace, layout = some_stream(rng)
        guesses = wrong(rng, trace)
        _, tape = replay("lucid", trace, layout, predictor=guesses, fairness={"beyond_plain_s": 60.0}, **ALONE)
        kept += check_nobody_passes(tape)
        shadow = shadow_of(tape.cycles[-1][1].memory)
        past += shadow.kept.past
        late += shadow.kept.worst_s > 0
        assert shadow.kept.jobs == len(trace.jobs)
    assert kept > 10
    assert past > 10
    assert late > 5
