"""The elastic platform's own experiment: a set of requests under one rule, event by event (E16, E18, E20).

A dozen GPUs and twenty jobs need no cluster: GPU position is ignored in an epoch's time (f_i depends on
the number alone), so this is arithmetic on counts. The policy of the simulator uses the same rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.papers.elastic_workload import ElasticRequest, Floats
from lucid.orchestrator.policies.rounds.expansion import EfRule, ElasticJob, ef_gpus, rescale

__all__ = ["RESCALE_S", "Outcome", "Rule", "replay"]

RESCALE_S = 10.0
"""Seconds to stop, save, redeploy and resume a job (E20)."""

Rule = Literal["elastic", "fcfs", "ef"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What users see (E16).

    Attributes:
        jct_s: mean time from arrival to finish, seconds.
        makespan_s: first arrival to last finish, seconds.
        rescales: how often a running job was stopped and resumed.
    """

    jct_s: float
    makespan_s: float
    rescales: int


@dataclass(slots=True)
class _Running:
    number: int
    epoch_s: Floats
    gpus: int
    epochs: float
    started_s: float
    paused_s: float = 0.0  # of a rescale, still to be waited for

    def finish_in(self) -> float:
        return self.paused_s + self.epochs * float(self.epoch_s[self.gpus - 1])

    def advance(self, seconds: float) -> None:
        wait = min(self.paused_s, seconds)
        self.paused_s -= wait
        self.epochs -= (seconds - wait) / float(self.epoch_s[self.gpus - 1])


def replay(
    requests: Sequence[ElasticRequest],
    rule: Rule,
    total_gpus: int = 12,
    *,
    rescale_s: float = RESCALE_S,
    restart_s: float = 0.0,
    ef_rule: EfRule = "all",
) -> Outcome:
    """Run a set of requests to the end.

    Where a completion and an arrival coincide, the completion comes first. Waiting requests are admitted,
    first come first served, before anything expands; jobs admitted now may expand at once, without a
    restart. A stopped job keeps the part of an epoch that it has done.

    Args:
        requests: by arrival.
        rule: "elastic": grow and shrink; "fcfs": one GPU each; "ef": the most GPUs each.
        total_gpus: GPUs of the cluster (the experiment: 3 servers of 4).
        rescale_s: seconds that a job stands still when its GPUs change (E20).
        restart_s: what the expansion reckons for a restart; the paper: nothing.
        ef_rule: what "the most GPUs" means.

    Returns:
        The outcome.
    """
    coming = deque(enumerate(requests))
    waiting: deque[tuple[int, ElasticRequest]] = deque()
    running: list[_Running] = []
    finished: dict[int, float] = {}
    now = rescales = 0.0
    while coming or waiting or running:
        next_arrival = coming[0][1].arrival_s if coming else float("inf")
        step = min((job.finish_in() for job in running), default=float("inf"))
        seconds = min(step, next_arrival - now)
        now += seconds
        for job in running:
            job.advance(seconds)
        for job in [job for job in running if job.paused_s <= 0 and job.epochs <= 1e-9]:
            running.remove(job)
            finished[job.number] = now
        while coming and coming[0][1].arrival_s <= now:
            waiting.append(coming.popleft())
        if rule == "elastic":
            rescales += _elastic(running, waiting, total_gpus, now, rescale_s, restart_s)
        else:
            _fixed(running, waiting, total_gpus, now, None if rule == "fcfs" else ef_rule)
    jct = sum(finished[i] - request.arrival_s for i, request in enumerate(requests)) / len(requests)
    return Outcome(jct, max(finished.values()) - requests[0].arrival_s, int(rescales))


def _start(waiting: deque[tuple[int, ElasticRequest]], gpus: int, total_gpus: int, now: float) -> _Running:
    number, request = waiting.popleft()
    return _Running(number, request.model.epoch_s(total_gpus), gpus, request.epochs, now)


def _elastic(
    running: list[_Running],
    waiting: deque[tuple[int, ElasticRequest]],
    total_gpus: int,
    now: float,
    rescale_s: float,
    restart_s: float,
) -> int:
    """Admit and resize until nothing changes any more; returns the jobs restarted."""
    restarted = set()
    for _ in range(2):  # once to admit, once more to expand what was admitted
        jobs = [ElasticJob(job.number, job.gpus, job.epochs, job.epoch_s) for job in running]
        plan = rescale(jobs, len(waiting), total_gpus, restart_s)
        for job in running:
            new = plan.gpus.get(job.number)
            if new is not None:
                job.gpus = new
                if job.started_s < now:
                    job.paused_s = rescale_s
                    restarted.add(job.number)
        running += [_start(waiting, 1, total_gpus, now) for _ in range(plan.admit)]
        if not plan.admit:
            break
    return len(restarted)


def _fixed(
    running: list[_Running],
    waiting: deque[tuple[int, ElasticRequest]],
    total_gpus: int,
    now: float,
    ef_rule: EfRule | None,
) -> None:
    while waiting:
        free = total_gpus - sum(job.gpus for job in running)
        gpus = min(free, 1)
        if ef_rule is not None:
            gpus = ef_gpus(waiting[0][1].model.epoch_s(total_gpus), free, total_gpus, ef_rule)
        if gpus == 0:
            return
        running.append(_start(waiting, gpus, total_gpus, now))
