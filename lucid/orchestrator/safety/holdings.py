"""The safety check's record of who would hold which GPU once a plan is applied, and its rules for pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from lucid.config.policy import PackingSettings, PolicySettings
from lucid.core.job import Job, Pending, Running
from lucid.core.ledger import host_share
from lucid.core.node import Node
from lucid.core.placement import Placement, placement_gpus
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.times import reached
from lucid.errors import UnsafePlan


def check_pair(
    guest: Pending | Running,
    host: Pending | Running,
    nodes: Iterable[Node],
    packing: PackingSettings,
    predictions: Mapping[str, Prediction],
) -> None:
    """Check two jobs that would hold the same GPUs, which are on ``nodes``.

    Raises:
        UnsafePlan: naming the jobs and the rule."""
    names = f"jobs {guest.job.id} and {host.job.id}"
    peaks_mib, scores = 0.0, 0
    for entry in (guest, host):
        job, profile = entry.job, entry.profile
        if profile is None:
            raise UnsafePlan(f"job {job.id}: it would share GPUs, but its GPU memory has not been measured")
        found = predictions.get(job.id)
        if found is None or found.share_score is None:
            raise UnsafePlan(f"job {job.id}: it would share GPUs, but it has no share score")
        if not job.shareable or entry.alone or profile.unstable:
            why = "its user forbids" if not job.shareable else "was parted before" if entry.alone else "is unstable"
            raise UnsafePlan(f"job {job.id}: it would share GPUs, which {why}")
        peaks_mib += profile.gpu_mem_mib
        scores += found.share_score
    if not packing.gss or scores > packing.gss:
        raise UnsafePlan(f"{names}: their share scores add up to {scores}, and policy.packing.gss is {packing.gss}")
    if packing.same_user_only and guest.job.user != host.job.user:
        raise UnsafePlan(f"{names}: they would share GPUs, and are not of the same user")
    used = list(nodes)
    if len(used) != 1:
        raise UnsafePlan(f"{names}: they would share GPUs on {len(used)} nodes; pairs are on one")
    (node,) = used
    if peaks_mib > node.gpu_mem_mib:
        raise UnsafePlan(
            f"{names}: their peaks of {peaks_mib:g} MiB do not fit on a GPU of {node.name!r}, "
            f"which has {node.gpu_mem_mib} MiB"
        )
    if node.slots == 1:
        raise UnsafePlan(f"{names}: a GPU of {node.name!r} has one slot")


class Holdings:
    """Which jobs hold which GPU, and what hosts have left. ``touched``: the nodes on which the plan starts something;
    jobs elsewhere do not matter. ``settings`` and the predictions of ``snapshot`` decide which jobs may share."""

    def __init__(
        self,
        partition: Partition,
        touched: set[str],
        settings: PolicySettings,
        snapshot: Snapshot,
    ) -> None:
        self._settings, self._predictions, self._now_s = settings, snapshot.predictions, snapshot.now_s
        self.nodes = {node.name: node for node in partition.nodes if node.name in touched}
        self.held: dict[str, list[tuple[str, int]]] = {name: [] for name in self.nodes}
        """By node, the jobs there, each with the mask of its GPUs."""
        self.jobs: dict[str, tuple[Pending | Running, Placement]] = {}
        self.cpus = {name: node.cpus_left for name, node in self.nodes.items()}
        self.mem = {name: node.mem_left_mib for name, node in self.nodes.items()}
        for entry in partition.running if self.nodes else ():
            for name, _ in entry.placement:
                if name in self.nodes:
                    self._put(entry, entry.placement)
                    break

    def _put(self, entry: Pending | Running, placement: Placement) -> None:
        self.jobs[entry.job.id] = entry, placement
        for name, mask in placement:
            if name in self.nodes:
                self.held[name].append((entry.job.id, mask))
        self._host(entry.job, placement, -1)

    def remove(self, entry: Running) -> None:
        """Note that the job no longer holds anything."""
        if entry.job.id not in self.jobs:
            return
        for name, mask in entry.placement:
            if name in self.nodes:
                self.held[name].remove((entry.job.id, mask))
        self._host(entry.job, entry.placement, 1)

    def _host(self, job: Job, placement: Placement, sign: int) -> None:
        for name, mask in placement if job.cpus or job.mem_mib else ():
            if name in self.nodes:
                here = mask.bit_count()
                self.cpus[name] += sign * host_share(job.cpus, here, job.gpus)
                self.mem[name] += sign * host_share(job.mem_mib, here, job.gpus)

    def add(
        self,
        entry: Pending | Running,
        placement: Placement,
        beside: str | None,
        group: Sequence[str] = (),
    ) -> None:
        """Note that the job holds these GPUs, beside another or in a group; nothing is noted where a rule forbids it.

        Raises: UnsafePlan: a rule forbids it."""
        job = entry.job
        gpus, elastic = placement_gpus(placement), job.elastic
        if elastic is None and gpus != job.gpus:
            raise UnsafePlan(f"job {job.id}: it asked for {job.gpus} GPUs, and would get {gpus}")
        if elastic is not None and not elastic.min_gpus <= gpus <= elastic.max_gpus:
            limits = f"{elastic.min_gpus} to {elastic.max_gpus}"
            raise UnsafePlan(f"job {job.id}: it takes {limits} GPUs, and would get {gpus}")
        if elastic is not None and elastic.max_nodes is not None and len(placement) > elastic.max_nodes:
            raise UnsafePlan(
                f"job {job.id}: it takes {elastic.max_nodes} nodes at the most, and would get {len(placement)}"
            )
        if elastic is None and len(placement) < min(job.min_nodes, job.gpus):
            raise UnsafePlan(f"job {job.id}: it asked for {job.min_nodes} nodes, and would get {len(placement)}")
        if len({part.node for part in placement}) != len(placement):
            raise UnsafePlan(f"job {job.id}: its placement names one node twice")
        others: set[str] = set()
        for name, mask in placement:
            node = self.nodes.get(name)
            if node is None or not node.available or mask >> node.gpus or not mask:
                raise UnsafePlan(f"job {job.id}: GPUs {mask:#b} of node {name!r} are not available")
            if mask & ~node.usable:
                raise UnsafePlan(f"job {job.id}: of GPUs {mask:#b} of node {name!r} one is left out of new starts")
            self._stays_open(job, node)
            others.update([job_id for job_id, theirs in self.held[name] if theirs & mask])
        if beside is None and not others <= set(group):
            held = f"its GPUs are held by {sorted(others)}"
            raise UnsafePlan(f"job {job.id}: {held}, and the plan does not let them share")
        if beside is not None:
            self._pair(entry, placement, beside, others)
        for name, mask in placement:
            node, here = self.nodes[name], mask.bit_count()
            cpus_left = self.cpus[name] - host_share(job.cpus, here, job.gpus)
            mem_left_mib = self.mem[name] - host_share(job.mem_mib, here, job.gpus)
            if (node.cpus and cpus_left < 0 and job.cpus) or (node.mem_mib and mem_left_mib < 0 and job.mem_mib):
                raise UnsafePlan(f"job {job.id}: node {name!r} has too few CPUs or too little host memory for it")
        self._put(entry, placement)

    def _stays_open(self, job: Job, node: Node) -> None:
        closes_s = node.closes_s(self._now_s) - self._now_s
        if closes_s < math.inf and (job.time_limit_s is None or not reached(closes_s, job.time_limit_s)):
            limit = "no time limit" if job.time_limit_s is None else f"a time limit of {job.time_limit_s:g} s"
            raise UnsafePlan(f"job {job.id}: it has {limit}, and node {node.name!r} closes in {closes_s:g} s")

    def _pair(self, entry: Pending | Running, placement: Placement, beside: str, others: set[str]) -> None:
        job = entry.job
        if others != {beside}:
            raise UnsafePlan(
                f"job {job.id}: it would share its GPUs with {sorted(others)}, and the plan names {beside!r}; "
                "at most two jobs share a GPU, both on exactly the same GPUs"
            )
        host, held = self.jobs[beside]
        if sorted(held) != sorted(placement) or host.job.gpus != job.gpus:
            raise UnsafePlan(f"job {job.id}: it and its partner {beside} would hold different GPUs")
        used = [self.nodes[name] for name, _ in placement]
        check_pair(entry, host, used, self._settings.packing, self._predictions)
