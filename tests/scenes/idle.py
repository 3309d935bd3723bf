"""Made-up days of sessions that do nothing for hours, and of jobs that wait meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lucid.core.job import JobProfile
from lucid.simulator.cluster import JobOutcome
from lucid.simulator.engine import run
from lucid.simulator.traces import Trace, TraceJob
from scenes.jobs import by, nodes
from scenes.plans import FixedPredictor, policy, settings
from scenes.replays import a_cluster, a_trace

H = 3600.0
AFTER_S = 1800.0
USERS = ("ann", "bob", "cid", "dan")


@dataclass(frozen=True)
class Day:
    """What came of one: seconds of idle GPUs in reach (beyond ``AFTER_S``), and of those with a guest; for how long
    each guest slowed its host; and when each job ended."""

    in_reach_s: float
    hosted_s: float
    slowed_s: tuple[float, ...]
    ends_s: dict[str, float]
    restarts: int


def a_day(seed: int) -> Trace:
    """Up to 8 sessions on 8 GPUs, and some tens of jobs that one in three users lets start over."""
    rng = random.Random(seed)
    jobs: list[TraceJob] = []
    for i in range(rng.randint(3, 8)):
        length_s = rng.uniform(4 * H, 12 * H)
        away, at_s = [], rng.uniform(0.0, H)
        while at_s < length_s:
            until_s = min(at_s + rng.uniform(0.3 * H, 4 * H), length_s)
            away.append((at_s, until_s))
            at_s = until_s + rng.uniform(120.0, H)
        works = JobProfile(rng.uniform(20, 95), rng.uniform(5, 60), rng.uniform(2000, 14000))
        session = by(
            f"s{i}", 1, length_s, rng.uniform(0.0, 3 * H), profile=works, user=rng.choice(USERS), name="session"
        )
        jobs.append(replace(session, idle=tuple(away)))
    for i in range(rng.randint(40, 120)):
        profile = JobProfile(rng.uniform(30, 98), rng.uniform(5, 70), rng.uniform(2000, 12000))
        name, asks = f"j{i}", rng.random() < 0.67
        length_s = min(rng.lognormvariate(7.0, 1.2), 6 * H)
        jobs.append(
            by(name, 1, length_s, rng.uniform(0.0, 10 * H), profile=profile, user=rng.choice(USERS), restart_asked=asks)
        )
    return a_trace(*jobs)


def play(trace: Trace, host: bool = True, guests: str = "own", gpus: int = 8) -> Day:
    """The day under Lucid, with jobs' programs known from before, as they are live after a week."""
    sections = {
        "idle": {"host": host, "guests": guests, "after_s": AFTER_S},
        "profiling": {"enabled": False, "restarts": "asked"},
        "fairness": {"estimates": "always"},
    }
    predictor = FixedPredictor({item.job.id: item.duration_s for item in trace.jobs})
    cluster = a_cluster(
        trace,
        {"vc": nodes(1, gpus)},
        profiling=settings(**sections).profiling,
        measured_before=True,
        idle_after_s=AFTER_S if host else None,
    )
    made = policy("lucid", predictor, **sections)
    outcomes: Sequence[JobOutcome] = run(cluster, made, predictor, None, settings=settings(**sections)).outcomes
    idle = {item.job.id: item.idle for item in trace.jobs}
    reach = sum(max(end - begin - AFTER_S, 0.0) for stretches in idle.values() for begin, end in stretches)
    return Day(
        reach,
        sum(one.hosted_s for one in outcomes),
        tuple(slowed for one in outcomes for slowed in one.slowed_s),
        {one.job.id: one.end_s for one in outcomes},
        sum(len(one.slowed_s) for one in outcomes),
    )
