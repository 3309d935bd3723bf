"""The cluster page: which jobs run where, what was measured of each, and whether pairs run as fast as promised."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from msgspec.structs import replace

from lucid.core.job import Job, Running, Stage
from lucid.core.node import Node
from lucid.core.reason import Reason
from lucid.core.reasons.sharing import PairSpeed
from lucid.core.snapshot import Partition
from lucid.daemon.reporting.status import lending_of
from lucid.errors import StoreError
from lucid.explain.formatting import duration
from lucid.explain.reasons import power_words, window_dicts, window_words, windows_ahead
from lucid.web.pages.shown import (
    Cell,
    CellJob,
    ClusterPage,
    GpuLeftOut,
    NodeCells,
    Pair,
    PairJob,
    Summary,
    Totals,
    number,
    text,
)
from lucid.web.site import Site, Viewer
from lucid.web.source import View
from lucid.web.timeline import gantt

_MOST = 100
"""Most pairs of one page."""
_KEPT = 5000


def pairs_of(site: Site, viewer: Viewer, nodes: Collection[str]) -> list[Pair]:
    """The pairs on these nodes, those that run slowest first; pairs without measurement last."""
    view, told = site.view, set[str]()
    found: list[Pair] = []
    for name in nodes:
        for entry in view.on_node.get(name, ()):
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
    other = site.view.running.get(entry.partner or "")
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
    """The row of a job in a pair. ``job``: as this viewer may see it."""
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
            said = Reason.from_json(data)
            if (
                isinstance(said, PairSpeed)
                and said.partner == host
                and said.own is not None
                and said.other is not None
            ):
                return said.other, said.own
    return None


_NODES = 40
"""Most nodes of one page."""
_HOURS = (1, 3, 6, 12, 24)


def cluster(site: Site, viewer: Viewer, _path: Mapping[str, str], asked: Mapping[str, str]) -> ClusterPage:
    """The content of the cluster page. ``vc`` and ``node`` in the address choose nodes, ``page`` goes on among them,
    ``hours`` is how far back the chart goes."""
    view, vc, wanted = site.view, text(asked, "vc"), text(asked, "node")
    parts = view.seen.snapshot.partitions
    chosen = [
        (part, node)
        for part in parts.values()
        if not vc or part.name == vc
        for node in part.nodes
        if wanted.lower() in node.name.lower()
    ]
    pages = max(-(-len(chosen) // _NODES), 1)
    page = number(asked, "page", 1, 1, pages)
    shown = chosen[(page - 1) * _NODES : page * _NODES]
    hours = number(asked, "hours", 24, 1, 24)
    summaries = [_summary(view, part) for part in parts.values()]
    names = [node.name for _, node in shown]
    return {
        "at_s": view.now_s,
        "totals": _totals(summaries),
        "windows": _windows(site, viewer),
        "gpus_out": _gpus_out(parts),
        "partitions": summaries,
        "nodes": [_node(site, viewer, part, node) for part, node in shown],
        "pairs": pairs_of(site, viewer, names),
        "of_nodes": len(chosen),
        "page": page,
        "pages": pages,
        "vc": vc,
        "node": wanted,
        "hours": hours,
        "_hours": _HOURS,
        "_map": _map(view, chosen),
        "_gantt": gantt(site, viewer, [node for _, node in shown], hours),
    }


def _gpus_out(parts: Mapping[str, Partition]) -> list[GpuLeftOut]:
    """The GPUs that get no new start, each once: partitions may have nodes in common."""
    outs = {out.name: out for part in parts.values() for node in part.nodes for out in node.left_out}
    return [
        {"node": out.node, "gpu": out.index, "since_s": out.since_s, "why": out.words}
        for out in sorted(outs.values(), key=lambda one: (one.node, one.index))
    ]


def _windows(site: Site, viewer: Viewer) -> list[dict[str, Any]]:
    """The windows that close nodes, now or later, with those jobs that may last into each and that the viewer may
    see."""
    running = site.view.running
    found = []
    for one in windows_ahead(site.view.seen.snapshot):
        seen = tuple(job for job in one.reaching if site.job_of(running[job][1].job, viewer) is not None)
        told = replace(one, reaching=seen)
        found.append({**window_dicts([told])[0], "words": window_words(told, site.view.now_s)})
    return found


def _summary(view: View, part: Partition) -> Summary:
    states = view.gpu_states[part.name]
    return {
        "name": part.name,
        "profiling": part.profiling,
        "mode": view.status.modes.get(part.name, ""),
        "nodes": len(part.nodes),
        "gpus": part.gpus,
        "alone": states["alone"],
        "shared": states["shared"],
        "free": states["free"],
        "asleep": states["asleep"],
        "out": states["out"],
        "pending": len(part.pending),
        "pending_gpus": sum(entry.job.gpus for entry in part.pending),
        "running": len(part.running),
        "packed": sum(entry.partner is not None for entry in part.running),
        "quotas": dict(part.quotas),
        "vcs": lending_of(part) if part.quotas else {},
        "kept": view.kept.get(part.name, []),
    }


def _totals(summaries: Sequence[Summary]) -> Totals:
    figures = cast(Sequence[Mapping[str, int]], summaries)
    return cast(Totals, {key: sum(part[key] for part in figures) for key in Totals.__annotations__})


def _node(site: Site, viewer: Viewer, part: Partition, node: Node) -> NodeCells:
    here = site.view.on_node.get(node.name, [])
    return {
        "name": node.name,
        "partition": part.name,
        "profiling": part.profiling,
        "gpus": node.gpus,
        "numbers": list(node.numbers or range(node.gpus)),
        "available": node.available,
        "out": node.out,
        "power": power_words(node, site.view.now_s) if node.available else "",
        "slots": _slots(site, viewer, node, here),
    }


def _slots(site: Site, viewer: Viewer, node: Node, here: Sequence[Running]) -> list[list[Cell]]:
    """Rows of cells, two or as many as the most jobs on one GPU: each cell has ``gpu`` (the first), ``gpus`` (how
    many side by side) and ``rows`` (how many it spans). A job further down on a GPU came later."""
    on: list[list[Running]] = [[] for _ in range(node.gpus)]
    for entry in here:
        for placed in entry.placement:
            if placed.node == node.name:
                for gpu in placed.gpus:
                    if gpu < node.gpus:
                        on[gpu].append(entry)
    deep = max(2, *map(len, on)) if on else 2
    rows: list[list[Cell]] = [[] for _ in range(deep)]
    gpu, usable = 0, node.usable
    while gpu < node.gpus:
        width = 1
        while (
            gpu + width < node.gpus and on[gpu + width] == on[gpu] and not (usable >> gpu ^ usable >> gpu + width) & 1
        ):
            width += 1
        standing = on[gpu]
        first = standing[0] if standing else None
        if first is None:
            there = node.available and usable >> gpu & 1
            kind = "out" if not there else "asleep" if node.boot_s else "free"
            rows[0].append(_empty(gpu, width, deep, kind))
        elif len(standing) == 1 and (first.alone or not first.job.shareable):
            rows[0].append(_cell(site, viewer, gpu, width, deep, first))
        else:
            for at, entry in enumerate(standing):
                rows[at].append(_cell(site, viewer, gpu, width, 1, entry))
            left = deep - len(standing)
            if left:
                rows[-left].append(_empty(gpu, width, left, "slot"))
        gpu += width
    return rows


def _empty(gpu: int, width: int, rows: int, kind: str) -> Cell:
    return {"gpu": gpu, "gpus": width, "rows": rows, "kind": kind, "job": None, "_words": ""}


def _cell(site: Site, viewer: Viewer, gpu: int, width: int, rows: int, entry: Running) -> Cell:
    job = site.job_of(entry.job, viewer)
    kind = (
        "profile"
        if entry.stage is Stage.PROFILE
        else "shared"
        if entry.partner is not None or entry.group
        else "alone"
    )
    if job is None:
        return _empty(gpu, width, rows, "taken")
    profile, now_s = entry.profile, site.view.now_s
    seen = profile is not None and profile.seen_beside is not None and profile.seen_beside == entry.partner
    told: CellJob = {
        "job": job.id,
        "user": job.user,
        "name": job.name,
        "vc": job.vc,
        "gpus": entry.gpus,
        "ran_s": round(entry.elapsed_s(now_s), 1),
        "gpu_util": None if profile is None else profile.gpu_util,
        "mem_util": None if profile is None else profile.mem_util,
        "gpu_mem_mib": None if profile is None else profile.gpu_mem_mib,
        "partner": entry.partner,
        "seen_speed": profile.seen_speed if profile is not None and seen else None,
    }
    return {"gpu": gpu, "gpus": width, "rows": rows, "kind": kind, "job": told, "_words": _words(told, kind)}


def _words(job: CellJob, kind: str) -> str:
    """One cell in words, for a screen reader and for the box beside the pointer."""
    parts = [f"job {job['job']}", job["user"], job["name"], f"{job['gpus']} GPU" + ("s" if job["gpus"] != 1 else "")]
    parts.append(f"runs for {duration(job['ran_s'])}")
    if kind == "profile":
        parts.append("profiling run")
    if job["gpu_util"] is None:
        parts.append("not measured yet")
    else:
        parts.append(f"{job['gpu_util']:.0f} % of GPU time, {job['gpu_mem_mib']:,.0f} MiB")
    if job["partner"]:
        parts.append(f"shares with job {job['partner']}")
    if job["seen_speed"] is not None:
        parts.append(f"at {job['seen_speed']:.0%} of full speed")
    return ", ".join(part for part in parts if part)


def _map(view: View, chosen: Sequence[tuple[Partition, Node]]) -> list[dict[str, Any]]:
    """All nodes as squares, with how much of each is held."""
    found = []
    for part, node in chosen:
        taken = 0
        for entry in view.on_node.get(node.name, ()):
            for placed in entry.placement:
                if placed.node == node.name:
                    taken |= placed.mask
        busy = taken.bit_count()
        if not node.available:
            level = "out"
        elif busy:
            level = "full" if busy >= node.gpus else "part"
        else:
            level = "asleep" if node.boot_s else "free"
        found.append(
            {
                "name": node.name,
                "part": part.name,
                "busy": busy,
                "gpus": node.gpus,
                "level": level,
            }
        )
    return found
