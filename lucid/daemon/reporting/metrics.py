"""lucidd's metrics for Prometheus, as text: one table of all of them, and the values of each.

Values that lucidd has not recorded (yet, or in an older version) are absent, not 0. GPU-hours are counted by VC:
users are named in ``lucidctl efficiency`` only."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lucid.core.decision import Hold
from lucid.daemon.learning.training import UPKEEP
from lucid.daemon.plan_errors import plan_errors_of
from lucid.daemon.reporting.counters import BUCKETS_S, RESTARTS, SPEEDS, promises_of, speeds_of
from lucid.daemon.reporting.last_plan import StoredPlan
from lucid.daemon.reporting.starts import START_TIMES, start_times_of
from lucid.daemon.reporting.waste_inputs import MetricsSource
from lucid.errors import Refusal, StoreError
from lucid.profiler.waste import DAYS, JobAccount, WasteKind, totals
from lucid.store.sqlite import SqliteStore
from lucid.text import mapping_of, shown

_S = 3600.0
_MOST_GROUPS = 24
"""Most VCs or partitions with series of their own; the smaller ones go together as ``other``."""
_MOST_PAIRED_JOBS = 100
"""Most jobs of pairs with series of their own: those furthest behind what was promised to them, then the slowest."""
_LONGEST = 200
METRICS: Final = {
    "lucid_up": "1 if lucidd's store can be read, else 0.",
    "lucid_status_timestamp_seconds": "Unix time of the last status of lucidd; it writes one after every cycle.",
    "lucid_paused": "1 while lucidd is paused by hand.",
    "lucid_partitions{mode}": "Partitions that lucidd looks after, by what it may do there.",
    "lucid_cycles_total": "Cycles that lucidd finished.",
    "lucid_turns_failed_total": "Turns of lucidd that did not come to their end.",
    "lucid_turns_failed_in_a_row": "Turns that failed since the last good one.",
    "lucid_partition_unplanned_seconds{partition,error}": (
        "For so long no plan of the partition can be made, by kind of error; held jobs are released after 300 s."
    ),
    "lucid_cycle_duration_seconds": "A whole cycle: look, plan, act, record.",
    "lucid_decision_duration_seconds": "Planning alone: from what was seen to what is decided.",
    "lucid_unreadable_records{source}": "Records that lucidd could not read at its last look.",
    "lucid_slurm_requests_total{kind}": "Requests of lucidd to Slurm.",
    "lucid_slurm_requests_refused_total": "Requests that Slurm declined.",
    "lucid_slurm_requests_unanswered_total": "Requests without an answer in time.",
    "lucid_slurm_last_answer_seconds": "How long Slurm's last answer took.",
    "lucid_slurm_slowest_answer_seconds": "The slowest answer of this process.",
    "lucid_slurm_breaker_open_seconds": (
        "For so long Slurm is not asked, because it was slow or silent; 0 while it is asked."
    ),
    "lucid_actions_total{verb}": "What lucidd did to jobs.",
    "lucid_refusals_total{cause}": "What was decided and not done, by cause.",
    "lucid_site_factors_undone_total": "Site factors of order mode that Slurm took back; lucidd writes them again.",
    "lucid_restarts_total{cause}": "Running jobs that lucidd started over, by cause.",
    "lucid_shared_gpu_seconds_total{speed}": (
        "GPU time in which two jobs shared a GPU, by what is known of their speeds."
    ),
    "lucid_sharing_saved_gpu_seconds_total{speed}": (
        "GPU time that sharing saved: work of both jobs in the time of one, beyond what one alone would do."
    ),
    "lucid_sharing_lost_gpu_seconds_total{speed}": "GPU time by which jobs were slower because they shared.",
    "lucid_starvation_bound_seconds{vc}": (
        "A job is to start at the latest so long after plain order would have started it."
    ),
    "lucid_starvation_margin_seconds{vc}": (
        "Least time that a waiting job has left until its bound; below 0 it is past it."
    ),
    "lucid_starvation_starts_total{vc}": "Starts that were held against the bound.",
    "lucid_starvation_late_starts_total{vc}": "Starts after the bound.",
    "lucid_starvation_worst_lateness_seconds{vc}": "The most by which a start was after its bound.",
    "lucid_gpus_out{node,cause}": "GPUs that are not well, or that a person took out, by node and cause.",
    "lucid_gpus_beyond_bound": "GPUs that would be out but for the bounds.",
    "lucid_gpus_not_kept": "GPUs that are out, and not kept from Slurm's own jobs.",
    "lucid_gpu_nodes_silent": "Nodes whose sampler has told nothing for minutes.",
    "lucid_start_forecast_coverage_ratio": (
        "Share of the latest starts that fell into the range that was forecast; 0.8 is aimed at."
    ),
    "lucid_start_forecast_judged_jobs": "Starts that the coverage rests on.",
    "lucid_start_forecast_open_jobs": "Waiting jobs with a forecast.",
    "lucid_model_info{kind,version}": "The version that answers for a kind of model, or its replacement.",
    "lucid_model_unusable{kind}": "1 if a version is in service and cannot be used.",
    "lucid_model_error_ratio{kind}": (
        "Error over that of plain history means, on jobs that ended since training; above 1 the means know more."
    ),
    "lucid_model_judged_jobs{kind}": "Jobs, or bins of time, that the error ratio rests on.",
    "lucid_model_input_shift{kind}": (
        "Population stability index of the input that moved most since training; above 0.25 it has shifted."
    ),
    "lucid_gpus{partition}": "GPUs of a partition, available or not.",
    "lucid_pending_jobs{partition}": "Jobs that wait for Lucid.",
    "lucid_running_jobs{partition}": "Jobs that run.",
    "lucid_held_jobs{partition}": "Jobs that Lucid holds back, by its last plan.",
    "lucid_barred_jobs{partition}": "Jobs that Slurm would not start at present.",
    "lucid_oldest_hold_seconds{partition}": (
        "How long the job that Lucid has held longest has waited by now; absent where it holds none."
    ),
    "lucid_profiling_queue_jobs{partition}": "Jobs that wait for a profiling run.",
    "lucid_profiling_running_jobs{partition}": "Jobs on profiling nodes.",
    "lucid_profiling_oldest_wait_seconds{partition}": (
        "The longest wait for a profiling run by now; absent where no job waits."
    ),
    "lucid_pairs{partition,speed}": "Pairs of jobs on the same GPUs, by what is known of their speeds.",
    "lucid_pair_speed_mean_ratio{partition,speed}": (
        "Mean speed of jobs in pairs, 1 being as fast as alone: as expected when the pair was made, and as measured."
    ),
    "lucid_pair_speed_lowest_ratio{partition,speed}": "The lowest of these speeds.",
    "lucid_pair_job_promised_speed_ratio{partition,job,partner}": (
        f"Speed expected of a job with its partner; of the {_MOST_PAIRED_JOBS} jobs furthest below what was expected."
    ),
    "lucid_pair_job_measured_speed_ratio{partition,job,partner}": (
        f"Speed measured of a job with its partner; of the {_MOST_PAIRED_JOBS} jobs furthest below what was expected."
    ),
    "lucid_efficiency_window_seconds": "The account is of jobs that run, or ended within so long.",
    "lucid_efficiency_asked_gpu_seconds{vc}": "GPUs by time limit of the jobs of the window that have a limit.",
    "lucid_efficiency_held_gpu_seconds{vc}": "GPUs by run time of the jobs of the window.",
    "lucid_efficiency_worked_gpu_seconds{vc}": "GPU time in which a GPU worked for its job, of measured jobs.",
    "lucid_efficiency_not_measured_gpu_seconds{vc}": "GPU time of jobs without enough readings to judge them.",
    "lucid_waste_gpu_seconds{vc,kind}": (
        "GPU time wasted by measured jobs, by kind; of time limits: what was left of them."
    ),
}
"""What each metric tells, by its name and labels. A name that ends in ``_total`` is a counter, and
``_duration_seconds`` a histogram; all others are gauges."""
Labels = Mapping[Any, Any]
"""A value by the tuple of its labels' values, or by the value of the only label."""
Values = dict[str, Any]
"""By metric its value, its ``Labels``, or the counts of a histogram; ``None`` where it is not known."""


def render(source: MetricsSource) -> bytes:
    """All metrics, as of now. Where the store cannot be read, ``lucid_up 0`` alone: a scrape never fails."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(source))
    return generate_latest(registry)


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The HTTP content type of the text."""


class _Once(Collector):
    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self):  # type: ignore[no-untyped-def]
        try:
            store = self._source.store()
            try:
                values = _values(self._source, store)
            finally:
                store.close()
        except StoreError:
            values = {"lucid_up": 0}
        return [family for family in _families(values) if family.samples]


def _families(values: Values) -> Iterator[Metric]:
    """The families of these values, in the order of the table."""
    for metric, words in METRICS.items():
        name, _, labels = metric.rstrip("}").partition("{")
        value = values.get(name)
        if name.endswith("_duration_seconds"):
            yield _histogram(name, words, value)
            continue
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        family = kind(name, words, labels=labels.split(",") if labels else ())
        for key, found in (value if isinstance(value, Mapping) else {(): value}).items():
            if (known := number(found)) is not None:
                # names are data: whatever a site or a file calls something cannot end a line of the text
                parts = key if isinstance(key, tuple) else (key,)
                family.add_metric([shown(part)[:_LONGEST] for part in parts], known)
        yield family


def _histogram(name: str, words: str, found: Any) -> Metric:
    family = HistogramMetricFamily(name, words)
    counts = mapping_of(found).get("counts")
    if isinstance(counts, list) and len(counts) == len(BUCKETS_S) + 1:
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        sums = list(zip(bounds, map(float, accumulate(counts)), strict=True))
        family.add_metric([], sums, number(found.get("sum_s")))
    return family


def number(value: Any) -> float | None:
    """The value as a finite number, or ``None``: another version may have written anything."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def few(sizes: Mapping[str, float]) -> dict[str, str]:
    """By VC or partition, the name of its series: its own for the largest, else ``other``."""
    if len(sizes) <= _MOST_GROUPS:
        return {name: name for name in sizes}
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[: _MOST_GROUPS - 1]
    return {name: name if name in largest else "other" for name in sizes}


def _values(source: MetricsSource, store: SqliteStore) -> Values:
    """The values of all metrics that are known.

    Raises: StoreError: the store cannot be read."""
    status = mapping_of(store.view("status"))
    counts = mapping_of(status.get("counts"))
    times = start_times_of(store.view(START_TIMES))
    share, judged = times.coverage()
    found = {
        "lucid_up": 1,
        **_daemon(status, counts),
        **_starvation(mapping_of(counts.get("starvation"))),
        "lucid_start_forecast_coverage_ratio": share if judged else None,
        "lucid_start_forecast_judged_jobs": judged,
        "lucid_start_forecast_open_jobs": len(times.open),
        **_models(status, store.view(UPKEEP)),
        **_waste(source.accounts(store)),
    }
    seen = source.seen(store)
    if seen is not None:
        rooms = _seen(seen, number(status.get("at_s")))
        groups = few({name: one.gpus for name, one in rooms.items()})
        found |= _queues(rooms, groups) | _pair_values(_pairs(seen, promises_of(counts)), groups)
    return found


def _daemon(status: Mapping[str, Any], counts: Mapping[str, Any]) -> Values:
    calls, health = mapping_of(status.get("calls")), mapping_of(status.get("gpu_health"))
    at_s = number(status.get("at_s"))

    def each(key: str, names: Sequence[str] = ()) -> Labels:
        found = mapping_of(counts.get(key))
        return {name: found.get(name) for name in (names or sorted(found))}

    def length(key: str) -> int | None:
        return len(health[key]) if key in health else None

    return {
        "lucid_status_timestamp_seconds": at_s,
        "lucid_paused": status.get("paused"),
        "lucid_partitions": Counter(map(str, mapping_of(status.get("modes")).values())),
        "lucid_cycles_total": status.get("cycles"),
        "lucid_turns_failed_total": counts.get("failed"),
        "lucid_turns_failed_in_a_row": status.get("failed_turns"),
        "lucid_partition_unplanned_seconds": {
            (name, one.why.partition(":")[0]): max(at_s - one.since_s, 0.0)
            for name, one in plan_errors_of(status).items()
            if at_s is not None
        },
        "lucid_cycle_duration_seconds": counts.get("cycle_s"),
        "lucid_decision_duration_seconds": counts.get("plan_s"),
        "lucid_unreadable_records": {
            source: mapping_of(told).get("now") for source, told in mapping_of(status.get("left_out")).items()
        },
        "lucid_gpus_out": Counter(
            (str(out.get("node")), "person" if out.get("by") else str(out.get("kind")))
            for out in health.get("out") or ()
        ),
        "lucid_gpus_beyond_bound": length("beyond"),
        "lucid_gpus_not_kept": length("not_kept"),
        "lucid_gpu_nodes_silent": length("sampler_silent"),
        "lucid_slurm_requests_total": {"read": calls.get("reads"), "write": calls.get("writes")},
        "lucid_slurm_requests_refused_total": calls.get("refused"),
        "lucid_slurm_requests_unanswered_total": calls.get("failed"),
        "lucid_slurm_last_answer_seconds": calls.get("last_s"),
        "lucid_slurm_slowest_answer_seconds": calls.get("slowest_s"),
        "lucid_slurm_breaker_open_seconds": status.get("breaker_open_s"),
        "lucid_actions_total": each("done"),
        "lucid_refusals_total": each("refused", tuple(Refusal)),
        "lucid_site_factors_undone_total": counts.get("factors_undone"),
        "lucid_restarts_total": each("restarts", RESTARTS),
        "lucid_shared_gpu_seconds_total": each("shared_gpu_s", SPEEDS),
        "lucid_sharing_saved_gpu_seconds_total": each("saved_gpu_s", SPEEDS[:2]),
        "lucid_sharing_lost_gpu_seconds_total": each("lost_gpu_s", SPEEDS[:2]),
    }


def _starvation(found: Mapping[str, Any]) -> Values:
    groups = few({vc: number(mapping_of(one).get("started")) or 0.0 for vc, one in found.items()})

    def each(key: str, join: Callable[[Iterable[float]], float]) -> Labels:
        return _joined(((groups[vc], number(mapping_of(one).get(key))) for vc, one in found.items()), join)

    return {
        "lucid_starvation_bound_seconds": each("bound_s", min),
        "lucid_starvation_margin_seconds": each("margin_s", min),
        "lucid_starvation_starts_total": each("started", sum),
        "lucid_starvation_late_starts_total": each("past", sum),
        "lucid_starvation_worst_lateness_seconds": each("worst_s", max),
    }


def _joined(values: Iterable[tuple[Any, float | None]], join: Callable[[Iterable[float]], float]) -> Labels:
    """The known values of each key, joined."""
    found: defaultdict[Any, list[float]] = defaultdict(list)
    for key, value in values:
        if value is not None:
            found[key].append(value)
    return {key: join(some) for key, some in found.items()}


def _models(status: Mapping[str, Any], upkeep: Any) -> Values:
    serving = {kind: mapping_of(one) for kind, one in mapping_of(status.get("models")).items()}
    drifts = {
        str(one.get("kind")): mapping_of(one.get("drift"))
        for one in (upkeep if isinstance(upkeep, list) else ())
        if isinstance(one, Mapping)
    }
    shifts = ((kind, number(v)) for kind, one in drifts.items() for v in mapping_of(one.get("psi")).values())
    return {
        "lucid_model_info": {(kind, str(one.get("version", ""))): 1 for kind, one in serving.items()},
        "lucid_model_unusable": {kind: one.get("trouble") for kind, one in serving.items()},
        "lucid_model_error_ratio": {kind: one.get("error_ratio") for kind, one in drifts.items()},
        "lucid_model_judged_jobs": {kind: one.get("jobs") for kind, one in drifts.items()},
        "lucid_model_input_shift": _joined(shifts, max),
    }


def _waste(accounts: Sequence[JobAccount]) -> Values:
    """The values of wasted GPU-hours, from the accounts of the jobs of the last days."""
    held: defaultdict[str, float] = defaultdict(float)
    for account in accounts:
        held[account.job.vc] += account.held_gpu_h
    groups = few(held)
    by_vc = totals(accounts, lambda account: groups[account.job.vc])
    measured = [one for one in by_vc if one.not_measured_jobs < one.jobs]
    return {
        "lucid_efficiency_window_seconds": DAYS * 86400.0,
        "lucid_efficiency_asked_gpu_seconds": {one.name: one.asked_gpu_h * _S for one in by_vc},
        "lucid_efficiency_held_gpu_seconds": {one.name: one.held_gpu_h * _S for one in by_vc},
        "lucid_efficiency_worked_gpu_seconds": {one.name: one.worked_gpu_h * _S for one in by_vc},
        "lucid_efficiency_not_measured_gpu_seconds": {one.name: one.not_measured_gpu_h * _S for one in by_vc},
        "lucid_waste_gpu_seconds": {
            (one.name, kind): one.wasted_gpu_h.get(kind, 0.0) * _S for one in measured for kind in WasteKind
        },
    }


class _Seen(NamedTuple):
    gpus: float
    profiling: bool
    pending: int
    running: int
    held: int
    barred: int
    held_since_s: float | None
    oldest_s: float | None


def _seen(seen: StoredPlan, at_s: float | None) -> dict[str, _Seen]:
    """The partitions of lucidd's last plan. ``at_s``: Unix time of its last poll."""
    found: dict[str, _Seen] = {}
    snapshot = seen.snapshot
    now_s = snapshot.now_s if at_s is None else max(at_s, snapshot.now_s)
    for name, part in snapshot.partitions.items():
        plan = seen.plan.partitions.get(name)
        decided = {} if plan is None or not part.acting else plan.decisions
        waits = {entry.job.id: now_s - entry.since_s for entry in part.pending}
        held = [wait_s for job_id, wait_s in waits.items() if isinstance(decided.get(job_id), Hold)]
        found[name] = _Seen(
            part.gpus,
            part.profiling,
            len(waits),
            len(part.running),
            len(held),
            sum(bool(entry.barred) for entry in part.pending),
            max(held, default=None),
            max(waits.values(), default=None),
        )
    return found


def _queues(seen: Mapping[str, _Seen], groups: Mapping[str, str]) -> Values:
    def total(key: str) -> Labels:
        return _joined(((groups[name], getattr(one, key)) for name, one in seen.items()), sum)

    rooms = {name: one for name, one in seen.items() if one.profiling}
    return {
        "lucid_gpus": total("gpus"),
        "lucid_pending_jobs": total("pending"),
        "lucid_running_jobs": total("running"),
        "lucid_held_jobs": total("held"),
        "lucid_barred_jobs": total("barred"),
        "lucid_oldest_hold_seconds": _joined(((groups[name], one.held_since_s) for name, one in seen.items()), max),
        "lucid_profiling_queue_jobs": {name: one.pending for name, one in rooms.items()},
        "lucid_profiling_running_jobs": {name: one.running for name, one in rooms.items()},
        "lucid_profiling_oldest_wait_seconds": {name: one.oldest_s for name, one in rooms.items()},
    }


class _PairedJob(NamedTuple):
    partition: str
    job: str
    partner: str
    promised: float | None
    measured: float | None
    by: str


def _pairs(seen: StoredPlan, promises: Mapping[str, tuple[str, float, float]]) -> list[_PairedJob]:
    """The jobs of pairs, each with its speeds; two in a row are a pair. ``promises``: what was promised to them."""
    found: list[_PairedJob] = []
    for name, part in seen.snapshot.partitions.items():
        running = {entry.job.id: entry for entry in part.running if entry.partner}
        for job_id, entry in running.items():
            other = running.get(entry.partner or "")
            if other is None or job_id > other.job.id:
                continue
            by, _ = speeds_of(entry, other, promises)
            for one, beside in ((entry, other), (other, entry)):
                said, profile = promises.get(one.job.id), one.profile
                measured = profile.seen_speed if profile and profile.seen_beside == beside.job.id else None
                promised = said[1] if said is not None and said[0] == beside.job.id else None
                found.append(_PairedJob(name, one.job.id, beside.job.id, promised, measured, by))
    return found


def _pair_values(jobs: Sequence[_PairedJob], groups: Mapping[str, str]) -> Values:
    counts = {(name, by): 0.0 for name in groups.values() for by in SPEEDS}
    speeds: list[tuple[tuple[str, str], float | None]] = []
    for one in jobs:
        name = groups[one.partition]
        counts[name, one.by] += 0.5
        speeds += [((name, "promised"), one.promised), ((name, "measured"), one.measured)]
    known = sorted((one for one in jobs if one.promised is not None or one.measured is not None), key=_urgency)
    some = {(groups[one.partition], one.job, one.partner): one for one in known[:_MOST_PAIRED_JOBS]}
    return {
        "lucid_pairs": counts,
        "lucid_pair_speed_mean_ratio": _joined(speeds, fmean),
        "lucid_pair_speed_lowest_ratio": _joined(speeds, min),
        "lucid_pair_job_promised_speed_ratio": {key: one.promised for key, one in some.items()},
        "lucid_pair_job_measured_speed_ratio": {key: one.measured for key, one in some.items()},
    }


def _urgency(one: _PairedJob) -> tuple[float, float, str]:
    behind = 0.0 if one.promised is None or one.measured is None else one.measured - one.promised
    known = [value for value in (one.promised, one.measured) if value is not None]
    return behind, min(known), one.job
