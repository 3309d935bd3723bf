"""``Cycles``: lucidd's cycles while it has the lease, on the cluster as that lease may write to it.

``TrustLog`` keeps how well estimates ranked the jobs that ended last, over restarts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from lucid.core.codec import to_json
from lucid.core.decision import kind_of
from lucid.core.gpu import GpuOut
from lucid.core.job import Job, Stage
from lucid.core.ports import Capability, Forecaster, Predictor
from lucid.daemon.build import Parts
from lucid.daemon.gpu_health import GpuHealth
from lucid.daemon.learning.child import CatchUp
from lucid.daemon.learning.models import LiveModels, live_forecaster
from lucid.daemon.modes import live_profiling
from lucid.daemon.plan_errors import PlanErrors
from lucid.daemon.policies import PolicyMemory, live_policy, live_predictor, needs_of
from lucid.daemon.reporting.counters import Counters
from lucid.daemon.reporting.public_view import Publisher
from lucid.daemon.start_log import StartLog
from lucid.errors import StoreError
from lucid.models.history import naive_for
from lucid.orchestrator.cycle import Cycle, CycleResult
from lucid.orchestrator.order.estimate_ranking import TrustBook
from lucid.orchestrator.order.queue_order import site_factors
from lucid.orchestrator.planner import PolicyHost, Predictions
from lucid.orchestrator.policies.backfill import CALC_PERIOD_S
from lucid.places import Mode
from lucid.profiler.stage import goes_through_profiling
from lucid.slurm.cluster import SlurmCluster
from lucid.slurm.records.configuration import FairShares
from lucid.slurm.view.observation import modes_with_pool
from lucid.store.plan_records import with_records
from lucid.store.recorder import StoreRecorder
from lucid.store.sqlite import SqliteStore

_VIEW = "trust"
_EVERY_S = 300.0
"""How often the trust is stored: a killed daemon forgets the jobs that ended since."""


class TrustLog:
    """Stores the trust ``book`` of one daemon, and begins it with what an earlier one stored."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        try:
            self.book = TrustBook.from_dict(store.view(_VIEW))
        except (KeyError, TypeError, ValueError, AttributeError):  # there is none, or another version wrote it
            self.book = TrustBook()
        self._kept, self._due_s = self.book.checks, 0.0

    def keep(self, now_s: float) -> None:
        """Store the book if that is due and it has changed.

        Raises: StoreError: it cannot be written."""
        if self.book.checks == self._kept or now_s < self._due_s <= now_s + _EVERY_S:
            return
        self._store.put_view(_VIEW, self.book.to_dict())
        self._kept, self._due_s = self.book.checks, now_s + _EVERY_S


_LOG = logging.getLogger("lucidd")
_MOST_NEW = 2_000
"""The least number of jobs that end before predictions are made anew."""


class Cycles:
    """The cycles under one lease. Everything is made anew from the store, since another daemon may have acted
    before."""

    def __init__(
        self,
        parts: Parts,
        modes: Callable[[], Mapping[str, Mode]],
        token: int,
        policy_memory: PolicyMemory,
        publisher: Publisher,
        slurm_knows_all: Callable[[], bool],
        counters: Counters,
        plan_errors: PlanErrors,
    ) -> None:
        """``modes``: those in force now, by partition; ``token``: of the lease; ``slurm_knows_all``: see
        ``Leader``."""
        settings = parts.settings
        self._needs = needs = needs_of(settings)
        self._profiling = live_profiling(settings)
        self.token = token
        self.shares = _fair_shares(parts)
        self.gpu_health = GpuHealth(parts.health, parts.store, settings.daemon.gpu_health)
        """GPUs that are not well."""
        self.cluster = SlurmCluster(
            parts.client,
            parts.store,
            parts.source,
            parts.clock,
            settings.slurm,
            settings.daemon,
            modes,
            self._profiled,
            token,
            self.shares,
            slurm_knows_all,
            settings.policy.lending.mode != "off",
            lambda home: Capability.RESIZE in needs(home),
            lambda home: Capability.INTERLEAVE in needs(home),
            self._gpus_out,
            keeps_list=True,
        )
        self._parts = parts
        self._seen_modes = modes
        self._policy_memory = policy_memory
        self._trust = TrustLog(parts.store)
        self._publisher = publisher
        self._counters = counters
        self._plan_errors = plan_errors
        self._ordered: dict[str, dict[str, int]] = {}
        """Site factors of the last plan of each partition in order mode."""
        self._predictor: Predictor | None = None
        self._forecaster: Forecaster | None = None
        self._cycle: Cycle | None = None
        self._known = self._new = 0
        """Ended jobs that were known when the cycle was made, and those that have ended since."""
        self._start_log: StartLog | None = None
        self._mended = False
        self._trouble = ""
        """What was wrong with the folder for reports when that was last logged."""
        self._catch_up: CatchUp | None = None
        if parts.accounting is not None:
            self._catch_up = CatchUp(parts.store, parts.accounting, parts.clock, settings.daemon)
            self._catch_up.begin()

    def _gpus_out(self, gpus: Mapping[str, Sequence[int]], now_s: float) -> Mapping[str, GpuOut]:
        """The GPUs that get no new start. Trouble with the files of samplers keeps no job from being scheduled."""
        try:
            self.gpu_health.poll(gpus, now_s)
        except StoreError:
            raise
        except Exception:
            _LOG.exception("health of GPUs not looked at: what was known before counts")
        return self.gpu_health.left_out

    def _modes(self) -> dict[str, Mode]:
        """The modes by partition, as plans have them."""
        return modes_with_pool(self._parts.settings.daemon.pool, self._seen_modes())

    @property
    def memory(self) -> Mapping[str, object] | None:
        """What the policy's last plan leaves for the next; ``None`` before the first."""
        return None if self._cycle is None else self._cycle.memory

    def run(self) -> CycleResult:
        """Observe, decide, act, learn and mend.

        Raises:
            LucidError: Slurm or the store does not answer, or the lease is lost."""
        parts, cluster, began_s = self._parts, self.cluster, self._parts.monotonic_s()
        if self._cycle is None or (parts.models is not None and parts.models.changed()) or self._outgrown:
            self._cycle = self._make_cycle()
        result = self._cycle.run()
        self._plan_errors.observe(result.plan)
        self._new += len(result.snapshot.ended)
        self._policy_memory.keep(self._cycle.memory)
        self._trust.keep(result.snapshot.now_s)
        if self._start_log is not None:
            self._start_log.observe(result.snapshot, result.plan)
            self._publisher.update_times(self._start_log.kept, self._start_log.starts)
        running = [entry for part in result.snapshot.partitions.values() for entry in part.running]
        parts.memory.observe(running)
        self._learn_what_was_missed()  # while the notes of jobs that have left are still there
        mended = cluster.heal()
        for done in mended:
            _LOG.info(done)
        self._mended = bool(mended)
        trouble, before = cluster.reports_trouble(), self._trouble
        if trouble.words != before:
            self._trouble = trouble.words
            _LOG.warning(trouble.words or "jobs can report again", extra={"facts": {"remedy": trouble.remedy}})
        undone = cluster.factors.undone
        cluster.order(self._site_factors(result))
        self._counters.undone += cluster.factors.undone - undone
        self._counters.cycle(result, self._cycle.memory, self._modes(), parts.monotonic_s() - began_s)
        self._log(result)
        return result

    def busy(self, result: CycleResult) -> bool:
        """Whether the next poll is to come soon: a job waits for GPUs or for another job, or is profiled, or Slurm
        was sent something whose outcome the next poll shows."""
        modes = self._modes()
        return (
            self._mended
            or self.cluster.settling
            or self.cluster.following
            or any(not item.refused for item in result.applied)
            or any(
                (part.profiling and (part.pending or any(e.stage is Stage.PROFILE for e in part.running)))
                or (modes.get(name) is Mode.PACK and part.pending)
                for name, part in result.snapshot.partitions.items()
            )
        )

    @property
    def _outgrown(self) -> bool:
        """Whether as much has been learned again as was in the store. Then what the store has dropped since
        (``daemon.keep_days``) is to be forgotten: after a year lucidd knows no more than if it had just been
        started."""
        return self._new > max(self._known, _MOST_NEW)

    def _make_cycle(self) -> Cycle:
        """A new cycle, with predictions from the models that serve now and the jobs that have ended."""
        parts = self._parts
        # Slurm is asked for its version, so this waits for the first turn that reaches Slurm
        able = self.cluster.capabilities
        self._predictor = predictor = live_predictor(parts.settings, parts.predictor, parts.left_out)
        if isinstance(parts.predictor, LiveModels):
            for kind, serving in parts.predictor.serving.items():
                level = logging.ERROR if serving.trouble else logging.INFO
                _LOG.log(level, "model", extra={"facts": {"kind": kind, **to_json(serving)}})
        ended = parts.store.ended()
        self._known, self._new = len(ended), 0
        predictor.learn(ended)
        live = live_policy(parts.settings, able)
        self._forecaster = forecaster = live_forecaster(parts.models, ended, self._profiled, parts.left_out)
        store = StoreRecorder(parts.store, self.token, self._modes, self._publisher.update, live.to_dict())
        policy = PolicyHost(
            live.make,
            predictor,
            forgot=self._forgot,
            failed=self._plan_errors.failed,
            took=self._counters.planned,
            clock_s=time.perf_counter,
        )
        recorder = with_records(parts.settings, policy, live.settings, store)
        self._start_log = StartLog(parts.store, live.make(predictor), predictor.pair_speed)
        before = self._policy_memory.load() if self._cycle is None else self._cycle.memory
        means, naive = naive_for(parts.settings.daemon.policy, live.settings), None
        if means is not None:
            naive = Predictions(means, parts.left_out, parts.settings.daemon.first_guess_s)
            naive.learn(ended)
        return Cycle(
            self.cluster,
            predictor,
            policy,
            live.settings,
            recorder,
            forecaster,
            before,
            tolerant=True,
            trust=self._trust.book,
            naive=naive,
        )

    def _forgot(self, memory: Mapping[str, object], error: Exception) -> None:
        self._parts.left_out.one("the policy's memory", ", ".join(sorted(memory)), error)

    def profiles_in(self, vc: str) -> bool:
        """Whether the policy of this VC profiles jobs."""
        return Capability.PROFILE in self._needs(vc)

    def _profiled(self, job: Job) -> bool:
        """Whether a new job goes through the profiling partition first."""
        return self.profiles_in(job.vc) and goes_through_profiling(job, self._profiling)

    def _learn_what_was_missed(self) -> None:
        if self._catch_up is None:
            return
        missed = self._catch_up.run({job.id for job in self.cluster.facts.jobs}, self.cluster.notes, self.token)
        self._new += len(missed)
        if self._predictor is not None and self._forecaster is not None:
            self._predictor.learn(missed)
            for item in missed:
                self._forecaster.observe(item.job)
        self._catch_up.seen(self._parts.clock.now_s())

    def _site_factors(self, result: CycleResult) -> dict[str, int]:
        modes = self._modes()
        factors: dict[str, int] = {}
        for name, plan in result.plan.partitions.items():
            if modes.get(name) is not Mode.ORDER:
                self._ordered.pop(name, None)
                continue
            if not plan.error:  # else the order that there is stays
                self._ordered[name] = site_factors(plan)
            factors.update(self._ordered.get(name, {}))
        return factors

    def _log(self, result: CycleResult) -> None:
        modes = self._modes()
        for item in result.applied:
            if modes.get(item.action.partition, Mode.PACK) is not Mode.PACK:
                continue
            facts = {
                "job": item.action.job_id,
                "partition": item.action.partition,
                "what": kind_of(item.action.decision),
            }
            _LOG.info("refused" if item.refused else "done", extra={"facts": {**facts, "words": item.refused or ""}})
        for error in result.unsafe:
            facts = {"job": error.job_id, "why": str(error)}
            _LOG.error("action refused by the safety check", extra={"facts": facts})


def _fair_shares(parts: Parts) -> FairShares | None:
    """Slurm's own factors, asked for as often as Slurm works them out; ``None`` where the order does not use them."""
    rules = parts.settings.policy
    if rules.fairness.share_bound <= 1.0 and not rules.backfill.weight_fair_share:
        return None
    return FairShares(parts.client.fair_shares, CALC_PERIOD_S)
