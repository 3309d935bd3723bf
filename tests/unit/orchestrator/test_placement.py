"""Consolidated placement: as few nodes as possible, the tightest that fit."""

from __future__ import annotations

import pytest

from builders import a_job, at, nodes, part, runs
from lucid.core.ledger import Ledger
from lucid.core.node import Node
from lucid.core.placement import Placement, indices_of, mask_of, placement_gpus, show_placement
from lucid.core.reasons.queue import EverFits, TooLarge
from lucid.orchestrator.capacity.placement import Feasibility, consolidated, emptiest


def place(gpus: int, machines: tuple[Node, ...], *busy: str, emptiest: bool = False, **host: int) -> Placement | None:
    held = [runs(f"r{i}", where) for i, where in enumerate(busy)]
    return consolidated(Ledger(part(machines, (), held)), a_job("j", gpus, **host), None, emptiest)


@pytest.mark.parametrize(
    ("gpus", "busy", "expected"),
    [
        (1, (), "n1:0"),
        (1, ("n2:0-6",), "n2:7"),
        (2, ("n1:0-6", "n2:0-4"), "n2:5-6"),
        (4, ("n1:0-4", "n2:0-4"), "n3:0-3"),
        (2, ("n1:0,2,4,6",), "n1:1,3"),
        (8, ("n1:0",), "n2:0-7"),
    ],
)
def test_one_node_jobs_get_the_tightest_node_and_its_lowest_gpus(
    gpus: int, busy: tuple[str, ...], expected: str
) -> None:
    assert place(gpus, nodes(3), *busy) == at(expected)


@pytest.mark.parametrize("busy", [("n1:0-4", "n2:0-4"), ("n1:7", "n2:7")])
def test_a_job_that_fits_on_one_node_is_never_spread(busy: tuple[str, ...]) -> None:
    assert place(8, nodes(2), *busy) is None


def test_a_larger_job_gets_whole_nodes_in_order() -> None:
    assert place(16, nodes(4), "n1:0") == at("n2:0-7 n3:0-7")


def test_a_larger_job_waits_for_whole_nodes() -> None:
    assert place(16, nodes(3), "n1:0", "n2:0") is None


@pytest.mark.parametrize(("emptiest", "last"), [(False, "n3:5-6"), (True, "n2:0-1")])
def test_the_remainder_goes_to_the_tightest_node_or_to_the_emptiest(emptiest: bool, last: str) -> None:
    assert place(10, nodes(3), "n3:0-4", emptiest=emptiest) == at(f"n1:0-7 {last}")


def test_a_remainder_that_fits_nowhere_keeps_the_job_waiting() -> None:
    assert place(10, nodes(2), "n2:0-6") is None


def test_the_remainder_is_never_on_a_node_that_is_taken_whole() -> None:
    assert place(10, nodes(1)) is None


def test_nodes_that_are_down_are_left_out() -> None:
    assert place(8, (Node("n1", 8, available=False), Node("n2", 8))) == at("n2:0-7")


def test_cpus_and_memory_rule_nodes_out_in_proportion_to_gpus() -> None:
    machines = (Node("n1", 2, cpus=3), Node("n2", 2, cpus=8))
    assert place(2, machines, cpus=4) == at("n2:0-1")
    assert place(4, machines, cpus=6) == at("n1:0-1 n2:0-1")
    assert place(4, machines, cpus=8) is None
    assert place(1, nodes(1, mem_mib=100), mem_mib=101) is None


def test_nodes_may_be_ruled_out() -> None:
    assert consolidated(Ledger(part(nodes(2))), a_job("j", 8), lambda i: i != 0) == at("n2:0-7")


def test_what_can_never_run() -> None:
    mixed = (Node("n1", 8), Node("n2", 4), Node("n3", 4))
    bars = {gpus: Feasibility(part(mixed)).bar(a_job("j", gpus)) for gpus in (8, 12, 16, 17)}
    assert bars == {8: None, 12: None, 16: EverFits(16, 0, 0, False), 17: TooLarge(17, 16)}


def test_a_node_that_is_down_may_come_back() -> None:
    one_down = part((Node("n1", 8), Node("n2", 8, available=False)))
    assert Feasibility(one_down).bar(a_job("j", 16)) is None
    assert Feasibility(one_down, up_only=True).bar(a_job("j", 16)) == TooLarge(16, 8)


def test_masks_and_indices_are_inverse() -> None:
    assert indices_of(mask_of([0, 3, 5])) == (0, 3, 5)
    assert placement_gpus(at("n1:0,3 n2:0-7")) == 10


@pytest.mark.parametrize("text", ["n1:0", "n1:0,3", "n1:0-7 n2:1-2,5"])
def test_placements_read_as_they_are_written(text: str) -> None:
    assert show_placement(at(text)) == text


def test_the_emptiest_node_gives_as_many_gpus_as_its_cpus_and_memory_allow() -> None:
    machines = (Node("n1", 4, cpus=4), Node("n2", 3, mem_mib=64), Node("n3", 2))
    ledger = Ledger(part(machines, (), [runs("r", "n3:0")]))
    assert emptiest(ledger, a_job("plain", 6), 6) == at("n1:0-3 n2:0-1")
    assert emptiest(ledger, a_job("cpus", 6, cpus=12), 6) == at("n1:0-1 n2:0-2 n3:1"), "two CPUs a GPU"
    assert emptiest(ledger, a_job("memory", 6, mem_mib=180), 6) == at("n1:0-3 n2:0-1")
    assert emptiest(ledger, a_job("memory", 6, mem_mib=240), 6) == at("n1:0-3 n2:0 n3:1"), "40 MiB a GPU"
    assert emptiest(ledger, a_job("memory", 6, mem_mib=390), 6) is None
    assert emptiest(ledger, a_job("wide", 9), 9) is None
