"""Protocols of what planning needs from outside: clock, cluster, GPU metrics, predictor, forecaster, recorder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Literal, Protocol

from msgspec import Struct

from lucid.core.decision import Action, Plan
from lucid.core.gpu import GpuCard, GpuCondition, GpuLost, GpuReading
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import Prediction
from lucid.core.snapshot import ArrivalForecast, Snapshot
from lucid.errors import Refusal


class Capability(StrEnum):
    """What a cluster can do beyond starting a pending job; a policy names those it needs."""

    PREEMPT = "preempt"
    SHARE = "share"
    PROFILE = "profile"
    RESIZE = "resize"
    """Elastic jobs can be resized."""
    ADAPT = "adapt"
    """Elastic jobs may carry an agent that chooses their batch size, measures their step time and watches the
    gradient. Of a job without one the policy knows nothing yet."""
    ORACLE = "oracle"
    """The needs of elastic jobs are known beforehand: epochs, and seconds an epoch on each number of GPUs. A replay
    of a trace knows them."""
    INTERLEAVE = "interleave"
    """Jobs can be run in groups that take turns on each resource. A replay moves them and regroups them from a
    checkpoint, and reports their progress; on a real cluster others join them where they run."""


class Applied(Struct, frozen=True):
    """What became of one action: ``refused`` holds the cluster's words when it declined, ``cause`` why."""

    action: Action
    refused: str | None = None
    cause: Refusal = Refusal.SLURM


class Clock(Protocol):
    """The source of the time; planning never asks the machine for it."""

    def now_s(self) -> float:
        """Seconds since the clock's own epoch (Unix time for a live one, trace time for a simulated one)."""
        ...


class Cluster(Protocol):
    """The cluster that is observed and acted on: Slurm, or the simulator."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this cluster can do."""
        ...

    def observe(self) -> Snapshot:
        """The present state of the cluster.

        Raises: ClusterUnavailable: it does not answer at present."""
        ...

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        """Carry the actions out, in order. A refused one is reported, and the rest goes on.

        Raises:
            ClusterUnavailable: it stopped answering; what was not applied heals in the next cycle."""
        ...


class GpuMetrics(Protocol):
    """The source of readings of a node's GPUs: NVML, or DCGM's exporter."""

    @property
    def name(self) -> str:
        """The source's name as it shows beside readings."""
        ...

    def cards(self) -> Sequence[GpuCard]:
        """The GPUs that are there now, by index.

        Raises:
            MetricsError: the source does not answer; the next call tries afresh."""
        ...

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading | GpuLost]:
        """One reading of each of these GPUs; ``GpuLost`` for one that is gone or fails on its own.

        Raises:
            MetricsError: the source does not answer at all; the next call tries afresh."""
        ...

    def conditions(self) -> Sequence[GpuCondition] | None:
        """The health of every GPU that the driver names, also of those that it does not reach; ``None`` where this
        source does not report it.

        Raises: MetricsError: the source does not answer at all; the next call tries afresh."""
        ...

    def xids(self) -> Mapping[int, Sequence[int]]:
        """Xid errors since the last call, oldest first, by the number of the GPU's device file."""
        ...

    def close(self) -> None:
        """Release the driver. Reading again afterwards opens it again."""
        ...


PairSpeeds = tuple[float, float] | Literal["failed"] | None
"""A predictor's answer on two jobs that share GPUs: the expected normalised speed of each (1.0 = as fast as alone);
``None`` where it has no opinion; ``"failed"`` where it should have one and could not work it out."""


class Predictor(Protocol):
    """Predictions of jobs: from models, from estimates in a file, or from an oracle."""

    @property
    def name(self) -> str:
        """The predictor's name as it shows in explanations."""
        ...

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """Duration and share score of one job from what is known of it at ``now_s``."""
        ...

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """Expected speeds of *a* and *b* when they share GPUs."""
        ...

    def learn(self, ended: Sequence[Ended]) -> None:
        """Take in jobs that have ended. Called once for each."""
        ...


class Forecaster(Protocol):
    """Forecasts of how busy each VC is about to be."""

    def observe(self, job: Job) -> None:
        """Take in a job when it is first seen. Called once for each."""
        ...

    def forecast(self, now_s: float) -> ArrivalForecast:
        """GPUs expected to be submitted per hour; the same object as long as the forecast is the same."""
        ...


class Recorder(Protocol):
    """Takes decisions and their results: a run's folder, or the daemon's store."""

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        """Record one cycle."""
        ...
