"""Scenes for the systems' policies: jobs with stages that may take turns, and jobs that an agent knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from applications import INIT, MODEL
from lucid.core.decision import PartitionPlan, Regroup, Resize, Start
from lucid.core.job import Elastic, Pending, Progress, Running
from lucid.core.node import Node
from lucid.core.placement import placement_gpus
from lucid.core.prediction import Prediction, StageTimes
from lucid.core.snapshot import Partition
from lucid.orchestrator.policy import PolicyRules
from scenes.jobs import LIGHT, runs, waits
from scenes.plans import guess, part

STORE, CPU, GPU, NET = (StageTimes(tuple(9.0 if i == j else 0.5 for j in range(4)), 10.5) for i in range(4))
FOUR = dict(zip("abcd", (STORE, CPU, GPU, NET), strict=True))
"""Each bound by another resource."""
AGENTS_LIMITS = Elastic(24, batch=256, init_batch=INIT, most_batch=1024, atomic_min=16, atomic_max=128)
"""Of a job whose agent chooses its batch."""

RESIZES = PolicyRules(preempts="elastic", resizes=True)
"""What the policies of elastic jobs state."""


def room(machines: Iterable[Node], entries: Sequence[Pending | Running]) -> Partition:
    waiting = [entry for entry in entries if isinstance(entry, Pending)]
    return part(machines, waiting, [entry for entry in entries if isinstance(entry, Running)])


def guesses(
    entries: Sequence[Pending | Running],
    stages: Mapping[str, StageTimes] | None = None,
    durations_s: Mapping[str, float] | None = None,
) -> dict[str, Prediction]:
    """1,000 s for each unless told, within its time limit; and what is known of its stages."""
    known, lasts = stages or {}, durations_s or {}
    return {
        entry.job.id: structs.replace(
            guess(lasts.get(entry.job.id, 1000.0)).within(entry.job.time_limit_s), stages=known.get(entry.job.id)
        )
        for entry in entries
    }


def groups(made: PartitionPlan) -> set[frozenset[str]]:
    """Those that a plan makes or changes."""
    return {frozenset(d.group) for d in made.decisions.values() if isinstance(d, Start | Regroup) and d.group}


def gpus_given(made: PartitionPlan, name: str) -> int:
    """By the plan, to a job that starts or is resized."""
    decision = made.decisions[name]
    assert isinstance(decision, Start | Resize)
    return placement_gpus(decision.placement)


def turns(entry: Any, **changes: Any) -> Any:
    """The same of a job whose user opted in to taking turns."""
    return replace(entry, job=replace(entry.job, takes_turns=True, user="ada"), **changes)


def waits_for_turns(name: str, gpus: int = 1, **changes: Any) -> Any:
    """A light job that waits, and would take turns."""
    return turns(waits(name, gpus, profile=LIGHT), **changes)


def runs_in_turns(name: str, where: str, group: Sequence[str] = (), **changes: Any) -> Any:
    """A light job that runs, and takes turns with those of its group."""
    return turns(replace(runs(name, where), profile=LIGHT, group=tuple(group)), **changes)


def wants(name: str, submit_s: float = 0.0, **rest: Any) -> Pending:
    """A waiting job that an agent will know."""
    return replace(waits(name, 1, submit_s, elastic=AGENTS_LIMITS), progress=Progress(), **rest)


def holds(
    name: str, where: str, seen: tuple[int, ...] = (1,), limits: Elastic = AGENTS_LIMITS, **rest: Any
) -> Running:
    """A running job that its agent knows; ``seen``: numbers of GPUs that it has had."""
    report = Progress(
        1.0, tuple((g, 100.0 / g) for g in seen), batch=INIT, step_model=tuple(MODEL.perf), gradient=(1.0, 4.0)
    )
    entry = runs(name, where, **rest)
    return replace(entry, job=replace(entry.job, gpus=1, elastic=limits), progress=report)
