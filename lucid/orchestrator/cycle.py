"""The one cycle, live and simulated: observe, annotate, plan, check, apply, record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from lucid.config.policy import PolicySettings
from lucid.core.decision import Plan
from lucid.core.ports import Applied, Cluster, Forecaster, Predictor, Recorder
from lucid.core.snapshot import Snapshot
from lucid.errors import ConfigError, UnsafeAction
from lucid.orchestrator.annotate import Annotator
from lucid.orchestrator.order.estimate_ranking import TrustBook
from lucid.orchestrator.policy import Policy, rules_of
from lucid.orchestrator.safety.check import SafetyCheck


class CycleResult(Struct, frozen=True):
    """What one cycle observed, decided and did. ``unsafe``: what the safety check left out of the plan."""

    snapshot: Snapshot
    plan: Plan
    applied: Sequence[Applied]
    unsafe: Sequence[UnsafeAction] = ()


class Cycle:
    """Joins a cluster, a predictor, a policy, a recorder and a forecaster.

    Raises: ConfigError: the policy needs something that this cluster cannot do, or does not state the use that it
    makes of it."""

    def __init__(
        self,
        cluster: Cluster,
        predictor: Predictor,
        policy: Policy,
        settings: PolicySettings,
        recorder: Recorder | None = None,
        forecaster: Forecaster | None = None,
        memory: Mapping[str, object] | None = None,
        tolerant: bool = False,
        trust: TrustBook | None = None,
        naive: Predictor | None = None,
    ) -> None:
        """``settings``: the rules that plans are checked against, whatever the policy was made from. ``memory``: what
        the policy's last plan left, where there was one. ``tolerant``: leave out actions that break a safety rule and
        do the rest of the plan; otherwise such a plan is refused whole. ``trust``: how well estimates ranked jobs so
        far. ``naive``: the predictor whose estimates replace the first one's where those rank jobs worse."""
        lacking = policy.needs - cluster.capabilities
        if lacking:
            raise ConfigError(
                f"policy {policy.name!r} needs {', '.join(sorted(lacking))}, which this cluster does not offer "
                f"(it offers {', '.join(sorted(cluster.capabilities)) or 'nothing beyond starting jobs'}); "
                "choose another policy or enable it"
            )
        self._cluster = cluster
        self._policy = policy
        rules = rules_of(policy)
        if trust is None and any(one.reads_trust for one in (rules, *rules.own.values())):
            trust = TrustBook()
        self._annotate = Annotator(predictor, forecaster, trust, naive)
        self._check = SafetyCheck(rules, settings)
        self._recorder = recorder
        self._tolerant = tolerant
        self.memory: Mapping[str, object] = memory or {}
        """By partition, what the last plan left for the next."""

    def run(self) -> CycleResult:
        """Run one turn.

        Raises: ClusterUnavailable: nothing, or not everything, was applied; the next turn starts from what is.
        UnsafePlan: the policy broke a safety rule; nothing was applied."""
        snapshot = self._annotate(self._cluster.observe(), self.memory)
        plan, unsafe = self._policy.plan(snapshot), list[UnsafeAction]()
        if self._tolerant:
            plan, unsafe = self._check.safe_part(snapshot, plan)
        else:
            self._check(snapshot, plan)
        self.memory = plan.memory
        actions = plan.actions
        applied = self._cluster.apply(actions) if actions else []
        if self._recorder is not None:
            self._recorder.record(snapshot, plan, applied)
        return CycleResult(snapshot, plan, applied, unsafe)
