"""What lucidd writes after a turn: its heartbeat, its status for ``lucidctl status``, and what anybody may read."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lucid.core.reason import reason_to_dict
from lucid.core.snapshot import Snapshot
from lucid.daemon.barrier import FailureBarrier
from lucid.daemon.build import Parts
from lucid.daemon.cycles import Cycles
from lucid.daemon.leader import Standby
from lucid.daemon.modes import live_profiling
from lucid.daemon.plan_errors import PlanErrors
from lucid.daemon.reporting.counters import Counters
from lucid.daemon.reporting.public_view import Publisher
from lucid.daemon.reporting.status import partitions_of, status_of
from lucid.places import Mode
from lucid.slurm.heartbeat import Heartbeat, write_heartbeat


def beat(parts: Parts, modes: Mapping[str, Mode], cycles: Cycles, standby: Standby | None) -> None:
    """Write the heartbeat after a good turn; the job_submit plugin reads it.

    Raises: OSError: it cannot be written."""
    daemon, profiling = parts.settings.daemon, live_profiling(parts.settings)
    write_heartbeat(
        Path(daemon.heartbeat),
        Heartbeat(
            parts.clock.now_s(),
            modes,
            daemon.profiling_partition if profiling.enabled else "",
            profiling.n_prof if profiling.restarts == "allowed" else 0,  # else nobody is sent there at submission
            cycles.cluster.most_gpus,
            socket.gethostname(),
            "" if standby is None else standby.host,
            daemon.pool.partition,
            tuple(name for name in sorted(modes) if name in daemon.stay or not cycles.profiles_in(name)),
            cycles.cluster.placeholders.uid,
        ),
    )


def tell_status(
    parts: Parts,
    modes: Mapping[str, Mode],
    paused: bool,
    barrier: FailureBarrier,
    count: int,
    cycles: Cycles | None,
    snapshot: Snapshot | None,
    publisher: Publisher,
    lasts_s: float,
    counters: Counters | None,
    private_data: Sequence[str] | None,
    plan_errors: PlanErrors,
) -> None:
    """Put the status into the store, and publish the part of it that names nobody. ``count``: cycles so far;
    ``cycles``: while this daemon has the lease; ``snapshot``: of this turn, if it went well; ``lasts_s``: how long a
    lease lasts; ``counters``: what this process has counted; ``private_data``: as ``PrivateData.words``;
    ``plan_errors``: the partitions of which no plan can be made.

    Raises: StoreError: it cannot be written."""
    now_s = parts.clock.now_s()
    parts.left_out.replace("profile files", dict(getattr(parts.source, "bad", {})))
    status: dict[str, Any] = {
        **status_of(now_s, parts.client.name, parts.breaker, parts.models, parts.source),
        "cycles": count,
        "paused": paused,
        "modes": {name: str(mode) for name, mode in modes.items()},
        "policies": {name: parts.settings.daemon.policy_of(name) for name in modes},
        "configured": {name: str(mode) for name, mode in parts.settings.daemon.partitions.items()},
        "last_error": barrier.last_error,
        "failed_turns": barrier.failed,
        "plan_errors": plan_errors.to_dict(),
        "left_out": parts.left_out.summary(),
        "private_data": private_data,
    }
    if counters is not None:
        status["counts"] = counters.to_dict()
    if snapshot is not None:
        status["partitions"] = partitions_of(snapshot)
        status["trust"] = [reason_to_dict(one) for one in snapshot.trust.values()]
    if cycles is not None:
        if cycles.shares is not None:
            status["no_fair_share"] = cycles.shares.why_none
        status |= cycles.cluster.status()
        status["gpu_health"] = cycles.gpu_health.status(cycles.cluster.placeholders.refused)
        public = {key: status[key] for key in ("modes", "policies", "paused", "aside", "on_gpus_out")}
        publisher.write(now_s, {**public, "lasts_s": lasts_s})
    parts.store.put_view("status", status)
