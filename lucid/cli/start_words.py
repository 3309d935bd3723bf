"""An expected start in words and as JSON: the same wherever one is shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from lucid.cli.render import duration
from lucid.places import Mode

if TYPE_CHECKING:  # planning loads every policy, and `status` plans nothing
    from lucid.live.seen_plan import SeenPlan
    from lucid.live.starts_ahead import StartsAhead
    from lucid.orchestrator.start_times import StartForecast

__all__ = ["observed_words", "start_words", "starts_of", "told_of", "told_words"]


def observed_words(modes: Mapping[str, str], partitions: Iterable[str]) -> str:
    """That starts in these partitions are told as Lucid would make them, where it only observes; empty elsewhere."""
    names = [name for name in dict.fromkeys(partitions) if modes.get(name) == Mode.OBSERVE]
    if not names:
        return ""
    return f"Lucid only observes {', '.join(names)}: Slurm starts jobs there in its own order, and this is Lucid's"


def start_words(starts_in_s: tuple[int, int, int] | None, ahead_s: float, barred: bool = False) -> str:
    """``12 min (8 min to 25 min)``: likely, early, late; ``now`` where the plan starts the job. ``ahead_s``: how far
    the policy planned ahead."""
    if starts_in_s is None:
        return "-" if ahead_s == math.inf or barred else f"more than {duration(ahead_s)}"
    early_s, likely_s, late_s = starts_in_s
    return f"{duration(likely_s)} ({duration(early_s)} to {duration(late_s)})" if likely_s else "now"


def starts_of(last: SeenPlan, starts: StartsAhead, job_id: str) -> tuple[dict[str, Any], str] | None:
    """When a waiting job is expected to start, as JSON and in words; ``None`` where it does not wait."""
    for partition in last.snapshot.partitions.values():
        for entry in partition.pending:
            if entry.job.id == job_id:
                found = starts.starts_in_s[job_id]
                return {"starts_in_s": found}, start_words(found, starts.ahead_of(job_id), bool(entry.barred))
    return None


def told_of(known: Mapping[str, StartForecast], job_id: str) -> dict[str, Any] | None:
    """What was forecast of a job's start, and what came true: seconds from the forecast on."""
    one = known.get(job_id)
    if one is None:
        return None
    said = one.said
    return {
        "at_s": one.at_s,
        "early_s": round(said.early_s, 1),
        "likely_s": round(said.likely_s, 1),
        "late_s": round(said.late_s, 1),
        "real_s": None if one.real_s is None else round(one.real_s, 1),
        "inside": one.inside,
    }


def told_words(told: Mapping[str, Any] | None) -> str:
    """``12 min (8 min to 25 min), was 14 min``; empty where nothing was forecast."""
    if told is None or told["real_s"] is None:
        return ""
    span = f"{duration(told['early_s'])} to {duration(told['late_s'])}"
    return f"{duration(told['likely_s'])} ({span}), was {duration(told['real_s'])}"
