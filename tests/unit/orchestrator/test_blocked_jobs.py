"""Jobs that Slurm does not let start: no policy plans for them, and each waits with Slurm's words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import VC, guess, kinds, nodes, part, policy, runs, snap, waits
from lucid.core.decision import Hold, Start
from lucid.core.node import Node
from lucid.core.reasons.queue import NodesOut, SlurmBars
from lucid.core.snapshot import Partition, Snapshot

NAMES = ["fifo", "sjf", "qssf", "srtf", "tiresias", "backfill", "lucid"]
GUESSES = {name: guess(100.0) for name in ("first", "second", "wide")}


@pytest.mark.parametrize("name", NAMES)
def test_a_barred_job_waits_with_slurms_words_and_stands_in_nobodys_way(name: str) -> None:
    barred = replace(waits("first", 4, 0.0), barred="QOSMaxJobsPerUserLimit", retry_s=90.0)
    room = part(nodes(1, 4), [barred, waits("second", 4, 1.0)])
    made = policy(name, profiling={"enabled": False})
    plan = made.plan(snap(60.0, room, predictions=GUESSES))
    assert plan.decision_of("first") == Hold((SlurmBars("QOSMaxJobsPerUserLimit", 90.0),))
    assert isinstance(plan.decision_of("second"), Start)
    assert [action.job_id for action in plan.actions] == ["second"]


@pytest.mark.parametrize("name", NAMES)
def test_once_it_is_let_start_it_is_planned_again(name: str) -> None:
    barred = replace(waits("first", 4, 0.0), barred="Licenses", retry_s=90.0)
    made = policy(name, profiling={"enabled": False})
    made.plan(snap(60.0, part(nodes(1, 4), [barred]), predictions=GUESSES))
    later = made.plan(snap(120.0, part(nodes(1, 4), [replace(barred, barred="")]), predictions=GUESSES))
    assert isinstance(later.decision_of("first"), Start)


@pytest.mark.parametrize("change", [{"barred": "Licenses"}, {"home_only": True}])
def test_profiling_nodes_take_in_nobody_whom_slurm_would_not_start_there(change: dict[str, Any]) -> None:
    home = part(nodes(1, 1), [replace(waits("first"), **change), waits("second")], [runs("r", "n1:0")])
    spare = Partition("prof", nodes(1, 4, "p"), profiling=True)
    snapshot = Snapshot(60.0, {VC: home, "prof": spare}, predictions=GUESSES | {"r": guess(9e5)})
    plan = policy("lucid", profiling={"restarts": "asked"}).plan(snapshot)
    assert isinstance(plan.decision_of("first"), Hold)
    assert [(action.job_id, action.partition) for action in plan.actions] == [("second", "prof")]


def test_no_nodes_are_kept_for_a_large_job_that_slurm_bars() -> None:
    wide = replace(waits("wide", 8, 0.0), barred="AssocGrpGRES")
    room = part(nodes(2, 4), [wide, waits("first", 4, 1.0)], [runs("r", "n1:0")])
    plan = policy("lucid", profiling={"enabled": False}).plan(
        snap(9e5, room, predictions=GUESSES | {"r": guess(9e5)})
    )
    assert isinstance(plan.decision_of("first"), Start)


def test_what_was_joined_is_the_same_object_while_nothing_changes() -> None:
    """The safety check and the recorder go by that."""
    barred = replace(waits("first", 4, 0.0), barred="Licenses")
    room = part(nodes(1, 4), [barred, waits("wide", 8, 1.0)])
    made = policy("lucid", profiling={"enabled": False})
    before, after = (made.plan(snap(at_s, room, predictions=GUESSES)).partitions for at_s in (60.0, 60.5))
    assert before == after
    assert all(after[name] is found for name, found in before.items())


def test_a_job_without_room_is_told_of_nodes_that_are_reserved() -> None:
    away = Node("n1", 4, available=False, out="reserved")
    plan = policy("fifo").plan(snap(0.0, part([away, *nodes(1, 1, "m")], [waits("first", 2)]), predictions=GUESSES))
    decision = plan.decision_of("first")
    assert isinstance(decision, Hold)
    assert "FreeGpus" in kinds(decision)
    assert NodesOut(4, "reserved") in decision.reasons
