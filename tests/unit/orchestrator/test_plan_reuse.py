"""Which partitions a plan has to look at, case by case; whole replays: tests/property/test_changed_partitions.py."""

from __future__ import annotations

from lucid.core.decision import Action, Hold, PartitionPlan, Requeue
from lucid.core.snapshot import Partition, Versioned
from lucid.orchestrator.policy import KeptParts

VCS = {name: Partition(name, (), (), ()) for name in ("a", "b", "c", "d")}
ALL = VCS | {"profiling": Partition("profiling", (), (), (), profiling=True)}
IDLE = PartitionPlan({"1": Hold(())})
ACTS = PartitionPlan({}, (Action("2", "b", Requeue(())),))


def due(at_s: float) -> PartitionPlan:
    return PartitionPlan({"3": Hold(())}, wake_s=at_s)


def test_looked_at_are_those_that_changed_act_or_are_due_and_profiling() -> None:
    kept, first = KeptParts(), Versioned(ALL)
    assert [*kept.to_look_at(first, 0.0, alone=True)] == [*ALL]
    made = kept.with_fresh(first, {"a": IDLE, "b": ACTS, "c": due(50.0), "d": IDLE, "profiling": IDLE})
    assert (made.acting, made.wake_s) == (["b"], 50.0)

    second = Versioned(ALL, first.key, {})
    assert [*kept.to_look_at(second, 10.0, alone=True)] == ["b", "profiling"], "what it did may have been refused"
    made = kept.with_fresh(second, {"b": IDLE, "profiling": IDLE})
    assert (made.acting, made.changed, made.wake_s) == ([], ("b",), 50.0)
    assert made["a"] is IDLE

    third = Versioned(ALL, second.key, {"d": ALL["d"]})
    assert [*kept.to_look_at(third, 50.0, alone=True)] == ["c", "d", "profiling"]
    made = kept.with_fresh(third, {"c": due(90.0), "d": due(70.0), "profiling": IDLE})
    assert made.wake_s == 70.0

    fourth = Versioned(ALL, third.key, {"d": ALL["d"]})
    assert [*kept.to_look_at(fourth, 60.0, alone=True)] == ["d", "profiling"]
    made = kept.with_fresh(fourth, {"d": IDLE, "profiling": IDLE})
    assert made.wake_s == 90.0, "the other plan of d is not asked any more"


def test_all_are_looked_at_where_it_is_not_known_what_changed_or_where_that_does_not_suffice() -> None:
    kept, first = KeptParts(), Versioned(ALL)
    kept.to_look_at(first, 0.0, alone=True)
    kept.with_fresh(first, dict.fromkeys(ALL, IDLE))
    assert [*kept.to_look_at(Versioned(ALL, object(), {}), 1.0, alone=True)] == [*ALL]
    kept.with_fresh(first, dict.fromkeys(ALL, IDLE))
    assert [*kept.to_look_at(Versioned(ALL, first.key, {}), 1.0, alone=False)] == [*ALL]
    kept.with_fresh(first, dict.fromkeys(ALL, IDLE))
    kept.to_look_at(Versioned(ALL, first.key, {}), 1.0, alone=True)  # a plan that fails is never handed in
    assert [*kept.to_look_at(Versioned(ALL, first.key, {}), 1.0, alone=True)] == [*ALL]
