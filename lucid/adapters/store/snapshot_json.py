"""A snapshot as JSON and back, so that ``lucidctl`` can plan on what the daemon last saw, and any production
snapshot can be planned again offline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from lucid.core.decision import Decision, Hold, Keep, Plan, Regroup, Release, Requeue, Resize, Start
from lucid.core.job import Job, JobProfile, Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.placement import NodeGpus, show_placement
from lucid.core.prediction import prediction_from_dict, prediction_to_dict
from lucid.core.reason import reason_to_dict
from lucid.core.snapshot import Partition, Snapshot
from lucid.errors import StoreError

__all__ = ["decision_to_dict", "plan_to_dict", "snapshot_from_dict", "snapshot_to_dict", "verb_of"]

_VERBS: dict[type, str] = {
    Start: "start",
    Requeue: "requeue",
    Release: "release",
    Resize: "resize",
    Regroup: "regroup",
    Keep: "keep",
    Hold: "hold",
}


def verb_of(decision: Decision) -> str:
    """``start``, ``hold``, ``requeue``, ``part``, ``release`` or ``keep``."""
    return "part" if isinstance(decision, Requeue) and decision.part else _VERBS[type(decision)]


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    """Verb, reasons, and for a start where."""
    data: dict[str, Any] = {"verb": verb_of(decision), "reasons": [reason_to_dict(r) for r in decision.reasons]}
    if isinstance(decision, Start):
        data["placement"] = show_placement(decision.placement)
        data["beside"] = decision.beside
        data["slots"] = decision.slots
    return data


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Decisions by partition and job."""
    return {
        name: {job_id: decision_to_dict(d) for job_id, d in part.decisions.items()}
        for name, part in plan.partitions.items()
    }


def snapshot_to_dict(snapshot: Snapshot) -> dict[str, Any]:
    """Everything but the jobs that ended."""
    return {
        "now_s": snapshot.now_s,
        "partitions": {
            name: {
                "profiling": part.profiling,
                "acting": part.acting,
                "nodes": [asdict(node) for node in part.nodes],
                "pending": [asdict(entry) for entry in part.pending],
                "running": [asdict(entry) for entry in part.running],
            }
            for name, part in snapshot.partitions.items()
        },
        "predictions": {
            # what they were made of is kept with the decision: for thousands of jobs it would be megabytes
            job_id: prediction_to_dict(replace(snapshot.predictions[job_id], duration_terms=None, share_splits=()))
            for part in snapshot.partitions.values()
            for job_id in [*(e.job.id for e in part.pending), *(e.job.id for e in part.running)]
            if job_id in snapshot.predictions
        },
    }


def snapshot_from_dict(data: Any) -> Snapshot:
    """The inverse.

    Raises:
        StoreError: it is no snapshot, or one of another version of Lucid.
    """
    try:
        partitions = {
            name: Partition(
                name,
                tuple(Node(**node) for node in part["nodes"]),
                tuple(_pending(entry) for entry in part["pending"]),
                tuple(_running(entry) for entry in part["running"]),
                part["profiling"],
                part.get("acting", True),
            )
            for name, part in data["partitions"].items()
        }
        predictions = {job_id: prediction_from_dict(item) for job_id, item in data["predictions"].items()}
        return Snapshot(data["now_s"], partitions, (), predictions)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StoreError(f"the stored snapshot cannot be read ({error!r}); lucidd writes a new one") from None


def _common(entry: Mapping[str, Any]) -> dict[str, Any]:
    profile = entry["profile"]
    return {
        **entry,
        "job": Job(**entry["job"]),
        "profile": None if profile is None else JobProfile(**profile),
    }


def _pending(entry: Mapping[str, Any]) -> Pending:
    return Pending(**_common(entry))


def _running(entry: Mapping[str, Any]) -> Running:
    placement = tuple(NodeGpus(name, mask) for name, mask in entry["placement"])
    return Running(**{**_common(entry), "placement": placement, "stage": Stage(entry["stage"])})
