"""The truth that only a replay knows: real durations, interference of pairs, speeds of interleaved groups.

Policies never see this module's objects. Where a policy is given the truth on purpose, it comes as
``OraclePredictor``, which says so in every reason it appears in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lucid.accounting.log_rows import number, table_rows
from lucid.binder.contention import contention_score
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import MeasuredRun, Prediction, StageTimes
from lucid.errors import TraceError
from lucid.orchestrator.policies.muri.interleave import PUBLISHED, Ordering, Overhead, best_ordering
from lucid.simulator.traces.record import Trace


class PairsTable:
    """Interference from measured pairs, by workload label. Pairs without a measurement run at ``unmeasured``
    speed each (the published simulator takes 1.0 for them)."""

    def __init__(
        self, speeds: dict[tuple[str, str], tuple[float, float]], unmeasured: tuple[float, float] = (1.0, 1.0)
    ) -> None:
        self._speeds = speeds
        self._unmeasured = unmeasured

    def __len__(self) -> int:
        return len(self._speeds)

    def __call__(self, a: JobProfile, b: JobProfile) -> tuple[float, float]:
        """The speeds of the measured pair, in either order."""
        found = self._speeds.get((a.workload, b.workload))
        if found is not None:
            return found
        turned = self._speeds.get((b.workload, a.workload))
        if turned is not None:
            return turned[1], turned[0]
        return self._unmeasured


_PAIR_COLUMNS = ("model", "dataset", "batchsize", "amp", "speed")


def workload_label(model: str, dataset: str, batchsize: str, amp: str) -> str:
    """The label under which traces and tables of pairs name a workload."""
    return f"{model}|{dataset}|{batchsize}|{amp}"


Interference = Callable[[JobProfile, JobProfile], tuple[float, float]]
"""How fast two jobs really run on the same GPUs: by a ``PairsTable``, or where nothing was measured by the documented
contention model (``contention_speeds``; docs/simulator.md)."""


def read_pairs(path: Path) -> PairsTable:
    """Read a table of measured pairs: columns model1, dataset1, batchsize1, amp1, speed1, and the same with 2.

    Raises:
        TraceError: naming file, line, column and value of what is wrong."""
    speeds: dict[tuple[str, str], tuple[float, float]] = {}
    columns = [f"{name}{side}" for side in (1, 2) for name in _PAIR_COLUMNS]
    for line, row in table_rows(path, columns, "give --pairs a CSV table of pairs"):
        one, two = (workload_label(*(row[f"{name}{side}"] for name in _PAIR_COLUMNS[:4])) for side in (1, 2))
        for name in ("speed1", "speed2"):
            if not 0.0 < number(row[name]) < 10.0:
                raise TraceError(
                    f"{path}: line {line}: column {name}: {row[name]!r} is not a normalised speed (a number above 0, "
                    "about 1); correct or delete the row"
                )
        speeds[one, two] = (number(row["speed1"]), number(row["speed2"]))
    return PairsTable(speeds)


class OraclePredictor:
    """Knows the durations and labels of the trace it was made from. For bounds and comparisons only."""

    name = "oracle"

    def __init__(self, trace: Trace, interference: Interference | None = None) -> None:
        self._jobs = {item.job.id: item for item in trace.jobs}
        self._interference = interference

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:  # noqa: ARG002
        """The true duration; once the job is measured the trace's own share label, or the contention model's where
        the trace has none."""
        item = self._jobs[job.id]
        epochs: float | None = None
        epoch_s: tuple[float, ...] = ()
        measured: MeasuredRun | None = None
        if item.learning is not None and job.elastic is not None:
            epochs, epoch_s = item.learning.epochs, item.learning.epoch_s(job.elastic.max_gpus)
            measured = item.learning.measured(job.elastic.max_gpus)
        score, source = item.share_label, self.name
        if profile is None:
            score = None
        elif score is None:
            score, source = contention_score(profile), "contention model"
        return Prediction(item.duration_s, self.name, score, source, epochs, epoch_s, measured)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        """The true speeds, where the oracle was given the interference."""
        return None if self._interference is None else self._interference(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """Do nothing: there is nothing to learn."""


@dataclass(frozen=True, slots=True)
class Interleaving:
    """An executor that lets the members of a group take turns: in each round every member does one iteration.
    ``resources``: k, over which a round is laid out. ``ordering``: in which order members enter a round; "worst" is
    an ablation. ``overhead``: factors on the round by the number of members."""

    resources: int = 4
    ordering: Ordering = "best"
    overhead: Overhead = PUBLISHED

    def speeds(self, members: Sequence[StageTimes]) -> list[float]:
        """The speed of each member, 1.0 being as fast as alone: its iteration alone over the period of a round, which
        no member beats."""
        if len(members) == 1:
            return [1.0]
        # which of two equal groups is listed first must not matter, nor be computed twice
        times = tuple(sorted(member.times_s for member in members))
        period_s = _period_s(times, self.resources, self.ordering) * self.overhead.factor(len(members))
        return [min(member.iteration_s / period_s, 1.0) for member in members]


@lru_cache(maxsize=65536)
def _period_s(times: tuple[tuple[float, ...], ...], resources: int, ordering: Ordering) -> float:
    return best_ordering(times, resources, ordering)[0]
