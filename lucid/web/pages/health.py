"""Is Lucid well: what ``doctor`` finds in lucidd's own files, modes, Slurm's answers, models, forecasts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path

from lucid.adapters.slurm.heartbeat import read_heartbeat
from lucid.doctor.state import look_over_state
from lucid.explain.quantities import duration
from lucid.explain.starts import told_of
from lucid.live.learning.model_upkeep import UPKEEP
from lucid.live.reporting.counters import BUCKETS_S
from lucid.live.reporting.doctor_finding import Finding
from lucid.orchestrator.forecast.start_times import SHORT_S
from lucid.web.pages.shown import HealthPage, Latency, Starts
from lucid.web.site import Site
from lucid.web.status import Times, judged_of
from lucid.web.viewer import Viewer

__all__ = ["health"]

_STARTS = 200
_LEVELS = ("bad", "warn", "ok")
_EVERY_S = 15.0


def health(site: Site, viewer: Viewer, _path: Mapping[str, str], _asked: Mapping[str, str]) -> HealthPage:
    """Nothing here asks Slurm: doctor's other half, which does, is left to the command."""
    status, now_s = site.source.status, site.now_s()
    alive, holder = site.alive()
    beat = read_heartbeat(Path(site.source.settings.daemon.heartbeat))
    with site.source.store() as store:
        judged = judged_of(store.view(UPKEEP))
    findings = sorted(_findings(site), key=lambda found: _LEVELS.index(found.level))
    shown = findings if viewer.admin or viewer.jobs == "all" else [f for f in findings if f.level != "ok"]
    return {
        "at_s": status.at_s,
        "alive": alive,
        "holder": holder,
        "heartbeat_age_s": None if beat is None else round(now_s - beat.at_s, 1),
        "worst": findings[0].level if findings else "ok",
        "findings": [found.to_dict() for found in shown],
        "modes": status.modes,
        "cycles": status.cycles,
        "client": status.client,
        "calls": {} if status.calls is None else asdict(status.calls),
        "breaker_open_s": status.breaker_open_s,
        "breaker_why": status.breaker_why,
        "last_error": status.last_error,
        "failed_turns": status.failed_turns,
        "models": {kind: asdict(found) for kind, found in status.models.items()},
        "drift": [asdict(one) for one in judged],
        "latency": {"cycle": _latency(status.counts.cycle_s), "plan": _latency(status.counts.plan_s)},
        "refused": status.counts.refused,
        "restarts": status.counts.restarts,
        "starts": _starts(site),
    }


def _findings(site: Site) -> list[Finding]:
    known = site.findings.get("found")
    if known is None or site.now_s() - known[0] > _EVERY_S * (site.source.demo_speed or 1.0):
        known = site.now_s(), list(look_over_state(site.source.settings, site.now_s()))
        site.findings["found"] = known
    found: list[Finding] = known[1]
    return found


def _latency(times: Times) -> Latency | None:
    total = sum(times.counts)
    if not total or len(times.counts) != len(BUCKETS_S) + 1:
        return None
    passed = list(accumulate(times.counts))
    bounds_s = (*BUCKETS_S, BUCKETS_S[-1])
    half_s, most_s = (bounds_s[bisect_left(passed, share * total)] for share in (0.5, 0.99))
    return {"count": total, "mean_s": times.sum_s / total, "half_below_s": half_s, "most_below_s": most_s}


def _starts(site: Site) -> Starts:
    times = site.picture.times
    share, count = times.coverage()
    known = {one.job_id: one for one in times.known}
    rows = [told_of(known, job_id) for job_id in list(known)[-_STARTS:]]
    long = [row for row in rows if row is not None and row["real_s"] is not None and row["real_s"] > SHORT_S]
    errors = sorted(abs(row["real_s"] - row["likely_s"]) for row in long)
    return {
        "inside": round(share, 4),
        "of": count,
        "median_error_s": errors[len(errors) // 2] if errors else None,
        "_error": duration(errors[len(errors) // 2]) if errors else "",
        "rows": long,
    }
