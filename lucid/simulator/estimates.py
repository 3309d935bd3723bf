"""Predictions given from outside: durations from a file, share scores from the trace."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lucid.binder.contention import contention_score, contention_speeds
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import PairSpeeds, Predictor
from lucid.core.prediction import Prediction, StageTimes
from lucid.errors import TraceError
from lucid.simulator.traces.record import Trace

__all__ = ["DryRunPredictor", "GivenPredictor", "read_estimates"]


class GivenPredictor:
    """Durations as given by job id, else by another predictor. Share scores as the trace gives them, else by
    the contention model; either is known only once the job has a profile. Pair speeds by the contention model.
    Scores and speeds by ``measured`` instead, where that is given: models of a table that was measured."""

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
        """What is given, completed by the other predictor."""
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
        """From both profiles."""
        if self._measured is not None:
            return self._measured.pair_speed(a, b)
        return contention_speeds(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """The other predictor learns."""
        self._otherwise.learn(ended)


class DryRunPredictor:
    """Adds stage times to what another predictor says. The first job of a name and GPU count is run dry, for a few
    iterations that count as no time; later ones reuse what it showed."""

    def __init__(self, trace: Trace, otherwise: Predictor) -> None:
        self.name = otherwise.name
        self._shown = {item.job.id: item.stages for item in trace.jobs}
        self._known: dict[tuple[str, int], StageTimes] = {}
        self._otherwise = otherwise

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The other's prediction, with stage times where a dry run shows any."""
        stages = self._shown[job.id]
        if stages is not None and job.name:
            stages = self._known.setdefault((job.name, job.gpus), stages)
        return replace(self._otherwise.predict(job, profile, now_s), stages=stages)

    def pair_speed(self, a: JobProfile, b: JobProfile) -> PairSpeeds:
        """The other's opinion."""
        return self._otherwise.pair_speed(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """The other predictor learns."""
        self._otherwise.learn(ended)


def read_estimates(path: Path, trace: Trace, *, partial: bool = False) -> dict[str, float]:
    """Estimated durations in seconds by job id, from a CSV with the columns ``job_id`` and ``priority`` (the
    published packs' name for it) or ``duration_s``. Estimates below a second count as one. With ``partial`` it is
    enough if some jobs of the trace have one.

    Raises:
        TraceError: naming file, line, column and value; also if jobs of the trace have no row.
    """
    estimates: dict[str, float] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            column = next((name for name in ("duration_s", "priority") if name in names), None)
            if "job_id" not in names or column is None:
                raise TraceError(
                    f"{path}: line 1: needs the columns job_id and duration_s (or priority), found: "
                    f"{', '.join(names) or 'nothing'}"
                )
            for row in reader:
                try:
                    value = float(row[column])
                except (TypeError, ValueError):
                    value = math.nan
                if not math.isfinite(value):
                    raise TraceError(
                        f"{path}: line {reader.line_num}: column {column}: {row[column]!r} is not a number of "
                        "seconds; correct or delete the row"
                    )
                estimates[row["job_id"]] = max(value, 1.0)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}; give --estimates a CSV file") from None
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
