"""``Trace`` and ``TraceJob``: one trace in memory; and the loop that makes one from the rows of any format.

One loop for all formats, so that bad rows are treated the same everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from lucid.accounting.log_rows import BadCell, Drop, ReadOptions, Row, Source, csv_rows, fit_header
from lucid.accounting.values import is_state, state_of
from lucid.core.job import Elastic, Job, JobProfile
from lucid.core.prediction import StageTimes
from lucid.errors import TraceError
from lucid.simulator.cluster.training import Learning


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job with the truth about it that only a replay knows.

    ``duration_s``: run time alone on its GPUs. ``profile``: what sampling it would show, where the trace has that.
    ``share_label``: a published share score for it. ``state``: as accounting reports it (COMPLETED, FAILED,
    CANCELLED, TIMEOUT, ...), empty where unknown. ``learning``: how an elastic job trains; its ``duration_s`` is then
    its run time on the GPUs and with the batch it was submitted with. ``stages``: what a dry run of one iteration
    would show. ``waited_s``: the real time between submission and start, where the log has it."""

    job: Job
    duration_s: float
    state: str = ""
    profile: JobProfile | None = None
    share_label: int | None = None
    learning: Learning | None = None
    stages: StageTimes | None = None
    waited_s: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs sorted by (submit_s, rank), submit times in seconds from the first job.

    ``epoch_s``: Unix time of second 0 where the trace has calendar dates (so that rhythms can be read).
    ``evaluated_with``: settings of policies, by key, in the evaluation that the trace was published
    with; they hold unless set otherwise.
    ``skipped``: rows left out by ``--skip-bad`` or because they asked for no GPU, by reason."""

    name: str
    jobs: tuple[TraceJob, ...]
    epoch_s: float | None = None
    skipped: tuple[tuple[str, int], ...] = ()
    evaluated_with: Mapping[str, Any] = field(default_factory=dict)

    @property
    def vcs(self) -> tuple[str, ...]:
        """Names of the virtual clusters, sorted."""
        return tuple(sorted({item.job.vc for item in self.jobs}))


NO_GPU = "asked for no GPU"
_YEAR_S = 365 * 86_400.0
_MOST_DURATION_S = 10 * _YEAR_S
"""The longest run time of a job. A replay of one absurd duration would not end."""
_MOST_SPAN_S = 20 * _YEAR_S
"""The longest time between the first and the last submission."""
_MOST_GPUS = 100_000
"""Most GPUs that a job may ask for; the largest machine has fewer."""
_PROGRESS_EVERY = 5000
_REMEDY = "correct the row, or leave bad rows out with --skip-bad"


@dataclass(slots=True)
class Draft:
    """A job as its row has it; ``submit_s`` still counts from wherever the file counts."""

    id: str
    vc: str
    gpus: int
    submit_s: float
    duration_s: float
    user: str = ""
    account: str = ""
    name: str = ""
    cpus: int = 0
    mem_mib: int = 0
    time_limit_s: float | None = None
    amp: bool | None = None
    requeueable: bool = True
    long_cold_start: bool = False
    shareable: bool = True
    state: str = ""
    profile: JobProfile | None = None
    share_label: int | None = None
    stages: StageTimes | None = None
    elastic: Elastic | None = None
    learning: Learning | None = None
    id_column: str = "job_id"
    waited_s: float | None = None
    rank: int | None = None
    """Place among jobs with the same submit time, where the file fixes it; else the order of the rows."""


def collect(
    source: Source,
    rows: Iterator[BadCell | None],
    row: Row,
    parse: Callable[[Row], Draft],
    options: ReadOptions,
    epoch: Callable[[float], float | None],
    rebase: bool = True,
) -> Trace:
    """Parse all rows into a trace that begins at second 0.

    Args:
        rows: fills ``row``; yields what is wrong with its shape, or ``None``.
        parse: makes a draft of it; raises ``BadCell`` or ``Drop``.
        options: how to treat bad rows.
        epoch: Unix time of the trace's second 0, given the first submit time as the file counts it.
        rebase: count submit times from the first job; else they stay as they are.

    Raises:
        TraceError: a bad row (unless they are skipped), or no job is left."""
    drafts: list[tuple[float, int, Draft]] = []
    ids: dict[str, int] = {}
    counts: Counter[str] = Counter()
    total = source.lines if options.progress else 0
    for shape in rows:
        if options.progress and row.number % _PROGRESS_EVERY == 0:
            options.progress(row.line, total)
        try:
            if shape is not None:
                raise shape
            draft = parse(row)
            _check(draft)
            if draft.id in ids:
                problem = f"is a job id that line {ids[draft.id]} has already"
                raise BadCell(draft.id_column, draft.id, problem, reason="duplicate job id")
            ids[draft.id] = row.line
            if draft.gpus == 0 and not options.keep_cpu_jobs:
                raise Drop(NO_GPU)
        except Drop as drop:
            if drop.reason:
                counts[drop.reason] += 1
        except BadCell as bad:
            if not options.skip_bad:
                raise source.fail(row.line, bad, _REMEDY) from None
            counts[bad.reason] += 1
        else:
            drafts.append((draft.submit_s, row.number if draft.rank is None else draft.rank, draft))
    if options.progress:
        options.progress(total, total)
    skipped = tuple(sorted(counts.items()))
    if not drafts:
        raise TraceError(f"{source.path}: has no job that can be replayed ({show_skipped(skipped)})")
    drafts.sort(key=lambda item: item[:2])
    first_s = drafts[0][0] if rebase else 0.0
    last_s, _, last = drafts[-1]
    if last_s - first_s > _MOST_SPAN_S:
        years, first = (last_s - first_s) / _YEAR_S, f"line {ids[drafts[0][2].id]}" if rebase else "the trace's start"
        raise source.fail(
            ids[last.id],
            BadCell("", last.id, f"is a job submitted {years:,.0f} years after {first}; 20 are the most"),
            "correct the submission time of one of the two",
        )
    jobs = tuple(_finish(draft, submit_s - first_s, rank) for submit_s, rank, draft in drafts)
    return Trace(source.path.stem, jobs, epoch(first_s), skipped)


def collect_csv(
    source: Source,
    header: list[str],
    header_line: int,
    needed: Sequence[str],
    about: str,
    parse: Callable[[Row], Draft],
    options: ReadOptions,
    epoch: Callable[[float], float | None],
    rebase: bool = True,
    delimiter: str = ",",
) -> Trace:
    """The trace of a CSV with a header that names at least the columns ``needed``; ``about`` says what such a file
    is. The rest is as for ``collect``.

    Raises: TraceError: a missing column, or as ``collect``."""
    fit_header(source, header_line, header, needed, about)
    row = Row(header)
    rows = csv_rows(source, row, len(header), header, header_line, delimiter)
    return collect(source, rows, row, parse, options, epoch, rebase)


def show_skipped(skipped: tuple[tuple[str, int], ...]) -> str:
    """The skipped rows in words: ``3 asked for no GPU, 1 short row``."""
    return ", ".join(f"{count} {reason}" for reason, count in skipped) or "it has no rows"


def _check(draft: Draft) -> None:
    """Check that some cluster could have run the job."""
    if draft.duration_s > _MOST_DURATION_S:
        problem = f"is a run time above 10 years ({_MOST_DURATION_S:,.0f} s)"
        raise BadCell("", f"{draft.duration_s:g} s", problem, reason="run time above 10 years")
    if draft.gpus > _MOST_GPUS:
        problem = f"for one job is above {_MOST_GPUS:,}"
        raise BadCell("", f"{draft.gpus:g} GPUs", problem, reason=f"more than {_MOST_GPUS:,} GPUs")
    if draft.state and not is_state(state_of(draft.state)):
        remedy = "write COMPLETED, FAILED, CANCELLED, TIMEOUT or another of Slurm's states, or leave it empty"
        raise BadCell("state", draft.state, "is not a state of a Slurm job", remedy)


_DRAFTED = {one.name for one in fields(Draft)} - {"submit_s", "rank"}
_OF_JOB, _OF_TRACE = ([one.name for one in fields(kind) if one.name in _DRAFTED] for kind in (Job, TraceJob))


def _finish(draft: Draft, submit_s: float, rank: int) -> TraceJob:
    job = Job(submit_s=submit_s, rank=rank, **{name: getattr(draft, name) for name in _OF_JOB})
    return TraceJob(job, **{name: getattr(draft, name) for name in _OF_TRACE})
