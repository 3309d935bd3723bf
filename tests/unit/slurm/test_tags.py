"""The tag of a job in AdminComment and its user's words in the comment, among what sites and tools write there;
a job whose tag was overwritten stays Lucid's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec import structs

from fake_slurm import AHEAD_S, FakeSlurm, fake_node
from lucid.core.decision import EndProfiling, Requeue
from lucid.places import Mode
from lucid.slurm.client import Changes, declined
from lucid.slurm.records.fields import resized, says, wrong_start
from lucid.slurm.records.request import Request
from lucid.store.lease import IN_MEMORY
from lucid.store.port import JobNote
from lucid.store.sqlite import SqliteStore
from scenes.slurm import MINE, WHY, Scene
from tool_comments import COMMENTS, LOOKALIKES


@pytest.mark.parametrize("comment", COMMENTS)
def test_a_word_is_found_among_the_words_of_other_tools(comment: str) -> None:
    assert says(comment.format("lucid:exclusive"), "exclusive")
    assert not says(comment.format("lucid:exclusive"), "off")
    both = comment.format("lucid:cold lucid:exclusive")
    assert says(both, "cold")
    assert says(both, "exclusive")


@pytest.mark.parametrize("comment", LOOKALIKES)
def test_what_only_looks_like_a_word_is_none(comment: str) -> None:
    assert not says(comment, "exclusive")


SITES = '{"network": "sharp;held=0;vc=other"}'


def test_a_job_with_a_sites_admin_comment_waits_starts_and_starts_over_like_any_other() -> None:
    s = Scene()
    s.jobs("1", 2, request=Request(tres_per_node="gres/gpu:2"), light=True, mark=f"{MINE} {SITES}")
    assert [entry.job.id for entry in s.look().pending] == ["1"]
    assert s.start("1", "n2:1,3") is None
    s.slurm.advance(100.0)
    assert s.do("1", Requeue(WHY)) is None
    s.turns(200.0, 5.0)
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


AT_START = '[{"vm_size": "Standard_NC"}]'
ASKED = "gres/gpu:2"
OWN = f"lucid:vc=vc;held=1;node={ASKED};v=2"


def ran(tag: str | None, scene: Scene | None = None, where: str = "n2:1,3", room: str = "vc") -> Scene:
    """A job that runs in slots, and what its AdminComment is then (``None``: as job_submit.lua wrote it)."""
    s = scene or Scene()
    s.jobs("1", 2, request=Request(tres_per_node=ASKED, cpus_per_tres=""), light=room == "vc", mark=OWN)
    assert s.start("1", where, room=room) is None
    s.slurm.advance(100.0)
    if tag is not None:
        s.slurm._set("1", admin_comment=tag)
    s.mend()
    return s


def lose_store(s: Scene) -> None:
    s.store = SqliteStore(IN_MEMORY)
    s.store.take_lease("me", 0.0, 1e9)


@pytest.mark.parametrize("tag", [None, AT_START, "", "(null)"])
@pytest.mark.parametrize("how", ["Slurm", "Lucid", "Lucid, and the next lucidd", "the end of profiling"])
def test_who_is_requeued_waits_in_lucids_queue_again(tag: str | None, how: str) -> None:
    """Whatever else happens: tests/property/test_tags_lost.py."""
    s = Scene()
    profiled = how == "the end of profiling"
    s.new |= {"1"} if profiled else set()
    ran(tag, s, "p1:0,1" if profiled else "n2:1,3", room="prof" if profiled else "vc")
    if how == "Slurm":
        times = {"submit_s": s.slurm.now, "eligible_s": s.slurm.now + AHEAD_S, "reason": "BeginTime"}
        s.slurm._set("1", state="PENDING", placement=(), restarts=1, **times)
    else:
        assert s.do("1", EndProfiling(WHY) if profiled else Requeue(WHY), "prof" if profiled else "vc") is None
    if how == "Lucid, and the next lucidd":
        s.restart()
    assert ("was requeued, not by Lucid; waits again" in " ".join(s.turns(200.0, 5.0))) is (how == "Slurm")
    assert (s.request("1").tres_per_node, s.request("1").req_nodes) == (ASKED, "")
    assert [(entry.job.id, entry.job.vc) for entry in s.look().pending] == [("1", "vc")]
    assert s.start("1", "n1:0,1") is None
    s.slurm.advance(10.0)
    assert s.slurm.records["1"].state == "RUNNING"


def test_a_request_that_was_left_empty_is_written_again() -> None:
    """Half-way between two requests a job asks for no GPU: what it asked for stood in the tag."""
    s = ran(AT_START)
    assert s.do("1", Requeue(WHY)) is None
    s.slurm._set("1", request=Request(), gpus=0)
    s.turns(200.0, 5.0)
    assert s.request("1").tres_per_node == ASKED


@pytest.mark.parametrize("how", ["user", "submit time", "older store"])
def test_job_number_user_and_submit_time_decide_whose_it_is(how: str) -> None:
    s = ran(AT_START)
    if how == "older store":
        note = s.cluster.notes["1"]
        s.store.put_notes([JobNote("1", user=note.user, home="vc", as_written=note.as_written, submit_s=0.0)], 1)
    s.restart()
    other = {"user": {"user": "bob"}, "submit time": {"submit_s": 77.0}, "older store": {}}[how]
    s.slurm._set("1", state="PENDING", placement=(), held=True, **other)
    before = s.slurm.records["1"]
    s.turns(200.0, 5.0)
    left_alone = s.slurm.records["1"].request == before.request and not s.look().pending
    assert left_alone is (how != "older store"), "a note of an earlier version has the request, and no tag"


def test_jobs_whose_tag_is_lost_are_told() -> None:
    s = ran(AT_START)
    assert s.cluster.status()["lost_tags"] == ["1"]
    s.slurm._set("1", admin_comment=OWN)
    s.look()
    assert s.cluster.status()["lost_tags"] == []


def entries(folder: Path) -> dict[int, str]:
    """What lucidd's list has."""
    lines = (line.partition(" ") for line in (folder / "ours").read_text().splitlines())
    return {int(number): entry for number, _, entry in lines}


@pytest.mark.parametrize("mode", [Mode.PACK, Mode.OBSERVE])
@pytest.mark.parametrize("whole", [False, True])
def test_who_is_to_start_as_the_store_is_lost_gets_its_request_back(mode: Mode, whole: bool) -> None:
    """Slurm may start it there only once others have left, and no lucidd knew that it waits for these very GPUs."""
    s = Scene()
    s.jobs("1", 2, light=True, mark=OWN)
    s.slurm.limits = lambda record: "Resources"
    assert s.start("1", "n1:0,1") is None
    if whole:
        s.slurm._set("1", request=structs.replace(s.request("1"), tres_per_node="gres/gpu:g0:1,gres/gpu:g1:1"))
    assert (s.request("1").addressed, s.request("1").shards) == (whole, not whole)
    lose_store(s)
    s.modes["vc"] = mode
    s.restart()
    s.turns(200.0, 5.0)
    assert (s.request("1").tres_per_node, s.request("1").req_nodes) == (ASKED, "")
    assert s.slurm.records["1"].held is (mode is Mode.PACK)
    assert [entry.job.id for entry in s.look().pending] == ["1"]


def test_a_number_that_comes_again_is_another_job(tmp_path: Path) -> None:
    s = ran(AT_START, Scene(state=tmp_path))
    lose_store(s)
    s.restart()
    s.slurm._set("1", state="PENDING", placement=(), held=True, submit_s=s.slurm.now)
    s.turns(200.0, 5.0)
    assert not s.look().pending
    s.slurm._set("1", admin_comment="lucid:vc=vc;held=1;v=2")
    s.look()
    assert entries(tmp_path) == {1: "100 - lucid:vc=vc;held=1;v=2"}


class Watched(FakeSlurm):
    """What is held stands in the list by then."""

    folder: Path

    def hold(self, job_id: str, begin_s: float = 0.0) -> None:
        assert self.records[job_id].number in entries(self.folder)
        super().hold(job_id, begin_s)

    def requeue_hold(self, job_id: str) -> None:
        assert self.records[job_id].number in entries(self.folder)
        super().requeue_hold(job_id)


def watched(folder: Path) -> Scene:
    slurm = Watched(Scene().slurm.machines)
    slurm.folder = folder
    return Scene(state=folder, slurm=slurm)


def test_a_job_is_listed_before_it_is_held(tmp_path: Path) -> None:
    s = ran(None, watched(tmp_path))
    assert s.do("1", Requeue(WHY)) is None
    s.turns(200.0, 5.0)
    assert s.slurm.records["1"].held


def test_what_cannot_be_listed_is_not_held(tmp_path: Path) -> None:
    """Nor is anything noted of it: it goes on as it was, and is held once the list can be written again."""
    (tmp_path / "ours").mkdir()
    s = ran(None, watched(tmp_path))
    before = s.cluster.notes["1"]
    assert "ours cannot be written" in (s.do("1", Requeue(WHY)) or "")
    assert s.slurm.records["1"].state == "RUNNING"
    assert s.cluster.notes["1"] == before
    assert "ours cannot be written" in s.cluster.status()["list_trouble"]
    (tmp_path / "ours").rmdir()
    assert s.do("1", Requeue(WHY)) is None
    assert not s.cluster.status()["list_trouble"]


def test_what_has_left_leaves_the_list(tmp_path: Path) -> None:
    s = Scene(state=tmp_path)
    s.jobs(" ".join(map(str, range(1, 101))), mark=OWN)
    s.mend()
    assert len(entries(tmp_path)) == 100
    for n in range(1, 60):
        del s.slurm.records[f"{n}"]
    s.mend()
    s.mend()
    assert sorted(entries(tmp_path)) == list(range(60, 101))


def test_a_list_that_was_tampered_with_is_written_anew(tmp_path: Path) -> None:
    s = ran(None, Scene(state=tmp_path))
    for harm in (b"", b"1 0 - lucid:vc=prof\xff\n2 0 0 lucid:held=1", None):
        if harm is None:
            (tmp_path / "ours").unlink()
        else:
            (tmp_path / "ours").write_bytes(harm)
        s.look()
        assert entries(tmp_path) == {1: f"0 - {OWN}"}
    assert (tmp_path / "ours").stat().st_mode & 0o777 == 0o600
    with (tmp_path / "ours").open("ab") as file:
        file.write(b"2 0")  # half a line, as a full disk leaves it
    s.restart()
    s.jobs("2", mark=OWN)
    s.look()
    assert sorted(entries(tmp_path)) == [1, 2]


@pytest.mark.parametrize("harm", ["pipe", "folder", "nonsense"])
def test_a_list_that_is_none_is_passed_over(tmp_path: Path, harm: str) -> None:
    path = tmp_path / "ours"
    if harm == "pipe":
        os.mkfifo(path)
    elif harm == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\x00\xff" * 1000 + b"\n1 0 - rm\n1 0 -1 lucid:\n99999999999999 0 - lucid:a\n")
    s = Scene(state=tmp_path)
    s.jobs("1", 2, mark=AT_START)
    s.turns(200.0, 5.0)
    assert s.slurm.records["1"].held
    assert not s.look().pending


def test_an_array_is_one_entry_and_each_of_its_tasks_counts(tmp_path: Path) -> None:
    s = Scene(state=tmp_path)
    for task in (1, 2):
        s.jobs(f"7_{task}", light=True, mark=OWN)
        s.slurm._set(f"7_{task}", number=6 + task)
    s.look()
    assert entries(tmp_path) == {7: f"0 - {OWN}"}
    lose_store(s)
    s.restart()
    for task in (1, 2):
        began = {"submit_s": 50.0 * (task - 1), "restarts": task - 1}
        s.slurm._set(f"7_{task}", admin_comment=AT_START, **began)
    assert [entry.job.id for entry in s.look().pending] == ["7_1", "7_2"]
