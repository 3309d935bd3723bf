#!/usr/bin/env python3
"""Writes the Grafana boards and the alert rules in this folder: ``python slurm/grafana/make.py``.

A test holds the files against what this makes, and asks each query of a real Prometheus. Nothing but
Python is needed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ALERTS", "BOARDS", "Alert", "Board", "Panel", "made"]

HERE = Path(__file__).parent
RUNBOOKS = "https://localhost/lucid/docs/monitoring.md"
"""Where the site serves docs/monitoring.md: change it here, or with sed in the file that is installed."""
_RATE = "[$__rate_interval]"
_WIDE, _HIGH = 24, 8
_WINDOW = "lucid_efficiency_window_seconds / 86400"
_HELD_KINDS = '{kind!="time_limit_too_long"}'


@dataclass(frozen=True)
class Panel:
    """One panel. ``queries``: expression and legend each. ``empty``: why it may have no data on a cluster that is
    well; empty where it always has."""

    title: str
    says: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    empty: str = ""


@dataclass(frozen=True)
class Board:
    """One board, its panels three in a row."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Alert:
    """One rule: it fires while ``value`` is ``bound``, for ``lasts``. ``empty``: as for panels, of ``value``."""

    name: str
    value: str
    bound: str
    lasts: str
    severity: str
    says: str
    empty: str = ""

    @property
    def expr(self) -> str:
        """The whole expression."""
        return f"({self.value}) {self.bound}"


def _one(expr: str, legend: str = "") -> tuple[tuple[str, str], ...]:
    return ((expr, legend),)


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{_RATE})))"


OPERATIONS = Board("lucid-operations", "Lucid: operations", (
    Panel("Is lucidd heard of?", "Seconds since lucidd last told of itself; its cycles are seconds apart.",
          _one("time() - lucid_status_timestamp_seconds"), "s", "stat"),
    Panel("Turns that failed in a row", "0 while all is well.", _one("lucid_turns_failed_in_a_row"), kind="stat"),
    Panel("Slurm is not asked for", "Above 0 while Slurm was too slow or silent to be asked.",
          _one("lucid_slurm_breaker_open_seconds"), "s", "stat"),
    Panel("Time to decide", "Planning alone, half of all plans and 99 of 100.",
          ((_quantile(0.5, "lucid_decision_duration_seconds"), "half"),
           (_quantile(0.99, "lucid_decision_duration_seconds"), "99 of 100")), "s"),
    Panel("Time of a cycle", "Look, plan, act and record, 99 of 100 cycles.",
          _one(_quantile(0.99, "lucid_cycle_duration_seconds"), "99 of 100"), "s"),
    Panel("Cycles per minute", "Finished cycles, and turns that failed.",
          ((f"60 * rate(lucid_cycles_total{_RATE})", "cycles"),
           (f"60 * rate(lucid_turns_failed_total{_RATE})", "failed"))),
    Panel("Requests to Slurm per minute", "What lucidd asks of slurmctld.",
          _one(f"60 * rate(lucid_slurm_requests_total{_RATE})", "{{kind}}")),
    Panel("How long Slurm takes to answer", "The last answer.", _one("lucid_slurm_last_answer_seconds"), "s"),
    Panel("Refusals per hour", "Decided and not done, by cause.",
          _one(f"3600 * rate(lucid_refusals_total{_RATE})", "{{cause}}")),
    Panel("Jobs that wait", "By partition.", _one("lucid_pending_jobs", "{{partition}}")),
    Panel("Oldest hold", "How long the job that Lucid has held longest has waited.",
          _one("lucid_oldest_hold_seconds", "{{partition}}"), "s", empty="Lucid holds no job"),
    Panel("Margin to the starvation bound", "Least time that a waiting job has left until its bound.",
          _one("lucid_starvation_margin_seconds", "{{vc}}"), "s", empty="policy.fairness sets no bound"),
    Panel("Queue for profiling", "Jobs that wait for a profiling run.",
          _one("lucid_profiling_queue_jobs", "{{partition}}"), empty="no profiling partition"),
    Panel("Forecasts of starts that held", "Share of starts within the range that was told; 0.8 is meant.",
          _one("lucid_start_forecast_coverage_ratio"), "percentunit", empty="no job has waited for long yet"),
    Panel("Drift of the models", "Error over that of plain history means; above 1 the means know more.",
          _one("lucid_model_error_ratio", "{{kind}}"), empty="no model has been judged yet"),
))  # fmt: skip

SHARING = Board("lucid-sharing", "Lucid: sharing", (
    Panel("Pairs now", "By what is known of their speeds.", _one("sum by (speed) (lucid_pairs)", "{{speed}}"),
          kind="stat"),
    Panel("GPU-hours saved", "By sharing, in the range shown; by measured and expected speeds.",
          _one("sum(increase(lucid_sharing_saved_gpu_seconds_total[$__range])) / 3600"), "h", "stat"),
    Panel("GPU-hours lost", "By which jobs were slower because they shared.",
          _one("sum(increase(lucid_sharing_lost_gpu_seconds_total[$__range])) / 3600"), "h", "stat"),
    Panel("GPUs in pairs", "GPU-seconds shared per second, by what is known of the speeds.",
          _one(f"sum by (speed) (rate(lucid_shared_gpu_seconds_total{_RATE}))", "{{speed}}")),
    Panel("Saved and lost", "In GPUs: 3 saved means that sharing does the work of three more GPUs.",
          ((f"sum(rate(lucid_sharing_saved_gpu_seconds_total{_RATE}))", "saved"),
           (f"-sum(rate(lucid_sharing_lost_gpu_seconds_total{_RATE}))", "lost"))),
    Panel("Mean speed in pairs", "1 is as fast as alone: expected, and measured.",
          _one("avg by (speed) (lucid_pair_speed_mean_ratio)", "{{speed}}"), "percentunit", empty="no pair now"),
    Panel("Lowest speed in a pair", "By partition.",
          _one("lucid_pair_speed_lowest_ratio", "{{partition}} {{speed}}"), "percentunit", empty="no pair now"),
    Panel("Furthest below the expected speed", "Measured less expected speed of single jobs.",
          _one("bottomk(10, lucid_pair_job_measured_speed_ratio - lucid_pair_job_promised_speed_ratio)",
               "job {{job}} beside {{partner}}"), "percentunit", "table",
          empty="no pair of an expected speed has been measured"),
    Panel("Restarts caused per day", "Running jobs that Lucid started over.",
          _one(f"86400 * rate(lucid_restarts_total{_RATE})", "{{cause}}")),
    Panel("What Lucid does per hour", "By kind of action.",
          _one(f"3600 * rate(lucid_actions_total{_RATE})", "{{verb}}"), empty="nothing was done yet"),
))  # fmt: skip

WASTE = Board("lucid-waste", "Lucid: waste", (
    Panel("Wasted share", "Of measured GPU-hours of the window, all VCs.",
          _one(f"sum(lucid_waste_gpu_seconds{_HELD_KINDS}) / (sum(lucid_efficiency_held_gpu_seconds) "
               "- sum(lucid_efficiency_not_measured_gpu_seconds))"), "percentunit", "stat", "no job was measured"),
    Panel("Not measured", "Share of GPU-hours of which nothing can be said.",
          _one("sum(lucid_efficiency_not_measured_gpu_seconds) / sum(lucid_efficiency_held_gpu_seconds)"),
          "percentunit", "stat", "no job in the window"),
    Panel("Window", "Days that the account goes back.", _one(_WINDOW), "d", "stat"),
    Panel("Wasted GPU-hours by kind", "Over the window; what was left of time limits was not held.",
          _one("sum by (kind) (lucid_waste_gpu_seconds) / 3600", "{{kind}}"), "h", empty="no job was measured"),
    Panel("Wasted GPU-hours by VC", "Over the window, without time limits.",
          _one(f"sum by (vc) (lucid_waste_gpu_seconds{_HELD_KINDS}) / 3600", "{{vc}}"), "h",
          empty="no job was measured"),
    Panel("Where GPU-hours went", "Held, worked, wasted and not measured over the window.",
          (("sum(lucid_efficiency_held_gpu_seconds) / 3600", "held"),
           ("sum(lucid_efficiency_worked_gpu_seconds) / 3600", "worked"),
           (f"sum(lucid_waste_gpu_seconds{_HELD_KINDS}) / 3600", "wasted"),
           ("sum(lucid_efficiency_not_measured_gpu_seconds) / 3600", "not measured")), "h",
          empty="no job in the window"),
    Panel("Asked against held", "Of time limits, the share that jobs really ran, by VC.",
          _one("lucid_efficiency_held_gpu_seconds / (lucid_efficiency_asked_gpu_seconds > 0)", "{{vc}}"),
          "percentunit", empty="no job with a time limit"),
    Panel("Waste by VC and kind", "Who to talk to: lucidctl efficiency names jobs and users.",
          _one(f"topk(20, lucid_waste_gpu_seconds{_HELD_KINDS} / 3600)", "{{vc}} {{kind}}"), "h", "table",
          "no job was measured"),
))  # fmt: skip

BOARDS = (OPERATIONS, SHARING, WASTE)

ALERTS = (
    Alert("LucidStoreUnreadable", "lucid_up", "== 0", "5m", "critical",
          "The exporter cannot read lucidd's store, so nothing else can be told."),
    Alert("LuciddSilent", "time() - lucid_status_timestamp_seconds", "> 120", "2m", "critical",
          "lucidd has told nothing of itself for over two minutes; job_submit.lua leaves new jobs to Slurm by now."),
    Alert("LuciddTurnsFail", "lucid_turns_failed_in_a_row", ">= 5", "2m", "critical",
          "Turns of lucidd fail again and again."),
    Alert("LucidPartitionUnplanned", "lucid_partition_unplanned_seconds", "> 60", "1m", "critical",
          "No plan of a partition can be made: its jobs wait.",
          "all partitions are planned"),
    Alert("LuciddPaused", "lucid_paused", "== 1", "8h", "warning", "lucidd has been paused by hand for eight hours."),
    Alert("LucidSlurmNotAsked", "lucid_slurm_breaker_open_seconds", "> 0", "10m", "warning",
          "Slurm is slow or silent, and lucidd asks it only now and then."),
    Alert("LucidDecidesSlowly",
          "histogram_quantile(0.99, sum by (le) (rate(lucid_decision_duration_seconds_bucket[15m])))", "> 5", "15m",
          "warning", "One plan in a hundred takes over five seconds."),
    Alert("LucidGpuOut", "lucid_gpus_out", "> 0", "1m", "warning",
          "A GPU is not well, and gets no new start.", "all GPUs are well"),
    Alert("LucidManyGpusOut", "lucid_gpus_beyond_bound", "> 0", "1m", "critical",
          "More GPUs are said to be not well than Lucid takes out by itself: a sampler or a driver may be broken."),
    Alert("LucidGpuNotKept", "lucid_gpus_not_kept", "> 0", "10m", "warning",
          "Slurm's own jobs are not kept off a GPU that is out."),
    Alert("LucidPastStarvationBound", "lucid_starvation_margin_seconds", "< 0", "5m", "critical",
          "A waiting job is past the starvation bound.", "policy.fairness sets no bound"),
    Alert("LucidNearStarvationBound", "lucid_starvation_margin_seconds / lucid_starvation_bound_seconds", "< 0.1",
          "10m", "warning", "A waiting job has a tenth of its bound left at the most.",
          "policy.fairness sets no bound"),
    Alert("LucidOldHold", "lucid_oldest_hold_seconds", "> 259200", "15m", "warning",
          "Lucid has held a job for over three days.", "Lucid holds no job"),
    Alert("LucidSafetyCheck", 'increase(lucid_refusals_total{cause="safety_check"}[1h])', "> 0", "0m", "critical",
          "The safety check left out an action: a defect of Lucid, which did no harm."),
    Alert("LucidManyRefusals", 'sum(increase(lucid_refusals_total{cause="slurm"}[1h]))', "> 20", "10m",
          "warning", "Slurm declined over twenty actions within an hour."),
    Alert("LucidProfilingQueueLong", "lucid_profiling_oldest_wait_seconds", "> 3600", "15m", "warning",
          "A job has waited for its profiling run for over an hour.", "no job waits for a profiling run"),
    Alert("LucidPairSlow", 'lucid_pair_speed_lowest_ratio{speed="measured"}', "< 0.5", "30m", "warning",
          "A job in a pair runs at less than half of its speed.", "no pair has been measured"),
    Alert("LucidForecastsMiss", "lucid_start_forecast_coverage_ratio and lucid_start_forecast_judged_jobs >= 50",
          "< 0.6", "1h", "warning", "Fewer than six in ten starts fall into the range that was told.",
          "fewer than fifty starts have been judged"),
    Alert("LucidModelUnusable", "lucid_model_unusable", "== 1", "15m", "warning",
          "A model is in service and cannot be used; its replacement answers.", "no models"),
    Alert("LucidModelDrifts", "lucid_model_error_ratio", "> 1.2", "1d", "warning",
          "A model does worse than plain history means.", "no model has been judged yet"),
    Alert("LucidMuchWaste",
          f"sum(lucid_waste_gpu_seconds{_HELD_KINDS}) / (sum(lucid_efficiency_held_gpu_seconds) "
          "- sum(lucid_efficiency_not_measured_gpu_seconds))", "> 0.2", "1d", "info",
          "Over a fifth of the measured GPU-hours of the window were wasted.", "no job was measured"),
    Alert("LucidNotMeasured",
          "sum(lucid_efficiency_not_measured_gpu_seconds) / sum(lucid_efficiency_held_gpu_seconds)", "> 0.5", "1d",
          "info", "Over half of the GPU-hours of the window were not measured.", "no job in the window"),
)  # fmt: skip


def board_json(board: Board) -> str:
    """What Grafana imports."""
    panels = [_panel(panel, number) for number, panel in enumerate(board.panels)]
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    data: dict[str, Any] = {
        "uid": board.uid, "title": board.title, "tags": ["lucid"], "editable": True, "schemaVersion": 39,
        "refresh": "30s", "time": {"from": "now-24h", "to": "now"}, "timezone": "", "templating": {"list": [source]},
        "panels": panels,
    }  # fmt: skip
    return json.dumps(data, indent=1) + "\n"


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    wide = _WIDE // 3
    targets = [
        {
            "refId": chr(ord("A") + at), "datasource": source, "expr": expr, "legendFormat": legend or "__auto",
            **({"instant": True, "format": "table"} if panel.kind == "table" else {}),
        }
        for at, (expr, legend) in enumerate(panel.queries)
    ]  # fmt: skip
    return {
        "id": number + 1, "type": panel.kind, "title": panel.title, "description": panel.says, "datasource": source,
        "gridPos": {"x": number % 3 * wide, "y": number // 3 * _HIGH, "w": wide, "h": _HIGH}, "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, **_no_value(panel)}, "overrides": []},
    }  # fmt: skip


def _no_value(panel: Panel) -> dict[str, str]:
    return {"noValue": panel.empty} if panel.empty else {}


def rules_yaml() -> str:
    """The rule file of Prometheus. Every value is a quoted JSON string, which YAML reads as it is."""
    lines = ["# Made by slurm/grafana/make.py.", "groups:", "  - name: lucid", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}", f"        expr: {json.dumps(alert.expr)}", f"        for: {alert.lasts}",
            "        labels:", f"          severity: {alert.severity}", "        annotations:",
            f"          summary: {json.dumps(alert.says)}",
            f"          runbook_url: {json.dumps(f'{RUNBOOKS}#{alert.name.lower()}')}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def made() -> dict[str, str]:
    """By file name in this folder, what stands there."""
    names = {"operations.json": OPERATIONS, "sharing.json": SHARING, "waste.json": WASTE}
    return {**{name: board_json(board) for name, board in names.items()}, "alerts.yml": rules_yaml()}


if __name__ == "__main__":
    for name, text in made().items():
        (HERE / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{HERE / name}\n")
