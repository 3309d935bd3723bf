"""Reservations as real Slurms print them (tests/assets/slurm/record_reservations.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lucid.errors import ClusterError
from lucid.left_out import LeftOut
from lucid.slurm.records.reservations import Reservation, reservations_from

ASSETS = Path(__file__).parents[2] / "assets/slurm"
RECORDED = sorted(ASSETS.glob("*/reservations.json"))
KINDS = {
    "maint": "MAINT IGNORE_JOBS", "flex": "FLEX", "magnet": "MAGNETIC PURGE_COMP", "daily": "DAILY",
    "weekly": "WEEKLY", "weekday": "WEEKDAY", "weekend": "WEEKEND", "hourly": "HOURLY", "float": "TIME_FLOAT",
    "part": "PART_NODES",
}  # fmt: skip


def read(path: Path) -> dict[str, Reservation]:
    document = json.loads(path.read_text())
    left_out = LeftOut()
    found = {one.name: one for one in reservations_from(document, left_out)}
    assert left_out.told() == {}
    return found


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.parent.name)
def test_every_release_tells_the_same(path: Path) -> None:
    found = read(path)
    assert found["maint"].nodes == tuple(f"n{i}" for i in range(1, 7))
    assert {one.end_s - one.start_s for one in found.values()} == {900.0}
    assert all(set(flags.split()) <= found[name].flags for name, flags in KINDS.items())
    assert (found["bobs"].users, found["others"].users, found["flex"].accounts) == (
        ("bob",),
        ("-bob",),
        ("research",),
    )
    assert found["licence"].nodes == ()
    assert {name for name, one in found.items() if one.gres} == {"gres"} & found.keys()
    assert {name: one.cores for name, one in found.items() if one.cores} in ({"cores": (("n1", 4),)}, {})


def raw(**changed: Any) -> dict[str, Any]:
    return {"name": "w", "node_list": "n[1-2]", "start_time": 100, "end_time": 200, "flags": ["MAINT"]} | changed


@pytest.mark.parametrize(
    "changed",
    [{"node_list": "n[1-"}, {"start_time": None}, {"end_time": 50}, {"end_time": 1e300}, {"name": ""}, {"name": 5},
     {"core_specializations": [{"node": "n1", "core": "x"}]}, {"core_specializations": [5]}],
)  # fmt: skip
def test_one_that_cannot_be_read_is_left_out_and_the_others_are_not(changed: dict[str, Any]) -> None:
    left_out = LeftOut()
    found = reservations_from({"reservations": [raw(**changed), raw(name="other"), None]}, left_out)
    assert [one.name for one in found] == ["other"]
    assert left_out.told()["reservations"]["now"] == 2


@pytest.mark.parametrize("key", ["node_list", "start_time", "end_time", "flags"])
def test_one_that_lacks_what_every_slurm_has_told_is_left_out(key: str) -> None:
    record = raw()
    del record[key]
    assert reservations_from({"reservations": [record]}) == []


def test_an_answer_that_is_none_is_an_error_and_one_without_reservations_is_not() -> None:
    with pytest.raises(ClusterError):
        reservations_from({"errors": []})
    assert reservations_from({"reservations": [], "errors": []}) == []
