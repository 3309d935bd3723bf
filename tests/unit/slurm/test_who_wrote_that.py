"""AdminComment, comments and features that a site's own plugins write for every job stand beside Lucid's words."""

from __future__ import annotations

import json

import pytest

from fake_slurm import fake_node
from lucid.core.decision import Requeue
from lucid.slurm.client import Changes, declined
from lucid.slurm.records.fields import parse_mark, resized, says, wrong_start
from lucid.slurm.records.request import Request
from scenes.slurm import MINE, WHY, Scene

SITES = '{"network": "sharp;held=0;vc=other"}'


def test_what_a_site_wrote_behind_the_tag_is_no_part_of_it() -> None:
    assert parse_mark(f"lucid:vc=vc;held=1;v=2 {SITES}") == {"vc": "vc", "held": "1", "v": "2"}
    assert parse_mark(f"lucid:vc=vc;held=1\n{SITES}") == {"vc": "vc", "held": "1"}
    assert parse_mark(SITES) is None


def test_a_job_with_a_sites_admin_comment_waits_starts_and_starts_over_like_any_other() -> None:
    s = Scene()
    s.jobs("1", 2, request=Request(tres_per_node="gres/gpu:2"), light=True, mark=f"{MINE} {SITES}")
    assert [entry.job.id for entry in s.look().pending] == ["1"]
    assert s.start("1", "n2:1,3") is None
    s.slurm.advance(100.0)
    assert s.do("1", Requeue(WHY)) is None
    for _ in range(40):
        s.mend()
        s.slurm.advance(5.0)
    assert [entry.job.id for entry in s.look().pending] == ["1"]
    assert s.slurm.records["1"].admin_comment == f"{MINE} {SITES}"


@pytest.mark.parametrize(
    ("features", "why"),
    [
        ("mig=off,gsp=off", ""),
        ("mig=off&gsp=off", ""),
        ("mig=on", "not every node of vc has the feature mig=on"),
        ("mig=off|gsp=off", "its constraint is more than a list of features"),
    ],
)
def test_a_feature_that_every_node_has_keeps_no_job_from_sharing(features: str, why: str) -> None:
    s = Scene()
    s.slurm.machines = [
        fake_node(f"n{n}", "vc", features=frozenset({"mig=off", "gsp=off", *(["mig=on"] if n == 1 else [])}))
        for n in (1, 2)
    ]
    s.jobs("1", 1, mark=MINE, features=features)
    assert s.look().pending[0].job.whole_because == why


def test_our_words_are_found_in_a_comment_that_stays_json() -> None:
    """As job_submit.lua and the task prolog write them."""
    comment = '{"reaper": {"exempt": true}," lucid:held ":1," lucid:resized=4 ":1," lucid:wrong=2-of-4-tasks ":1}'
    assert json.loads(comment)["reaper"] == {"exempt": True}
    assert says(comment, "held")
    assert not says(comment, "admin")
    assert resized(comment)
    assert wrong_start(comment) == "2 of 4 tasks"


def test_changes_that_a_sites_plugin_refuses_are_counted_until_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    s = Scene()
    s.jobs("1 2 3", 1)
    s.look()
    taken = s.slurm.update

    def refuses(job_id: str, changes: Changes) -> None:
        raise declined("Access/permission denied")

    monkeypatch.setattr(s.slurm, "update", refuses)
    assert s.cluster.order({"1": 100, "2": 200, "3": 300}) == 0
    assert s.cluster.status()["refused"] == [f"job {number}: Access/permission denied" for number in (1, 2, 3)]
    monkeypatch.setattr(s.slurm, "update", taken)
    assert s.cluster.order({"1": 100}) == 1
    assert s.cluster.status()["refused"] == []
