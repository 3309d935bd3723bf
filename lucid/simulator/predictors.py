"""Predictors of replays: durations from a file, stage times of dry runs, models of the trace's past.

``--predictor learned`` walks forward: it learns from jobs that have ended by now, as accounting shows them; nothing
else of the trace is ever handed in. The duration model is fitted as soon as 200 jobs have ended and refitted once a
week; between fits the history of every user goes on growing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from lucid.accounting.log_rows import number, table_rows
from lucid.binder.contention import contention_score, contention_speeds
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import PairSpeeds, Predictor
from lucid.core.prediction import Prediction, StageTimes
from lucid.core.snapshot import ArrivalForecast
from lucid.core.times import DAY_S
from lucid.errors import TraceError
from lucid.models.duration.fit import fit_durations
from lucid.models.duration.history import DurationHistory
from lucid.models.duration.model import DurationModel
from lucid.models.history import HistoryPredictor
from lucid.models.kind import TooFew
from lucid.models.packing.kind import labelled
from lucid.models.packing.measured import read_pairs, read_profiles
from lucid.models.packing.pair_speed import PairModel, fit_pairs
from lucid.models.packing.share_score import ShareTree, fit_share
from lucid.models.predictor import LearnedPredictor, ended_table
from lucid.models.throughput.fit import fit_throughput
from lucid.models.throughput.forecaster import LearnedForecaster
from lucid.models.throughput.model import ArrivalForecaster
from lucid.simulator.traces.record import Trace


class GivenPredictor:
    """Durations as given by job id, else by another predictor. Share scores as the trace gives them, else by the
    contention model; either is known only once the job has a profile. Pair speeds by the contention model. Where
    ``measured`` is given, the models of a measured table give scores and speeds instead."""

    def __init__(
        self,
        name: str,
        durations_s: Mapping[str, float],
        trace: Trace,
        otherwise: Predictor,
        measured: Predictor | None = None,
    ) -> None:
        self.name = name
        self._measured = measured
        self._durations_s = durations_s
        self._labels = {item.job.id: item.share_label for item in trace.jobs if item.share_label is not None}
        self._otherwise = otherwise

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The given values, completed by the other predictor."""
        given = self._durations_s.get(job.id)
        if given is None:
            other = self._otherwise.predict(job, profile, now_s)
            given, source = other.duration_s, other.duration_source
        else:
            source = self.name
        if profile is None:
            return Prediction(given, source)
        if self._measured is not None:
            found = self._measured.predict(job, profile, now_s)
            return replace(found, duration_s=given, duration_source=source, duration_terms=None)
        label = self._labels.get(job.id)
        if label is None:
            return Prediction(given, source, contention_score(profile), "contention model")
        return Prediction(given, source, label, "trace")

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """The speeds from both profiles."""
        if self._measured is not None:
            return self._measured.pair_speed(a, b)
        return contention_speeds(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """Let the other predictor learn."""
        self._otherwise.learn(ended)


class DryRunPredictor:
    """Adds stage times to another predictor's predictions. The first job of a name and GPU count is run dry, for a
    few iterations that count as no time; later ones reuse its stage times."""

    def __init__(self, trace: Trace, otherwise: Predictor) -> None:
        self.name = otherwise.name
        self._shown = {item.job.id: item.stages for item in trace.jobs}
        self._known: dict[tuple[str, int], StageTimes] = {}
        self._otherwise = otherwise

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The other predictor's prediction, with stage times where a dry run shows any."""
        stages = self._shown[job.id]
        if stages is not None and job.name:
            stages = self._known.setdefault((job.name, job.gpus), stages)
        return replace(self._otherwise.predict(job, profile, now_s), stages=stages)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """The other predictor's opinion."""
        return self._otherwise.pair_speed(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """Let the other predictor learn."""
        self._otherwise.learn(ended)


def read_estimates(path: Path, trace: Trace, *, partial: bool = False) -> dict[str, float]:
    """Estimated durations in seconds by job id, from a CSV with the columns ``job_id`` and ``priority`` (the
    published packs' name for it) or ``duration_s``. Estimates below a second count as one. With ``partial`` it is
    enough if some jobs of the trace have one.

    Raises:
        TraceError: naming file, line, column and value; also if jobs of the trace have no row."""
    estimates: dict[str, float] = {}
    remedy = "give --estimates a CSV with the columns job_id and duration_s (or priority)"
    for line, row in table_rows(path, ("job_id", "duration_s or priority"), remedy):
        column = "duration_s" if "duration_s" in row else "priority"
        value = number(row[column])
        if not math.isfinite(value):
            raise TraceError(
                f"{path}: line {line}: column {column}: {row[column]!r} is not a number of seconds; correct or "
                "delete the row"
            )
        estimates[row["job_id"]] = max(value, 1.0)
    if not any(item.job.id in estimates for item in trace.jobs):
        raise TraceError(
            f"{path}: none of its {len(estimates)} job ids is in trace {trace.name!r}; do the two belong together?"
        )
    lacking = [] if partial else [item.job.id for item in trace.jobs if item.job.id not in estimates]
    if lacking:
        raise TraceError(
            f"{path}: column job_id: {len(lacking)} of {len(trace.jobs)} jobs of trace {trace.name!r} have no row "
            f"(the first is {lacking[0]!r}); add them, or leave those to the history with --skip-bad"
        )
    return estimates


_WEEK_S = 7 * DAY_S
_FIRST_JOBS = 200


@dataclass(frozen=True, slots=True)
class PackingModels:
    """The share tree and the pair model, where there were measurements to train them on."""

    share: ShareTree | None = None
    pairs: PairModel | None = None


def train_packing(profiles: Path, pairs: Path) -> PackingModels:
    """Both models from the tables that an administrator measured.

    Raises:
        TraceError: a file cannot be read. ModelError: it does not suffice."""
    usages = read_profiles(profiles)
    pairings = read_pairs(pairs, usages)
    known = labelled(usages, pairings)
    tree = fit_share([usage for usage, _ in known], [label for _, label in known]) if known else None
    return PackingModels(tree, fit_pairs(pairings))


def packing_predictor(models: PackingModels) -> Predictor:
    """A predictor of share scores and pair speeds by these models, and of durations by means."""
    return LearnedPredictor(None, DurationHistory(), HistoryPredictor(), share=models.share, pairs=models.pairs)


class WalkForward:
    """A `Predictor` that learns as the replay goes on. `otherwise` answers for share scores and pair speeds where
    ``packing`` has no model."""

    name = LearnedPredictor.name

    def __init__(
        self,
        otherwise: Predictor,
        packing: PackingModels | None = None,
        *,
        epoch_s: float = 0.0,
        profiled_s: float = 0.0,
    ) -> None:
        packing = packing or PackingModels()
        self._epoch_s = epoch_s
        self._ended: list[Ended] = []
        self._due_s = 0.0
        self._model = LearnedPredictor(
            DurationModel.untrained(),
            DurationHistory(),
            otherwise,
            share=packing.share,
            pairs=packing.pairs,
            epoch_s=epoch_s,
            profiled_s=profiled_s,
        )

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The prediction of the latest refit's model; refits first if that is due."""
        if now_s >= self._due_s and len(self._ended) >= _FIRST_JOBS:
            self._due_s = now_s + _WEEK_S
            self._model.use_model(fit_durations(ended_table(self._ended, self._epoch_s)))
        return self._model.predict(job, profile, now_s)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """The speeds by the pair model, else by the other predictor."""
        return self._model.pair_speed(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """Add ended jobs to the history at once, and to the models at the next refit."""
        self._ended += ended
        self._model.learn(ended)


class WalkForwardForecaster:
    """A `Forecaster` that learns as the replay goes on: seasonal means until the past suffices for a throughput model
    (about 25 days), which is then fitted anew every week."""

    def __init__(self, means: ArrivalForecaster, *, epoch_s: float = 0.0) -> None:
        self._forecaster = LearnedForecaster(None, "learned in this replay", means, epoch_s)
        self._due_s = 0.0

    def observe(self, job: Job) -> None:
        """Take in a job when it is first seen."""
        self._forecaster.observe(job)

    def forecast(self, now_s: float) -> ArrivalForecast:
        """The forecast of the latest fit's model; fits first if that is due."""
        if now_s >= self._due_s:
            past = self._forecaster.past(now_s)
            try:
                if past is not None:
                    self._forecaster.model = fit_throughput(past, 1)
                    self._due_s = now_s + _WEEK_S
            except TooFew:
                self._due_s = now_s + DAY_S
        return self._forecaster.forecast(now_s)
