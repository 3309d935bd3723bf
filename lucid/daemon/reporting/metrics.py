"""lucidd's metrics for Prometheus, as text: lucidd itself, calls of Slurm, models, forecasts, waste.

Values that lucidd has not recorded (yet, or in an older version) are absent, not 0. GPU-hours are counted by VC:
users are named in ``lucidctl efficiency`` only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lucid.daemon.learning.training import UPKEEP
from lucid.daemon.plan_errors import plan_errors_of
from lucid.daemon.reporting.counters import BUCKETS_S, RESTARTS, SPEEDS, promises_of
from lucid.daemon.reporting.metrics_partitions import Labels, counter, few, gauge, number, partition_families
from lucid.daemon.reporting.starts import START_TIMES, start_times_of
from lucid.daemon.reporting.waste_inputs import MetricsSource
from lucid.errors import Refusal, StoreError
from lucid.profiler.waste import DAYS, JobAccount, WasteKind, totals
from lucid.store.sqlite import SqliteStore

_S = 3600.0


def waste_families(accounts: Sequence[JobAccount], days: float) -> Iterator[Metric]:
    """The families of wasted GPU-hours, from the accounts of the jobs of the last ``days``."""
    yield gauge(
        "lucid_efficiency_window_seconds",
        "The account is of jobs that run, or ended within so long.",
        {(): days * 86400.0},
    )
    held: dict[str, float] = {}
    for account in accounts:
        held[account.job.vc] = held.get(account.job.vc, 0.0) + account.held_gpu_h
    groups = few(held)
    by_vc = totals(accounts, lambda account: groups[account.job.vc])
    yield gauge(
        "lucid_efficiency_asked_gpu_seconds",
        "GPUs by time limit of the jobs of the window that have a limit.",
        {(one.name,): one.asked_gpu_h * _S for one in by_vc},
        ("vc",),
    )
    yield gauge(
        "lucid_efficiency_held_gpu_seconds",
        "GPUs by run time of the jobs of the window.",
        {(one.name,): one.held_gpu_h * _S for one in by_vc},
        ("vc",),
    )
    yield gauge(
        "lucid_efficiency_worked_gpu_seconds",
        "GPU time in which a GPU worked for its job, of measured jobs.",
        {(one.name,): one.worked_gpu_h * _S for one in by_vc},
        ("vc",),
    )
    yield gauge(
        "lucid_efficiency_not_measured_gpu_seconds",
        "GPU time of jobs without enough readings to judge them.",
        {(one.name,): one.not_measured_gpu_h * _S for one in by_vc},
        ("vc",),
    )
    measured = [one for one in by_vc if one.not_measured_jobs < one.jobs]
    yield gauge(
        "lucid_waste_gpu_seconds",
        "GPU time wasted by measured jobs, by kind; of time limits: what was left of them.",
        {(one.name, kind): one.wasted_gpu_h.get(kind, 0.0) * _S for one in measured for kind in WasteKind},
        ("vc", "kind"),
    )


def families(source: MetricsSource, store: SqliteStore) -> list[Metric]:
    """All families that have a sample.

    Raises: StoreError: the store cannot be read."""
    status = _mapping(store.view("status"))
    counts = _mapping(status.get("counts"))
    found: list[Metric] = [gauge("lucid_up", "1 if lucidd's store can be read, else 0.", {(): 1.0})]
    found += _daemon(status, counts)
    found += _slurm(status)
    found += _work(counts)
    found += _starvation(_mapping(counts.get("starvation")))
    found += _gpus(_mapping(status.get("gpu_health")))
    found += _forecasts(store)
    found += _models(status, store.view(UPKEEP))
    at_s = number(status.get("at_s"))
    promises = promises_of(counts)
    found += partition_families(source.seen(store), promises, at_s)
    found += waste_families(source.accounts(store), DAYS)
    return [family for family in found if family.samples]


def _daemon(status: Mapping[str, Any], counts: Mapping[str, Any]) -> Iterator[Metric]:
    yield gauge(
        "lucid_status_timestamp_seconds",
        "Unix time of the last status of lucidd; it writes one after every cycle.",
        {(): number(status.get("at_s"))},
    )
    yield gauge("lucid_paused", "1 while lucidd is paused by hand.", {(): number(status.get("paused"))})
    modes = Counter(map(str, _mapping(status.get("modes")).values()))
    yield gauge(
        "lucid_partitions",
        "Partitions that lucidd looks after, by what it may do there.",
        {(mode,): float(count) for mode, count in modes.items()},
        ("mode",),
    )
    yield counter("lucid_cycles", "Cycles that lucidd finished.", {(): number(status.get("cycles"))})
    yield counter(
        "lucid_turns_failed", "Turns of lucidd that did not come to their end.", {(): number(counts.get("failed"))}
    )
    yield gauge(
        "lucid_turns_failed_in_a_row",
        "Turns that failed since the last good one.",
        {(): number(status.get("failed_turns"))},
    )
    at_s = number(status.get("at_s"))
    if at_s is not None:
        yield gauge(
            "lucid_partition_unplanned_seconds",
            "For so long no plan of the partition can be made, by kind of error; held jobs are released after 300 s.",
            {
                (name, one.why.partition(":")[0]): max(at_s - one.since_s, 0.0)
                for name, one in plan_errors_of(status).items()
            },
            ("partition", "error"),
        )
    yield from _times(
        "lucid_cycle_duration_seconds", "A whole cycle: look, plan, act, record.", counts.get("cycle_s")
    )
    yield from _times(
        "lucid_decision_duration_seconds",
        "Planning alone: from what was seen to what is decided.",
        counts.get("plan_s"),
    )
    left_out = {
        (source,): number(_mapping(told).get("now")) for source, told in _mapping(status.get("left_out")).items()
    }
    yield gauge(
        "lucid_unreadable_records", "Records that lucidd could not read at its last look.", left_out, ("source",)
    )


def _gpus(told: Mapping[str, Any]) -> Iterator[Metric]:
    outs = Counter(
        (str(o.get("node")), "person" if o.get("by") else str(o.get("kind"))) for o in told.get("out") or ()
    )
    yield gauge(
        "lucid_gpus_out",
        "GPUs that are not well, or that a person took out, by node and cause.",
        {key: float(count) for key, count in outs.items()},
        ("node", "cause"),
    )

    def count(key: str) -> Labels:
        return {(): float(len(told[key])) if key in told else None}

    yield gauge("lucid_gpus_beyond_bound", "GPUs that would be out but for the bounds.", count("beyond"))
    yield gauge("lucid_gpus_not_kept", "GPUs that are out, and not kept from Slurm's own jobs.", count("not_kept"))
    yield gauge(
        "lucid_gpu_nodes_silent", "Nodes whose sampler has told nothing for minutes.", count("sampler_silent")
    )


def _slurm(status: Mapping[str, Any]) -> Iterator[Metric]:
    calls = _mapping(status.get("calls"))
    asked = {(kind,): number(calls.get(key)) for kind, key in (("read", "reads"), ("write", "writes"))}
    yield counter("lucid_slurm_requests", "Requests of lucidd to Slurm.", asked, ("kind",))
    yield counter("lucid_slurm_requests_refused", "Requests that Slurm declined.", {(): number(calls.get("refused"))})
    yield counter(
        "lucid_slurm_requests_unanswered", "Requests without an answer in time.", {(): number(calls.get("failed"))}
    )
    yield gauge(
        "lucid_slurm_last_answer_seconds", "How long Slurm's last answer took.", {(): number(calls.get("last_s"))}
    )
    yield gauge(
        "lucid_slurm_slowest_answer_seconds",
        "The slowest answer of this process.",
        {(): number(calls.get("slowest_s"))},
    )
    yield gauge(
        "lucid_slurm_breaker_open_seconds",
        "For so long Slurm is not asked, because it was slow or silent; 0 while it is asked.",
        {(): number(status.get("breaker_open_s"))},
    )


def _work(counts: Mapping[str, Any]) -> Iterator[Metric]:
    def each(key: str, names: Sequence[str] = ()) -> Labels:
        found = _mapping(counts.get(key))
        return {(name,): number(found.get(name)) for name in (names or sorted(found))}

    yield counter("lucid_actions", "What lucidd did to jobs.", each("done"), ("verb",))
    yield counter(
        "lucid_refusals", "What was decided and not done, by cause.", each("refused", tuple(Refusal)), ("cause",)
    )
    yield counter(
        "lucid_site_factors_undone",
        "Site factors of order mode that Slurm took back; lucidd writes them again.",
        {(): number(counts.get("factors_undone"))},
    )
    yield counter(
        "lucid_restarts", "Running jobs that lucidd started over, by cause.", each("restarts", RESTARTS), ("cause",)
    )
    yield counter(
        "lucid_shared_gpu_seconds",
        "GPU time in which two jobs shared a GPU, by what is known of their speeds.",
        each("shared_gpu_s", SPEEDS),
        ("speed",),
    )
    yield counter(
        "lucid_sharing_saved_gpu_seconds",
        "GPU time that sharing saved: work of both jobs in the time of one, beyond what one alone would do.",
        each("saved_gpu_s", SPEEDS[:2]),
        ("speed",),
    )
    yield counter(
        "lucid_sharing_lost_gpu_seconds",
        "GPU time by which jobs were slower because they shared.",
        each("lost_gpu_s", SPEEDS[:2]),
        ("speed",),
    )


def _starvation(found: Mapping[str, Any]) -> Iterator[Metric]:
    groups = few({vc: number(_mapping(one).get("started")) or 0.0 for vc, one in found.items()})

    def each(key: str, join: Callable[[Iterable[float]], float]) -> Labels:
        values: dict[tuple[str, ...], list[float]] = {}
        for vc, one in found.items():
            value = number(_mapping(one).get(key))
            if value is not None:
                values.setdefault((groups[vc],), []).append(value)
        return {key: join(some) for key, some in values.items()}

    label = ("vc",)
    yield gauge(
        "lucid_starvation_bound_seconds",
        "A job is to start at the latest so long after plain order would have started it.",
        each("bound_s", min),
        label,
    )
    yield gauge(
        "lucid_starvation_margin_seconds",
        "Least time that a waiting job has left until its bound; below 0 it is past it.",
        each("margin_s", min),
        label,
    )
    yield counter("lucid_starvation_starts", "Starts that were held against the bound.", each("started", sum), label)
    yield counter("lucid_starvation_late_starts", "Starts after the bound.", each("past", sum), label)
    yield gauge(
        "lucid_starvation_worst_lateness_seconds",
        "The most by which a start was after its bound.",
        each("worst_s", max),
        label,
    )


def _forecasts(store: SqliteStore) -> Iterator[Metric]:
    times = start_times_of(store.view(START_TIMES))
    share, jobs = times.coverage()
    yield gauge(
        "lucid_start_forecast_coverage_ratio",
        "Share of the latest starts that fell into the range that was forecast; 0.8 is aimed at.",
        {(): share if jobs else None},
    )
    yield gauge("lucid_start_forecast_judged_jobs", "Starts that the coverage rests on.", {(): float(jobs)})
    yield gauge("lucid_start_forecast_open_jobs", "Waiting jobs with a forecast.", {(): float(len(times.open))})


def _models(status: Mapping[str, Any], upkeep: Any) -> Iterator[Metric]:
    serving = {kind: _mapping(one) for kind, one in _mapping(status.get("models")).items()}
    yield gauge(
        "lucid_model_info",
        "The version that answers for a kind of model, or its replacement.",
        {(kind, str(one.get("version", ""))): 1.0 for kind, one in serving.items()},
        ("kind", "version"),
    )
    yield gauge(
        "lucid_model_unusable",
        "1 if a version is in service and cannot be used.",
        {(kind,): number(one.get("trouble")) for kind, one in serving.items()},
        ("kind",),
    )
    drifts = {
        str(one.get("kind")): _mapping(one.get("drift"))
        for one in (upkeep if isinstance(upkeep, list) else ())
        if isinstance(one, Mapping)
    }
    yield gauge(
        "lucid_model_error_ratio",
        "Error over that of plain history means, on jobs that ended since training; above 1 the means know more.",
        {(kind,): number(one.get("error_ratio")) for kind, one in drifts.items()},
        ("kind",),
    )
    yield gauge(
        "lucid_model_judged_jobs",
        "Jobs, or bins of time, that the error ratio rests on.",
        {(kind,): number(one.get("jobs")) for kind, one in drifts.items()},
        ("kind",),
    )
    yield gauge(
        "lucid_model_input_shift",
        "Population stability index of the input that moved most since training; above 0.25 it has shifted.",
        {
            (kind,): max((v for v in map(number, _mapping(one.get("psi")).values()) if v is not None), default=None)
            for kind, one in drifts.items()
        },
        ("kind",),
    )


def _times(name: str, words: str, found: Any) -> Iterator[Metric]:
    counts = _mapping(found).get("counts")
    if not isinstance(counts, list) or len(counts) != len(BUCKETS_S) + 1:
        return
    family = HistogramMetricFamily(name, words)
    bounds = [*map(str, BUCKETS_S), "+Inf"]
    family.add_metric([], list(zip(bounds, map(float, accumulate(counts)), strict=True)), number(found.get("sum_s")))
    yield family


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The HTTP content type of the text."""


def render(source: MetricsSource) -> bytes:
    """All metrics, as of now. Where the store cannot be read, ``lucid_up 0`` alone: a scrape never fails."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(source))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self):  # type: ignore[no-untyped-def]
        try:
            store = self._source.store()
            try:
                found = families(self._source, store)
            finally:
                store.close()
        except StoreError:
            found = [GaugeMetricFamily("lucid_up", "1 if lucidd's store can be read, else 0.", value=0)]
        return found
