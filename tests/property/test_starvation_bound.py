"""The starvation bound and quotas. What plain order would have done is reckoned right, and nobody passes out of turn;
only who may borrow and jobs whose turn has come go beyond a quota. Estimates that lie cost next to nothing: the
history takes their place where it ranks better, and else plain order goes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from examples import examples, tried
from lucid.config.policy import BackfillSettings
from lucid.core.decision import Hold, Requeue, Start
from lucid.core.job import Job
from lucid.core.node import Node
from lucid.core.placement import placement_gpus
from lucid.core.reasons.queue import Borrows
from lucid.models.history import naive_for
from lucid.orchestrator.capacity.reservations import PATIENCE_S
from lucid.orchestrator.policies import shadow as plain_step
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.lucid.plan import LucidMemory, promises_by_vc
from lucid.orchestrator.policies.shadow import Seen, Shadow, advance
from lucid.orchestrator.policy import rules_of
from lucid.simulator.traces.record import Trace, TraceJob
from safety_rules import judge
from scenes.jobs import HEAVY, LIGHT, a_job, nodes, waits
from scenes.plans import FixedPredictor, part, policy, settings, snap
from scenes.replays import Tape, a_trace, replay

OFF = {"enabled": False}
ALONE: Mapping[str, Any] = {"profiling": OFF, "packing": {"gss": 0}}


def some_stream(rng: random.Random, vcs: str = "v") -> tuple[Trace, dict[str, tuple[Node, ...]]]:
    """A few nodes for each VC, more work than they can do for a while, whole seconds."""
    size = rng.choice([1, 2, 4])
    layout = {vc: nodes(rng.randint(1, 3) + (len(vcs) == 1), size, vc) for vc in vcs}
    items, submit_s = [], 0.0
    for number in range(rng.randint(5, 25)):
        submit_s += rng.choice([0, 0, 5, 20, 60])
        vc = rng.choice([*layout, vcs[0]])
        gpus = min(rng.choice([1, 1, 1, 2, size, size * 2]), size * len(layout[vc]))
        profile = rng.choice([None, LIGHT, LIGHT, HEAVY])
        length_s = float(rng.choice([10, 50, 100, 300, 900]))
        items.append(TraceJob(a_job(f"j{number}", gpus, submit_s, vc, rank=number), length_s, profile=profile))
    return a_trace(*items), layout


def some_pool(rng: random.Random) -> tuple[Trace, dict[str, tuple[Node, ...]]]:
    """Two or three VCs."""
    return some_stream(rng, rng.choice(["ab", "abc"]))


def shadow_of(memory: Mapping[str, object]) -> Shadow | None:
    found = memory.get("v")
    return found.shadow if isinstance(found, LucidMemory) else None


def wrong(rng: random.Random, trace: Trace) -> FixedPredictor:
    """Estimates that are off by up to ten times, either way."""
    said = {item.job.id: item.duration_s * rng.choice([0.1, 0.5, 1, 2, 10]) for item in trace.jobs}
    return FixedPredictor(said, speed=lambda a, b: (0.95, 0.95))


@tried(25)
def test_where_reality_is_plain_order_the_shadow_is_reality_however_wrong_estimates_are(rng: random.Random) -> None:
    trace, layout = some_stream(rng)
    limits = {"limit_factor": 20.0, "least_limit_s": 1.0}  # made of wrong estimates, and no job outlives its own
    outcomes, tape = replay("backfill", trace, layout, predictor=wrong(rng, trace), backfill=limits)
    plain, shadow = BackfillPolicy(BackfillSettings(**limits)), None
    starts: dict[str, float] = {}
    for snapshot, _, _ in tape.cycles:
        shadow = advance(shadow, snapshot.partitions["v"], (), snapshot, plain, 1e6)
        starts.update({job: entry.start_s for job, entry in shadow.running.items()})
    assert starts == {job: outcomes[job].start_s for job in starts}
    assert len(starts) == len(outcomes)


@tried(25)
def test_no_job_leaves_the_shadow_before_it_really_ended_and_none_ends_sooner_there(rng: random.Random) -> None:
    (trace, layout), rules = some_stream(rng), {"beyond_plain_s": rng.choice([30.0, 400.0, 1e6])}
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
        shadow = advance(shadow, snapshot.partitions["v"], newcomers, snapshot, plain, 400.0, kept)
        anew = advance(anew, snapshot.partitions["v"], newcomers, snapshot, plain, 400.0)
        assert shadow == anew


def test_the_shadow_tests_as_many_jobs_of_its_queue_as_slurm_does(monkeypatch: pytest.MonkeyPatch) -> None:
    room = part(nodes(1, 4), [waits("first", 3, 0.0), waits("large", 4, 1.0), waits("small", 1, 2.0)])
    plain = BackfillPolicy(BackfillSettings())
    for most, started in ((2, ["first"]), (3, ["first", "small"])):
        monkeypatch.setattr(plain_step, "_TESTED", most)
        assert [*advance(None, room, (), snap(50.0, room), plain, 400.0).running] == started


def check_nobody_passes(tape: Tape) -> int:
    """Rules of the test's own, for every start of every cycle. How often were nodes kept?"""
    kept = 0
    for snapshot, plan, _ in tape.cycles:
        before, after = shadow_of(snapshot.memory), shadow_of(plan.memory)
        if before is None or after is None:
            continue
        waiting = {entry.job.id: entry.job for entry in snapshot.partitions["v"].pending}
        for holder, fence in after.fences.items():
            kept += 1
            for action in plan.actions:
                start, job = action.decision, waiting[holder]
                if not isinstance(start, Start) or not {p.node for p in start.placement} & {*fence.names}:
                    continue
                if action.job_id not in after.starts_s or not goes_before(waiting[action.job_id], job, after):
                    times = max((plan.now_s - job.submit_s) / PATIENCE_S, 1.0)
                    surely_s = snapshot.predictions[action.job_id].duration_s * times
                    assert plan.now_s + surely_s <= fence.until_s + 1e-6, f"{action.job_id} passes {holder}"
    return kept


def goes_before(a: Job, b: Job, shadow: Shadow) -> bool:
    return (shadow.starts_s[a.id], a.submit_s, a.rank) < (shadow.starts_s[b.id], b.submit_s, b.rank)


def test_nobody_starts_on_kept_nodes_before_his_turn_however_wrong_estimates_are() -> None:
    kept = past = late = 0
    for seed in range(examples(60, 30)):
        rng = random.Random(seed)
        trace, layout = some_stream(rng)
        bound = {"beyond_plain_s": rng.choice([30.0, 60.0, 400.0]), "keep_from": rng.choice([0.0, 0.5, 1.0])}
        outcomes, tape = replay("lucid", trace, layout, predictor=wrong(rng, trace), fairness=bound, **ALONE)
        kept += check_nobody_passes(tape)
        assert all(o.end_s > 0 for o in outcomes.values())
        shadow = shadow_of(tape.cycles[-1][1].memory)
        past += shadow.kept.past
        late += shadow.kept.worst_s > 0
        assert shadow.kept.jobs == len(trace.jobs)
    assert min(kept, past) > 10
    assert late > 5


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


# -- estimates that lie ---------------------------------------------------------------------------------------------

LARGE = 8
_FEW = 0.1
Lie = Callable[[random.Random, float], float]
LIES: Mapping[str, Lie] = {
    "noise": lambda rng, true_s: rng.lognormvariate(7.5, 1.8),
    "inverted": lambda rng, true_s: 3.2e6 / max(true_s, 1.0),
    "constant": lambda rng, true_s: 3600.0,
}


def jammed(seed: int, jobs: int, users: int = 0, large: float = _FEW) -> tuple[Trace, dict[str, tuple[Node, ...]]]:
    """One job in ten of several nodes, or the share ``large``, for six nodes that have more to do than they can while
    jobs come. All have limits, above what they take. ``users``: the jobs of each take about as long as each other."""
    rng, items, submit_s = random.Random(seed), [], 0.0
    for at in range(jobs):
        submit_s += rng.expovariate(1 / 500.0)
        gpus = rng.choice([1, 1, 1, 2, 2, 4, 4, 8, 8, rng.choice([16, 24])])
        if large > _FEW and rng.random() < large:
            gpus = rng.choice([16, 24, 32])
        user = rng.randrange(users) if users else 0
        usual = random.Random(user).lognormvariate(7.5, 1.6) * rng.lognormvariate(0, 0.8) if users else 0.0
        lasts_s = round(min(usual or rng.lognormvariate(7.5, 1.8), 86400.0))
        limit_s = float(min(lasts_s * rng.choice([2, 5, 20]) + 600, 172800))
        job = a_job(f"j{at}", gpus, round(submit_s), rank=at, time_limit_s=limit_s, user=f"u{user}")
        items.append(TraceJob(job, float(lasts_s)))
    return a_trace(*items), {"vc": nodes(6, 8)}


def measured(
    name: str, seed: int, jobs: int, lie: Lie | None, users: int = 0, share: float = _FEW
) -> tuple[float, float]:
    """Average JCT of all jobs and of those larger than a node, s."""
    (trace, layout), rng = jammed(seed, jobs, users, share), random.Random(seed)
    said = {one.job.id: one.duration_s if lie is None else lie(rng, one.duration_s) for one in trace.jobs}
    ended, _ = replay(name, trace, layout, predictor=FixedPredictor(said), naive=naive_for(name, settings()), **ALONE)
    large = [one.jct_s for one in ended.values() if one.job.gpus > LARGE]
    return fmean(one.jct_s for one in ended.values()), fmean(large)


def check_lies(seeds: range, jobs: int) -> None:
    """Averages over the seeds, as multiples of plain Slurm's with the same limits."""
    plain = [measured("backfill", seed, jobs, None) for seed in seeds]
    for name, lie in (*LIES.items(), ("true", None)):
        found = [measured("lucid", seed, jobs, lie) for seed in seeds]
        every, large = (fmean(a[i] / b[i] for a, b in zip(found, plain, strict=True)) for i in (0, 1))
        print(f"{name}: {every:.3f}/{large:.3f}")
        assert every <= (0.85 if lie is None else 1.02), name
        assert large <= (1.0 if lie is None else 1.05), name


def test_lies_cost_next_to_nothing_and_true_durations_gain() -> None:
    check_lies(range(2, 5), 200)


def test_where_most_jobs_are_large_rough_estimates_still_gain() -> None:
    """They go by waited / estimate there (docs/decisions/0065)."""
    for seed in (2, 3):
        rough = measured("lucid", seed, 200, lambda rng, true_s: true_s * rng.lognormvariate(0, 1.5), share=0.8)
        plain = measured("backfill", seed, 200, None, share=0.8)
        assert max(mine / its for mine, its in zip(rough, plain, strict=True)) <= 0.8, (seed, rough, plain)


def test_a_history_that_ranks_gains_whatever_lie_is_given() -> None:
    plain = measured("backfill", 2, 400, None, users=12)[0]
    found = {name: measured("lucid", 2, 400, lie, users=12)[0] / plain for name, lie in LIES.items()}
    assert max(found.values()) <= 0.8, found


@pytest.mark.slow
def test_the_same_on_more_and_longer_traces() -> None:
    check_lies(range(8), 400)


# -- quotas in random pools -----------------------------------------------------------------------------------------


def judged(name: str, tape: Tape, **sections: Any) -> Counter[str]:
    """Every cycle, held to what no plan may do. How often did jobs do what?"""
    tally, made = Counter[str](), settings(**sections)
    for snapshot, plan, _ in tape.cycles:
        judge(snapshot, plan, rules_of(policy(name)), made, tally)
    return tally


def test_only_who_may_borrow_and_jobs_in_turn_go_beyond_a_quota() -> None:
    beyond: Counter[str] = Counter()
    for seed in range(examples(60, 40)):
        rng = random.Random(seed)
        trace, layout = some_pool(rng)
        mode, machines = rng.choice(["quota", "borrow"]), rng.choice([(), (), nodes(1, 4, "p")])
        rules: dict[str, Any] = {
            "lending": {"mode": mode},
            "profiling": {"enabled": bool(machines)},
            "fairness": {"beyond_plain_s": rng.choice([None, 60.0, 400.0])},
        }
        said = wrong(rng, trace)
        outcomes, tape = replay("lucid", trace, layout, predictor=said, profiling_nodes=machines, **rules)
        beyond[mode] += judged("lucid", tape, **rules)["beyond"]
        assert all(outcome.end_s > 0 for outcome in outcomes.values())
    assert beyond["borrow"] > 20
    assert beyond["quota"] > 5, "in their turn"


@tried(25)
def test_nobody_borrows_what_a_job_within_its_quota_waits_for(rng: random.Random) -> None:
    """Without nodes kept for some, a job has no claim to GPUs but by its VC's quota."""
    trace, layout = some_pool(rng)
    rules = {"lending": {"mode": "borrow", "turn_s": None}, **dict.fromkeys(["profiling", "reservation"], OFF)}
    _, tape = replay("lucid", trace, layout, predictor=wrong(rng, trace), **rules)
    for snapshot, plan, _ in tape.cycles:
        part, pool = plan.partitions["pool"], snapshot.partitions["pool"]
        jobs = {entry.job.id: entry.job for entry in pool.listed()}
        leaving = {a.job_id for a in part.actions if isinstance(a.decision, Requeue)}
        held: Counter[str] = Counter()
        stay = {e.placement: e.job.vc for e in reversed(pool.running) if e.job.id not in leaving}
        for placement, vc in stay.items():
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
    (trace, layout), rules = some_pool(rng), {"lending": {"mode": "borrow"}}
    outcomes, tape = replay(name, trace, layout, predictor=wrong(rng, trace), **rules)
    assert not judged(name, tape, **rules)["beyond"]
    assert all(outcome.end_s > 0 for outcome in outcomes.values())


@tried(25)
def test_with_right_estimates_and_one_gpu_each_nobody_is_past_a_lenders_bound(rng: random.Random) -> None:
    """A job of one GPU in its turn has the first GPU that comes free: none is held for longer than 900 s."""
    trace, layout = some_pool(rng)
    small = a_trace(*(replace(item, job=replace(item.job, gpus=1)) for item in trace.jobs))
    _, tape = replay("lucid", small, layout, **ALONE, lending={"mode": "borrow"}, fairness={"beyond_plain_s": 2000.0})
    kept = promises_by_vc(tape.cycles[-1][1].memory)
    assert set(kept) == set(layout)
    assert sum(item.jobs for item in kept.values()) == len(trace.jobs)
    assert all(item.past == 0 for item in kept.values())
