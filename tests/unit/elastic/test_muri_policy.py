"""Muri as published."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from msgspec import structs

from builders import LIGHT, VC, check_plan, decide, decided, guess, nodes, part, policy, reason, runs, snap, waits
from examples import examples
from lucid.config.policy import MuriSettings
from lucid.core.decision import Hold, PartitionPlan, Regroup, Requeue, Start
from lucid.core.job import Elastic, Pending, Progress, Running, Work
from lucid.core.node import Node
from lucid.core.prediction import MeasuredRun, Prediction, StageTimes
from lucid.core.reasons.queue import Allotted, FreeGpus, Priority
from lucid.core.reasons.sharing import Interleaved
from lucid.orchestrator.policies.muri import grouping, interleave, matching
from lucid.orchestrator.policies.muri.grouping import GammaTable, Group, GroupingOptions, group_jobs, unpack
from lucid.orchestrator.policies.muri.interleave import NO_OVERHEAD, PUBLISHED, MuriJob, conflict, periods
from lucid.orchestrator.policies.muri.matching import match_by_kind, max_weight_matching
from lucid.orchestrator.policies.muri.policy import ATTAINED, REMAINING, grouping_options
from lucid.orchestrator.policies.rounds.optimus_models import LossModel
from scenes.systems import FOUR, RESIZES, gpus_given, groups, guesses, room

times = st.floats(0.1, 100.0)


def jobs_of(stages: np.ndarray, gpus: int = 1) -> list[MuriJob]:
    return [MuriJob(i, gpus, tuple(row)) for i, row in enumerate(stages.tolist())]


@settings(max_examples=examples(300))
@given(arrays(float, (4, 4), elements=times))
def test_efficiency_is_a_fraction_and_sharing_never_beats_the_busiest_resource(stages: np.ndarray) -> None:
    gamma = interleave.efficiencies(stages[None], 4)[0]
    assert 0 < gamma <= 1 + 1e-12
    assert periods(stages[None], 4)[0] >= stages.sum(axis=0).max() / 4 - 1e-9
    assert periods(stages[None], 4)[0] >= stages.sum(axis=1).max() - 1e-9


def test_three_measured_times_leave_data_two_slots_and_overhead_goes_by_group_size() -> None:  # M7, M8
    # One of data and one of GPU and network fit side by side: 10 against 4 + 6.
    assert periods([[[10.0, 0.0, 0.0], [0.0, 4.0, 6.0]]], 4)[0] == 10.0
    stages = np.ones((1, 2, 4))
    plain, shared = interleave.efficiencies(stages, 4)[0], interleave.efficiencies(stages, 4, overhead=PUBLISHED)[0]
    assert plain / shared == pytest.approx(1.33 / 1.015)
    assert interleave.start_overhead_s("a2c", 8) == 46
    assert interleave.start_overhead_s("unheard of", 8) == 10
    assert interleave.start_overhead_s("a2c", 3) == 10


def test_impossible_profiles_and_more_jobs_than_resources_are_refused() -> None:  # M11
    for stages in ((), (0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="stage times"):
            MuriJob(1, 1, stages)
    with pytest.raises(ValueError, match="at most 2"):
        periods(np.ones((1, 3, 2)), 2)
    with pytest.raises(ValueError, match="group_size"):
        GroupingOptions(k=3, group_size=4)
    with pytest.raises(ValueError, match="best"):
        GammaTable(2, "given", NO_OVERHEAD)


def brute_force(weights: np.ndarray, left: list[int]) -> float:
    if len(left) < 2:
        return 0.0
    first, *rest = left
    mates = [v for v in rest if weights[first, v] > 0]
    paired = [weights[first, v] + brute_force(weights, [w for w in rest if w != v]) for v in mates]
    return float(max([brute_force(weights, rest), *paired]))


def weight_of(weights: np.ndarray, pairs: list[tuple[int, int]]) -> float:
    assert len({v for pair in pairs for v in pair}) == 2 * len(pairs)
    return float(sum(weights[i, j] for i, j in pairs))


@settings(max_examples=examples(200))
@given(st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_matching_is_optimal(n: int, seed: int) -> None:  # M9
    w = np.random.default_rng(seed).random((n, n)) - 0.2
    w = np.triu(w, 1) + np.triu(w, 1).T
    assert weight_of(w, max_weight_matching(w)) == pytest.approx(brute_force(w, [*range(n)]), abs=1e-9)


@pytest.mark.parametrize(("n", "kinds"), [(71, 71), (150, 150), (151, 6), (200, 30), (101, 1)])
def test_the_three_ways_of_matching_agree(n: int, kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(n)
    w = rng.random((kinds, kinds))
    w = np.triu(w) + np.triu(w, 1).T
    kind = np.arange(n) if n == kinds else rng.integers(kinds, size=n)
    full = w[np.ix_(kind, kind)].copy()
    fast = weight_of(full, match_by_kind(w, kind))
    monkeypatch.setattr(matching, "_SMALL", 10**6)
    assert fast == pytest.approx(weight_of(full, match_by_kind(w, kind)), abs=1e-9)


def test_forbidden_pairs_are_not_matched() -> None:
    w = np.zeros((80, 80))
    w[0, 1] = w[1, 0] = 0.5
    assert max_weight_matching(w) == [(0, 1)]
    assert max_weight_matching(np.zeros((5, 5))) == []
    with pytest.raises(ValueError, match="symmetric"):
        max_weight_matching([[0, 1], [2, 0]])


def test_only_equal_gpu_counts_share_and_four_become_one_group() -> None:  # M12, M13
    rng = np.random.default_rng(0)
    jobs = [MuriJob(f"a{i}", 5, tuple(rng.random(4) + 0.1)) for i in range(4)]
    jobs.append(MuriJob("b", 1, (1.0, 1.0, 1.0, 1.0)))
    groups = group_jobs(jobs, 0)
    assert sorted(len(g.jobs) for g in groups) == [1, 4]
    assert all(by_shares.gpus == g.gpus for g in groups for by_shares in g.jobs)


@pytest.mark.parametrize("matching", ["blossom", "by_priority"])
def test_merging_stops_when_the_cluster_holds_the_jobs(matching: str) -> None:  # M18
    jobs = jobs_of(np.random.default_rng(1).random((10, 4)) + 0.1, gpus=2)
    options = GroupingOptions(matching=matching)  # type: ignore[arg-type]
    assert [len(group_jobs(jobs, gpus, options)) for gpus in (20, 18, 12, 0)] == [10, 9, 6, 3]


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 14), st.integers(0, 40), st.integers(0, 2**16), st.sampled_from([2, 3, 4]))
def test_every_job_is_in_exactly_one_group(n: int, gpus: int, seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = [MuriJob(i, int(2 ** rng.integers(3)), tuple(rng.random(k) + 0.01)) for i in range(n)]
    for other in ({}, {"ordering": "worst"}, {"matching": "by_priority"}):
        groups = group_jobs(jobs, gpus, GroupingOptions(k=k, **other))  # type: ignore[arg-type]
        assert sorted(j.job_id for g in groups for j in g.jobs) == list(range(n))
        assert all(len(g.jobs) <= k for g in groups)


def test_candidates_are_whole_groups_of_what_fits() -> None:  # M17
    jobs = [MuriJob(i, gpus, (1.0, 1.0)) for i, gpus in enumerate([1, 2, 1, 1, 2, 1, 1])]
    free = [3]

    def fits(by_shares: MuriJob) -> bool:
        if by_shares.gpus > free[0]:
            return False
        free[0] -= by_shares.gpus
        return True

    # Job 0 brings 2 (one GPU), by_shares 1 brings 4 (two GPUs); nothing is left for the others.
    assert [j.job_id for j in grouping.choose_candidates(jobs, fits, 2)] == [0, 1, 2, 4]


def test_a_group_slower_than_one_after_the_other_is_split() -> None:  # M19
    clash = Group(1, tuple(MuriJob(i, 1, (0.0, 10.0)) for i in range(2)))
    table, alike = GammaTable(2, "best", NO_OVERHEAD), [MuriJob(name, 1, (1.0, 2.0)) for name in "ab"]
    assert table.group_id(alike[:1]) == table.group_id(alike[1:]), "it remembers profiles, not jobs"
    fits = Group(1, (MuriJob(2, 1, (10.0, 0.1)), MuriJob(3, 1, (0.1, 10.0))))
    options = GroupingOptions(k=2, overhead=PUBLISHED)
    assert [len(g.jobs) for g in unpack([clash, fits], options)] == [1, 1, 2]
    assert [len(g.jobs) for g in unpack([clash], GroupingOptions(k=2, overhead=NO_OVERHEAD))] == [2]


def uses(*shares: float, iteration: float | None = 1.0) -> MuriJob:
    return MuriJob("a", 1, shares, iteration)


SOME = uses(0.0, 0.0, 0.2, 0.0)
CHANCES = {
    "never together": (uses(1.0, 0.0, 0.0, 0.0), uses(0.0, 0.0, 1.0, 0.0), 0.0),
    "always the same": (uses(0.0, 0.0, 1.0, 0.0), uses(0.0, 0.0, 1.0, 0.0), 1.0),
    "one of two": (uses(0.0, 0.5, 0.5, 0.0), uses(0.0, 0.5, 0.5, 0.0), 0.5),
    "nobody knows what they wait for": (SOME, SOME, 0.04 + 0.64),
    "nor what one of them waits for": (SOME, uses(0.5, 0.0, 0.5, 0.0), 0.1 + 0.4),
    "seconds are shares, too": (uses(0.0, 0.0, 9.0, 9.0, iteration=None), uses(0.0, 0.0, 0.3, 0.7), 0.15 + 0.35),
    "all at once": (uses(1.0, 1.0, 1.0, 0.0), uses(1.0, 1.0, 1.0, 0.0), 3.0),
}


@pytest.mark.parametrize("how", CHANCES)
def test_the_chance_that_both_want_the_same(how: str) -> None:
    a, b, chance = CHANCES[how]
    assert (conflict(a, b), conflict(b, a)) == pytest.approx((chance, chance))


def test_no_job_is_paired_with_one_of_its_own_kind() -> None:
    """As long as its use of the network is not known, which it is not from outside."""
    rng = random.Random(7)
    for _ in range(1000):
        cuts = sorted((rng.random(), rng.random()))
        shares = (cuts[0], cuts[1] - cuts[0], (1.0 - cuts[1]) * rng.choice([1.0, 1.3, 0.5]), 0.0)
        assert conflict(uses(*shares), uses(*shares)) >= interleave.MOST_CONFLICT - 1e-9


LOAD, COMPUTE = StageTimes((8.0, 1.0, 1.0, 0.0), 10.0), StageTimes((1.0, 1.0, 8.0, 0.0), 10.0)


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
    made = plan("muri-l", nodes(1, 1), [*map(waits, "abcd")], FOUR)
    assert groups(made) == {frozenset("abcd")}
    assert len({d.placement for d in made.decisions.values() if isinstance(d, Start)}) == 1
    test = reason(made.decisions["a"], Interleaved)
    assert (test.jobs, test.alone_s) == (4, 42.0)
    assert test.period_s < 42.0


def test_what_is_slower_together_is_parted_and_competes_by_priority() -> None:
    stages = dict.fromkeys("ab", StageTimes((10.0, 0.0, 0.0, 0.0), 10.0))
    durations_s = {"a": 500.0, "b": 50.0}
    both, costly = [waits("a"), waits("b")], {"muri": {"overheads": True}}
    made = plan("muri-s", nodes(1, 1), both, stages, durations_s=durations_s)
    assert groups(made) == {frozenset("ab")}, "as long together as one after the other: not slower"
    parted = plan("muri-s", nodes(1, 1), both, stages, durations_s=durations_s, **costly)
    assert isinstance(parted.decisions["b"], Start)
    assert not reason(parted.decisions["a"], FreeGpus, Hold)
    assert groups(plan("muri-s-no-unpack", nodes(1, 1), both, stages, **costly)) == {frozenset("ab")}


def test_muri_s_goes_by_the_work_left_and_muri_l_by_the_time_had() -> None:  # M14, M15
    four = runs("r", "n1:0-3")
    assert REMAINING.value(four, Prediction(40.0, "test"), 10.0) == 4 * 30.0, "times its GPUs"
    assert ATTAINED.value(four, None, 10.0) == 4 * 10.0
    slow = runs("slow", "n1:0", start_s=0.0, work=Work(400.0, 100.0, 0.5))  # 100 s ago half a second a second
    new = waits("new", submit_s=100.0)
    solo = {"muri": {"group_size": 1}}
    durations_s = {"slow": 1000.0, "new": 700.0}
    by_work = plan("muri-s", nodes(1, 1), [slow, new], {}, durations_s=durations_s, **solo)
    assert by_work.actions == ()  # 600 s left against 700
    assert isinstance(by_work.decisions["new"], Hold)
    by_time = plan("muri-l", nodes(1, 1), [slow, new], {}, durations_s=durations_s, **solo)
    assert reason(by_time.decisions["slow"], Priority, Requeue).value == 100.0
    assert isinstance(by_time.decisions["new"], Start)


def test_a_group_that_stands_stays_grows_on_its_gpus_and_is_dissolved_when_there_is_room_again() -> None:
    pair = [runs(name, "n1:0", group=("a", "b")) for name in "ab"]
    assert plan("muri-l", nodes(1, 1), pair, FOUR).actions == ()
    grown = plan("muri-l", nodes(1, 1), [*pair, waits("c")], FOUR)
    assert groups(grown) == {frozenset("abc")}
    assert [type(grown.decisions[name]) for name in "ac"] == [Regroup, Start]
    made = plan("muri-l", nodes(1, 2), pair, {"a": LOAD, "b": COMPUTE})
    changed = [d for d in made.decisions.values() if isinstance(d, Regroup)]
    assert [d.group for d in changed] == [(), ()]
    assert len({d.placement for d in changed}) == 2


@pytest.mark.parametrize("why", ["nobody ran it dry", "its user asked not to share"])
def test_some_jobs_share_with_nobody(why: str) -> None:
    shy = waits("b", shareable=why != "its user asked not to share")
    stages = {"a": LOAD, "c": LOAD} | ({} if why == "nobody ran it dry" else {"b": COMPUTE})
    made = plan("muri-l", nodes(1, 1), [waits("a"), shy, waits("c")], stages)
    assert all("b" not in group for group in groups(made))


@pytest.mark.parametrize("lacks", ["GPU memory", "CPUs"])
def test_a_group_for_which_a_node_lacks_something_runs_as_far_as_it_goes(lacks: str) -> None:
    each = {"cpus": 3} if lacks == "CPUs" else {"profile": replace(LIGHT, gpu_mem_mib=15000.0)}
    machines = nodes(1, 1, cpus=4) if lacks == "CPUs" else nodes(1, 1)
    made = plan("muri-l", machines, [waits(name, **each) for name in "ab"], {"a": LOAD, "b": COMPUTE})
    assert groups(made) == set()
    assert sorted(type(d).__name__ for d in made.decisions.values()) == ["Hold", "Start"]


@pytest.mark.parametrize(("name", "most"), [("muri-l-2", 2), ("muri-l-3", 3), ("muri-s", 4)])
def test_groups_are_as_large_as_the_policy_declares(name: str, most: int) -> None:
    made = plan(name, nodes(1, 1), [*map(waits, "abcd")], FOUR)
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


LIMITS = Elastic(8, batch=256, init_batch=128, most_batch=1024, atomic_min=16, atomic_max=128)
QUICK, SLOW = LossModel(0.5, 1.0, 0.1), LossModel(0.02, 1.0, 0.1)
"""Fall by at most 0.05 in ten epochs from the 22nd on, and beyond the 100th epoch only."""


def losses_of(model: LossModel, epochs: Sequence[float]) -> tuple[tuple[float, float], ...]:
    return tuple(zip(epochs, model.loss(np.asarray(epochs)).tolist(), strict=True))


def trains(
    name: str, done: float = 3.0, losses: Any = (), limits: Elastic = LIMITS, kind: str = "", where: str = ""
) -> Pending | Running:
    """A job that has done so many epochs; it runs if ``where`` says where, else it was interrupted."""
    said = Progress(done, (), losses)
    if not where:
        return replace(waits(name, elastic=limits, name=kind), progress=said)
    entry = runs(name, where)
    return replace(entry, job=replace(entry.job, gpus=1, elastic=limits, name=kind), progress=said)


def fitted(*entries: Pending | Running, memory: object = None, now_s: float = 600.0, gpus: int = 16) -> PartitionPlan:
    partition = room(nodes(1, gpus), entries)
    snapshot = replace(snap(now_s, partition), memory={} if memory is None else {VC: memory})
    made = policy("optimus-fitted").plan(snapshot).partitions[VC]
    check_plan(partition, made, RESIZES)
    return made


def left(made: PartitionPlan, name: str) -> float:
    """Epochs that the plan takes a job to have left."""
    return float(reason(made.decisions[name], Allotted).value)


def test_each_new_loss_counts() -> None:  # O2
    seen = (*losses_of(SLOW, range(3)), *losses_of(QUICK, range(3, 12)))
    assert left(fitted(trains("a", 3.0, seen[:2])), "a") == 20, "two points make no curve"
    assert left(fitted(trains("a", 3.0, seen[:3])), "a") == 20, "its end is not in sight"
    assert left(fitted(trains("a", 12.0, seen)), "a") < 20


def test_the_job_with_more_to_learn_gets_the_gpus() -> None:  # O2, O11
    """Both run equally fast; only their losses differ."""
    speeds = tuple((g, 100.0 / g) for g in range(1, 9))
    near, far = (trains(n, 12.0, losses_of(m, range(12))) for n, m in (("near", QUICK), ("far", SLOW)))
    entries = [replace(e, progress=replace(e.progress, epoch_s=speeds)) for e in (near, far) if e.progress]
    given = {name: reason(d, Allotted).gpus for name, d in fitted(*entries, gpus=6).decisions.items()}
    assert given["far"] > given["near"]
    assert sum(given.values()) == 6


def test_epochs_as_the_user_said_come_first_then_those_of_jobs_of_the_same_type() -> None:  # O5
    loss, other_batch = losses_of(QUICK, range(9)), replace(LIMITS, batch=512)
    first = fitted(
        trains("e0", 10.0, kind="same", where="n1:0"),
        trains("e1", 13.0, kind="same", where="n1:1"),
        trains("e2", 90.0, kind="other", where="n1:2"),
        trains("e3", 70.0, limits=other_batch, kind="same", where="n1:3"),
        trains("never ran", 0.0, kind="same"),
        trains("stays", 40.0, kind="same", where="n1:4"),
    )
    made = fitted(
        trains("stays", 40.0, kind="same", where="n1:4"),
        trains("a", 3.0, loss, kind="same"),
        trains("b", 3.0, loss, kind="new"),
        trains("c", 3.0, limits=other_batch, kind="same"),
        trains("d", 3.0, loss, replace(LIMITS, epochs=50.0), "same"),
        memory=first.memory,
        now_s=1200.0,
    )
    assert left(made, "a") == 11 - 3, "the mean of 10 and 13, rounded down"
    assert left(made, "b") == 22 - 3, "nobody of its type has ended"
    assert left(made, "c") == 70 - 3, "another batch size makes another type"
    assert left(made, "d") == 50 - 3, "as its user said"
    later = fitted(*(trains(name, kind="same") for name in "ad"), memory=made.memory, now_s=1800.0)
    assert left(later, "a") == (10 + 13 + 40) // 3 - 3, "those known before still count"


def dealt(machines: Sequence[Node], most: Mapping[str, int]) -> dict[str, list[str]]:
    """Nodes of each job, where every job gets the most GPUs that it may have."""
    line = [waits(name, 1, float(i), elastic=replace(LIMITS, max_gpus=g)) for i, (name, g) in enumerate(most.items())]
    perfect = tuple(60.0 / g for g in range(1, 9))
    known = {e.job.id: structs.replace(guess(600.0), epochs=100.0, epoch_s=perfect) for e in line}
    partition = part(machines, line)
    made = decide("optimus", snap(600.0, partition, predictions=known))
    check_plan(partition, made, RESIZES)
    assert {name: gpus_given(made, name) for name in made.decisions} == most
    return {name: [p.node for p in decided(made, name, Start).placement] for name in most}


def known(ended: int, epochs_left: str) -> float:
    """Epochs that the oracle's Optimus takes a job to have left that has ended so many."""
    run = MeasuredRun((2.0, 1.0, 0.25), tuple(80.0 / g for g in range(1, 9)))
    entry = trains("a", ended * 1.1, tuple((1.1 * (e + 1), 0.5) for e in range(ended)))
    said = structs.replace(guess(600.0), epochs=3.5, epoch_s=tuple(60.0 / g for g in range(1, 9)), measured=run)
    now = snap(600.0, part(nodes(1, 16), [entry] if isinstance(entry, Pending) else []), predictions={"a": said})
    return left(decide("optimus", now, optimus={"epochs_left": epochs_left}), "a")


def test_an_oracle_may_know_what_a_measured_run_took() -> None:
    assert [known(n, "true") for n in range(3)] == pytest.approx([3.5, 2.4, 1.3])
    assert [known(n, "measured") for n in range(4)] == [2.0, 1.0, 0.25, 0.25]


def test_jobs_of_few_gpus_choose_their_nodes_first_and_each_gets_as_few_as_can_be() -> None:  # O14, O16
    for most in ({"large": 4, "small": 3}, {"small": 3, "large": 4}):
        assert dealt((Node("n1", 4), Node("n2", 3)), most) == {"small": ["n1"], "large": ["n1", "n2"]}
    machines = (Node("n1", 1), Node("n2", 2), Node("n3", 4), Node("n4", 3))
    for gpus, where in ((4, ["n3"]), (7, ["n3", "n4"]), (8, ["n2", "n3", "n4"])):
        assert dealt(machines, {"a": gpus}) == {"a": where}


def test_under_drf_everybody_has_the_same_on_the_emptiest_nodes() -> None:  # O19, O21
    line = [waits(f"j{i}", 1, float(i), elastic=replace(LIMITS, max_gpus=2 if i == 0 else 8)) for i in range(3)]
    partition = part(nodes(2, 4), line)
    made = decide("optimus-drf", snap(600.0, partition))
    check_plan(partition, made, RESIZES)
    assert {name: gpus_given(made, name) for name in made.decisions} == {"j0": 2, "j1": 3, "j2": 3}
    assert {p.node for p in decided(made, "j0", Start).placement} == {"n1", "n2"}, "one by one, not together"
    assert decide("optimus-drf", snap(601.0, partition)).wake_s == 1200.0


def test_a_job_that_is_not_to_be_resized_for_a_while_has_not_ended() -> None:
    """On a real cluster a job is not elastic within its cool-down, or when it falls silent."""
    first = fitted(trains("e0", 10.0, kind="same", where="n1:0"))
    cooling = replace(trains("e0", 11.0, where="n1:0"), job=waits("e0", 1, name="same").job)
    made = fitted(cooling, trains("a", 3.0, kind="same"), memory=first.memory, now_s=1200.0)
    assert left(made, "a") == 20, "nobody of its type has ended"
    later = fitted(trains("a", 3.0, kind="same"), memory=made.memory, now_s=1800.0)
    assert left(later, "a") == 10 - 3, "now it has"
