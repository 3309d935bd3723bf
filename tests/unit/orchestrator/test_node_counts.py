"""Jobs that ask for several nodes: where they are put, what is kept for them, and what is refused."""

from __future__ import annotations

import pytest

from builders import ANYTHING, LIGHT, a_job, at, check_plan, guess, nodes, part, policy, runs, settings, snap, waits
from lucid.config.policy import ProfilingSettings
from lucid.core.decision import Action, EndProfiling, PartitionPlan, Start
from lucid.core.job import Job
from lucid.core.ledger import Ledger, gpus_by_node
from lucid.core.reasons.profiling import ProfilingFits
from lucid.core.reasons.queue import EverFits
from lucid.core.reasons.sharing import DistributedAlone
from lucid.errors import UnsafePlan
from lucid.orchestrator.capacity.placement import Feasibility, consolidated
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.profiler.stage import goes_through_profiling, plan_profiling


def several(gpus: int, min_nodes: int) -> Job:
    return a_job("j", gpus, min_nodes=min_nodes)


@pytest.mark.parametrize(
    ("gpus", "min_nodes", "per_node", "wanted"),
    [
        (2, 2, 4, ((1, 2),)),
        (3, 2, 4, ((2, 1), (1, 1))),
        (8, 2, 8, ((4, 2),)),
        (12, 2, 4, ((4, 3),)),
        (2, 3, 4, ((1, 2),)),
        (1, 1, 4, ((1, 1),)),
        (6, 1, 4, ((4, 1), (2, 1))),
        (8, 1, 4, ((4, 2),)),
        (0, 1, 4, ()),
    ],
)
def test_gpus_are_spread_over_the_nodes_asked_for(
    gpus: int, min_nodes: int, per_node: int, wanted: tuple[tuple[int, int], ...]
) -> None:
    assert gpus_by_node(several(gpus, min_nodes), per_node) == wanted


def test_two_gpus_on_two_nodes_are_not_put_on_one() -> None:
    where = consolidated(Ledger(part(nodes(3, 4))), several(2, 2))
    assert where is not None
    assert [part.mask.bit_count() for part in where] == [1, 1]
    assert len({part.node for part in where}) == 2


def test_one_node_is_no_place_for_a_job_of_two() -> None:
    asked = several(2, 2)
    one = part(nodes(1, 4))
    assert consolidated(Ledger(one), asked) is None
    bar = Feasibility(one).bar(asked)
    assert isinstance(bar, EverFits)
    assert not bar
    assert Feasibility(part(nodes(2, 4))).bar(asked) is None


def test_a_plan_that_puts_it_on_one_node_is_refused() -> None:
    place = part(nodes(2, 4), [waits("j", 2, min_nodes=2)], name="vc")
    start = Start(at("n1:0-1"), ())
    plan = PartitionPlan({"j": start}, (Action("j", "vc", start),))
    with pytest.raises(UnsafePlan, match="asked for 2 nodes, and would get 1"):
        check_plan(place, plan)


def test_a_job_that_asks_for_two_nodes_joins_nobody_on_one() -> None:
    host = runs("host", "n1:0-1", profile=LIGHT)
    place = part(nodes(2, 4), [waits("j", 2, min_nodes=2, profile=LIGHT)], [host, runs("r", "n2:0-3")])
    snapshot = snap(0.0, place, predictions={"host": guess(9000.0, 0), "j": guess(100.0, 0)})
    plan = policy("lucid", profiling={"enabled": False}).plan(snapshot)
    SafetyCheck(ANYTHING, settings())(snapshot, plan)
    assert DistributedAlone(2, 4, 2) in plan.partitions["vc"].decisions["j"].reasons


def test_backfilling_finds_a_time_at_which_both_nodes_are_free() -> None:
    place = part(nodes(2, 4))
    ledger = Ledger(place)
    other = a_job("o", 4)
    held = (ledger.lowest(0, 4),)
    ledger.take(other, held)
    slot = Timeline(ledger, 0.0, [(100.0, other, held)]).find(several(2, 2), 50.0)
    assert (slot.start_s, sorted(slot.parts)) == (100.0, [(0, 1), (1, 1)])


def test_it_is_not_profiled_apart() -> None:
    settings = ProfilingSettings()
    assert goes_through_profiling(several(2, 1), settings)
    assert not goes_through_profiling(several(2, 2), settings)
    prof = part(nodes(2, 4), [waits("j", 2, min_nodes=2)], profiling=True)
    decision = plan_profiling(prof, 0.0, settings, {}).decisions["j"]
    assert isinstance(decision, EndProfiling)
    assert decision.reasons == (ProfilingFits(2, False),)
