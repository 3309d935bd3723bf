"""Ranges round forecast starts: how sure a forecast is, by the forecasts of like waits that came true before.

Planning ahead gives one time per job. Each forecast is kept; once its job starts, the logarithm of real over forecast
wait is a sample. A wait that goes on counts, for less, as a sample that is at least so long (the estimator of Kaplan
and Meier): otherwise only the short waits of a jam would be known while it lasts. Samples weigh by likeness
(partition, size, forecast wait, spread of the planned paths, age). The range is the shortest that holds 8 of 10
samples. It is stretched by a factor that follows what came true: each start outside makes it larger, each inside
smaller, so that 8 of 10 fall inside (adaptive conformal inference, Gibbs and Candes 2021; one factor for each kind of
wait). A job that still waits past the end of its range is a miss from then on. Times are in seconds; there is no
clock here, and nothing is random."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import exp, inf, log, sqrt
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from lucid.orchestrator.forecast.samples import Like, Samples


SHORT_S = 60.0
"""Waits up to this are short: they do not count towards how well forecasts hold."""
_INSIDE = 0.8
"""Share of starts that are to fall inside the range."""
_TELLS, _NEAR_S = 3.0, 7200.0
"""A range is informative if it is at most so many times as wide as its likely wait, or ends this soon."""
_FLOOR_S = 10.0
"""Added to both waits before they are divided, so that seconds do not matter."""
_MOST = 400
"""How many starts are remembered."""
_MOST_OPEN = 400
"""How many waits under way are remembered; beyond that no new ones are taken in, since the long ones must not be
lost."""
_NO_SPREAD = 1.0
"""The spread that is assumed where one path was planned."""
_LEARN = 0.03
"""How fast the stretch of ranges follows what came true."""
_LEAST, _MOST_STRETCH = -1.2, 1.4
"""Bounds of the logarithm of the factor by which ranges are stretched."""
_ENOUGH = 10
_BUCKETS = 2
"""Classes of forecast waits to a factor of e: ranges are worked out once for each class."""


class StartRange(Struct, frozen=True):
    """Seconds from now until a start: in 8 of 10 cases between ``early_s`` and ``late_s``. ``likely_s``: the planned
    start, or the median of the samples where that start is outside the range."""

    early_s: float
    likely_s: float
    late_s: float

    @property
    def tells(self) -> bool:
        """Whether the range is narrow enough, or near enough, to show people more than its end
        (docs/decisions/0025)."""
        return self.late_s <= _NEAR_S or self.late_s - self.early_s <= _TELLS * self.likely_s


class Wait(Struct, frozen=True):
    """What is known of a wait when its range is asked for. ``planned_s``: the planned start, seconds from now; or how
    far the policy planned ahead where no start came up (``foreseen`` false)."""

    partition: str
    gpus: int
    planned_s: float
    foreseen: bool = True
    profiling: bool = False
    """Whether the job waits for a profiling run."""
    spread: float | None = None
    """How far the planned paths differ, as in ``Forecast.spreads``; ``None`` where there was one path."""

    @property
    def kind(self) -> tuple[bool, bool]:
        """The kind of the wait: waits of different kinds say nothing of one another."""
        return self.foreseen, self.profiling


class StartForecast(Struct, frozen=True):
    """One forecast, and its outcome. ``real_s``: how long the job waited from then on; ``None`` while it waits."""

    job_id: str
    at_s: float
    wait: Wait
    said: StartRange
    real_s: float | None = None

    @property
    def inside(self) -> bool:
        """Whether the job started inside the range."""
        return self.real_s is not None and self.said.early_s - 1.0 <= self.real_s <= self.said.late_s + 1.0


class StartTimes:
    """Remembers forecasts and what came true, and puts a range round a planned start."""

    def __init__(self) -> None:
        self.open: dict[str, StartForecast] = {}
        """Forecasts of jobs that wait, by job."""
        self._done: deque[StartForecast] = deque(maxlen=_MOST)
        self._stretch: dict[tuple[bool, bool], float] = {}
        """By kind of wait, the logarithm of the factor by which ranges are stretched to either side."""
        self._missed: set[str] = set()
        """Waiting jobs that are past the end of their range."""
        self._due_s = inf
        """A lower bound of when the next range ends that has not ended yet."""
        self._ranges: dict[object, tuple[float, float, float]] = {}
        self._samples: Samples | None = None
        """The samples as columns, made when a range is first asked for."""
        self._at_s = -inf

    @property
    def known(self) -> Sequence[StartForecast]:
        """Forecasts of jobs that have started, oldest first."""
        return tuple(self._done)

    def range_of(self, wait: Wait, now_s: float) -> StartRange:
        """The range round a planned start, as of ``now_s``."""
        if now_s != self._at_s:
            self._at_s = now_s
            self._ranges.clear()
        bucket = round(_BUCKETS * _log(wait.planned_s))
        key = (wait.kind, wait.partition, wait.gpus, bucket, round(_BUCKETS * _apart(wait)))
        found = self._ranges.get(key)
        if found is None:
            found = self._ranges[key] = self._quantiles(wait, bucket / _BUCKETS, now_s)
        early, middle, late = (max((wait.planned_s + _FLOOR_S) * exp(at) - _FLOOR_S, 0.0) for at in found)
        planned = wait.foreseen and early <= wait.planned_s <= late
        return StartRange(early, wait.planned_s if planned else middle, late)

    def knows(self, wait: Wait) -> bool:
        """Whether enough waits of this kind have ended for a range that rests on them."""
        return sum(one.wait.kind == wait.kind for one in self._done) >= _ENOUGH

    def coverage(self, latest: int = 200) -> tuple[float, int]:
        """The share of the latest starts, after a wait that was not short, that fell inside the given range; and how
        many starts these were."""
        long = [one.inside for one in self._done if one.real_s is not None and one.real_s > SHORT_S][-latest:]
        return (sum(long) / len(long) if long else 1.0), len(long)

    @property
    def misses(self) -> bool:
        """Whether fewer of the latest starts than promised fell inside, beyond what chance explains (two standard
        deviations)."""
        share, count = self.coverage()
        return count >= _ENOUGH and share < _INSIDE - 2.0 * sqrt(_INSIDE * (1.0 - _INSIDE) / count)

    def waits(self, job_id: str, wait: Wait, now_s: float) -> StartRange:
        """The range of a wait that begins now, which is remembered."""
        self._overdue(now_s)
        said = self.range_of(wait, now_s)
        if job_id in self.open or len(self.open) < _MOST_OPEN:
            self.open[job_id] = one = StartForecast(job_id, now_s, wait, said)
            self._due_s = min(self._due_s, _end_s(one))
            self._missed.discard(job_id)
            if self._samples is not None:
                self._samples.began(job_id, _like(wait), now_s)
        return said

    def started(self, job_id: str, at_s: float) -> StartForecast | None:
        """Note that the wait is over; returns its forecast, ``None`` where none was remembered."""
        self._overdue(at_s)
        one = self.open.pop(job_id, None)
        if one is None:
            return None
        real_s = at_s - one.at_s
        one = StartForecast(job_id, one.at_s, one.wait, one.said, real_s)
        self._done.append(one)
        if self._samples is not None:
            self._samples.gone(job_id)
            self._samples.over(_like(one.wait), _ratio(one.wait, real_s))
        if job_id in self._missed:
            self._missed.discard(job_id)
        elif at_s - one.at_s > SHORT_S:
            self._learn(one.wait.kind, not one.inside)
        self._at_s = -inf
        return one

    def left(self, job_id: str) -> None:
        """Forget a job that will not start: it was cancelled, or moved on."""
        self.open.pop(job_id, None)
        self._missed.discard(job_id)
        if self._samples is not None:
            self._samples.gone(job_id)

    def _overdue(self, now_s: float) -> None:
        """Learn from the waits that have gone on past the end of their range."""
        if now_s <= self._due_s:
            return
        self._due_s = inf
        for job_id, one in self.open.items():
            if job_id in self._missed:
                continue
            if now_s > max(_end_s(one), one.at_s + SHORT_S):
                self._missed.add(job_id)
                self._learn(one.wait.kind, missed=True)
            else:
                self._due_s = min(self._due_s, max(_end_s(one), one.at_s + SHORT_S))

    def _learn(self, kind: tuple[bool, bool], missed: bool) -> None:
        moved = self._stretch.get(kind, 0.0) + _LEARN * (missed - (1.0 - _INSIDE))
        self._stretch[kind] = min(max(moved, _LEAST), _MOST_STRETCH)

    def _quantiles(self, wait: Wait, planned: float, now_s: float) -> tuple[float, float, float]:
        samples = self._samples or self._columns()
        early, likely, late = samples.range_of(replace(_like(wait), planned=planned), now_s, _FLOOR_S)
        factor = exp(self._stretch.get(wait.kind, 0.0))
        return likely - (likely - early) * factor, likely, likely + (late - likely) * factor

    def _columns(self) -> Samples:
        """All that is remembered as columns, which are kept up to date from then on."""
        from lucid.orchestrator.forecast.samples import Samples

        self._samples = samples = Samples(_MOST, _MOST_OPEN)
        for one in self._done:
            if one.real_s is not None:
                samples.over(_like(one.wait), _ratio(one.wait, one.real_s))
        for one in self.open.values():
            samples.began(one.job_id, _like(one.wait), one.at_s)
        return samples

    # -- what a restart must not lose ------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The forecasts and stretches as JSON."""
        return {
            "stretches": [[*kind, stretch] for kind, stretch in self._stretch.items()],
            "missed": sorted(self._missed),
            "open": [_row(one) for one in self.open.values()],
            "done": [_row(one) for one in self._done],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StartTimes:
        """The start times that ``to_dict`` wrote.

        Raises: KeyError, TypeError, ValueError: the data has another shape."""
        made = cls()
        for foreseen, profiling, stretch in data["stretches"]:
            made._stretch[bool(foreseen), bool(profiling)] = min(max(float(stretch), _LEAST), _MOST_STRETCH)
        made._missed.update(map(str, data["missed"]))
        made._due_s = -inf
        for row in data["open"]:
            one = _of_row(row)
            made.open[one.job_id] = one
        made._done.extend(_of_row(row) for row in data["done"])
        return made


def _log(wait_s: float) -> float:
    return log(max(wait_s, 0.0) + _FLOOR_S)


def _ratio(wait: Wait, real_s: float) -> float:
    return _log(real_s) - _log(wait.planned_s)


def _apart(wait: Wait) -> float:
    """How far the planned paths differ, as a logarithm."""
    return log((_NO_SPREAD if wait.spread is None else max(wait.spread, 0.0)) + 0.1)


def _end_s(one: StartForecast) -> float:
    return one.at_s + one.said.late_s + 1.0


def _like(wait: Wait) -> Like:
    from lucid.orchestrator.forecast.samples import Like

    return Like(wait.foreseen, wait.profiling, wait.partition, log(wait.gpus), _log(wait.planned_s), _apart(wait))


def _row(one: StartForecast) -> list[Any]:
    wait, said = one.wait, one.said
    return [
        one.job_id, one.at_s, wait.partition, wait.gpus, wait.planned_s, wait.foreseen, wait.profiling, wait.spread,
        said.early_s, said.likely_s, said.late_s, one.real_s,
    ]  # fmt: skip


def _of_row(row: list[Any]) -> StartForecast:
    job_id, at_s, partition, gpus, planned_s, foreseen, profiling, spread, early_s, likely_s, late_s, real_s = row
    differ = None if spread is None else float(spread)
    wait = Wait(str(partition), int(gpus), float(planned_s), bool(foreseen), bool(profiling), differ)
    said = StartRange(float(early_s), float(likely_s), float(late_s))
    return StartForecast(str(job_id), float(at_s), wait, said, None if real_s is None else float(real_s))
