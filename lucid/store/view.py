"""``View``: what lucidd saw and decided last, as it is stored, so that ``lucidctl`` can plan from it.

Any production snapshot can be planned again offline, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from lucid.core.codec import from_json, from_text, to_json
from lucid.core.decision import Action, Decided, Decision, Hold, PartitionPlan, Plan, decision_to_dict
from lucid.core.job import Pending, Running
from lucid.core.names import Shown
from lucid.core.node import Node
from lucid.core.prediction import Prediction, prediction_to_dict
from lucid.core.reasons.queue import Unranked
from lucid.core.snapshot import ArrivalForecast, Partition, Snapshot
from lucid.errors import StoreError
from lucid.orchestrator.registry import import_policy


class _Part(Struct, frozen=True):
    """A partition as it is stored, under its name."""

    nodes: tuple[Node, ...]
    pending: tuple[Pending, ...] = ()
    running: tuple[Running, ...] = ()
    profiling: bool = False
    acting: bool = True
    quotas: Mapping[Shown, int] = field(default_factory=dict)
    fitting: Mapping[Shown, tuple[Shown, ...]] = field(default_factory=dict)

    def named(self, name: str) -> Partition:
        return Partition(
            name, self.nodes, self.pending, self.running, self.profiling, self.acting, self.quotas, self.fitting
        )


class _Made(Struct, frozen=True):
    policy: Mapping[str, Any] | None = None


class View(Struct, frozen=True):
    """A stored snapshot with its plan. ``policy``: what made the plan, as ``LivePolicy`` writes it; ``None`` where
    that is not known."""

    now_s: float
    partitions: Mapping[str, _Part]
    predictions: Mapping[str, Prediction]
    arrivals: ArrivalForecast = field(default_factory=ArrivalForecast)
    fair_share: tuple[tuple[str, str, float], ...] = ()
    trust: tuple[Unranked, ...] = ()
    decided: Mapping[str, Mapping[str, Decided]] = field(default_factory=dict, name="plan")
    wake_s: float | None = None
    policy: Mapping[str, Any] | None = None

    def snapshot(self) -> Snapshot:
        """The snapshot, without the jobs that ended and the memory of policies."""
        return Snapshot(
            self.now_s,
            {name: part.named(name) for name, part in self.partitions.items()},
            predictions=self.predictions,
            arrivals=self.arrivals,
            fair_share={(account, user): factor for account, user, factor in self.fair_share},
            trust={one.vc: one for one in self.trust},
        )

    def plan(self) -> Plan:
        """The plan, without what it left for the next. Equal decisions are one object."""
        known: dict[Any, Any] = {}
        parts: dict[str, PartitionPlan] = {}
        for name, items in self.decided.items():
            decisions: dict[str, Decision] = {job_id: known.setdefault(one, one) for job_id, one in items.items()}
            actions = [Action(i, name, made) for i, made in decisions.items() if not isinstance(made, Hold)]
            parts[name] = PartitionPlan(decisions, tuple(actions), self.wake_s)
        return Plan(self.now_s, parts)


def view_from(data: Any) -> View:
    """The view that ``view_to_dict`` wrote, as text or as JSON data.

    Raises: ConfigError: the package of its policy cannot be imported. StoreError: it is no view, or one of another
    version of Lucid."""
    read = from_text if isinstance(data, str) else from_json
    try:
        policy = read(_Made, data).policy or {"name": ""}
        for name in (policy["name"], *policy.get("own", {}).values()):
            import_policy(name)  # a third party's policy may have reasons of its own
        return read(View, data)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the stored snapshot cannot be read ({error!r}); lucidd writes a new one") from None


def view_to_dict(snapshot: Snapshot, plan: Plan, policy: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The view as JSON. Decisions are in the order in which the policy served them; jobs that waited have their
    ``position`` in that order, from 1. Of predictions it leaves out what they were made of, which is kept with the
    decision: for thousands of jobs it would be megabytes."""
    return {
        "now_s": snapshot.now_s,
        "partitions": {
            name: {key: item for key, item in to_json(part).items() if key != "name"}
            for name, part in snapshot.partitions.items()
        },
        "predictions": {
            entry.job.id: prediction_to_dict(replace(known, duration_terms=None, share_splits=()))
            for part in snapshot.partitions.values()
            for entry in part.listed()
            if (known := snapshot.predictions.get(entry.job.id)) is not None
        },
        "arrivals": to_json(snapshot.arrivals),
        "fair_share": [[account, user, factor] for (account, user), factor in snapshot.fair_share.items()],
        "trust": [to_json(one) for one in snapshot.trust.values()],
        "plan": {name: _decisions_to_dict(part) for name, part in plan.partitions.items()},
        "wake_s": plan.wake_s,
        "policy": policy,
    }


def _decisions_to_dict(part: PartitionPlan) -> dict[str, Any]:
    positions = part.positions
    return {
        job_id: {
            **decision_to_dict(decision),
            **({"position": positions[job_id]} if job_id in positions else {}),
        }
        for job_id, decision in part.decisions.items()
    }
