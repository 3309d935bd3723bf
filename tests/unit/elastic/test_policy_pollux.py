"""Pollux and Optimus as policies: rounds, caps, jobs that are not elastic, refusals; then whole replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from applications import INIT, MODEL
from builders import (
    VC,
    FixedPredictor,
    Tape,
    a_cluster,
    a_trace,
    at,
    by,
    check_plan,
    decided,
    elastic,
    nodes,
    part,
    policy,
    reason,
    runs,
    snap,
    waits,
)
from lucid.core.decision import Action, Decided, Hold, PartitionPlan, Resize, Start, decision_to_dict
from lucid.core.placement import placement_gpus
from lucid.core.ports import Predictor
from lucid.core.reasons.queue import Allotted, NextRound, Preempted, TooLarge
from lucid.core.snapshot import Partition
from lucid.errors import ConfigError
from lucid.orchestrator.policies.rounds import pollux
from lucid.orchestrator.policies.rounds.genetic import Objective, SearchOptions, SearchResult, search
from lucid.orchestrator.policies.rounds.goodput import BatchLimits, GradParams
from lucid.orchestrator.rounds import Round
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.cluster.truth import OraclePredictor
from lucid.simulator.engine import run
from lucid.simulator.traces.record import Trace
from scenes.systems import AGENTS_LIMITS as LIMITS
from scenes.systems import RESIZES, holds, wants


def plan(name: str, partition: Partition, now_s: float = 600.0, memory: object = None, **rest: Any) -> PartitionPlan:
    snapshot = replace(snap(now_s, partition), memory={} if memory is None else {VC: memory})
    made = policy(name, **rest).plan(snapshot).partitions[VC]
    check_plan(partition, made, RESIZES)
    return made


ALL = ("pollux", "optimus", "optimus-fitted")


@pytest.mark.parametrize("name", ALL)
def test_between_rounds_everybody_waits_and_the_memory_is_passed_on(name: str) -> None:
    made = plan(name, part(nodes(1, 4), [wants("a")]), 601.0, memory=Round(rest="kept"), pollux={"interval_s": 60.0})
    assert isinstance(made.decisions["a"], Hold)
    assert reason(made.decisions["a"], NextRound).at_s == made.wake_s
    assert made.wake_s == (660.0 if name == "pollux" else 1200.0)
    assert isinstance(made.memory, Round)
    assert made.memory.rest == "kept"


@pytest.mark.parametrize("name", ALL)
def test_a_cluster_that_cannot_is_named_with_what_it_lacks(name: str) -> None:
    with pytest.raises(ConfigError, match=f"policy '{name}' needs .*resize.* does not offer .*it offers preempt"):
        run(a_cluster(a_trace(by("a"))), policy(name), FixedPredictor())


def test_pollux_needs_agents_too() -> None:
    with pytest.raises(ConfigError, match="needs adapt, which"):
        run(a_cluster(a_trace(elastic("a"))), policy("pollux"), FixedPredictor())


def test_a_new_job_gets_one_gpu() -> None:
    made = plan("pollux", part(nodes(2, 4), [wants("a")]))
    start = decided(made, "a", Start)
    assert placement_gpus(start.placement) == 1
    assert reason(start, Allotted).most == 1


@pytest.mark.parametrize(("seen", "most"), [((1,), 2), ((1, 2), 4), ((1, 4), 8)])
def test_a_job_grows_to_twice_what_it_ever_had(seen: tuple[int, ...], most: int) -> None:
    made = plan("pollux", part(nodes(3, 4), running=[holds("a", "n1:0", seen)]), 6000.0)
    resize = decided(made, "a", Resize)
    assert placement_gpus(resize.placement) == most
    assert at("n1:0")[0].mask & dict(resize.placement).get("n1", 0) or most > 4


def test_a_resize_comes_with_the_batch_of_the_most_goodput() -> None:
    resize = decided(plan("pollux", part(nodes(3, 4), running=[holds("a", "n1:0", (1, 2))]), 6000.0), "a", Resize)
    best = MODEL.optimize(1, 4, BatchLimits(INIT, 1024, 16, 128))
    assert resize.batch == (int(best.atomic), int(best.accum) + 1)
    assert reason(resize, Allotted).batch == 4 * best.atomic * (best.accum + 1)
    assert Decided.from_json(decision_to_dict(resize)) == resize
    pinned = holds("a", "n1:0", (1, 2), limits=replace(LIMITS, pinned=True))
    assert decided(plan("pollux", part(nodes(3, 4), running=[pinned]), 6000.0), "a", Resize).batch is None


def test_a_job_that_restarted_all_the_time_is_left_alone() -> None:
    young = holds("a", "n1:0", submit_s=500.0, restarts=9)
    assert plan("pollux", part(nodes(2, 4), running=[young])).decisions == {}


@pytest.mark.parametrize("name", ["pollux", "optimus"])
def test_jobs_that_are_not_elastic_stay_and_new_ones_find_room(name: str) -> None:
    rigid = runs("r", "n1:0-1")
    made = plan(name, part(nodes(1, 4), [waits("q", 1), wants("a")], [rigid]), 600.0)
    assert "r" not in made.decisions
    assert isinstance(made.decisions["q"], Start)
    assert isinstance(made.decisions["a"], Start)


def test_elastic_jobs_give_way_to_one_that_is_not_and_waits() -> None:
    made = plan("pollux", part(nodes(1, 4), [waits("q", 2)], [holds("a", "n1:0-3", (4,))]))
    assert isinstance(made.decisions["q"], Start)
    resize = decided(made, "a", Resize)
    assert placement_gpus(resize.placement) <= 2


def test_jobs_that_are_not_elastic_do_not_take_more_than_their_share() -> None:
    made = plan(
        "pollux",
        part(nodes(1, 4), [waits("q", 2)], [runs("r", "n1:0-1"), *(holds(f"e{i}", f"n1:{i}") for i in (2, 3))]),
    )
    hold = decided(made, "q", Hold)
    assert reason(hold, Preempted).quota == 0


def test_what_never_fits_says_so() -> None:
    made = plan("pollux", part(nodes(1, 4), [waits("q", 5), wants("a")]))
    assert reason(made.decisions["q"], TooLarge)
    assert isinstance(made.decisions["a"], Start)


@pytest.mark.parametrize("name", ALL)
def test_a_job_leaves_a_node_that_is_drained(name: str) -> None:
    machines = (*nodes(1, 4), *nodes(1, 4, prefix="d", available=False))
    made = plan(name, part(machines, running=[holds("a", "d1:0-1", (2,))]), 6000.0)
    decision = decided(made, "a", Resize)
    assert [p.node for p in decision.placement] == ["n1"]


def test_host_memory_limits_what_a_node_gives() -> None:
    entry = holds("a", "n1:0", (1, 4))
    entry = replace(entry, job=replace(entry.job, mem_mib=1000))
    made = plan("pollux", part(nodes(2, 4, mem_mib=2500), running=[entry]), 6000.0)
    decision = made.decisions.get("a")
    assert decision is None or all(p.mask.bit_count() <= 2 for p in decision.placement)  # type: ignore[union-attr]


def test_the_same_snapshot_gives_the_same_plan_and_memory_is_only_a_start() -> None:
    partition = part(nodes(4, 4), [wants("n")], [holds(f"j{i}", f"n{i}:0-1", (2,)) for i in (1, 2, 3)])
    first, second = plan("pollux", partition), plan("pollux", partition)
    assert first.decisions == second.decisions
    again = plan("pollux", partition, 660.0, memory=first.memory)
    assert again.decisions.keys() >= {"n"}
    assert plan("pollux", part(nodes(3, 4), [wants("n")]), 660.0, memory=first.memory).decisions.keys() == {"n"}


def test_optimus_gives_gpus_to_whom_they_save_the_most_time() -> None:
    short, long = elastic("short", epochs=2), elastic("long", epochs=50)
    done = replay_elastic("optimus", a_trace(short, long), {VC: nodes(1, 4)}, OraclePredictor(a_trace(short, long)))
    outcomes, tape = done
    first = {a.job_id: gpus_of(a) for _, a in tape.actions("short") + tape.actions("long")[:1]}
    assert first == {"short": 1, "long": 3}
    assert outcomes["long"].resizes == 1, "it takes the GPU of the other one"


def test_optimus_fitted_tries_jobs_out_and_learns_from_those_that_ended() -> None:
    jobs = [
        elastic(f"j{i}", submit_s=4000.0 * i, epochs=20, name="same", table=[100.0 / g**0.8 for g in range(1, 9)])
        for i in range(3)
    ]
    outcomes, tape = replay_elastic("optimus-fitted", a_trace(*jobs), {VC: nodes(2, 4)}, FixedPredictor())
    tried = {gpus_of(a) for _, a in tape.actions("j0")}
    assert len(tried) >= 4
    assert outcomes["j2"].jct_s < 0.8 * outcomes["j0"].jct_s


def gpus_of(action: Action) -> int:
    assert isinstance(action.decision, Start | Resize)
    return placement_gpus(action.decision.placement)


def replay_elastic(
    name: str, trace: Trace, layout: Mapping[str, Any], predictor: Predictor
) -> tuple[dict[str, JobOutcome], Tape]:
    made = policy(name, predictor, optimus={"interval_s": 60.0})
    tape = Tape()
    cluster = a_cluster(trace, layout, agents="adapt" in made.needs)
    return {o.job.id: o for o in run(cluster, made, predictor, tape).outcomes}, tape


class Spy:
    """Passes on what the policy asks of the search, and keeps it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[dict[str, Any]] = []
        monkeypatch.setattr(pollux, "search", self)

    def __call__(self, *args: Any, **asked: Any) -> SearchResult:
        self.asked.append(asked)
        return search(*args, **asked)


def test_the_search_is_asked_for_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:  # P24, P27, P28
    spy, partition = Spy(monkeypatch), part(nodes(2, 4), running=[holds("a", "n1:0", (2,))])
    effort = {"population": 8, "generations": 5, "patience": 3, "greedy_seeds": False}
    plan("pollux", partition, pollux={"p": -2.0, "avoid_interference": False, **effort})
    plan("pollux", partition)
    chosen, default = spy.asked
    assert chosen["objective"] == Objective(p=-2.0, offset=1e-3, scale=2 / 8), "nodes / GPUs"
    assert chosen["options"] == SearchOptions(population=8, generations=5, patience=3, seeds=False)
    assert not chosen["avoid_interference"]
    assert default["objective"] == Objective(p=-1.0, offset=1e-3, scale=2 / 8)
    assert (default["options"].population, default["options"].generations) == (100, 100)
    assert default["avoid_interference"]


def test_the_next_round_goes_on_from_the_last_population() -> None:  # P27
    """With no generation of its own, a round finds what the last one found, under whatever numbers jobs then have."""
    held = [holds(f"j{i}", f"n{i}:0", (4,)) for i in (1, 2, 3)]
    machines = nodes(3, 4)
    first = plan("pollux", part(machines, running=held), 6000.0)
    found = {name: decision.placement for name, decision in first.decisions.items() if isinstance(decision, Resize)}
    assert len(found) == 3
    lazy = {"population": 4, "generations": 0, "greedy_seeds": False}
    again = plan("pollux", part(machines, running=held[::-1]), 6060.0, memory=first.memory, pollux=lazy)
    later = {name: decision.placement for name, decision in again.decisions.items() if isinstance(decision, Resize)}
    assert {n: placement_gpus(p) for n, p in later.items()} == {n: placement_gpus(p) for n, p in found.items()}
    assert [p.node for p in later["j1"]] == [p.node for p in found["j1"]]
    alone = plan("pollux", part(machines, running=held[1:]), 6060.0, memory=first.memory, pollux=lazy)
    kept = {n: d.placement for n, d in alone.decisions.items() if isinstance(d, Resize)}
    assert kept.keys() == {"j2", "j3"}
    assert all(placement_gpus(kept[n]) >= placement_gpus(found[n]) for n in kept), "the other left GPUs, not jobs"


@pytest.mark.parametrize("apart", [True, False])
def test_only_one_of_two_jobs_on_several_nodes_may_stay_on_a_node(apart: bool) -> None:  # P28
    """Their restarts have cost them so much that neither would move for a better place."""
    both = [holds(f"j{i}", f"n1:{i} n2:{i}", (2,), submit_s=500.0, restarts=9) for i in (0, 1)]
    made = plan("pollux", part(nodes(2, 2), running=both), pollux={"avoid_interference": apart})
    stay = [e.job.id for e in both if e.job.id not in made.decisions]
    assert len(stay) == (1 if apart else 2)


@pytest.mark.parametrize("start", [False, True])
def test_a_job_on_several_nodes_closes_them_to_others_of_its_kind(start: bool) -> None:  # P28
    """``start``: that job, which is not elastic, starts in this very plan."""
    grown = holds("a", "n1:1", (8,))
    rigid = [] if start else [runs("r", "n1:0 n2:0")]
    line = [waits("r", 2, min_nodes=2)] if start else []
    for avoid, count in [(True, 1), (False, 2)]:
        made = plan("pollux", part(nodes(2, 4), line, [grown, *rigid]), 60000.0, pollux={"avoid_interference": avoid})
        resize = decided(made, "a", Resize)
        assert len(resize.placement) == count
    on_one = decided(plan("pollux", part(nodes(2, 4), running=[grown, runs("r", "n1:0")]), 60000.0), "a", Resize)
    assert len(on_one.placement) == 2, "a job on one node closes nothing"


@pytest.mark.parametrize("pinned", [False, True])
def test_a_pinned_job_is_worth_what_its_own_batch_brings(pinned: bool) -> None:  # P29
    """Gradients with little noise make small batches best, and it was submitted with a larger one."""
    little = (100.0, 1.0)
    entry = holds("a", "n1:0", (1,), submit_s=0.0)
    assert entry.progress is not None
    progress = replace(entry.progress, gradient=little)
    limits = replace(LIMITS, batch=512, pinned=pinned)
    entry = replace(entry, job=replace(entry.job, elastic=limits), progress=progress)
    made = plan("pollux", part(nodes(1, 4), running=[entry]), 6000.0)
    found = reason(made.decisions["a"], Allotted)
    assert found.gpus == 2
    model = MODEL._replace(grad=GradParams(*little))
    moved = 6000.0 / 6030.0
    if pinned:
        two, four = (float(model.throughput(1, g, 128, 512 // (128 * g) - 1)) for g in (2, 4))
    else:
        two, four = (float(model.goodput(1, g, INIT // g, 0)) for g in (2, 4))
    assert found.value == pytest.approx(moved * two / four)
