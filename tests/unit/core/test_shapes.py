"""What stops one job stops those of its shape only: whoever differs in a thing that counts is looked at himself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import LIGHT, decide, guess, nodes, part, runs, snap, waits
from lucid.core.decision import Hold, Start

ASKED = {"profiling": {"enabled": False, "restarts": "asked"}, "packing": {"unparted_harm": 0.0}}
ALLOWED = {"profiling": {"enabled": False, "restarts": "allowed"}, "packing": {"unparted_harm": 0.0}}
ONE_USER = {"packing": {"same_user_only": True}}

HELD: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("parted before", {"alone": True}, {}),
    ("not shareable", {"shareable": False}, {}),
    ("not measured", {"profile": None}, {}),
    ("unstable", {"profile": replace(LIGHT, unstable=True)}, {}),
    ("too much GPU memory", {"profile": replace(LIGHT, gpu_mem_mib=22000.0)}, {}),
    ("too many CPUs", {"cpus": 4}, {}),
    ("too much host memory", {"mem_mib": 4000}, {}),
    ("another user", {"user": "bob"}, ONE_USER),
    ("not to be started over", {"restart_asked": False}, ASKED),
    ("never requeued", {"requeueable": False}, ALLOWED),
]


@pytest.mark.parametrize(("differs", "rules"), [item[1:] for item in HELD], ids=[item[0] for item in HELD])
def test_a_job_is_not_held_by_what_stopped_one_that_differs(differs: dict[str, Any], rules: dict[str, Any]) -> None:
    """Both would stand beside the only running job; the first in the queue may not, the next one may."""
    usual: dict[str, Any] = {"user": "ann", "profile": LIGHT, "restart_asked": True, "cpus": 1, "mem_mib": 1000}
    host = runs("host", "n1:0", profile=LIGHT, job={"user": "ann", "requeueable": False, "cpus": 1, "mem_mib": 1000})
    first = waits("first", **{**usual, **differs})
    second = waits("second", submit_s=1.0, **usual)
    known = {"host": guess(9000.0, 0), "first": guess(1000.0, 0), "second": guess(1000.0, 0)}
    if first.profile is None:
        known["first"] = guess(1000.0)
    sections = {"profiling": {"enabled": False}, **rules}
    partition = part(nodes(1, 1, cpus=4, mem_mib=4000), [first, second], [host])
    made = decide("lucid", snap(100.0, partition, predictions=known), **sections)
    assert isinstance(made.decisions["first"], Hold)
    beside = made.decisions["second"]
    assert isinstance(beside, Start), beside.reasons
    assert beside.beside == "host"


def test_a_share_score_that_fits_is_not_held_by_one_that_does_not() -> None:
    host = runs("host", "n1:0", profile=LIGHT)
    line = [waits("first", profile=LIGHT), waits("second", submit_s=1.0, profile=LIGHT)]
    known = {"host": guess(9000.0, 1), "first": guess(1000.0, 2), "second": guess(1000.0, 0)}
    snapshot = snap(100.0, part(nodes(1, 1), line, [host]), predictions=known)
    made = decide("lucid", snapshot, profiling={"enabled": False})
    assert isinstance(made.decisions["first"], Hold)
    assert isinstance(made.decisions["second"], Start)


def test_one_node_suffices_for_a_job_behind_one_that_wants_two() -> None:
    line = [waits("first", 2, min_nodes=2), waits("second", 2, submit_s=1.0)]
    snapshot = snap(100.0, part(nodes(2, 2), line, [runs("rigid", "n2:0-1")]))
    made = decide("lucid", snapshot, profiling={"enabled": False}, reservation={"enabled": False})
    assert isinstance(made.decisions["first"], Hold)
    assert isinstance(made.decisions["second"], Start)
