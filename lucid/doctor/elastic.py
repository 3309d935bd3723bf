"""What may be wrong with what elastic jobs report: the folder, and jobs whose reports the clock contradicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lucid.adapters.slurm.elastic.reports_folder import folder_trouble
from lucid.config import Settings
from lucid.live.reporting.doctor_finding import Finding, bad, warn

__all__ = ["look_over_reports"]

_NAMED = 5


def look_over_reports(settings: Settings, seen: Mapping[str, Any]) -> Iterator[Finding]:
    """``seen``: lucidd's last picture of itself, which tells what lucidd's own user sees of the folder."""
    folder = settings.daemon.elastic.reports_dir
    here, there = folder_trouble(folder), seen.get("reports") or {}
    if here.words:
        yield (bad if here.blind else warn)(here.words, here.remedy)
    elif folder and there.get("words"):
        yield (bad if there["blind"] else warn)(f"as lucidd sees it: {there['words']}", there["remedy"])
    elif folder:
        yield Finding("ok", f"jobs can report to {folder}")
    doubted = dict[str, str](seen.get("doubted") or {})
    for job_id, words in list(doubted.items())[:_NAMED]:
        yield warn(
            f"job {job_id}: what it reports does not agree with lucidd's clock or sampler: {words}",
            f"lucidctl explain {job_id} tells what follows for it, docs/systems/elastic.md how a job reports",
        )
    if len(doubted) > _NAMED:
        yield warn(f"and {len(doubted) - _NAMED} more jobs whose reports do not agree", "lucidctl status --json")
