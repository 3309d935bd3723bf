"""Muri's rules on small states: who runs, with whom, where, and when they are parted again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from builders import LIGHT, VC, kinds, nodes, policy, reason, runs, snap, waits
from lucid.config.policy import MuriSettings
from lucid.core.decision import Hold, PartitionPlan, Regroup, Requeue, Start
from lucid.core.job import Pending, Running, Work
from lucid.core.node import Node
from lucid.core.prediction import Prediction, StageTimes
from lucid.core.reasons.queue import FreeGpus, Priority
from lucid.core.reasons.sharing import Interleaved
from lucid.orchestrator.policies.muri.grouping import GammaTable, group_jobs
from lucid.orchestrator.policies.muri.interleave import MuriJob
from lucid.orchestrator.policies.muri.policy import ATTAINED, REMAINING, grouping_options
from scenes.systems import FOUR, STORE, groups, guesses, room

LOAD = StageTimes((8.0, 1.0, 1.0, 0.0), 10.0)
COMPUTE = StageTimes((1.0, 1.0, 8.0, 0.0), 10.0)


def plan(
    name: str,
    machines: Sequence[Node],
    entries: Sequence[Pending | Running],
    stages: Mapping[str, StageTimes],
    now_s: float = 100.0,
    durations_s: Mapping[str, float] | None = None,
    **sections: Any,
) -> PartitionPlan:
    """What the policy decides; no overheads unless told, so that figures are easy."""
    sections.setdefault("muri", {"overheads": False})
    snapshot = snap(now_s, room(machines, entries), predictions=guesses(entries, stages, durations_s))
    return policy(name, **sections).plan(snapshot).partitions[VC]


def test_four_jobs_of_four_resources_share_one_gpu() -> None:
    made = plan("muri-l", nodes(1, 1), [waits(name) for name in "abcd"], FOUR)
    assert groups(made) == {frozenset("abcd")}
    assert len({d.placement for d in made.decisions.values() if isinstance(d, Start)}) == 1
    test = reason(made.decisions["a"], Interleaved)
    assert (test.jobs, test.alone_s) == (4, 42.0)
    assert test.period_s < 42.0


def test_nobody_shares_where_there_is_room() -> None:
    made = plan("muri-l", nodes(1, 4), [waits(name) for name in "abcd"], dict.fromkeys("abcd", STORE))
    assert groups(made) == set()
    assert all(isinstance(d, Start) for d in made.decisions.values())


def test_priorities_are_times_times_gpus() -> None:  # M14, M15
    entry = runs("r", "n1:0-3")
    assert REMAINING.value(entry, Prediction(40.0, "test"), 10.0) == 4 * 30.0
    assert ATTAINED.value(entry, None, 10.0) == 4 * 10.0


def test_sharing_stops_when_the_gpus_suffice() -> None:
    stages = {"a": LOAD, "b": COMPUTE, "c": LOAD, "d": COMPUTE}
    made = plan("muri-l", nodes(1, 3), [waits(name) for name in "abcd"], stages)
    assert len(groups(made)) == 1  # one pair frees the GPU that lacks


def test_only_equal_gpu_counts_share() -> None:
    entries = [waits("a", 2), waits("b", 2), waits("c", 1), waits("d", 1)]
    stages = {"a": LOAD, "b": COMPUTE, "c": LOAD, "d": COMPUTE}
    assert groups(plan("muri-l", nodes(1, 3), entries, stages)) == {frozenset("ab"), frozenset("cd")}


def test_what_is_slower_together_is_parted_and_competes_by_priority() -> None:
    stages = dict.fromkeys("ab", StageTimes((10.0, 0.0, 0.0, 0.0), 10.0))
    durations_s = {"a": 500.0, "b": 50.0}
    made = plan("muri-s", nodes(1, 1), [waits("a"), waits("b")], stages, durations_s=durations_s)
    assert groups(made) == {frozenset("ab")}  # as long together as one after the other: not slower
    costly = {"muri": {"overheads": True}}
    parted = plan("muri-s", nodes(1, 1), [waits("a"), waits("b")], stages, durations_s=durations_s, **costly)
    assert isinstance(parted.decisions["b"], Start)
    assert isinstance(parted.decisions["a"], Hold)
    assert not reason(parted.decisions["a"], FreeGpus)
    kept = plan("muri-s-no-unpack", nodes(1, 1), [waits("a"), waits("b")], stages, **costly)
    assert groups(kept) == {frozenset("ab")}


def test_muri_s_goes_by_the_work_left_and_muri_l_by_the_time_had() -> None:
    slow = runs("slow", "n1:0", start_s=0.0, work=Work(400.0, 100.0, 0.5))  # 100 s ago half a second a second
    new = waits("new", submit_s=100.0)
    solo = {"muri": {"group_size": 1}}
    durations_s = {"slow": 1000.0, "new": 700.0}
    by_work = plan("muri-s", nodes(1, 1), [slow, new], {}, durations_s=durations_s, **solo)
    assert by_work.actions == ()  # 600 s left against 700
    assert isinstance(by_work.decisions["new"], Hold)
    by_time = plan("muri-l", nodes(1, 1), [slow, new], {}, durations_s=durations_s, **solo)
    assert isinstance(by_time.decisions["slow"], Requeue)
    assert reason(by_time.decisions["slow"], Priority).value == 100.0
    assert isinstance(by_time.decisions["new"], Start)


def test_a_group_that_stands_stays_and_one_that_grows_keeps_its_gpus() -> None:
    pair = [runs(name, "n1:0", group=("a", "b")) for name in "ab"]
    assert plan("muri-l", nodes(1, 1), pair, FOUR).actions == ()
    grown = plan("muri-l", nodes(1, 1), [*pair, waits("c")], FOUR)
    assert groups(grown) == {frozenset("abc")}
    assert isinstance(grown.decisions["a"], Regroup)
    assert isinstance(grown.decisions["c"], Start)


def test_a_group_is_dissolved_when_there_is_room_again() -> None:
    pair = [runs(name, "n1:0", group=("a", "b")) for name in "ab"]
    made = plan("muri-l", nodes(1, 2), pair, {"a": LOAD, "b": COMPUTE})
    changed = [d for d in made.decisions.values() if isinstance(d, Regroup)]
    assert len(changed) == 2
    assert all(not d.group for d in changed)
    assert len({d.placement for d in changed}) == 2


@pytest.mark.parametrize("why", ["nobody ran it dry", "its user asked not to share"])
def test_some_jobs_share_with_nobody(why: str) -> None:
    shy = waits("b", shareable=why != "its user asked not to share")
    stages = {"a": LOAD, "c": LOAD} | ({} if why == "nobody ran it dry" else {"b": COMPUTE})
    made = plan("muri-l", nodes(1, 1), [waits("a"), shy, waits("c")], stages)
    assert all("b" not in group for group in groups(made))


def test_a_group_keeps_within_measured_gpu_memory() -> None:
    big = replace(LIGHT, gpu_mem_mib=15000.0)
    entries = [waits("a", profile=big), waits("b", profile=big)]
    made = plan("muri-l", nodes(1, 1), entries, {"a": LOAD, "b": COMPUTE})
    assert groups(made) == set()
    assert sorted(type(d).__name__ for d in made.decisions.values()) == ["Hold", "Start"]


def test_a_group_for_which_a_node_lacks_cpus_runs_as_far_as_it_goes() -> None:
    entries = [waits("a", cpus=3), waits("b", cpus=3)]
    made = plan("muri-l", nodes(1, 1, cpus=4), entries, {"a": LOAD, "b": COMPUTE})
    assert sorted(type(d).__name__ for d in made.decisions.values()) == ["Hold", "Start"]


def test_what_can_never_run_holds_nobody_up() -> None:
    made = plan("muri-l", nodes(1, 4), [waits("huge", 5), waits("a")], {"a": LOAD})
    assert kinds(made.decisions["huge"]) == ["TooLarge"]
    assert isinstance(made.decisions["a"], Start)


@pytest.mark.parametrize(("name", "most"), [("muri-l-2", 2), ("muri-l-3", 3), ("muri-s", 4)])
def test_groups_are_as_large_as_the_policy_declares(name: str, most: int) -> None:
    made = plan(name, nodes(1, 1), [waits(n) for n in "abcd"], FOUR)
    assert policy(name).rules.group_limit == most
    assert max(map(len, groups(made))) <= most


def test_groups_do_not_depend_on_what_the_table_saw_before() -> None:
    """Many groupings are equally good; a daemon that was restarted has to find the same one."""
    options = grouping_options(MuriSettings(group_size=3))
    for seed in range(60):
        rng = random.Random(seed)
        loads = [tuple(rng.choice((0.1, 0.3, 0.7, 1.1)) for _ in range(options.k)) for _ in range(5)]
        jobs = [MuriJob(i, rng.choice((1, 1, 2)), rng.choice(loads)) for i in range(12)]
        known = GammaTable(options.k, options.ordering, options.overhead)
        group_jobs(rng.sample(jobs, len(jobs)), 3, options, known)
        fresh = GammaTable(options.k, options.ordering, options.overhead)
        assert group_jobs(jobs, 5, options, known) == group_jobs(jobs, 5, options, fresh), seed
