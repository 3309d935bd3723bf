"""Pairs of jobs on the same GPUs: the speeds that were promised when they were put together, and those seen since."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress

from lucid.core.job import Job, Running
from lucid.core.reason import PairSpeed, reason_from_dict
from lucid.errors import StoreError
from lucid.web.pages.shown import Pair, PairJob
from lucid.web.site import Site
from lucid.web.viewer import Viewer

__all__ = ["pair_of", "pairs_of"]

_MOST = 100
"""Pairs of one page."""
_KEPT = 5000


def pairs_of(site: Site, viewer: Viewer, nodes: Collection[str]) -> list[Pair]:
    """The pairs that stand on these nodes, those that run slowest first; where nothing is seen yet, last."""
    picture, told = site.picture, set[str]()
    found: list[Pair] = []
    for name in nodes:
        for entry in picture.on_node.get(name, ()):
            if entry.partner is not None and entry.job.id not in told:
                told |= {entry.job.id, entry.partner}
                made = pair_of(site, viewer, entry)
                if made is not None:
                    found.append(made)
    found.sort(key=lambda pair: min([job["seen"] for job in pair["jobs"] if job["seen"] is not None], default=2.0))
    return found[:_MOST]


def pair_of(site: Site, viewer: Viewer, entry: Running) -> Pair | None:
    """A running job and its partner, the one that came first first; ``None`` where this viewer may not see both, or
    the partner is gone."""
    other = site.picture.running.get(entry.partner or "")
    if other is None:
        return None
    host, guest = sorted((entry, other[1]), key=lambda one: one.start_s)
    first, second = site.job_of(host.job, viewer), site.job_of(guest.job, viewer)
    if first is None or second is None:
        return None
    promised = _promised(site, guest.job.id, host.job.id) or (None, None)
    jobs = _row(host, first, promised[0]), _row(guest, second, promised[1])
    nodes = [part.node for part in guest.placement]
    return {"jobs": jobs, "nodes": nodes, "gpus": guest.gpus, "since_s": guest.start_s}


def _row(entry: Running, job: Job, promised: float | None) -> PairJob:
    """``job``: as this viewer may see it."""
    profile = entry.profile
    return {
        "job": job.id,
        "user": job.user,
        "name": job.name,
        "promised": None if promised is None else round(promised, 4),
        "seen": profile.seen_speed if profile is not None and profile.seen_beside == entry.partner else None,
    }


def _promised(site: Site, guest: str, host: str) -> tuple[float, float] | None:
    """Speeds of host and guest, as the decision that put the guest there compared them."""
    known = site.source.promised
    if (guest, host) in known:
        return known[guest, host]
    with suppress(StoreError):  # the page stands without it
        with site.source.store() as store, store.reading() as db:
            row = db.execute(
                "SELECT reasons FROM decisions WHERE job_id = ? AND beside = ? AND verb = 'start' "
                "ORDER BY id DESC LIMIT 1",
                (guest, host),
            ).fetchone()
        if len(known) > _KEPT:
            known.clear()
        known[guest, host] = None if row is None else _speeds(row[0], host)
    return known.get((guest, host))


def _speeds(reasons: str, host: str) -> tuple[float, float] | None:
    for data in json.loads(reasons):
        if data.get("kind") == PairSpeed.kind:
            said = reason_from_dict(data)
            if (
                isinstance(said, PairSpeed)
                and said.partner == host
                and said.own is not None
                and said.other is not None
            ):
                return said.other, said.own
    return None
