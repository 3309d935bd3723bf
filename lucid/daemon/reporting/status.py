"""The content of ``lucidctl status``: calls of Slurm, models, partitions and unread records, as plain values."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lucid.core.codec import to_json
from lucid.core.snapshot import Partition, Snapshot

if TYPE_CHECKING:
    from lucid.daemon.learning.models import LiveModels
    from lucid.slurm.client import Breaker
    from lucid.slurm.view.profiles import ProfileFolder


def status_of(
    now_s: float, client: str, breaker: Breaker, models: LiveModels | None, source: ProfileFolder
) -> dict[str, Any]:
    """The calls to Slurm, which models answer, and which profiles could not be read."""
    return {
        "at_s": now_s,
        "pid": os.getpid(),
        "client": client,
        "calls": {name: round(number, 4) for name, number in asdict(breaker.calls).items()},
        "breaker_open_s": round(breaker.open_s, 1),
        "breaker_why": breaker.why if breaker.open_s else "",
        "models": {} if models is None else {kind: to_json(found) for kind, found in models.serving.items()},
        "bad_profiles": dict(getattr(source, "bad", {})),
    }


def partitions_of(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """GPUs and jobs of each partition, and of a pool what each VC may have, holds and has borrowed."""
    return {
        name: {
            "gpus": part.gpus,
            "pending": len(part.pending),
            "running": len(part.running),
            "packed": sum(entry.partner is not None for entry in part.running),
            **({"vcs": lending_of(part)} if part.quotas else {}),
        }
        for name, part in snapshot.partitions.items()
    }


def lending_of(part: Partition) -> Mapping[str, Mapping[str, int]]:
    """By VC of a pool: its quota, what it holds and what it has borrowed, in GPUs, and how many jobs wait. A pair
    holds its GPUs once, for the VC of the job that was there first."""
    from lucid.orchestrator.order.quotas import holders  # loads numpy, which few commands need

    waiting = Counter(entry.job.vc for entry in part.pending)
    held = dict.fromkeys(part.quotas, 0)
    for entry in holders(part.running).values():
        if entry.job.vc in held:
            held[entry.job.vc] += entry.gpus
    return {
        vc: {"quota": quota, "held": held[vc], "borrowed": max(held[vc] - quota, 0), "pending": waiting[vc]}
        for vc, quota in part.quotas.items()
    }


def words_of_left_out(seen: Mapping[str, Any]) -> list[str]:
    """What the daemon could not read at its last poll, a sentence for each source. ``seen``: its status."""
    found = []
    for source, told in (seen.get("left_out") or {}).items():
        now, first = told.get("now", 0), told.get("first", {})
        if now:
            named = "; ".join(f"{which} ({why})" for which, why in first.items())
            more = f"; and {now - len(first)} more" if now > len(first) else ""
            found.append(f"left out of {source}, since it cannot be read: {named}{more}")
    return found
