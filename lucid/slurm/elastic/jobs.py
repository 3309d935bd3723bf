"""``ElasticJobs``: which jobs may be resized at present, within which limits, and what they have reported.

Jobs whose agent fits no model of their step times get one fitted here from their reports (``StepModels``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from statistics import median

from lucid.config.live import ElasticSettings
from lucid.core.job import Elastic, Progress
from lucid.core.placement import Placement, parse_placement, placement_gpus
from lucid.slurm.elastic.opt_in import elastic_request, most_nodes, rigid_because, written_gpus
from lucid.slurm.elastic.report_check import AGREES, ReportCheck, Run, Verdict
from lucid.slurm.elastic.reports import Profile, Report, Reports, Said
from lucid.slurm.records.job import SlurmJob
from lucid.store.port import JobNote
from lucid.text import digits

_ROUND_S = 1.0
"""Seconds that fits may take in one poll: the one that passes this is the last; the others follow later."""


class StepModels:
    """The last fitted model, by job. A job's rows are fitted again only once they have changed."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._fitted: dict[str, tuple[Profile, tuple[float, ...]]] = {}
        """By job the rows, and the model fitted to them."""
        self._poll_s = float("-inf")
        self._spent_s = 0.0

    def model_of(self, job_id: str, rows: Profile, now_s: float) -> tuple[float, ...]:
        """Pollux's seven parameters for a job that reports these rows; empty where there are none, or none yet.

        ``now_s``: the time of the poll, which all its jobs have in common."""
        if now_s != self._poll_s:
            self._poll_s, self._spent_s = now_s, 0.0
        fitted_to, before = self._fitted.get(job_id, ((), ()))
        if not rows or fitted_to == rows or self._spent_s >= _ROUND_S:
            return before if rows else ()
        began_s = self._monotonic_s()
        model = _fit(rows)
        self._spent_s += self._monotonic_s() - began_s
        self._fitted[job_id] = rows, model
        return model

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Forget the models of all jobs but these."""
        for job_id in [job_id for job_id in self._fitted if job_id not in alive]:
            del self._fitted[job_id]


def _fit(rows: Profile) -> tuple[float, ...]:
    """The model of these rows; empty where they lead to none."""
    import numpy as np  # not before a job reports rows: commands that read no reports start without scipy

    from lucid.orchestrator.policies.rounds.goodput import Observations, fit_perf_params

    try:
        with np.errstate(all="ignore"):
            seen = Observations.from_columns(*zip(*rows, strict=True))
            found = fit_perf_params(seen).params
    except (ValueError, ArithmeticError, np.linalg.LinAlgError):
        return ()
    whole = all(np.isfinite(value) and value >= 0 for value in found)
    return tuple(float(value) for value in found) if whole else ()


@dataclass(frozen=True, slots=True)
class Elasticity:
    """How elastic a job is. ``limits``: within which it may be resized now; ``None``: it keeps its GPUs. ``words``:
    the state of a job whose user opted in. ``gpus``, ``nodes``, ``cpus``, ``mem_mib``: what its user asked for, where
    it has been resized since; 0 where that is what Slurm shows. ``restart_s``: the expected cost of its next
    restart."""

    limits: Elastic | None = None
    progress: Progress | None = None
    words: str = ""
    gpus: int = 0
    nodes: int = 0
    cpus: int = 0
    mem_mib: int = 0
    restart_s: float | None = None


NOT_ELASTIC = Elasticity()
_RESTARTS_KEPT = 200


Worked = Callable[[SlurmJob], tuple[float, float] | None]
"""From a job, the seconds for which its sampler has measured its GPUs, and in which any of them worked; ``None``
without a sampler."""


class ElasticJobs:
    """Works out the elasticity of jobs. ``resizes``: whether the policy of a VC resizes jobs; else each keeps its
    GPUs."""

    def __init__(self, settings: ElasticSettings, resizes: Callable[[str], bool], worked: Worked) -> None:
        self._settings = settings
        self.check, self._worked = ReportCheck(settings.silent_s), worked
        self._resizes = resizes
        self.reports = Reports(settings.reports_dir)
        self._models = StepModels()
        self._restarts_s: dict[str, float] = {}
        """How long the last restart of each job took, of the jobs restarted last."""
        self.words: dict[str, str] = {}
        """The state of each job whose user opted in, in words, as of the last poll."""

    def elasticity_of(self, record: SlurmJob, note: JobNote | None, vc: str, now_s: float) -> Elasticity:
        """How elastic a job of this VC is at present."""
        opted = elastic_request(record.comment) if "lucid:elastic=" in record.comment else None
        noted = note is not None and "gpus" in note.as_written
        if opted is None and not noted:
            return NOT_ELASTIC
        limits = None if opted is None else opted.limits
        why = "" if opted is None else opted.why
        if limits is not None:
            why = rigid_because(record, note, limits) or self._not_in(vc, now_s)
            limits = _as_slurm_gives(replace(limits, max_nodes=most_nodes(record, limits)), note, now_s)
        report, verdict = None, AGREES
        if limits is not None and not why:
            report = self.reports.report_of(record.id, record.uid, now_s)
            verdict = self._verdict(record, note, report, now_s)
            waits = record.pending and not _on_its_way(record, note)
            if report is None and waits and opted is not None and opted.start is not None:
                limits, words = _first_start(limits, opted.start, written_gpus(record, note))
                self.words[record.id] = words
                return Elasticity(limits)
            gpus, asked = placement_gpus(record.placement), written_gpus(record, note)
            back = not verdict.elastic and record.running and gpus > asked
            why = self._keeps(record, note, report, now_s, back)
        progress = None
        if report is not None and report.said is not None:
            limits, progress = self._reported(record.id, limits, report.said, now_s)
        doubt = ""
        if limits is not None and not why and verdict is not AGREES:
            limits, why, doubt = _doubted(limits, verdict, gpus, asked)
        restart_s = self._restart_s(record.id, note)
        words = why or doubt or _standing(note, limits, progress, restart_s)
        if verdict.words not in words:
            words += f"; lucidd's clock contradicts its reports: {verdict.words}"
        self.words[record.id] = words
        free = limits if not why else None
        on_its_way = _on_its_way(record, note)
        if on_its_way:
            return Elasticity(None, progress, self.words[record.id], placement_gpus(on_its_way))
        if not (record.pending or free is not None) or note is None or not noted:
            return Elasticity(free, progress, self.words[record.id], restart_s=restart_s)
        written = note.as_written
        return Elasticity(
            free,
            progress,
            self.words[record.id],
            written_gpus(record, note),
            digits(written.get("num_nodes", "")) or 0,
            digits(written.get("num_cpus", "")) or 0,
            digits(written.get("mem_mib", "")) or 0,
            restart_s,
        )

    def _verdict(self, record: SlurmJob, note: JobNote | None, report: Report | None, now_s: float) -> Verdict:
        """Whether the clock and the sampler agree with what the job reports."""
        runs = record.state == "RUNNING" and not record.completing and not (note is not None and note.going_to)
        run = None
        if runs:
            said, at_s = (None, 0.0) if report is None else (report.progress, report.at_s)
            gpus, written = placement_gpus(record.placement), written_gpus(record, note)
            run = Run(record.start_s, gpus, written, said, at_s, self._worked(record))
        return self.check.check(record.id, run, now_s)

    def _reported(
        self, job_id: str, limits: Elastic | None, said: Said, now_s: float
    ) -> tuple[Elastic | None, Progress]:
        """The job's limits and its progress, by its comment and its report."""
        limits, progress = limits and _narrowed(limits, said), said.progress
        if limits is None or not _knows_batch(limits):
            return limits, replace(progress, step_model=())  # a model of step times says nothing of unknown batches
        if not progress.step_model:
            progress = replace(progress, step_model=self._models.model_of(job_id, said.profile, now_s))
        return limits, progress

    def _restart_s(self, job_id: str, note: JobNote | None) -> float:
        """The expected cost of a restart of this job: what its last one took, else the median of the jobs that were
        restarted last, else what the administrator guesses."""
        if note is not None and note.restart_s > 0:
            if self._restarts_s.get(job_id) != note.restart_s:
                self._restarts_s.pop(job_id, None)
                self._restarts_s[job_id] = note.restart_s
                if len(self._restarts_s) > _RESTARTS_KEPT:
                    del self._restarts_s[next(iter(self._restarts_s))]
            return note.restart_s
        return median(self._restarts_s.values()) if self._restarts_s else self._settings.restart_s

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Forget all jobs but these."""
        self.reports.forget_all_but(alive)
        self.check.forget_all_but(alive)
        self._models.forget_all_but(alive)
        self.words = {job_id: words for job_id, words in self.words.items() if job_id in alive}

    def _not_in(self, vc: str, now_s: float) -> str:
        if not self._resizes(vc):
            return "it is not resized: the policy of its partition resizes no job"
        if not self.reports.kept:
            return "it is not resized: daemon.elastic.reports_dir is not set"
        trouble = self.reports.trouble(now_s)
        return f"it is not resized: {trouble.words}" if trouble.blind else ""

    def _keeps(self, record: SlurmJob, note: JobNote | None, report: Report | None, now_s: float, back: bool) -> str:
        """Why a job that could be resized keeps its GPUs at present. ``back``: it is to give some back, whatever its
        reports."""
        settings = self._settings
        if report is None and not back:
            return "it is not resized before its first report (lucid-report)"
        if report is not None and report.progress is None and not back:
            return f"it is not resized: {report.refused}"
        if note is not None and note.going_to:
            return f"it goes on on {note.going_to} as soon as it has stopped"
        if record.pending:
            return ""
        if record.state != "RUNNING" or record.completing:
            return f"it is not resized: it {'is suspended' if record.state == 'SUSPENDED' else 'has ended'}"
        silent_s = now_s - max(0.0 if report is None else report.at_s, record.start_s)
        if silent_s > settings.silent_s and not back:
            return f"it is not resized: no report for {silent_s:.0f} s"
        left_s = record.start_s + settings.resize_every_s - now_s
        return f"it keeps its GPUs for another {left_s:.0f} s (daemon.elastic.resize_every_s)" if left_s > 0 else ""


def _on_its_way(record: SlurmJob, note: JobNote | None) -> Placement:
    """Where a job that does not run yet goes on, or was asked to start: it will have as many GPUs as are there."""
    if note is None:
        return ()
    return parse_placement(note.going_to or (note.where if record.pending and not record.held else ""))


def _knows_batch(limits: Elastic) -> bool:
    return limits.most_batch > 1


def _narrowed(limits: Elastic, said: Said) -> Elastic:
    """The limits of a comment, narrowed by what the job itself reports. A job of unknown batch size keeps the one
    that it has: then only its number of GPUs bounds it."""
    low, high = limits.init_batch, limits.most_batch
    if said.batch_range is not None:
        first, last = said.batch_range
        low, high = (first, last) if not _knows_batch(limits) else (min(max(first, low), high), min(last, high))
        high = max(low, high)
    elif not _knows_batch(limits):
        low = high = said.progress.batch
        if low <= 1:
            return replace(limits, batch=limits.max_gpus, pinned=True)
    least, most = (1, high) if said.atomic_range is None else said.atomic_range
    least = min(least, high)
    return replace(
        limits,
        batch=low,
        init_batch=low,
        most_batch=high,
        atomic_min=least,
        atomic_max=max(min(most, high), least),
    )


def _as_slurm_gives(limits: Elastic, note: JobNote | None, now_s: float) -> Elastic:
    """The limits of a comment, narrowed to the number of GPUs that Slurm's limits are known to give."""
    if note is None or not note.most_gpus or 0 < note.most_until_s <= now_s:
        return limits
    return replace(limits, max_gpus=max(min(limits.max_gpus, note.most_gpus), limits.min_gpus))


def _doubted(limits: Elastic, verdict: Verdict, gpus: int, written: int) -> tuple[Elastic, str, str]:
    """The limits of a job whose reports are doubted, why it is not resized, and its state in words. ``gpus``: those
    that it has, 0 while it waits; ``written``: those that its user asked for."""
    says = f"lucidd's clock contradicts its reports: {verdict.words}"
    if verdict.elastic:
        most = max(min(limits.max_gpus, gpus or written), limits.min_gpus)
        return replace(limits, max_gpus=most), "", f"it does not grow beyond {most} GPU{'s' * (most > 1)}: {says}"
    if gpus in (0, written):
        return limits, f"it is not resized: {says}", ""
    words = f"it goes back to the {written} GPU{'s' * (written > 1)} that its user asked for: {says}"
    return replace(limits, max_gpus=max(min(limits.max_gpus, written), limits.min_gpus)), "", words


def _first_start(limits: Elastic, least: int, gpus: int) -> tuple[Elastic, str]:
    """The limits of a job's first start, before it has reported, and in words on how many GPUs it may start."""
    most = max(min(gpus, limits.max_gpus), least)
    words = f"it may start on {least} to {most} GPUs; afterwards it is not resized before its first report"
    return replace(limits, min_gpus=least, max_gpus=most), words


def _standing(note: JobNote | None, limits: Elastic | None, progress: Progress | None, restart_s: float) -> str:
    if limits is None or progress is None:
        return "it is not resized: its comment no longer says lucid:elastic="
    words = (
        f"it may be resized between {limits.min_gpus} and {limits.max_gpus} GPUs; epochs done: {progress.epochs:g}"
    )
    if limits.max_nodes is not None:
        words += f"; on {limits.max_nodes} node{'s' * (limits.max_nodes > 1)} at the most"
    if note is not None and note.most_gpus == limits.max_gpus:
        words += f"; Slurm did not start it on more ({note.most_why})"
    if note is not None and note.restart_s:
        words += f"; its last restart took {note.restart_s:.1f} s"
    else:
        words += f"; a restart is taken to cost {restart_s:.1f} s"
    if progress.step_model and progress.gradient is not None:
        words += "; its step times and gradients are known"
    elif progress.step_model:
        words += "; it has not reported its gradient's statistics"
    return words
