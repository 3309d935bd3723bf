"""What of the decisions is kept: those that say something new."""

from __future__ import annotations

import pytest

from builders import nodes, part, snap, waits
from lucid.core.decision import Hold, PartitionPlan, Plan
from lucid.core.reason import Reason
from lucid.core.reasons.queue import FreeGpus
from lucid.core.reasons.sharing import SameGpus, SameUser
from lucid.errors import StoreError
from lucid.places import Mode
from lucid.store.lease import IN_MEMORY
from lucid.store.recorder import StoreRecorder
from lucid.store.sqlite import SqliteStore

FULL = FreeGpus(1, 0, 0, False)
NOBODY, OTHERS = SameGpus(1, 0), SameUser("ada", 3)


@pytest.mark.parametrize(
    ("second", "kept"),
    [
        ((NOBODY, OTHERS, FULL), 1),  # other users' jobs come and go
        ((NOBODY, FreeGpus(1, 0, 2, False)), 1),
        ((FULL,), 2),
    ],
)
def test_a_wait_is_kept_when_the_kinds_of_its_reasons_change(second: tuple[Reason, ...], kept: int) -> None:
    store = SqliteStore(IN_MEMORY)
    lease = store.take_lease("me", 0.0, 60.0)
    assert lease is not None
    recorder = StoreRecorder(store, lease.token, lambda: {"vc": Mode.PACK})
    for at_s, reasons in enumerate([(NOBODY, FULL), second, second]):
        plan = Plan(float(at_s), {"vc": PartitionPlan({"1": Hold(reasons)})})
        recorder.record(snap(plan.now_s), plan, [])
    assert len(store.decisions("1")) == kept
    again = StoreRecorder(store, lease.token, lambda: {"vc": Mode.PACK})
    last = Plan(9.0, {"vc": PartitionPlan({"1": Hold(second)})})
    again.record(snap(9.0), last, [])
    assert len(store.decisions("1")) == kept, "after a restart it is no news either"


def test_what_the_store_did_not_take_is_kept_in_the_next_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(IN_MEMORY)
    lease = store.take_lease("me", 0.0, 60.0)
    assert lease is not None
    recorder = StoreRecorder(store, lease.token, lambda: {"vc": Mode.PACK})
    part_plan = PartitionPlan({"1": Hold((NOBODY,))})

    def locked(*_: object) -> None:
        raise StoreError("database is locked")

    monkeypatch.setattr(store, "put_decisions", locked)
    with pytest.raises(StoreError):
        recorder.record(snap(0.0), Plan(0.0, {"vc": part_plan}), [])
    monkeypatch.undo()
    recorder.record(snap(1.0), Plan(1.0, {"vc": part_plan}), [])
    assert [row.at_s for row in store.decisions("1")] == [1.0]


def test_the_picture_has_the_last_plan_though_nothing_else_changed() -> None:
    store = SqliteStore(IN_MEMORY)
    lease = store.take_lease("me", 0.0, 60.0)
    assert lease is not None
    recorder = StoreRecorder(store, lease.token, lambda: {"vc": Mode.PACK}, policy={"name": "lucid"})
    partition = part(nodes(1), [waits("1")])
    for at_s, reason in ((0.0, NOBODY), (10.0, FULL)):
        recorder.record(snap(at_s, partition), Plan(at_s, {"vc": PartitionPlan({"1": Hold((reason,))})}), [])
    picture = store.view("snapshot")
    assert picture["now_s"] == 10.0
    assert picture["plan"]["vc"]["1"]["position"] == 1
    assert picture["plan"]["vc"]["1"]["reasons"][0]["kind"] == "FreeGpus"
    assert picture["policy"] == {"name": "lucid"}


def test_where_nothing_changes_the_picture_is_a_minute_old_at_the_most() -> None:
    store = SqliteStore(IN_MEMORY)
    lease = store.take_lease("me", 0.0, 60.0)
    assert lease is not None
    recorder = StoreRecorder(store, lease.token, lambda: {"vc": Mode.PACK})
    partition, plan = part(nodes(1), [waits("1")]), PartitionPlan({"1": Hold((FULL,))})
    drawn = []
    for at_s in (0.0, 10.0, 59.0, 61.0, 100.0, 130.0):
        recorder.record(snap(at_s, partition), Plan(at_s, {"vc": plan}), [])
        drawn.append(store.view("snapshot")["now_s"])
    assert drawn == [0.0, 0.0, 0.0, 61.0, 61.0, 130.0]
