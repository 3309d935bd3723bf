"""Is Lucid well: what ``doctor`` finds in lucidd's own files, modes, Slurm's answers, models, forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lucid.adapters.slurm.heartbeat import read_heartbeat
from lucid.cli.render import duration
from lucid.cli.start_words import told_of
from lucid.doctor.state import look_over_state
from lucid.live.finding import Finding
from lucid.live.tally import BUCKETS_S
from lucid.live.upkeep import UPKEEP
from lucid.orchestrator.start_times import SHORT_S
from lucid.web.site import Site
from lucid.web.viewer import Viewer

__all__ = ["health"]

_STARTS = 200
_LEVELS = ("bad", "warn", "ok")
_EVERY_S = 15.0


def health(site: Site, viewer: Viewer, _path: Mapping[str, str], _asked: Mapping[str, str]) -> dict[str, Any]:
    """Nothing here asks Slurm: doctor's other half, which does, is left to the command."""
    status, now_s = site.source.status, site.now_s()
    alive, holder = site.alive()
    beat = read_heartbeat(Path(site.source.settings.daemon.heartbeat))
    with site.source.store() as store:
        drift = store.view(UPKEEP)
    counts = status.get("counts") or {}
    findings = sorted(_findings(site), key=lambda found: _LEVELS.index(found.level))
    shown = findings if viewer.admin or viewer.jobs == "all" else [f for f in findings if f.level != "ok"]
    return {
        "at_s": status.get("at_s"),
        "alive": alive,
        "holder": holder,
        "heartbeat_age_s": None if beat is None else round(now_s - beat.at_s, 1),
        "worst": findings[0].level if findings else "ok",
        "findings": [asdict(found) for found in shown],
        "modes": status.get("modes", {}),
        "cycles": status.get("cycles"),
        "client": status.get("client", ""),
        "calls": status.get("calls", {}),
        "breaker_open_s": status.get("breaker_open_s", 0.0),
        "breaker_why": status.get("breaker_why", ""),
        "last_error": status.get("last_error", ""),
        "failed_turns": status.get("failed_turns", 0),
        "models": status.get("models", {}),
        "drift": drift if isinstance(drift, list) else [],
        "latency": {key: _latency(counts.get(name)) for key, name in (("cycle", "cycle_s"), ("plan", "plan_s"))},
        "refused": counts.get("refused", {}),
        "restarts": counts.get("restarts", {}),
        "starts": _starts(site),
        "planning_trouble": site.planning.trouble,
    }


def _findings(site: Site) -> list[Finding]:
    known = site.findings.get("found")
    if known is None or site.now_s() - known[0] > _EVERY_S * (site.source.demo_speed or 1.0):
        known = site.now_s(), list(look_over_state(site.source.settings, site.now_s()))
        site.findings["found"] = known
    found: list[Finding] = known[1]
    return found


def _latency(times: Mapping[str, Any] | None) -> dict[str, float] | None:
    """Of a histogram of lucidd's: how many, the mean, and below which bound half and 99 in 100 stay, seconds."""
    counts = [] if times is None else times.get("counts", [])
    total = sum(counts)
    if times is None or not total or len(counts) != len(BUCKETS_S) + 1:
        return None
    found, passed = {"count": total, "mean_s": times["sum_s"] / total}, 0
    for bound_s, count in zip((*BUCKETS_S, BUCKETS_S[-1]), counts, strict=True):
        passed += count
        for name, share in (("half_below_s", 0.5), ("most_below_s", 0.99)):
            if name not in found and passed >= share * total:
                found[name] = bound_s
    return found


def _starts(site: Site) -> dict[str, Any]:
    times = site.picture.seen.times
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
