"""The truth about elastic jobs: how far a job gets on which GPUs. Only a replay knows.

The cluster asks a ``Training`` how long nothing changes, lets so much time pass, and asks again: at each
milestone the rate may differ. Policies see what the job reports (``core.job.Progress``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from lucid.core.job import Job, Progress
from lucid.core.prediction import MeasuredRun
from lucid.core.rounding import past

__all__ = ["EpochTable", "Learning", "Training"]


class Training(Protocol):
    """One elastic job in the system, with what it has reached. Times are seconds alone on its GPUs."""

    @property
    def done(self) -> bool:
        """Has it reached its target?"""
        ...

    def place(self, layout: tuple[int, ...], delay_s: float) -> None:
        """Go on with so many GPUs on each of some nodes, after ``delay_s`` in which nothing is learnt."""
        ...

    def leave(self) -> None:
        """Off its GPUs; what was reached is kept in a checkpoint."""
        ...

    def left_s(self) -> float:
        """Seconds, the delay included, until the rate changes or the target is reached."""
        ...

    def advance(self, seconds: float) -> None:
        """Let time pass, at most ``left_s()``."""
        ...

    def progress(self) -> Progress:
        """What the job reports."""
        ...


class Learning(Protocol):
    """The truth about a job before it starts, as the trace holds it."""

    @property
    def epochs(self) -> float:
        """Passes over the data that it takes with its batch as submitted."""
        ...

    def measured(self, most: int) -> MeasuredRun:
        """What a run that was measured before says, for up to ``most`` GPUs."""
        ...

    def epoch_s(self, most: int) -> tuple[float, ...]:
        """Seconds for one of them on 1, 2, ..., ``most`` GPUs of as few nodes as possible."""
        ...

    def begin(self, job: Job, agent: bool) -> Training:
        """The job on its arrival; with an agent it chooses its batch itself."""
        ...


@dataclass(frozen=True, slots=True)
class EpochTable:
    """A job whose speed depends on its number of GPUs alone: ``table[g - 1]`` seconds an epoch on g GPUs.
    Beyond the table nothing gets faster. It takes ``epochs`` of them."""

    epochs: float
    table: tuple[float, ...]

    def measured(self, most: int) -> MeasuredRun:
        """Each epoch is one pass."""
        left = (max(self.epochs - epoch - 1.0, 0.0) for epoch in range(math.ceil(self.epochs)))
        return MeasuredRun(tuple(left), self.epoch_s(most))

    def epoch_s(self, most: int) -> tuple[float, ...]:
        """The table, drawn out to ``most`` GPUs."""
        return (*self.table, *[self.table[-1]] * (most - len(self.table)))[:most]

    def begin(self, job: Job, agent: bool) -> Training:  # noqa: ARG002 - part of the protocol
        """An agent would find nothing to choose."""
        return _TableTraining(self, 0 if job.elastic is None else job.elastic.batch)


class _TableTraining:
    def __init__(self, truth: EpochTable, batch: int) -> None:
        self._truth = truth
        self._batch = batch
        self._gpus = 0
        self._delay_s = 0.0
        self._done = 0.0
        self._seen: dict[int, float] = {}

    @property
    def done(self) -> bool:
        return self._gpus > 0 and not past(self.left_s(), 0.0)

    def place(self, layout: tuple[int, ...], delay_s: float) -> None:
        self._gpus, self._delay_s = sum(layout), delay_s

    def leave(self) -> None:
        self._gpus = 0

    def left_s(self) -> float:
        return self._delay_s + max(self._truth.epochs - self._done, 0.0) * self._rate_s()

    def advance(self, seconds: float) -> None:
        waited_s = min(seconds, self._delay_s)
        self._delay_s -= waited_s
        if seconds > waited_s:
            self._done += (seconds - waited_s) / self._rate_s()
            self._seen.setdefault(self._gpus, self._rate_s())

    def progress(self) -> Progress:
        return Progress(self._done, tuple(self._seen.items()), batch=self._batch if self._gpus else 0)

    def _rate_s(self) -> float:
        return self._truth.table[min(self._gpus, len(self._truth.table)) - 1]
