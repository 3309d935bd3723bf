"""``ReportCheck``: compares a job's reports with the clock, and with the sampler on its nodes. Pure.

A report says how many epochs are done and what one takes. Both are compared with the wall time between two reports of
progress as lucidd saw them, over windows of a few such intervals; the time before the first one (boot, prolog, data,
the rest of an epoch) does not count. One window that contradicts ends the growth of the job, two end its elasticity,
and each that agrees takes one of them back.

Honest jobs pause, for checkpoints and evaluations, and do not report the pauses. So a few intervals with the longest
pauses are left out, pauses that a job made on fewer GPUs are allowed on more, and a job that reports nothing at all
has twice ``silent_s``, or three times its own longest pause."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from lucid.core.job import Progress

_SLOW, _FAST, _FAR = 0.5, 1.2, 3.0
"""Ratios of reported seconds to wall time: below the first and above the second a report is contradicted, above the
third by a single interval."""
_EDGE_S = 10.0
"""The least number of seconds by which a report must exceed the wall time to be contradicted."""
_LEAST, _LEAST_S = 4, 30.0
"""The least number of intervals between reports of progress in a window, and its least length in seconds."""
_LEFT_OUT = 1 / 3
"""Share of the intervals that may be pauses."""
_NO_PROGRESS_S, _EPOCHS, _PAUSES = 60.0, 2.5, 1.5
"""A job that goes on reporting without progress for so many seconds, so many of its epochs and so many of its longest
pauses is contradicted."""
_MOST_SILENT = 4
"""The most that an earlier long pause allows of another, in ``silent_s``."""
_GUESSED_PAUSE = 1.0
"""The most that the time before its first report allows as a pause per epoch, in epochs."""
_MISSING, _GAIN = 0.5, 0.25
"""A job on more GPUs is contradicted if more than the first share is missing of the time that it claims to save by
them, where that time is at least the second share of an epoch's wall time."""
_IDLE_S = 60.0
"""How long progress may be reported while no GPU works."""
_MOST = 3
"""Most doubts kept: after so many windows that agree, a job is believed again."""


@dataclass(frozen=True, slots=True)
class Run:
    """A job as it runs now. ``written``: GPUs that its user wrote. ``reported_s``: when lucidd saw its report change
    last. ``worked``: seconds for which its sampler has measured its GPUs, and in which any of them worked."""

    start_s: float
    gpus: int
    written: int
    progress: Progress | None
    reported_s: float = 0.0
    worked: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a job: whether it may grow, and whether it may be resized at all. ``words``: the last
    contradiction."""

    grows: bool = True
    elastic: bool = True
    words: str = ""


AGREES = Verdict()


@dataclass(frozen=True, slots=True)
class _Interval:
    """The interval between two reports of progress: wall time, epochs, and the seconds reported for them, at least
    and at most."""

    wall_s: float
    epochs: float
    least_s: float
    most_s: float


@dataclass(slots=True)
class _Seen:
    """One run as watched. ``rose_s``: when its epochs last rose; ``begun``: whether they have risen in this run."""

    start_s: float
    gpus: int
    epochs: float
    rose_s: float
    begun: bool = False
    window: list[_Interval] = field(default_factory=list)
    before_s: float = 0.0
    """The time of the poll before the rise with which the window began: progress may have been reported at any time
    since."""
    last_before_s: float = 0.0
    """The time of the poll before the last rise."""
    judged_s: float = 0.0
    worked: tuple[float, float] | None = None
    rises: int = 0
    """How often the epochs rose since ``worked`` was noted."""


@dataclass(slots=True)
class _Watch:
    at_s: float
    run: _Seen | None = None
    doubts: int = 0
    against: int = 0
    """How many of the doubts end the elasticity."""
    words: str = ""
    gap_s: float = 0.0
    by_size: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By number of GPUs, wall time and reported seconds of an epoch, with all pauses, from windows that agreed."""
    guess_s: float = 0.0
    idle: bool = False
    """Whether the job's GPUs are idle by its sampler."""
    waited: bool = False
    """Whether the job was seen before it ran."""
    late: bool = False
    """This lucidd started when the job ran already, so it cannot know how the job paused on fewer GPUs."""

    @property
    def verdict(self) -> Verdict:
        return Verdict(not self.doubts, self.against < 2, self.words) if self.doubts else AGREES

    def doubt(self, words: str, against: bool) -> None:
        self.doubts = min(self.doubts + 1, _MOST)
        self.against = min(self.against + 1, _MOST) if against else self.against
        self.words = words

    def slow(self, gpus: int, epoch: tuple[float, float]) -> None:
        """Keep the window on so many GPUs with the longest pauses."""
        before = self.by_size.get(gpus, epoch)
        self.by_size[gpus] = max(before, epoch, key=lambda one: one[0] - one[1])

    def believe(self) -> None:
        self.doubts, self.against = max(self.doubts - 1, 0), max(self.against - 1, 0)

    def pause_s(self, gpus: int, written: int) -> tuple[float, bool]:
        """Seconds that an epoch takes beyond those reported, by what was seen on fewer GPUs; and whether it was seen
        there."""
        fewer = min(self.by_size, default=gpus)
        if fewer >= gpus:
            return (self.guess_s if gpus > written else 0.0), False
        wall_s, told_s = self.by_size[fewer]
        return max(wall_s - told_s, 0.0), True


class ReportCheck:
    """Watches the reports of jobs. ``silent_s``: as in daemon.elastic."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._watched: dict[str, _Watch] = {}

    def check(self, job_id: str, run: Run | None, now_s: float) -> Verdict:
        """The verdict on a job by now. ``run``: ``None`` while it does not run, or nothing is known of it. The same
        time gives the same verdict."""
        watch = self._watched.get(job_id)
        if watch is None:
            watch = self._watched[job_id] = _Watch(now_s, waited=run is None)
        elif watch.at_s == now_s:
            return watch.verdict
        if run is None:
            watch.run, watch.waited = None, True
        else:
            self._watch(watch, run, now_s)
        watch.at_s = now_s
        return watch.verdict

    def doubted(self) -> dict[str, str]:
        """What is held against jobs, by id."""
        return {job_id: watch.words for job_id, watch in self._watched.items() if watch.doubts}

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Forget all jobs but these."""
        self._watched = {job_id: watch for job_id, watch in self._watched.items() if job_id in alive}

    def _watch(self, watch: _Watch, run: Run, now_s: float) -> None:
        seen, epochs = watch.run, 0.0 if run.progress is None else run.progress.epochs
        if seen is None or (seen.start_s, seen.gpus) != (run.start_s, run.gpus):
            since_s = run.start_s if watch.at_s <= run.start_s else now_s
            watch.late = watch.late or (seen is None and not watch.waited)
            watch.run = _Seen(run.start_s, run.gpus, epochs, since_s, judged_s=since_s, worked=run.worked)
            return
        span = _span(run)
        if epochs > seen.epochs:
            self._rose(watch, seen, epochs, span, now_s)
        seen.epochs = epochs
        if run.worked is not None:
            _by_sampler(watch, seen, run.worked)
        self._by_silence(watch, seen, run, span, now_s)
        if span is not None and seen.window:
            _by_clock(watch, seen, run, span)

    def _rose(
        self, watch: _Watch, seen: _Seen, epochs: float, span: tuple[float, float] | None, now_s: float
    ) -> None:
        wall_s, more = now_s - seen.rose_s, epochs - seen.epochs
        watch.gap_s = max(watch.gap_s, wall_s)
        seen.rises += 1
        if not seen.window:
            seen.before_s = seen.last_before_s
        if seen.begun and span is not None:
            seen.window.append(_Interval(wall_s, more, more * span[0], more * span[1]))
        elif span is not None and not seen.epochs and not watch.by_size:  # its first report: it began with its run
            watch.guess_s = min(max(wall_s / more - span[1], 0.0), _GUESSED_PAUSE * span[1])
        seen.begun, seen.rose_s, seen.last_before_s = True, now_s, watch.at_s

    def _by_silence(
        self, watch: _Watch, seen: _Seen, run: Run, span: tuple[float, float] | None, now_s: float
    ) -> None:
        """Count a doubt if there is no progress for longer than any pause can be."""
        silent_s, epoch_s = self._silent_s, 0.0 if span is None else _EPOCHS * span[1]
        since_s, pause_s = max(seen.rose_s, seen.judged_s), _PAUSES * watch.gap_s
        least_s = silent_s if span is None else max(_NO_PROGRESS_S, epoch_s)
        # an agent reports step times, and no epochs of its own
        said = run.progress
        agents = said is not None and not said.epoch_s and bool(said.step_model or said.gradient)
        telling = not agents and run.reported_s - since_s > max(least_s, pause_s)
        quiet_s = now_s - max(since_s, run.reported_s)
        # while a job is silent it does not grow anyhow, and it may speak again: so this is either nothing or all
        more = run.gpus > run.written
        most_s = max(silent_s, 2 * epoch_s, min(pause_s, max(_MOST_SILENT * silent_s, 4 * epoch_s)))
        gone = more and quiet_s > (4 if watch.late else 2) * most_s
        for _ in range(1 if telling else 2 * gone):
            says = "" if span is None else f", and says that an epoch takes {span[1]:.3g} s"
            watch.doubt(f"it has told no progress for {now_s - seen.rose_s:.0f} s{says}", more)
            seen.judged_s, seen.window = now_s, []


def _span(run: Run) -> tuple[float, float] | None:
    """The reported seconds of an epoch on the job's GPUs, at least and at most. Where these are not reported they
    follow from the nearest reported number: on more GPUs at most in proportion faster, and no slower."""
    times = {} if run.progress is None else {gpus: seconds for gpus, seconds in run.progress.epoch_s if seconds > 0}
    if not times:
        return None
    near = min(times, key=lambda gpus: (abs(gpus - run.gpus), gpus))
    ratio = near / max(run.gpus, 1)
    return times[near] * min(1.0, ratio), times[near] * max(1.0, ratio)


def _by_clock(watch: _Watch, seen: _Seen, run: Run, span: tuple[float, float]) -> None:
    """Judge the window: at once where too much is reported, else when it is long enough."""
    window = seen.window
    wall_s, epochs = sum(one.wall_s for one in window), sum(one.epochs for one in window)
    told_s, most_s = sum(one.least_s for one in window), seen.rose_s - seen.before_s
    if told_s > (_FAST if len(window) > 1 else _FAR) * most_s + _EDGE_S:
        watch.doubt(f"it tells {epochs:.3g} epochs of {span[0]:.3g} s within {most_s:.0f} s", True)
        seen.judged_s, seen.window = seen.rose_s, []
        return
    if len(window) < _LEAST or wall_s < _LEAST_S:
        return
    epoch_s, epoch_told_s = _epoch(window, _LEFT_OUT)
    pause_s, known = watch.pause_s(run.gpus, run.written)
    saves_s = watch.by_size[min(watch.by_size)][1] - epoch_told_s if known else 0.0
    missing_s = epoch_s - epoch_told_s - pause_s
    slow = epoch_told_s + pause_s < _SLOW * epoch_s
    if slow or (saves_s > _GAIN * epoch_s and missing_s > _MISSING * saves_s):
        words = f"it says that an epoch takes {epoch_told_s:.3g} s, and {epoch_s:.3g} s go by for each"
        watch.doubt(words, known or (not watch.late and run.gpus > run.written))  # else it need not have gained by it
    else:
        watch.slow(run.gpus, _epoch(window))
        if not watch.idle:
            watch.believe()
    seen.judged_s, seen.window = seen.rose_s, []


def _epoch(window: list[_Interval], left_out: float = 0.0) -> tuple[float, float]:
    """Wall time and reported seconds of an epoch, without that share of the intervals that has the longest pauses."""
    kept = sorted(window, key=lambda one: one.wall_s - one.most_s)[: len(window) - math.ceil(left_out * len(window))]
    epochs = sum(one.epochs for one in kept)
    return sum(one.wall_s for one in kept) / epochs, sum(one.most_s for one in kept) / epochs


def _by_sampler(watch: _Watch, seen: _Seen, worked: tuple[float, float]) -> None:
    """Count a doubt if no GPU worked while progress was reported."""
    if seen.worked is None or worked[0] < seen.worked[0]:  # of a sampler that was started anew
        seen.worked, seen.rises = worked, 0
    measured_s = worked[0] - seen.worked[0]
    if worked[1] > seen.worked[1]:
        seen.worked, seen.rises, watch.idle = worked, 0, False
    elif measured_s >= _IDLE_S and seen.rises > 1:
        watch.doubt(f"it tells of progress, and its GPUs have not worked for {measured_s:.0f} s", True)
        seen.worked, seen.rises, watch.idle = worked, 0, True
