"""A Prolog that fails beside a pair drains the node: lucidd makes no more pairs there, then none in the partition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import LIGHT, FixedPredictor, a_job, at, guess, nodes, part, settings
from fake_slurm import FakeSlurm, fake_node
from lucid.binder.binder import Binder
from lucid.core.job import Pending
from lucid.core.ledger import Ledger
from lucid.setup.doctor_state import _failed_pairs
from scenes.slurm import Scene

DRAINED = frozenset({"MIXED", "DRAIN"})


def drains(s: Scene, node: str, *jobs: str, reason: str = "Prolog error") -> None:
    """Slurm drains the node; these jobs are held again."""
    s.slurm.node(node, states=DRAINED, reason=reason)
    for name in jobs:
        s.slurm._set(name, state="PENDING", placement=(), held=True, restarts=1, reason="launch failed requeued held")


def unshared(s: Scene) -> list[str]:
    s.look()
    s.slurm.advance(60.0)  # nodes are asked for less often than jobs
    return [node.name for node in s.look().nodes if node.slots == 1]


def pair(s: Scene, host: str, guest: str, where: str) -> None:
    s.jobs(f"{host} {guest}", light=True)
    assert s.start(host, where) is None
    s.slurm.advance(30.0)
    assert s.start(guest, where, beside=host) is None
    s.slurm.advance(1.0)


def site() -> Scene:
    return Scene(slurm=FakeSlurm([*(fake_node(f"n{i}", "vc") for i in (1, 2, 3)), fake_node("p1", "prof")]))


def test_no_more_pairs_on_the_node_and_after_a_second_one_none_in_the_partition() -> None:
    s = site()
    pair(s, "1", "2", "n1:0")
    assert unshared(s) == []
    drains(s, "n1", "2")
    assert unshared(s) == ["n1"]
    s.slurm.node("n1", states=frozenset({"IDLE"}), reason="")
    s.slurm.advance(1000.0)
    assert unshared(s) == ["n1"]
    s.restart()
    assert unshared(s) == ["n1"], "resumed, and by the next lucidd"
    pair(s, "3", "4", "n2:0")
    drains(s, "n2", "4")
    assert unshared(s) == ["n1", "n2", "n3"]
    [whole, first, second] = _failed_pairs(s.store.settings())
    assert "no more pairs are made in vc: Slurm drained several" in whole.what
    assert "on n1 since" in first.what
    assert "job 2 was to share GPUs there, and Slurm drained the node with 'Prolog error'" in first.what
    assert "NodeName=n2 State=RESUME, and lucidctl mode vc configured" in second.remedy


@pytest.mark.parametrize("how", ["alone", "other reason", "earlier", "runs"])
def test_what_was_no_pair_s_doing_ends_no_pairs(how: str) -> None:
    s = site()
    if how == "alone":
        s.jobs("1 2", light=True)
        assert s.start("1", "n1:0") is None
        assert s.start("2", "n1:1") is None
    else:
        pair(s, "1", "2", "n1:0")
    if how == "runs":
        s.look()
        s.jobs("3", light=True)
        assert s.start("3", "n1:3") is None
    drains(s, "n1", "3" if how == "runs" else "2", reason="bad disk" if how == "other reason" else "Prolog error")
    if how == "earlier":
        s.restart()
    assert unshared(s) == []
    assert not [*_failed_pairs(s.store.settings())]


def test_an_epilog_that_fails_after_a_pair_counts_as_well() -> None:
    s = site()
    pair(s, "1", "2", "n1:0")
    s.look()
    s.slurm.advance(1000.0)
    s.look()
    s.slurm._set("1", state="COMPLETED", end_s=s.slurm.now)
    drains(s, "n1", reason="Epilog error")
    assert unshared(s) == ["n1"]


def test_the_planner_lets_nobody_join_where_gpus_are_not_shared() -> None:
    def offered(slots: int) -> bool:
        entry, known = Pending(a_job("h", 1), 0.0, LIGHT), {"h": guess(1000.0, 0), "g": guess(1000.0, 0)}
        vc = part([replace(node, slots=slots) for node in nodes(1, 4)])
        binder = Binder(vc, Ledger(vc), known, FixedPredictor(), settings().packing, 0.0)
        binder.started(entry, at("n1:0"))
        return binder.offered_to(a_job("g", 1))

    assert (offered(2), offered(1)) == (True, False)
