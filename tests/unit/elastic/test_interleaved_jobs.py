"""Jobs that take turns on a GPU, on a fake Slurm."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from test_resizes import Stage

from fake_slurm import FakeSampler, fake_node, unsealed
from lucid.core.decision import Action, Regroup, Requeue, Start
from lucid.core.job import Pending, Running, TimeShares
from lucid.core.ports import Applied, Capability
from lucid.core.prediction import StageTimes
from lucid.orchestrator.policies.muri.interleave import NO_OVERHEAD, PUBLISHED
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.truth import Interleaving
from lucid.slurm.cluster import SlurmCluster
from lucid.slurm.elastic.reports import said_in
from lucid.slurm.view.profiles import KnownProfiles, ProfileReading
from scenes.jobs import LIGHT, VC, at, by, nodes
from scenes.replays import a_cluster, a_trace
from scenes.slurm import WHY

TAG = "lucid:vc=vc;turns=1"
TIMES = {"storage": 0.9, "cpu": 0.1, "gpu": 0.2, "network": 0.0, "iteration": 1.1}
SAID = (0.9, 0.1, 0.2, 0.0)
BAD_STAGES: list[Any] = [
    None, 7, [], "x", {}, {"iteration": 1.0}, dict.fromkeys(TIMES, 0.0), {**TIMES, "iteration": float("inf")},
    *({**TIMES, "gpu": bad} for bad in (-1, True, "1", 1e9, float("nan"))),
]  # fmt: skip
BAD_TURNS: list[Any] = [
    [], None, 7, [0.5], [0.5, 1], [0.5, 5], [0.5, 2.5], [0.0, 2], [-1, 2], [float("inf"), 2], [float("nan"), 2],
    ["1", 2], [True, 2], [1e9, 2], [[], 2],
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("stages", TIMES, StageTimes(SAID, 1.1)),
        ("stages", {"gpu": 2.0}, StageTimes((0.0, 0.0, 2.0, 0.0), 2.0)),
        # Whoever says that its iteration takes for ever would look as if sharing cost it nothing.
        ("stages", {**TIMES, "iteration": 0.0}, StageTimes(SAID, 0.9)),
        ("stages", {**TIMES, "iteration": 1e5}, StageTimes(SAID, 1.2)),
        *(("stages", bad, None) for bad in BAD_STAGES),
        ("in_turns", [0.5, 3], (0.5, 3)),
        ("in_turns", [1, 2], (1.0, 2)),
        *(("in_turns", bad, None) for bad in BAD_TURNS),
    ],
)
def test_what_it_says_of_its_turns_is_read_or_ignored_and_the_rest_counts(key: str, value: Any, found: Any) -> None:
    said = said_in(json.dumps({"epochs": 3, key: value}).encode())
    assert (getattr(said, key), said.progress.epochs) == (found, 3)


class Turns(Stage):
    """Jobs that take turns, on nodes of four slots a GPU."""

    def __init__(self, folder: Path, mps: bool = True) -> None:
        self.interleaves, self.profiles = True, dict.fromkeys("abcdef", LIGHT)
        super().__init__(folder, [fake_node(name, "vc", slots=frozenset({4})) for name in ("n1", "n2")], mps)

    def restart(self, **_: Any) -> SlurmCluster:
        source = FakeSampler(self.slurm, self.profiles, after_s=10.0)
        return super().restart(resizes=False, source=source, interleaves=lambda _: self.interleaves)

    def waits(self, *names: str, mark: str = TAG, **rest: Any) -> None:
        for name in names:
            self.slurm.submit(name, "vc", 1, mark=mark, uid=os.getuid(), **rest)

    def share(self, names: Sequence[str], where: str = "n1:0", group: Sequence[str] = ()) -> list[Applied]:
        self.look()
        return self.cluster.apply(
            [Action(name, "vc", Start(at(where), WHY, group=tuple(group or names), slots=True)) for name in names]
        )

    def members(self) -> dict[str, Running]:
        return {entry.job.id: entry for entry in self.look().running}

    def says(self, job_id: str) -> str:
        """What is said of a job's turns."""
        return str(self.cluster.status()["turns"][job_id])


@pytest.fixture
def stage(tmp_path: Path) -> Turns:
    return Turns(tmp_path)


def report(stage: Turns, number: str, in_turns: Any = None, **times: float) -> None:
    said = {"epochs": 1, "stages": {**TIMES, **times}, "in_turns": in_turns}
    (stage.home / f"{number}.json").write_text(json.dumps(said))


def of(stage: Turns, job_id: str) -> StageTimes | None:
    found: StageTimes | None = stage.entry(job_id).stages
    return found


def test_only_who_opted_in_takes_turns(stage: Turns) -> None:
    stage.waits("a")
    stage.waits("b", mark="lucid:vc=vc", comment="lucid:turns")
    stage.waits("c", mark=TAG + ";share=0;why=asked")
    assert {e.job.id: e.job.takes_turns for e in stage.look().pending} == {"a": True, "b": False, "c": False}
    assert any(words in stage.says("c") for words in ("asks for its GPUs alone", "no turns"))
    assert {node.slots for node in stage.look().nodes} == {4}


def test_later_jobs_of_a_kind_reuse_what_earlier_ones_reported_and_a_new_lucidd_knows(stage: Turns) -> None:
    for number in ("1", "2", "3"):
        stage.waits(number, name="train" if number != "3" else "other")
    assert of(stage, "1") is None
    report(stage, "1")
    first = of(stage, "1")
    assert first == StageTimes(SAID, 1.1)
    assert of(stage, "2") is first
    assert of(stage, "3") is None
    report(stage, "1", storage=0.95)
    assert of(stage, "1") is first, "about the same: nothing is planned anew"
    report(stage, "1", storage=9.0)
    assert of(stage, "1") != first
    stage.cluster.heal()
    stage.restart()
    assert of(stage, "2") == StageTimes((9.0, 0.1, 0.2, 0.0), 9.0)
    (stage.home / "1.json").unlink()
    stage.store.put_view("stage_times", [["ada", "train", 1, [1, 2], 3], None, 7, ["x"] * 5])
    stage.restart()
    assert of(stage, "2") is None


SHARES = TimeShares(0.1, 0.3, 0.6, "io.pressure")


def test_what_nodes_measured_counts_where_nobody_reported(stage: Turns) -> None:
    """Of the job itself, or of an earlier one of its kind; a report of either counts for more."""
    stage.profiles |= {"1": replace(LIGHT, shares=SHARES), "3": LIGHT}
    for number in ("1", "2", "3"):
        stage.waits(number, name="train" if number != "3" else "other")
    assert of(stage, "1") is None
    words = "once it has reported its stage times, or share its GPUs with one job, once its node has measured"
    assert words in stage.says("1")
    stage.share("1")
    stage.share("3", "n2:0")
    stage.slurm.advance(20.0)
    measured = StageTimes((0.1, 0.3, 0.6, 0.0), 1.0, outside=True)
    assert of(stage, "1") == measured
    assert of(stage, "2") == measured, "the same name, user and number of GPUs"
    assert of(stage, "3") is None, "its node told nothing"
    assert "storage 10%, CPU 30%, GPU 60% (measured on its node, storage by io.pressure)" in stage.says("1")
    stage.cluster.heal()
    stage.restart()
    assert of(stage, "2") == measured, "a new lucidd knows"
    report(stage, "2")
    assert of(stage, "2") == of(stage, "1") == StageTimes(SAID, 1.1), "an earlier job's report"


@pytest.mark.parametrize(
    ("shares", "storage"), [(TimeShares(None, 0.3, 0.6), 0.0), (TimeShares(0.0, 0.01, 0.02), None)]
)
def test_shares_that_lack_the_storage_count_and_those_of_nothing_do_not(
    stage: Turns, shares: TimeShares, storage: float | None
) -> None:
    stage.profiles["a"] = replace(LIGHT, shares=shares)
    stage.waits("a")
    stage.share("a")
    stage.slurm.advance(20.0)
    found = of(stage, "a")
    assert (None if found is None else found.times_s[0]) == storage
    assert ("storage not known" in stage.says("a")) is (storage is not None)


def test_a_new_profile_without_shares_does_not_take_them_away(stage: Turns) -> None:
    """A sampler that was restarted has to see for itself again, and no plan changes for that."""
    stage.waits("1")
    stage.share("1")
    stage.slurm.advance(20.0)
    (record,) = stage.slurm.jobs()
    readings: list[ProfileReading] = []
    known = KnownProfiles(stage.store, SimpleNamespace(new=lambda: readings), stage.slurm, 7.0)  # type: ignore[arg-type]
    for turn, shares, util in ((1, SHARES, 20.0), (2, None, 60.0), (3, replace(SHARES, cpu=0.9), 60.0)):
        readings[:] = [ProfileReading("1", replace(LIGHT, gpu_util=util, shares=shares), f"1@{turn}")]
        known.update({"1": record}, [record], float(turn), stage.token)
        profile = known.profile_of(record)
        assert (profile.gpu_util, profile.shares) == (util, shares or SHARES)


def test_members_show_what_they_report_of_their_turns(stage: Turns) -> None:
    stage.waits("1", "2")
    stage.share(["1", "2"])
    stage.slurm.advance(5.0)
    report(stage, "1")
    assert stage.members()["1"].in_turns is None
    # [1.6, 2] is about the same as [1.5, 2]
    for told, shown in (([1.5, 2], (1.5, 2)), ([1.6, 2], (1.5, 2)), ([1.6, 3], (1.6, 3)), (None, None)):
        report(stage, "1", told)
        assert stage.members()["1"].in_turns == shown
    assert stage.members()["2"].in_turns is None


def test_three_jobs_on_the_same_gpus_are_a_group_under_every_policy(tmp_path: Path) -> None:
    stage = Turns(tmp_path)
    stage.waits(*"abc")
    assert [done.refused for done in stage.share("abc")] == [None] * 3
    stage.slurm.advance(5.0)
    assert {name: set(e.group) for name, e in stage.members().items()} == {name: {"a", "b", "c"} for name in "abc"}
    assert {e.alone for e in stage.members().values()} == {False}
    stage.interleaves = False
    stage.restart()
    found = {(e.job.whole_because, e.alone, e.partner) for e in stage.members().values()}
    assert found == {("", True, None)}, "nobody joins them by another policy's rule"


def test_what_cannot_be_a_group_is_refused(stage: Turns) -> None:
    stage.waits(*"ab")
    stage.waits("r", mark="lucid:vc=vc")
    (ghost,) = stage.share("a", group=("a", "ghost"))
    assert "ghost" in str(ghost.refused)
    (rigid,) = stage.share("a", group=("a", "r"))
    assert "did not opt in" in str(rigid.refused)
    assert [done.refused for done in stage.share("a")] == [None]
    stage.slurm.advance(5.0)
    stage.look()
    (elsewhere,) = stage.share("b", "n1:1", ("a", "b"))
    assert "does not run on slots of these GPUs" in str(elsewhere.refused)
    (moved,) = stage.cluster.apply([Action("a", "vc", Regroup(at("n1:1"), WHY, ("a", "b")))])
    assert "moved" in str(moved.refused)


@pytest.mark.parametrize("mps", [True, False])
def test_the_prolog_is_told_who_takes_turns(tmp_path: Path, mps: bool) -> None:
    stage = Turns(tmp_path, mps)
    stage.waits("a")
    stage.share("a", "n2:1")
    extra = stage.slurm.records["a"].extra
    assert "lucid-turns=1" in extra
    assert unsealed(extra).endswith("gpus=1 turns=1" if mps else "gpus=1 turns=1 mps=0")


FIRST = StageTimes((3.0, 1.0), 4.0, start_s=10.0)
SECOND = StageTimes((1.0, 3.0), 4.0, start_s=5.0)
"""Beside FIRST a round takes 3 + 1 or 1 + 3: together they take as long as one alone."""
BEST = Interleaving(2, "best", NO_OVERHEAD)


def cluster(*stages: StageTimes, b_s: float = 100.0, interleaving: Interleaving | None = BEST) -> SimulatedCluster:
    """Jobs a and b of these stages wait; a takes 100 s."""
    items = [replace(by(n, 2, s), stages=one) for n, s, one in zip("ab", (100.0, b_s), stages, strict=True)]
    made = a_cluster(a_trace(*items), {VC: nodes(2, 4)}, profiled=lambda job: False, interleaving=interleaving)
    made.advance(0.0)
    return made


def act(made: SimulatedCluster, **decisions: Start | Regroup | Requeue) -> None:
    applied = made.apply([Action(name, VC, decision) for name, decision in decisions.items()])
    assert not [item for item in applied if item.refused]


def run_on(made: SimulatedCluster, to_s: float) -> None:
    while (at_s := made.next_event_s()) is not None and at_s <= to_s:
        made.advance(at_s)
    made.advance(to_s)


def running(made: SimulatedCluster, name: str) -> Running:
    return next(entry for entry in made.observe().partitions[VC].running if entry.job.id == name)


PAIR = Start(at("n1:0-1"), WHY, group=("a", "b"))


def test_a_group_waits_for_all_its_members_to_start_and_then_takes_turns() -> None:
    made = cluster(FIRST, SECOND, b_s=50.0)
    act(made, a=PAIR, b=PAIR)
    assert Capability.INTERLEAVE in made.capabilities
    assert (made.jobs.busy_gpus, made.jobs.shared_gpus) == (2, 2)
    run_on(made, 65.0)  # 10 + 5 s to start, then b's 50 s at full speed
    assert made.outcomes["b"].end_s == pytest.approx(65.0)
    assert (made.jobs.busy_gpus, made.jobs.shared_gpus) == (2, 0)
    assert running(made, "a").group == ()
    run_on(made, 200.0)
    assert (made.outcomes["a"].end_s, made.outcomes["a"].packed_s) == pytest.approx((115.0, 65.0))
    assert made.outcomes["b"].packed


def test_work_is_reported_and_survives_regrouping_and_preemption() -> None:
    made = cluster(FIRST, FIRST)
    act(made, a=PAIR, b=PAIR)
    run_on(made, 50.0)  # 20 s to start, 30 s at 2/3 of full speed
    assert running(made, "a").work.by_s(50.0) == pytest.approx(20.0)  # type: ignore[union-attr]
    act(made, a=Regroup(at("n2:0-1"), WHY), b=Requeue(WHY))
    moved = running(made, "a")
    assert (moved.group, moved.start_s, moved.placement) == ((), 0.0, at("n2:0-1"))
    (waiting,) = made.observe().partitions[VC].pending
    assert isinstance(waiting, Pending)
    assert waiting.work.by_s(99.0) == pytest.approx(20.0)
    run_on(made, 500.0)
    assert made.outcomes["a"].end_s == pytest.approx(50.0 + 10.0 + 80.0)
    assert made.jobs.busy_gpus == 0


def test_without_an_executor_groups_are_refused() -> None:
    made = cluster(FIRST, SECOND, interleaving=None)
    assert Capability.INTERLEAVE not in made.capabilities
    (applied,) = made.apply([Action("a", VC, PAIR)])
    assert "this cluster cannot interleave" in (applied.refused or "")


def test_speeds_follow_the_ordering_and_the_overhead() -> None:
    three = [StageTimes((4.0, 1.0, 1.0), 6.0), StageTimes((1.0, 4.0, 1.0), 6.0), StageTimes((1.0, 1.0, 4.0), 6.0)]
    for order, speed in (("best", 1.0), ("worst", 0.5)):
        assert Interleaving(3, order, NO_OVERHEAD).speeds(three) == [pytest.approx(speed)] * 3  # type: ignore[arg-type]
    assert Interleaving(3, "best", PUBLISHED).speeds(three)[0] == pytest.approx(1 / PUBLISHED.factor(3))
    assert Interleaving(3, "best", PUBLISHED).speeds(three[:1]) == [1.0]
    assert BEST.speeds([FIRST, structs.replace(SECOND, iteration_s=9.0)])[1] == 1.0
