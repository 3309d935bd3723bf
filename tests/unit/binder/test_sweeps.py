"""Tasks of one array share GPUs: how many, what it brings, and that nobody else pays for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from builders import LIGHT, check_plan, decide, nodes, part, runs, snap, waits
from lucid.binder.contention import contention_speeds
from lucid.binder.sweeps import sweep_speed
from lucid.config import Settings
from lucid.core.decision import Decision, Plan, Requeue, Start
from lucid.core.job import JobProfile, Pending, Running
from lucid.core.ports import Applied
from lucid.core.snapshot import Snapshot
from lucid.simulator.layout import NodeShape
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.state import JobOutcome
from lucid.simulator.traces import Trace
from scenes.plans import FixedPredictor
from scenes.sweeps import SIXTH, a_sweep, others, sweep_trace


class Watch:
    """No gang grows where somebody else waits who could run there."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        del applied
        part = snapshot.partitions["vc"]
        jobs = {entry.job.id: entry.job for entry in part.pending}
        started = {action.job_id for action in plan.actions if isinstance(action.decision, Start)}
        gangs = {entry.job.array for entry in part.running if entry.job.array}
        for action in plan.actions:
            if isinstance(action.decision, Start) and action.decision.siblings:
                self.sizes.append(len(action.decision.siblings) + 1)
                array = jobs[action.job_id].array
                rest = [job for job_id, job in jobs.items() if job_id not in started and job.array != array]
                assert all(job.array in gangs or job.gpus > 4 for job in rest)


def replayed(name: str, trace: Trace, most: int = 2, watch: Watch | None = None) -> dict[str, JobOutcome]:
    rules = Settings.model_validate({"policy": {"packing": {"sweep_most": most}}})
    shape = NodeShape(gpus=4, gpu_mem_mib=24576, cpus=48)
    run = simulate(Scenario(trace, vcs={"vc": 2}, shape=shape, as_live=True, settings=rules), name, watch)
    return {one.job.id: one for one in run.outcomes}


def span_s(found: Mapping[str, JobOutcome]) -> float:
    return max(one.end_s for one in found.values())


def test_an_array_of_400_small_tasks_ends_in_a_fifth_of_plain_slurms_time() -> None:
    trace, watch = sweep_trace(a_sweep(400)), Watch()
    found = replayed("lucid", trace, 8, watch)
    assert len(found) == 400
    assert span_s(found) <= 0.25 * span_s(replayed("backfill", trace))
    assert max(watch.sizes) == 6, "six fences fit on a GPU"


def test_nobody_else_waits_longer_on_average() -> None:
    trace, watch = sweep_trace(a_sweep(150), others(6, 25, 30_000), a_sweep(60, 2, 15_000.0, "bob")), Watch()
    waits_s = []
    for name, most in (("lucid", 8), ("lucid", 2), ("backfill", 2)):
        found = replayed(name, trace, most, watch if most > 2 else None)
        waits_s.append(sum(one.queue_s for job_id, one in found.items() if job_id.startswith("o")))
    assert waits_s[0] <= min(waits_s[1:])
    assert max(watch.sizes) > 2


def task(name: str, where: str, **rest: Any) -> Running:
    profile = rest.pop("profile", SIXTH)
    return runs(name, where, profile=profile, job={"array": "a", "user": "ada"}, **rest)


def gang(count: int, where: str = "n1:0", **rest: Any) -> list[Running]:
    ids = tuple(f"a{number}" for number in range(count))
    if count == 2:
        return [task(one, where, partner=ids[1 - at], start_s=float(at), **rest) for at, one in enumerate(ids)]
    return [task(one, where, group=ids if count > 2 else (), start_s=float(at), **rest) for at, one in enumerate(ids)]


def planned(
    running: Sequence[Running], *pending: Pending, speed: Any = contention_speeds, **rules: Any
) -> Mapping[str, Decision]:
    """On one GPU. Whatever is planned passes the safety check."""
    made = {"profiling": {"enabled": False, "restarts": "allowed"}, "packing": {"sweep_most": 8, **rules}}
    partition = part(nodes(1, 1), pending, running)
    snapshot = snap(500.0, partition)
    plan = decide("lucid", snapshot, FixedPredictor(speed=speed), **made)
    check_plan(partition, plan, snapshot=snapshot, **made)
    return plan.decisions


def a_task(name: str = "new", **rest: Any) -> Pending:
    return waits(name, profile=rest.pop("profile", SIXTH), **{"array": "a", "user": "ada", **rest})


def siblings(found: Mapping[str, Decision], name: str = "new") -> tuple[str, ...]:
    decision = found[name]
    return decision.siblings if isinstance(decision, Start) else ()


def test_a_task_joins_those_of_its_array() -> None:
    assert siblings(planned(gang(3), a_task())) == ("a0", "a1", "a2")
    assert siblings(planned(gang(2), a_task())) == ("a0", "a1")
    two = planned(gang(3), a_task("x"), a_task("y", submit_s=1.0))
    assert siblings(two, "y") == (*siblings(two, "x"), "x")


@pytest.mark.parametrize(
    ("count", "entry", "rules"),
    [
        (3, a_task(), {"sweep_most": 3}),
        (3, a_task(most_together=3), {}),
        (3, a_task(array="b"), {}),
        (3, a_task(user="bob"), {}),
        (3, a_task(shareable=False), {}),
        (3, a_task(profile=None), {}),
        (3, a_task(profile=replace(SIXTH, unstable=True)), {}),
        (6, a_task(), {}),
        (3, a_task(), {"gss": 0}),
        (3, a_task(), {"mps": False}),
    ],
    ids=[
        "setting",
        "owner",
        "array",
        "user",
        "not shared",
        "not measured",
        "unstable",
        "memory",
        "no sharing",
        "no MPS",
    ],
)
def test_who_joins_no_gang(count: int, entry: Pending, rules: Mapping[str, Any]) -> None:
    assert siblings(planned(gang(count), entry, **rules)) == ()


def test_slow_tasks_are_not_stacked() -> None:
    assert siblings(planned(gang(3), a_task(), speed=lambda a, b: (0.7, 0.7))) == ()
    assert siblings(planned(gang(3), a_task(), speed=lambda a, b: (0.9, 0.9))) == ("a0", "a1", "a2")
    assert siblings(planned(gang(3), a_task(), speed=lambda a, b: None)) == (), "nothing is known of two"
    assert [round(sweep_speed(0.9, k), 3) for k in (1, 2, 3, 6)] == [1.0, 0.9, 0.818, 0.643]


def test_no_task_comes_while_somebody_waits_for_the_gpu() -> None:
    other = waits("other", profile=JobProfile(95.0, 60.0, 20000.0), user="eve", submit_s=5.0)
    assert siblings(planned(gang(3), a_task(), other)) == ()
    large = waits("large", 2, profile=LIGHT, user="eve")
    assert siblings(planned(gang(3), a_task(), large)), "it could never run on this node"


def test_nobody_else_joins_a_gang() -> None:
    assert not isinstance(planned(gang(3), waits("guest", profile=LIGHT, user="ada"))["guest"], Start)


@pytest.mark.parametrize(
    "profile",
    [
        replace(SIXTH, gpu_mem_mib=9000.0, mem_growing=True),
        replace(SIXTH, seen_speed=0.3, seen_beside="a0"),
        replace(SIXTH, unstable=True),
    ],
    ids=["grows", "slow", "unstable"],
)
def test_the_newest_task_leaves_where_they_outgrow_the_gpu(profile: JobProfile) -> None:
    running = [replace(one, profile=profile) if one.job.id == "a1" else one for one in gang(4)]
    running = [replace(one, profile=profile) for one in running] if profile.mem_growing else running
    found = planned(running, a_task())
    assert [(job_id, d.part) for job_id, d in found.items() if isinstance(d, Requeue)] == [("a3", True)]
