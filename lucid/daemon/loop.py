"""``Daemon``: one lucidd and its turns: hold the lease, run a cycle, report it, and say how long to wait."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from lucid.config.load import profiles_folder
from lucid.core.reason import reason_to_dict
from lucid.core.snapshot import Snapshot
from lucid.daemon.barrier import FailureBarrier, TroubleFile, behind_barrier
from lucid.daemon.build import Parts
from lucid.daemon.cycles import Cycles
from lucid.daemon.leader import Carried, Leader, carried_from
from lucid.daemon.modes import live_profiling, modes_from, settle_switches
from lucid.daemon.plan_errors import PlanErrors, plan_errors_of
from lucid.daemon.policies import PolicyMemory
from lucid.daemon.reporting.counters import Counters
from lucid.daemon.reporting.public_view import PrivateData, Publisher
from lucid.daemon.reporting.status import partitions_of, status_of
from lucid.errors import ClusterError, ClusterUnavailable, StoreError, UnsafePlan
from lucid.node.reports import prune_profiles
from lucid.orchestrator.cycle import CycleResult
from lucid.places import Mode
from lucid.slurm.client import served
from lucid.slurm.cluster import SlurmCluster
from lucid.slurm.heartbeat import Heartbeat, write_heartbeat
from lucid.store.plan_records import prune_records, records_folder
from lucid.store.port import LeaseLost, StoreDamaged, StoreGone

_LOG = logging.getLogger("lucidd")
_EMPTIED_S = 0.3
"""About how long a requeued job takes to leave its GPUs."""


class Daemon:
    """One daemon. ``turn`` is one cycle and says how long to wait for the next."""

    def __init__(self, parts: Parts, holder: str = "") -> None:
        """``holder``: the daemon's name among those of one store; by default from its host and process."""
        self.parts = parts
        self._settings = parts.settings
        self._barrier = FailureBarrier(self._settings.slurm.poll_busy_s)
        holder = holder or f"{socket.gethostname()}:{os.getpid()}:{time.monotonic_ns()}"
        self._leader = Leader(parts, holder, self._barrier)
        self._poll_budget = PollBudget(self._settings.slurm.poll_busy_s)
        self._turn_began_s: float | None = None
        self._cycles: Cycles | None = None
        self._count = 0
        self._switches: dict[str, str] = {}
        self._file_read = False
        """Whether the switches have been compared with lucid.toml as it was read. Switches set later are newer than
        the file."""
        self._carried = Carried()
        self._policy_memory = PolicyMemory(parts.store, self._settings.daemon.policy, self._settings.daemon.policies)
        self._publisher = Publisher(self._settings)
        self._private = PrivateData(parts.client.config)
        self._counters: Counters | None = None
        self._plan_errors: PlanErrors | None = None
        """The plan errors; ``None``: those that the last daemon left in the store."""
        self._trouble = TroubleFile(Path(self._settings.daemon.heartbeat))

    @property
    def modes(self) -> dict[str, Mode]:
        """The modes in force now, by partition."""
        return modes_from(self._settings, self._switches, self.plan_errors.released)

    @property
    def plan_errors(self) -> PlanErrors:
        """The partitions of which no plan can be made."""
        if self._plan_errors is None:
            seen = self.parts.store.view("status")
            self._plan_errors = PlanErrors(plan_errors_of(seen) if isinstance(seen, dict) else None)
        return self._plan_errors

    @property
    def counters(self) -> Counters:
        """What this process has counted."""
        if self._counters is None:
            seen = self.parts.store.view("status")
            self._counters = Counters(seen.get("counts") if isinstance(seen, dict) else None)
        return self._counters

    @property
    def cluster(self) -> SlurmCluster | None:
        """The live cluster, while this daemon has the lease."""
        return None if self._cycles is None else self._cycles.cluster

    @property
    def least_wait_s(self) -> float:
        """The least seconds until the next poll unless lucidd is woken: a slow slurmctld is asked less often."""
        return max(self._settings.slurm.poll_busy_s, self._as_slurm_answers_s)

    @property
    def least_woken_s(self) -> float:
        """The least seconds until the next poll where a new job wakes lucidd."""
        return max(self._poll_budget.least_s, self._as_slurm_answers_s)

    @property
    def _as_slurm_answers_s(self) -> float:
        return 5.0 * self.parts.breaker.calls.last_s

    def turn(self) -> float:
        """Renew the lease, observe, decide, act, mend, and report. Trouble is logged and tried again: nothing that
        happens here may end the daemon (`FailureBarrier`). Returns seconds to wait."""
        self._turn_began_s = self.parts.monotonic_s()
        self._poll_budget.spend(self._turn_began_s)
        try:
            return self._turn()
        except Exception as error:
            self._poll_budget.forget()
            return self._failed(error)
        finally:
            self._turn_began_s = None

    def renew_lease(self) -> None:
        """Renew the lease within a turn that takes long; called from a thread of its own."""
        began_s = self._turn_began_s
        if began_s is not None:
            self._leader.renew(self.parts.monotonic_s() - began_s)

    def stop(self) -> None:
        """Give the lease back. Jobs stay as they are: a restart goes on with them, and what happens if none follows
        is the unit's business (ExecStopPost, and the timer). If something fails, the lease runs out."""
        lease, cycles, self._leader.lease = self._leader.lease, self._cycles, None
        if lease is None:
            return
        if cycles is not None and cycles.memory is not None:
            with suppress(Exception):  # what was kept last will do; the lease matters more
                self._policy_memory.keep(cycles.memory, now=True)
        behind_barrier("lease not given back", lambda: self.parts.store.drop_lease(lease.token))

    def prune(self) -> None:
        """Drop records older than ``daemon.keep_days``."""
        behind_barrier("pruning failed", self._prune, self._barrier)

    def _prune(self) -> None:
        before_s = self.parts.clock.now_s() - self._settings.daemon.keep_days * 86400.0
        gone, plans = self.parts.store.prune(before_s), prune_records(records_folder(self._settings), before_s)
        summaries = prune_profiles(profiles_folder(self._settings), before_s)
        _LOG.info("pruned", extra={"facts": {"rows": gone, "plans": plans, "summaries": summaries}})

    # -- one turn --------------------------------------------------------------------------------------------

    def _turn(self) -> float:
        try:
            cycles = self._under_lease()
            if cycles is None:
                self._poll_budget.forget()
                self._trouble.over()
                return min(self._settings.daemon.lease_s / 3, 2.0)
            self._switches = self.parts.store.settings()
            served(self.parts.client.version())
            result = cycles.run()
            self._count += 1
            self._private.poll(self.parts.clock.now_s())
            self._barrier.last_error = ""
            self._beat(cycles)
            self._status(result.snapshot)
            self._barrier.good()
            self._trouble.over()
            return self._wait_s(cycles, result)
        except LeaseLost as error:
            self._leader.step_down(str(error))
            self._cycles = self._plan_errors = None
            return self._settings.daemon.lease_s / 3
        except (StoreGone, StoreDamaged) as error:
            return self._begin_anew(error)

    def _under_lease(self) -> Cycles | None:
        """The cycles under this daemon's lease; ``None`` where it has none."""
        lease, store = self._leader.hold(), self.parts.store
        if lease is None:
            self._cycles = self._plan_errors = None
            return None
        if self._cycles is None or self._cycles.token != lease.token:
            self._carried.put(store, lease.token)
            self._carried = Carried()
            self._cycles = Cycles(
                self.parts,
                lambda: self.modes,
                lease.token,
                self._policy_memory,
                self._publisher,
                self._leader.slurm_knows_all,
                self.counters,
                self.plan_errors,
            )
        if not self._file_read:
            for told in settle_switches(self._settings, store, self.parts.clock.now_s()):
                _LOG.warning("mode switched by hand", extra={"facts": {"what": told}})
            self._file_read = True
        return self._cycles

    def _failed(self, error: Exception) -> float:
        if self._counters is not None:
            self._counters.failed()
        what = "plan refused by the safety check: nothing was applied"
        if not isinstance(error, UnsafePlan):
            what = "cycle not finished" if isinstance(error, ClusterError | StoreError) else "cycle failed"
        wait_s = self._barrier.bad(what, error)
        self._trouble.tell(self._barrier.last_error, self.parts.clock.now_s())
        unreached = isinstance(error, ClusterUnavailable)
        if unreached:
            self._leader.slurm_was_silent()
        if self._barrier.begin_anew:
            self._cycles = None
        with suppress(Exception):  # where the store itself is the trouble, that was just told
            if unreached:
                self._leader.offer()
            self._status(None)
        return max(wait_s, min(self.parts.breaker.open_s, 30.0))

    def _begin_anew(self, error: StoreError) -> float:
        """Go over to a new store, since the old one is gone or damaged while this daemon runs; returns seconds to
        wait."""
        store, leader = self.parts.store, self._leader
        carried = carried_from(store, self._switches)
        try:
            whole = store.renew(self.parts.clock.now_s())
            other = store.lease()
        except StoreError as still:
            return self._barrier.bad("the store is gone, and a new one cannot be begun", still)
        facts = {"why": str(error), "notes": len(carried.notes), "profiles": len(carried.profiles)}
        what = "store's journal gone, nothing lost" if whole else "store gone, a new one begun; its history is lost"
        _LOG.error(what, extra={"facts": facts})
        if leader.lease is not None and not whole:
            self._carried = replace(carried, newer=other is None or other.holder == leader.holder)
        memory = None if self._cycles is None else self._cycles.memory
        leader.lease = self._cycles = None
        self._policy_memory = PolicyMemory(store, self._settings.daemon.policy, self._settings.daemon.policies)
        if memory is not None:
            self._policy_memory.start_with(memory)
        return 0.0

    def _beat(self, cycles: Cycles) -> None:
        """Write the heartbeat after a good turn; the job_submit plugin reads it.

        Raises: StoreError: it cannot be written."""
        daemon, modes = self._settings.daemon, self.modes
        profiling, standby = live_profiling(self._settings), self._leader.standby()
        write_heartbeat(
            Path(daemon.heartbeat),
            Heartbeat(
                self.parts.clock.now_s(),
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

    def _status(self, snapshot: Snapshot | None) -> None:
        """Put the status into the store for ``lucidctl status``, and publish the part of it that names nobody.
        ``snapshot``: of this turn, if it went well.

        Raises: StoreError: it cannot be written."""
        parts, daemon, cycles, now_s = self.parts, self._settings.daemon, self._cycles, self.parts.clock.now_s()
        parts.left_out.replace("profile files", dict(getattr(parts.source, "bad", {})))
        status: dict[str, Any] = {
            **status_of(now_s, parts.client.name, parts.breaker, parts.models, parts.source),
            "cycles": self._count,
            "paused": self._switches.get("paused") == "1",
            "modes": {name: str(mode) for name, mode in self.modes.items()},
            "policies": {name: daemon.policy_of(name) for name in self.modes},
            "configured": {name: str(mode) for name, mode in daemon.partitions.items()},
            "last_error": self._barrier.last_error,
            "failed_turns": self._barrier.failed,
            "plan_errors": self.plan_errors.to_dict(),
            "left_out": parts.left_out.summary(),
            "private_data": self._private.words,
        }
        if self._counters is not None:
            status["counts"] = self._counters.to_dict()
        if snapshot is not None:
            status["partitions"] = partitions_of(snapshot)
            status["trust"] = [reason_to_dict(one) for one in snapshot.trust.values()]
        if cycles is not None:
            if cycles.shares is not None:
                status["no_fair_share"] = cycles.shares.why_none
            status |= cycles.cluster.status()
            status["gpu_health"] = cycles.gpu_health.status(cycles.cluster.placeholders.refused)
            public = {key: status[key] for key in ("modes", "policies", "paused", "aside", "on_gpus_out")}
            self._publisher.write(now_s, {**public, "lasts_s": self._leader.lasts_s})
        parts.store.put_view("status", status)

    def _wait_s(self, cycles: Cycles, result: CycleResult) -> float:
        if cycles.cluster.emptying:  # these GPUs stand idle until the next look
            return max(self.least_woken_s, _EMPTIED_S)
        slurm, wake_s = self._settings.slurm, result.plan.wake_s
        wait_s = slurm.poll_busy_s if cycles.busy(result) else slurm.poll_idle_s
        if wake_s is not None:
            wait_s = min(wait_s, max(wake_s - self.parts.clock.now_s(), slurm.poll_busy_s))
        return max(wait_s, self.least_wait_s)


STORED: Final = 30
"""The most early polls that a quiet time saves up. A storm of submissions makes lucidd poll so many times more, and
no more."""
_EARLY_S: Final = 0.1
"""Jobs submitted within so short a time share a poll."""


class PollBudget:
    """Early polls saved up; one that begins is paid from them."""

    def __init__(self, every_s: float) -> None:
        """``every_s``: how far polls are apart on average."""
        self._every_s = every_s
        self._stored = float(STORED)
        self._last_s: float | None = None

    def spend(self, now_s: float) -> None:
        """Note that a poll begins."""
        passed_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._stored = max(min(self._stored + passed_s / self._every_s, STORED) - 1.0, 0.0)
        self._last_s = now_s

    def forget(self) -> None:
        """Drop the savings: the poll failed, or another lucidd acts, so none is worth an early poll now."""
        self._stored = 0.0

    @property
    def least_s(self) -> float:
        """The least seconds until the next poll if something wakes lucidd."""
        return min(_EARLY_S, self._every_s) if self._stored >= 1.0 else self._every_s
