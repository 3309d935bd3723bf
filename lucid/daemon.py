"""``lucidd``: puts the parts together and turns the cycle. All machinery of processes and timers is here."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler

from lucid.adapters.atomic import closed_to_others
from lucid.adapters.clock import SystemClock
from lucid.adapters.gpu.profiles import ProfileFolder, ProfileSource
from lucid.adapters.left_out import LeftOut
from lucid.adapters.slurm.choose import make_client
from lucid.adapters.slurm.cli import CommandClient
from lucid.adapters.slurm.client import Breaker, SlurmClient
from lucid.adapters.slurm.cluster import SlurmCluster
from lucid.adapters.slurm.heartbeat import Heartbeat, write_heartbeat
from lucid.adapters.slurm.sacct import Accounting, SacctClient
from lucid.adapters.slurm.shares import FairShares
from lucid.adapters.slurm.wake import WakeFile
from lucid.adapters.store.file import set_aside
from lucid.adapters.store.pair_memory import PairMemoryFile
from lucid.adapters.store.plan_records import prune_records
from lucid.adapters.store.port import Lease, LeaseLost, Store, StoreDamaged, StoreGone, same_host
from lucid.adapters.store.recorder import StoreRecorder
from lucid.adapters.store.sqlite import SqliteStore
from lucid.config import Mode, Settings, library_folder, load_settings, profiles_folder
from lucid.core.job import Stage
from lucid.core.ports import Clock, Predictor
from lucid.errors import ClusterError, ClusterUnavailable, ConfigError, LucidError, StoreError, UnsafePlan
from lucid.live.anew import Carried, carried_from, somebody_may_act
from lucid.live.catch_up import CatchUp
from lucid.live.failover import Failover
from lucid.live.guarded import Guarded
from lucid.live.log import JsonLines
from lucid.live.model_timer import ModelTimer
from lucid.live.models import LiveModels, live_forecaster
from lucid.live.modes import live_profiling, modes_from, policy_settings
from lucid.live.policies import check_policy
from lucid.live.policy_memory import PolicyMemory
from lucid.live.published import Publisher
from lucid.live.records import records_folder, with_records
from lucid.live.samples import SampleIntake, WithSamples
from lucid.live.status import partitions_of, status_of
from lucid.live.switches import settle_switches
from lucid.live.systemd import tell_systemd
from lucid.live.tuning import tune_timer
from lucid.live.turns import Turns, behind_barrier, persistently
from lucid.live.upkeep import model_timer
from lucid.models.packing.pair_memory import PairMemory
from lucid.orchestrator.cycle import Cycle, CycleResult
from lucid.orchestrator.site_factor import site_factors
from lucid.profiler.stage import goes_through_profiling
from lucid.shown import shown

__all__ = ["Daemon", "main", "open_store"]

_LOG = logging.getLogger("lucidd")
_PRUNE_EVERY_H = 6
_RENEW_EVERY_S = 3
_TURN_S = 60.0
_ALL_TOLD_S = 45.0
"""A node that cannot reach slurmctld tells it of a job's end every 15 s, and waits up to 10 s for its answer."""


def open_store(path: Path, now_s: float, left_out: LeftOut | None = None, shared: bool = False) -> SqliteStore:
    """The store; one that is damaged is moved aside and a new one begun, because Slurm's own state is enough to
    go on from.

    Raises:
        StoreError: it cannot be opened for another reason.
    """
    try:
        return SqliteStore(path, left_out=left_out, shared=shared)
    except StoreDamaged as error:
        aside = set_aside(path, now_s)
        _LOG.error("store damaged, a new one begun", extra={"facts": {"aside": str(aside), "why": str(error)}})
        return SqliteStore(path, left_out=left_out, shared=shared)


class Daemon:
    """One daemon. ``turn`` is one cycle and says how long to wait for the next."""

    def __init__(
        self,
        settings: Settings,
        client: SlurmClient,
        breaker: Breaker,
        store: Store,
        source: ProfileSource,
        clock: Clock,
        predictor: Predictor | LiveModels,
        holder: str = "",
        memory: PairMemory | None = None,
        samples: SampleIntake | None = None,
        accounting: Accounting | None = None,
        left_out: LeftOut | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``predictor`` may be the models to make one from: the first cycle makes it, and another when other versions
        serve; ``samples`` are taken in before each cycle; ``accounting`` tells what ended without a daemon;
        ``left_out`` is what all of these could not read."""
        self._settings = settings
        self._client = client
        self._breaker = breaker
        self._store = store
        self._source = source
        self._clock = clock
        self._left_out = LeftOut() if left_out is None else left_out
        self._models: LiveModels | None = None
        if isinstance(predictor, LiveModels):
            self._models = predictor
        else:
            self._predictor = self._guarded(predictor)
        self._samples = samples
        self._catch_up = None if accounting is None else CatchUp(store, accounting, clock, settings.daemon)
        self._memory = PairMemory() if memory is None else memory  # one that is empty is false
        self._holder = holder or f"{socket.gethostname()}:{os.getpid()}:{time.monotonic_ns()}"
        self._lease: Lease | None = None
        self._failover = Failover(self._holder, monotonic_s)
        self._monotonic_s = monotonic_s
        self._silent_s = float("-inf")
        self._turns_since_s: float | None = None
        """Since when the present turn has been going on."""
        self._cluster: SlurmCluster | None = None
        self._cycle: Cycle | None = None
        self._switches: dict[str, str] = {}
        self._settled = False
        self._carried = Carried()
        self._cycles = 0
        self._unsettled = False
        """Something was told to Slurm of which the next look shows what came of it."""
        self._turns = Turns(settings.slurm.poll_busy_s)
        self._shares: FairShares | None = None
        self._policy_memory = PolicyMemory(store, settings.daemon.policy)
        self._publisher = Publisher(settings)

    def _guarded(self, predictor: Predictor) -> Predictor:
        return Guarded(predictor, self._left_out, self._settings.daemon.first_guess_s)

    @property
    def modes(self) -> dict[str, Mode]:
        """As they are now."""
        return modes_from(self._settings, self._switches)

    @property
    def cluster(self) -> SlurmCluster | None:
        """The live cluster, once this daemon has had the lease."""
        return self._cluster

    # -- one turn --------------------------------------------------------------------------------------------

    def turn(self) -> float:
        """Renew the lease, observe, decide, act, mend, and say so. Trouble is told and tried again: nothing that
        happens here may end the daemon (`Turns`). Returns seconds to wait."""
        self._turns_since_s = self._monotonic_s()
        try:
            return self._turn()
        except Exception as error:
            return self._failed(error)
        finally:
            self._turns_since_s = None

    def _turn(self) -> float:
        try:
            if not self._hold_lease():
                return min(self._settings.daemon.lease_s / 3, 2.0)
            self._switches = self._store.settings()
            result = self._work()
            self._turns.last_error = ""
            self._beat(result)
            self._turns.good()
            return self._wait_s(result)
        except LeaseLost as error:
            self._step_down(str(error))
            return self._settings.daemon.lease_s / 3
        except (StoreGone, StoreDamaged) as error:
            return self._begin_anew(error)

    def _failed(self, error: Exception) -> float:
        what = "plan refused by the safety check: nothing was applied"
        if not isinstance(error, UnsafePlan):
            what = "cycle not finished" if isinstance(error, ClusterError | StoreError) else "cycle failed"
        wait_s = self._turns.bad(what, error)
        if isinstance(error, ClusterUnavailable):
            self._silent_s = self._monotonic_s()
        if self._turns.begin_anew:
            self._lease = self._cluster = self._cycle = None
        with suppress(Exception):  # where the store itself is the trouble, that was just told
            if isinstance(error, ClusterUnavailable) and self._lease is not None:
                self._failover.offer(self._store, self._lease.token)
            self._status(self._clock.now_s(), None)
        return max(wait_s, min(self._breaker.open_s, 30.0))

    def _hold_lease(self) -> bool:
        now_s, lasts_s = self._clock.now_s(), self._lasts_s
        if not self._settled and somebody_may_act(self._store, Path(self._settings.daemon.heartbeat), now_s, lasts_s):
            self._turns.standing_by(
                "the store is new, but a heartbeat is not: another lucidd may still act; waiting it out"
            )
            return False
        held, lease = self._store.lease(), None
        if self._failover.may_take(self._store, held, lasts_s, self._reaches_slurm):
            lease = self._store.take_lease(self._holder, now_s, lasts_s, held)
        if lease is None:
            if self._lease is not None:
                self._step_down("its lease ran out and another daemon has it")
            if self._failover.wait(self._store, now_s):
                _LOG.info("standing by", extra={"facts": {"acts": held.holder if held else ""}})
            self._turns.feed()
            return False
        self._failover.acts()
        if self._lease is None or lease.token != self._lease.token:
            _LOG.info("lease taken", extra={"facts": {"token": lease.token, "holder": lease.holder}})
            if held is not None and not same_host(held.holder):
                self._silent_s = self._monotonic_s()  # slurmctld may have moved, too
            self._carried.put(self._store, lease.token)
            self._carried = Carried()
            self._build(lease.token)
        if not self._settled:
            for told in settle_switches(self._settings, self._store, now_s):
                _LOG.warning("mode switched by hand", extra={"facts": {"what": told}})
            self._settled = True  # switches set from now on are newer than the file as it was read
        self._lease = lease
        return True

    def _all_told(self) -> bool:
        """Has slurmctld, in force on whichever host, answered for so long that it knows what ended meanwhile? A job
        that is started over must not have ended already."""
        return self._monotonic_s() - self._silent_s >= _ALL_TOLD_S

    @property
    def _lasts_s(self) -> float:
        return max(self._settings.daemon.lease_s, 2 * self._settings.slurm.poll_idle_s)

    def _reaches_slurm(self) -> bool:
        try:
            self._client.jobs()
        except ClusterError:
            return False
        return True

    def keep_lease(self) -> None:
        """Renew the lease while a turn takes long (a slow slurmctld, many changes), from a thread of its own; a turn
        that takes longer than a minute hangs, and loses it."""
        lease, since_s = self._lease, self._turns_since_s
        if lease is None or since_s is None or self._monotonic_s() - since_s > _TURN_S:
            return
        with suppress(StoreError):
            held = self._store.lease()
            if held is not None and held.holder == self._holder and held.token == lease.token:
                self._store.take_lease(self._holder, self._clock.now_s(), self._lasts_s)

    def _begin_anew(self, error: StoreError) -> float:
        """The store is gone, or damaged, while this daemon runs: the next turn goes by a new one."""
        carried = carried_from(self._store, self._switches)
        try:
            whole = self._store.renew(self._clock.now_s())
            other = self._store.lease()
        except StoreError as still:
            return self._turns.bad("the store is gone, and a new one cannot be begun", still)
        facts = {"why": str(error), "notes": len(carried.notes), "profiles": len(carried.profiles)}
        what = "store's journal gone, nothing lost" if whole else "store gone, a new one begun; its history is lost"
        _LOG.error(what, extra={"facts": facts})
        if self._lease is not None and not whole:
            self._carried = replace(carried, newer=other is None or other.holder == self._holder)
        memory = None if self._cycle is None else self._cycle.memory
        self._lease = self._cluster = self._cycle = None
        self._policy_memory = PolicyMemory(self._store, self._settings.daemon.policy)
        if memory is not None:
            self._policy_memory.start_with(memory)
        return 0.0

    def _fair_shares(self) -> FairShares | None:
        """Slurm's own factors, asked for as often as Slurm works them out, where the order goes by them."""
        rules = self._settings.policy
        if rules.fairness.share_bound <= 1.0 and not rules.backfill.weight_fair_share:
            return None
        self._shares = FairShares(self._client.fair_shares, rules.backfill.calc_period_s)
        return self._shares

    def _build(self, token: int) -> None:
        """Everything anew from the store: another daemon may have acted meanwhile."""
        settings = self._settings
        self._cluster = SlurmCluster(
            self._client,
            self._store,
            self._source,
            self._clock,
            settings.slurm,
            settings.daemon,
            lambda: self.modes,
            lambda job: goes_through_profiling(job, live_profiling(settings.policy)),
            token,
            self._fair_shares(),
            self._all_told,
        )
        if self._catch_up is not None:
            self._catch_up.begin()
        self._cycle = None
        self._token = token

    def _work(self) -> CycleResult:
        cluster = self._cluster
        assert cluster is not None
        if self._cycle is None or (self._models is not None and self._models.changed()):
            self._cycle = self._make_cycle(cluster)
        if self._samples is not None:
            self._samples.take(self._token)
        result = self._cycle.run()
        self._policy_memory.keep(self._cycle.memory)
        running = [entry for part in result.snapshot.partitions.values() for entry in part.running]
        self._memory.take(running)
        if self._samples is not None:
            self._samples.watch(running)
        self._learn_what_was_missed(cluster)  # while the notes of jobs that have left are still there
        mended = cluster.heal()
        for done in mended:
            _LOG.info(done)
        self._unsettled = bool(mended) or cluster.settling
        modes, factors = self.modes, {}
        for name, partition in result.snapshot.partitions.items():
            if modes.get(name) is Mode.ORDER:
                bound = self._settings.daemon.site_factor_bound
                factors.update(site_factors(partition, result.snapshot.predictions, bound))
        cluster.order(factors)
        for item in result.applied:
            if modes.get(item.action.partition, Mode.PACK) is not Mode.PACK:
                continue
            facts = {"job": item.action.job_id, "what": type(item.action.decision).__name__.lower()}
            _LOG.info("refused" if item.refused else "done", extra={"facts": {**facts, "words": item.refused or ""}})
        for error in result.unsafe:
            _LOG.error(
                "action refused by the safety check", extra={"facts": {"job": error.job_id, "why": str(error)}}
            )
        self._cycles += 1
        return result

    def _learn_what_was_missed(self, cluster: SlurmCluster) -> None:
        if self._catch_up is None:
            return
        missed = self._catch_up.run({job.id for job in cluster.facts.jobs}, cluster.notes, self._token)
        if missed:
            self._predictor.learn(missed)
            for item in missed:
                self._forecaster.saw(item.job)
        self._catch_up.seen(self._clock.now_s())

    def _make_cycle(self, cluster: SlurmCluster) -> Cycle:
        """Everything that a prediction goes into, from the models that serve now and the jobs that have ended."""
        able = cluster.capabilities  # asks Slurm for its version, so this waits for the first turn that reaches it
        if self._models is not None:
            self._predictor = self._guarded(self._models.make())
            self._tell_models(self._models)
        ended = self._store.ended()
        self._predictor.learn(ended)
        rules = policy_settings(self._settings, able)
        profiled = partial(goes_through_profiling, settings=rules.profiling)
        self._forecaster = live_forecaster(self._models, ended, profiled, self._left_out)
        store = StoreRecorder(self._store, self._token, lambda: self.modes, self._publisher.take)
        policy, recorder = with_records(self._settings, rules, self._predictor, store)
        before = self._policy_memory.load() if self._cycle is None else self._cycle.memory
        return Cycle(cluster, self._predictor, policy, recorder, self._forecaster, before, tolerant=True)

    def _tell_models(self, models: LiveModels) -> None:
        for kind, serving in models.serving.items():
            self._store.put_model(kind, serving.version, self._clock.now_s(), serving.why)
            level = logging.ERROR if serving.trouble else logging.INFO
            _LOG.log(level, "model", extra={"facts": {"kind": kind, **asdict(serving)}})

    def _beat(self, result: CycleResult) -> None:
        daemon, now_s = self._settings.daemon, self._clock.now_s()
        profiling = live_profiling(self._settings.policy)
        self._failover.withdraw(self._store)
        standby = self._failover.standby(self._store)
        write_heartbeat(
            Path(daemon.heartbeat),
            Heartbeat(
                now_s,
                self.modes,
                daemon.profiling_partition if profiling.enabled else "",
                profiling.n_prof if profiling.restarts == "allowed" else 0,  # else nobody is sent there at submission
                {} if self._cluster is None else self._cluster.most_gpus,
                socket.gethostname(),
                "" if standby is None else standby.host,
                daemon.optout,
            ),
        )
        self._status(now_s, result)

    def _status(self, now_s: float, result: CycleResult | None) -> None:
        self._left_out.replace("profile and sample files", dict(getattr(self._source, "bad", {})))
        status: dict[str, Any] = {
            **status_of(now_s, self._client.name, self._breaker, self._models, self._source),
            "cycles": self._cycles,
            "paused": self._switches.get("paused") == "1",
            "modes": {name: str(mode) for name, mode in self.modes.items()},
            "configured": {name: str(mode) for name, mode in self._settings.daemon.partitions.items()},
            "last_error": self._turns.last_error,
            "failed_turns": self._turns.failed,
            "left_out": self._left_out.told(),
        }
        if self._shares is not None:
            status["no_fair_share"] = self._shares.why_none
        if self._samples is not None:
            status["samples"] = {"taken": self._samples.taken, "missing": self._samples.missing}
        if result is not None:
            status["partitions"] = partitions_of(result.snapshot)
        if self._cluster is not None:
            status["aside"] = self._cluster.aside()
            told = {"modes", "paused", "aside"} & status.keys()
            self._publisher.write(now_s, {**{key: status[key] for key in told}, "lasts_s": self._lasts_s})
        self._store.put_view("status", status)

    def _wait_s(self, result: CycleResult) -> float:
        slurm, snapshot = self._settings.slurm, result.snapshot
        modes = self.modes
        busy = any(
            (part.profiling and (part.pending or any(e.stage is Stage.PROFILE for e in part.running)))
            or (modes.get(name) is Mode.PACK and part.pending)
            for name, part in snapshot.partitions.items()
        )
        busy = busy or self._unsettled or any(not item.refused for item in result.applied)
        wait_s = slurm.poll_busy_s if busy else slurm.poll_idle_s
        wake_s = result.plan.wake_s
        if wake_s is not None:
            wait_s = min(wait_s, max(wake_s - self._clock.now_s(), slurm.poll_busy_s))
        return max(wait_s, self.least_wait_s)

    @property
    def least_wait_s(self) -> float:
        """Seconds until the next look at the least, whatever wakes it: a slow slurmctld is asked less often."""
        return max(self._settings.slurm.poll_busy_s, 5.0 * self._breaker.calls.last_s)

    def _step_down(self, why: str) -> None:
        _LOG.warning("another daemon acts, this one stands by", extra={"facts": {"why": why}})
        self._lease = self._cluster = self._cycle = None

    def stop(self) -> None:
        """Give the lease back. Jobs stay as they are: a restart goes on with them, and what is to happen when none
        follows is the unit's business (ExecStopPost, and the timer). Where something fails, the lease runs out."""
        lease, cycle, self._lease = self._lease, self._cycle, None
        if lease is None:
            return
        if cycle is not None:
            with suppress(Exception):  # what was kept last will do; the lease matters more
                self._policy_memory.keep(cycle.memory, now=True)
        behind_barrier("lease not given back", lambda: self._store.drop_lease(lease.token))

    def prune(self) -> None:
        """Drop what is older than ``daemon.keep_days``."""
        behind_barrier("pruning failed", self._prune, self._turns)

    def _prune(self) -> None:
        before_s = self._clock.now_s() - self._settings.daemon.keep_days * 86400.0
        gone, plans = self._store.prune(before_s), prune_records(records_folder(self._settings), before_s)
        _LOG.info("pruned", extra={"facts": {"rows": gone, "plans": plans}})


@closed_to_others()
def main(arguments: list[str] | None = None) -> int:
    """The process: read the configuration, turn until told to stop."""
    parser = argparse.ArgumentParser(prog="lucidd", description="Schedule GPU jobs on Slurm.")
    parser.add_argument("--config", type=Path, default=Path(os.environ.get("LUCID_CONFIG", "/etc/lucid/lucid.toml")))
    parser.add_argument("--once", action="store_true", help="one cycle, then stop")
    given = parser.parse_args(arguments)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for log in (_LOG, logging.getLogger("lucid")):
        log.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = load_settings(given.config)
        made = persistently(lambda: _make(settings, given.config), stop, "start failed, tried again", once=given.once)
    except LucidError as error:
        print(shown(f"lucidd: {error}", lines=True), file=sys.stderr)
        return error.exit_code
    if made is None:
        return 0
    daemon, store = made
    beside: list[ModelTimer] = [] if given.once else _timers(settings, given.config, store)
    wake = WakeFile(Path(settings.daemon.heartbeat).with_name("wake"))
    return _turn_until(daemon, stop, wake, given.once, beside)


def _timers(settings: Settings, config: Path, store: Store) -> list[ModelTimer]:
    """Those that can be made: training and search are worth less than scheduling."""
    found: list[ModelTimer | None] = []
    behind_barrier("no training beside", lambda: found.append(model_timer(settings, config, store)))
    behind_barrier("no tuner beside", lambda: found.append(tune_timer(settings, config)))
    return [timer for timer in found if timer is not None]


def _turn_until(
    daemon: Daemon, stop: threading.Event, wake: WakeFile, once: bool, beside: Sequence[ModelTimer] = ()
) -> int:
    timers = BackgroundScheduler(daemon=True)
    timers.add_job(daemon.prune, "interval", hours=_PRUNE_EVERY_H, max_instances=1, coalesce=True)
    timers.add_job(daemon.keep_lease, "interval", seconds=_RENEW_EVERY_S, max_instances=1, coalesce=True)
    behind_barrier("no pruning beside, and no renewal of the lease within a long turn", timers.start)
    for timer in beside:
        behind_barrier("no timer beside", timer.start)
    _LOG.info("started")
    ready = False
    try:
        while not stop.is_set():
            wake.mark()
            wait_s = daemon.turn()
            if not ready:
                tell_systemd("READY=1")  # so that doctor, right after systemctl start, sees what this turn left
                ready = True
            if once:
                break
            least_s = min(daemon.least_wait_s, wait_s)
            if not behind_barrier("not waiting for the wake file", partial(wake.wait, stop, least_s, wait_s)):
                stop.wait(wait_s)
    finally:
        tell_systemd("STOPPING=1")
        behind_barrier("pruning not stopped", lambda: timers.shutdown(wait=False))
        for timer in beside:
            behind_barrier("a timer not stopped", timer.stop)
        daemon.stop()
    _LOG.info("stopped")
    return 0


def _make(
    settings: Settings, config: Path, monotonic_s: Callable[[], float] = time.monotonic
) -> tuple[Daemon, SqliteStore]:
    if not settings.daemon.partitions:
        raise ConfigError(
            f"{config}: daemon.partitions is empty; name those to look after, as in\n[daemon.partitions]\nmain = "
            '"observe"'
        )
    check_policy(settings, str(config))
    slurm, state = settings.slurm, Path(settings.daemon.state_dir)
    breaker = Breaker(monotonic_s, latency_s=slurm.slow_s, rest_s=slurm.rest_s)
    clock = SystemClock()
    left_out = LeftOut()
    store = open_store(state / "lucid.db", clock.now_s(), left_out, settings.daemon.shared_state)
    source: ProfileSource = ProfileFolder(profiles_folder(settings))
    samples = None
    if settings.daemon.samples_dir:
        samples = SampleIntake(
            Path(settings.daemon.samples_dir),
            store,
            clock,
            every_s=settings.daemon.samples_every_s,
            keep_s=settings.daemon.keep_samples_h * 3600.0,
            most_bytes=settings.daemon.most_samples_mib << 20,
        )
        source = WithSamples(source, samples)
    memory = PairMemoryFile(state / "pairs.json", left_out)
    models = LiveModels(
        library_folder(settings, config.parent) or state / "models",
        first_guess_s=settings.daemon.first_guess_s,
        profiled_s=settings.policy.profiling.t_prof_s,
        memory=memory,
    )
    client = make_client(slurm, breaker, left_out)
    accounting = None
    if slurm.client == "command" or slurm.rest_commands:
        # slow accounting is no reason to ask slurmctld less often
        accounting = SacctClient(CommandClient(slurm.prefix, Breaker(monotonic_s), slurm.timeout_s, left_out))
    daemon = Daemon(
        settings, client, breaker, store, source, clock, models,
        memory=memory, samples=samples, accounting=accounting, left_out=left_out,
    )  # fmt: skip
    return daemon, store


if __name__ == "__main__":
    sys.exit(main())
