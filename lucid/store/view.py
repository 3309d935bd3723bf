"""Snapshots and plans as JSON and back, so that ``lucidctl`` can plan from the daemon's last snapshot.

Any production snapshot can be planned again offline, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from lucid.core.as_json import from_json, to_json
from lucid.core.decision import (
    Action,
    Decision,
    EndProfiling,
    Hold,
    Keep,
    PartitionPlan,
    Plan,
    Regroup,
    Requeue,
    Resize,
    Start,
    verb_of,
)
from lucid.core.job import JobProfile, Pending, Running
from lucid.core.placement import parse_placement, show_placement
from lucid.core.prediction import Prediction, prediction_from_dict, prediction_to_dict
from lucid.core.reason import reason_from_dict, reason_to_dict
from lucid.core.reasons.queue import Unranked
from lucid.core.snapshot import ArrivalForecast, Partition, Snapshot
from lucid.errors import StoreError

_KINDS: Final[Mapping[str, type[Decision]]] = {
    "start": Start,
    "hold": Hold,
    "requeue": Requeue,
    "part": Requeue,
    "resize": Resize,
    "regroup": Regroup,
    "release": EndProfiling,
    "keep": Keep,
}
"""Decision classes by verb, as in ``verb_of``."""
_ALWAYS = frozenset({"beside", "slots"})
"""Fields written for each start, defaults and all."""
_MORE: Final[Mapping[type, tuple[tuple[str, Any], ...]]] = {
    kind: tuple((f.name, f.default) for f in fields(kind) if f.name not in ("placement", "reasons", "part"))
    for kind in _KINDS.values()
}
"""By class, its fields that have a default, with that default; without ``part``, which the verb implies."""


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """A decision as JSON: verb, reasons, where the job is to run, and all fields that differ from their defaults."""
    data: dict[str, Any] = {"verb": verb_of(decision), "reasons": [reason_to_dict(r) for r in decision.reasons]}
    if isinstance(decision, Start | Resize | Regroup):
        data["placement"] = show_placement(decision.placement)
    for name, default in _MORE[type(decision)]:
        value = getattr(decision, name)
        if value != default or name in _ALWAYS:
            data[name] = to_json(value)
    return data


def decision_from_dict(data: Mapping[str, Any]) -> Decision:
    """The decision that ``decision_to_dict`` wrote.

    Raises: KeyError: no such verb or kind of reason. TypeError, ValueError: a field has another shape."""
    verb, reasons = data["verb"], tuple(reason_from_dict(item) for item in data["reasons"])
    kind: Any = _KINDS[verb]
    if kind is Requeue:
        return Requeue(reasons, part=verb == "part")
    if not _MORE[kind]:
        return kind(reasons)  # type: ignore[no-any-return]
    given = {**data, "reasons": reasons}
    if "placement" in data:
        given["placement"] = parse_placement(data["placement"])
    return from_json(kind, given)  # type: ignore[no-any-return]


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """A plan as JSON: decisions by partition and job, in the order in which the policy served them. Jobs that waited
    have their ``position`` in that order, from 1."""
    return {name: _decisions_to_dict(part) for name, part in plan.partitions.items()}


def _decisions_to_dict(part: PartitionPlan) -> dict[str, Any]:
    positions = part.positions
    return {
        job_id: {
            **decision_to_dict(decision),
            **({"position": positions[job_id]} if job_id in positions else {}),
        }
        for job_id, decision in part.decisions.items()
    }


def plan_from_dict(data: Mapping[str, Any], now_s: float, wake_s: float | None = None) -> Plan:
    """The plan beside a stored snapshot, without what it left for the next.

    Raises: StoreError: it is no plan, or one of another version of Lucid."""
    try:
        parts: dict[str, PartitionPlan] = {}
        for name, items in data.items():
            decisions = {
                job_id: decision_from_dict(item) if isinstance(item, Mapping) else item
                for job_id, item in items.items()
            }
            actions = [Action(i, name, made) for i, made in decisions.items() if not isinstance(made, Hold)]
            parts[name] = PartitionPlan(decisions, tuple(actions), wake_s)
        return Plan(now_s, parts)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StoreError(f"the stored plan cannot be read ({error!r}); lucidd writes a new one") from None


def snapshot_to_dict(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as JSON, without the jobs that ended and the memory of policies."""
    return {
        "now_s": snapshot.now_s,
        "partitions": {
            name: {key: item for key, item in to_json(part).items() if key != "name"}
            for name, part in snapshot.partitions.items()
        },
        "predictions": {
            # what they were made of is kept with the decision: for thousands of jobs it would be megabytes
            job_id: prediction_to_dict(replace(snapshot.predictions[job_id], duration_terms=None, share_splits=()))
            for part in snapshot.partitions.values()
            for job_id in [*(e.job.id for e in part.pending), *(e.job.id for e in part.running)]
            if job_id in snapshot.predictions
        },
        "arrivals": to_json(snapshot.arrivals),
        "fair_share": [[account, user, factor] for (account, user), factor in snapshot.fair_share.items()],
        "trust": [to_json(one) for one in snapshot.trust.values()],
    }


def view_from_text(text: str) -> Any:
    """A stored snapshot as ``snapshot_from_dict`` and ``plan_from_dict`` take it, in which jobs, predictions and
    decisions are objects of their classes already: thousands of jobs as plain JSON take several times the memory.
    Equal decisions and profiles are one object.

    Raises: ValueError, KeyError, TypeError: it is no snapshot."""
    known: dict[Any, Any] = {}

    def value(data: dict[str, Any]) -> Any:
        if "kind" in data:
            return data
        if "verb" in data and "reasons" in data:
            made: Any = decision_from_dict(data)
        elif "gpu_util" in data and "mem_util" in data:
            made = from_json(JobProfile, data)
        elif "job" in data and "since_s" in data:
            return from_json(Pending, data)
        elif "job" in data and "start_s" in data:
            return from_json(Running, data)
        elif "duration_source" in data:
            return prediction_from_dict(data)
        else:
            return data
        return known.setdefault(made, made)

    return json.loads(text, object_hook=value)


def snapshot_from_dict(data: Any) -> Snapshot:
    """The snapshot that ``snapshot_to_dict`` wrote.

    Raises: StoreError: it is no snapshot, or one of another version of Lucid."""
    try:
        partitions = {name: from_json(Partition, {**part, "name": name}) for name, part in data["partitions"].items()}
        predictions = {job_id: from_json(Prediction, item) for job_id, item in data["predictions"].items()}
        arrivals = from_json(ArrivalForecast, data.get("arrivals", {}))
        fair_share = {(account, user): factor for account, user, factor in data.get("fair_share", ())}
        trust = {one.vc: one for one in (from_json(Unranked, item) for item in data.get("trust", ()))}
        return Snapshot(data["now_s"], partitions, (), predictions, {}, arrivals, fair_share, trust)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StoreError(f"the stored snapshot cannot be read ({error!r}); lucidd writes a new one") from None
