"""Speed and quality of the other published schedulers: ``python -m benchmarks.systems``, or as a part of
``python -m benchmarks``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from benchmarks.figure import Figure, markdown, timed
from benchmarks.papers.elastic_replay import replay
from benchmarks.papers.elastic_workload import CLASSES, MIXES, MODELS, draw_set
from lucid.config.policy import PolluxSettings
from lucid.core.decision import Start
from lucid.core.job import Elastic, Job, Pending, Progress, Running
from lucid.core.node import Node
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.policies.muri.grouping import GroupingOptions, group_jobs
from lucid.orchestrator.policies.muri.interleave import PUBLISHED, MuriJob
from lucid.orchestrator.policies.rounds.expansion import expand
from lucid.orchestrator.policies.rounds.genetic import Objective, SearchOptions, search
from lucid.orchestrator.policies.rounds.goodput import (
    BatchLimits,
    GoodputModel,
    GradParams,
    Observations,
    PerfParams,
    fit_perf_params,
)
from lucid.orchestrator.policies.rounds.marginal import OptimusJob, allocate
from lucid.orchestrator.policies.rounds.optimus_models import SpeedModel
from lucid.orchestrator.policies.rounds.pollux import PolluxPolicy
from lucid.orchestrator.policies.rounds.speedup import PolluxJob, SpeedupTable, restart_factors

PERF = (
    PerfParams(0.169, 0.0586, 1.352, 0.0142, 0.287, 0.0112, 1.90),
    PerfParams(0.0173, 0.0007, 0.121, 0.0024, 0.0325, 1e-7, 2.0),
    PerfParams(0.0645, 0.0045, 0.299, 0.0056, 1.6e-4, 1e-8, 2.49),
    PerfParams(0.183, 0.026, 0.699, 0.0234, 0.139, 0.0215, 1.16),
)


_NOW_S = 36000.0
_PACE = "plain Python loop"


def _time(what: str, run: Callable[[], str], runs: int, at_most: float | None = None) -> Figure:
    """Median seconds against the machine's own pace: a million steps of plain Python."""
    took = timed(run, runs)
    return Figure(
        what,
        took.seconds,
        "s",
        runs,
        took.pace_s,
        _PACE,
        at_most=at_most,
        note=f"CPU {took.cpu_s:.3f} s, {took.result}",
    )


def muri(runs: int) -> Iterator[Figure]:
    for kinds, times, one_bucket in ((40, 3, False), (40, 3, True), (1000, 4, False), (1000, 4, True)):
        rng = np.random.default_rng(0)
        profiles = rng.random((kinds, times)) * 100
        jobs = [
            MuriJob(i, 1 if one_bucket else int(2 ** rng.integers(4)), tuple(profiles[i % kinds].tolist()))
            for i in range(1000)
        ]
        options = GroupingOptions(k=4, overhead=PUBLISHED)

        def run(jobs: list[MuriJob] = jobs, options: GroupingOptions = options) -> str:
            return f"{len(group_jobs(jobs, 0, options))} groups"

        buckets = "one GPU count" if one_bucket else "4 GPU counts"
        yield _time(f"Muri: group 1,000 jobs, {kinds} profiles, {buckets}", run, runs, 1.0)


def pollux_jobs(count: int, rng: np.random.Generator) -> list[PolluxJob]:
    out = []
    for number in range(count):
        init = int(2 ** rng.integers(4, 8))
        grad = GradParams(1.0, float(np.exp(rng.normal(1, 2))))
        model = GoodputModel(PERF[number % len(PERF)], grad, init)
        limits = BatchLimits(init, 32 * init, 8, 128)
        age, restarts = float(rng.integers(60, 20000)), int(rng.integers(5))
        out.append(PolluxJob(number, model, limits, min(64, limits.max_replicas), age, restarts))
    return out


def pollux_decisions(count: int, nodes: int, at_most: float | None, runs: int) -> Iterator[Figure]:
    jobs = pollux_jobs(count, np.random.default_rng(0))
    restart = restart_factors([j.age_s for j in jobs], [j.restarts for j in jobs])
    goal = Objective(scale=1 / 4)

    def decide(base: np.ndarray, options: SearchOptions | None = None) -> tuple[float, np.ndarray]:
        table = SpeedupTable(jobs, nodes * 4)
        chance = np.random.default_rng(1)
        found = search(table, [4] * nodes, base, restart, chance, objective=goal, options=options)
        return found.fitness, found.allocation

    base = decide(np.zeros((count, nodes), dtype=int))[1]
    base[::10] = 0  # a tenth of the jobs is new
    what = f"Pollux: {count} jobs on {nodes} x 4 GPUs"
    yield _time(f"{what}, one decision", lambda: f"fitness {decide(base)[0]:.5f}", runs, at_most)
    fitness = decide(base)[0]
    unseeded = decide(base, SearchOptions(seeds=False, patience=100))[0]
    yield Figure(f"{what}, fitness", fitness, "", 1, unseeded, "without greedy beginnings")
    if count <= 160:
        longer = decide(base, SearchOptions(population=200, generations=2000, patience=2000))[0]
        yield Figure(f"{what}, fitness", fitness, "", 1, longer, "a search 40 times as long")


def pollux_plans(count: int, nodes: int, at_most: float, runs: int) -> Iterator[Figure]:
    """A whole plan of the policy, jobs reporting as agents do; a tenth of them waits."""
    partition = Partition("vc", tuple(Node(f"n{i:04}", 4) for i in range(nodes)))
    entries: list[Pending] = []
    for number, job in enumerate(pollux_jobs(count, np.random.default_rng(0))):
        assert job.model is not None
        assert job.limits is not None
        init = job.limits.init
        limits = Elastic(64, 1, init, init, job.limits.most, job.limits.atomic_min, job.limits.atomic_max or init)
        report = Progress(
            epoch_s=((32, 1.0),),
            step_model=tuple(float(value) for value in job.model.perf),
            gradient=(float(job.model.grad.sqr), float(job.model.grad.var)),
        )
        made = Job(str(number), "vc", 1, _NOW_S - job.age_s, number, elastic=limits)
        entries.append(Pending(made, made.submit_s, restarts=job.restarts, progress=report))
    before = replace(partition, pending=tuple(entries))
    first = PolluxPolicy(PolluxSettings()).plan(Snapshot(_NOW_S, {"vc": before}))
    running, waiting = [], []
    for number, entry in enumerate(entries):
        decision = first.decision_of(entry.job.id)
        if isinstance(decision, Start) and number % 10:
            running.append(
                Running(entry.job, _NOW_S, decision.placement, restarts=entry.restarts, progress=entry.progress)
            )
        else:
            waiting.append(entry)
    after = replace(partition, pending=tuple(waiting), running=tuple(running))
    snapshot = Snapshot(_NOW_S + 60.0, {"vc": after}, memory=first.memory)

    def run() -> str:
        return f"{len(PolluxPolicy(PolluxSettings()).plan(snapshot).actions)} actions"

    yield _time(f"Pollux: {count} jobs on {nodes} x 4 GPUs, a plan of the policy", run, runs, at_most)


def pollux(runs: int) -> Iterator[Figure]:
    for count, nodes, limit_s in ((160, 16, 0.5), (1000, 256, 10.0)):
        yield from pollux_plans(count, nodes, limit_s, runs)
    for count, nodes, at_most in ((160, 16, 0.5), (40, 16, None), (20, 16, None), (1000, 256, 10.0)):
        yield from pollux_decisions(count, nodes, at_most, runs)
    rng = np.random.default_rng(0)
    nodes_, gpus, atomic = (rng.integers(1, 5, 540), np.zeros(540, dtype=int), rng.integers(8, 128, 540))
    gpus[:] = nodes_ * rng.integers(1, 5, 540)
    model = GoodputModel(PERF[0], GradParams(1, 1), 1)
    step = gpus * atomic / model.throughput(nodes_, gpus, atomic, 0) * np.exp(rng.normal(0, 0.05, 540))
    seen = Observations.from_columns(nodes_, gpus, atomic, PERF[0].alpha_c + PERF[0].beta_c * atomic, step)
    yield _time("Pollux: fit 540 observations", lambda: f"objective {fit_perf_params(seen).objective:.4f}", runs)


def others(runs: int) -> Iterator[Figure]:
    rng = np.random.default_rng(0)
    f = rng.uniform(60, 600, (200, 1)) / np.arange(1, 1001)
    epochs = rng.integers(1, 50, 200)
    yield _time(
        "Elastic: expand 200 jobs into 800 idle GPUs",
        lambda: f"{expand(f, np.ones(200, dtype=int), epochs, 800)[0].sum()} GPUs given",
        runs,
    )
    speeds = [SpeedModel("sync", tuple(rng.uniform(0.001, 0.3, 5)), 128) for _ in range(200)]
    jobs = [
        OptimusJob(i, (1, 4, 0, 0), (2, 8, 0, 1), 50.0, lambda p, w, m=m: float(m.speed(p, w)))  # type: ignore[misc]
        for i, m in enumerate(speeds)
    ]
    yield _time(
        "Optimus: allocate 1,024 GPUs to 200 jobs",
        lambda: f"{sum(w for _, w in allocate(jobs, (8192, 32768, 1, 1024)).tasks.values())} workers",
        runs,
    )


def elastic_experiment() -> Iterator[Figure]:
    """20 jobs x 10 sets: mean JCT and makespan against FCFS and EF."""
    for mean in (10, 15, 20):
        for mix in MIXES if mean == 15 else ("workload2", "workload4"):
            sets = [draw_set(mix, mean, seed) for seed in range(10)]
            jct, span = {}, {}
            for rule in ("fcfs", "ef", "elastic"):
                outcomes = [replay(requests, rule) for requests in sets]
                jct[rule] = float(np.mean([o.jct_s for o in outcomes]))
                span[rule] = float(np.mean([o.makespan_s for o in outcomes]))
            for name, found in (("JCT", jct), ("makespan", span)):
                for rule in ("fcfs", "ef"):
                    what = f"Elastic: {mix}, a job every {mean} min, {name}"
                    yield Figure(what, found["elastic"] / 3600, "h", 10, found[rule] / 3600, rule)


def elastic_sensitivity() -> Iterator[Figure]:
    """What the margins rest on: JCT to FCFS and to EF, mean over the mixes, mean interval 15 min."""
    for part in (1, 2, 4, 6):
        models = [replace(m, sync=0.00125 * part * (2 if m.epoch_min >= 10 else 1)) for m in MODELS]
        worth = [m.epoch_s(12)[0] / m.epoch_s(12)[11] for m in (models[-1], models[0])]
        for hours in (4, 8, 12):
            classes = CLASSES | {"large": (121.0, 60.0 * hours)}
            margins = []
            for mix in MIXES:
                sets = [draw_set(mix, 15, seed, models=models, classes=classes) for seed in range(10)]
                jct = [np.mean([replay(s, rule).jct_s for s in sets]) for rule in ("elastic", "fcfs", "ef")]
                margins.append([jct[0] / jct[1], jct[0] / jct[2]])
            for rule, ratio in zip(("FCFS", "EF"), np.mean(margins, axis=0).tolist(), strict=True):
                what = f"Elastic: 12 GPUs worth {worth[0]:.1f} / {worth[1]:.1f}, large up to {hours} h, JCT"
                yield Figure(f"{what} over {rule}'s", ratio, "", len(MIXES) * 10)


def figures(runs: int) -> Iterator[Figure]:
    """All of them."""
    yield from muri(runs)
    yield from pollux(runs)
    yield from others(runs)
    yield from elastic_experiment()
    yield from elastic_sensitivity()


if __name__ == "__main__":
    print(markdown(figures(3)))
