"""Made-up days of sessions that do nothing for hours, and of jobs that wait meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from lucid.binder.contention import contention_speeds
from lucid.core.decision import Plan, Start
from lucid.core.job import JobProfile
from lucid.core.snapshot import Snapshot
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
    """What came of one. ``reach_s``: GPU-seconds of sessions that had done nothing for ``AFTER_S`` while a job
    waited; ``hosted_s``: those of them with a guest. ``slowed_s``: for how long each guest slowed a session that went
    on. ``longer_s``: by how much any session ran longer than alone. ``parted``: guests that were started over.
    ``mean_jct_s``: of all jobs, from submission to end."""

    reach_s: float
    hosted_s: float
    slowed_s: tuple[float, ...]
    longer_s: float
    parted: int
    mean_jct_s: float


class Watch:
    """A recorder that adds up the time of idle sessions, from each look to the next."""

    def __init__(self) -> None:
        self.reach_s = self.hosted_s = 0.0
        self._last_s, self._reach, self._hosted = 0.0, 0, 0

    def record(self, snapshot: Snapshot, plan: Plan, applied: object) -> None:
        span_s, self._last_s = snapshot.now_s - self._last_s, snapshot.now_s
        self.reach_s += self._reach * span_s
        self.hosted_s += self._hosted * span_s
        (part,) = snapshot.partitions.values()
        comes = {d.beside for d in plan.partitions["vc"].decisions.values() if isinstance(d, Start) and d.visits}
        hosts = {entry.visits for entry in part.running} | comes
        idle = [entry for entry in part.running if entry.idle is not None]
        self._hosted = sum(entry.job.id in hosts for entry in idle)
        started = sum(isinstance(action.decision, Start) for action in plan.actions)
        self._reach = len(idle) if len(part.pending) > started else self._hosted


def a_day(seed: int) -> Trace:
    """Three to six sessions on six GPUs, and more jobs than the rest of the GPUs can do for hours, two in three of
    which may be started over."""
    rng = random.Random(seed)
    jobs: list[TraceJob] = []
    for i in range(rng.randint(3, 6)):
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
    for i in range(rng.randint(100, 200)):
        profile = JobProfile(rng.uniform(30, 98), rng.uniform(5, 70), rng.uniform(2000, 12000))
        name, asks = f"j{i}", rng.random() < 0.67
        length_s = min(rng.lognormvariate(7.4, 1.1), 6 * H)
        jobs.append(
            by(
                name,
                1,
                length_s,
                rng.uniform(0.0, 10 * H),
                profile=profile,
                user=rng.choice(USERS),
                restart_asked=asks,
            )
        )
    return a_trace(*jobs)


def play(trace: Trace, host: bool = True, guests: str = "own", gpus: int = 6) -> Day:
    """The day under Lucid. Jobs' programs are known from before, and no pair is made but of a host and its guest."""
    sections = {
        "idle": {"host": host, "guests": guests, "after_s": AFTER_S},
        "profiling": {"enabled": False, "restarts": "asked"},
        "fairness": {"estimates": "always"},
        "packing": {"least_pair_speed": 1.0, "waiting_pair_speed": None},
    }
    predictor = FixedPredictor({item.job.id: item.duration_s for item in trace.jobs}, speed=contention_speeds)
    cluster = a_cluster(
        trace,
        {"vc": nodes(1, gpus)},
        profiling=settings(**sections).profiling,
        measured_before=True,
        idle_after_s=AFTER_S if host else None,
    )
    made, watch = policy("lucid", predictor, **sections), Watch()
    outcomes = run(cluster, made, predictor, watch, settings=settings(**sections)).outcomes
    return Day(
        watch.reach_s,
        watch.hosted_s,
        tuple(slowed for one in outcomes for slowed in one.slowed_s),
        max(one.end_s - one.start_s - one.duration_s for one in outcomes if one.job.name == "session"),
        sum(len(one.slowed_s) for one in outcomes),
        sum(one.jct_s for one in outcomes) / len(outcomes),
    )
