"""Elastic jobs on a slurmctld in memory: opting in, reports, and a resize, whatever happens in between."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fake_slurm import FakeSampler, FakeSlurm, fake_node
from lucid.config.live import DaemonSettings, ElasticSettings
from lucid.config.load import settings_from
from lucid.core.decision import Action, Requeue, Resize, Start
from lucid.core.job import Elastic, Pending, Running
from lucid.core.placement import show_placement
from lucid.daemon.policies import check_policy
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.cycle import Cycle
from lucid.places import Mode
from lucid.profiler.use import GpuUse
from lucid.slurm.act.changes import back_to
from lucid.slurm.cluster import SlurmCluster
from lucid.slurm.elastic.opt_in import elastic_request, sized
from lucid.slurm.elastic.reports import said_in
from lucid.slurm.records.job import SlurmNode
from lucid.slurm.records.request import Request
from scenes.jobs import HOME, at
from scenes.plans import policy, settings
from scenes.slurm import WHY, Scene

ASKS = "lucid:elastic=1-8,epochs=30"


class Killed(BaseException):
    """lucidd died here."""


class Stage(Scene):
    """Two nodes of four GPUs; jobs that say so are elastic."""

    def __init__(self, folder: Path, machines: Sequence[SlurmNode] = (), mps: bool = True, **elastic: Any) -> None:
        self.folder, self.home, self.mode = folder, folder / HOME, Mode.PACK
        self.home.mkdir(exist_ok=True)
        asked = ElasticSettings(reports_dir=str(folder), **{"resize_every_s": 0.0, "silent_s": 900.0, **elastic})
        self.daemon = DaemonSettings(partitions={"vc": Mode.PACK}, elastic=asked, mps=mps)
        usual = [fake_node("n1", "vc"), fake_node("n2", "vc")]
        super().__init__(slurm=FakeSlurm([*machines] or usual, completing_s=1.0))

    def restart(self, resizes: bool = True, source: FakeSampler | None = None, **ports: Any) -> SlurmCluster:
        self.cluster = SlurmCluster(
            self.slurm, self.store, source or FakeSampler(self.slurm, {}), self.slurm, self.settings, self.daemon,
            lambda: dict.fromkeys(self.daemon.partitions, self.mode), lambda job: False, self.token,
            resizes=lambda _: resizes, **ports,
        )  # fmt: skip
        return self.cluster

    def submit(self, name: str, gpus: int = 2, comment: str = ASKS, **rest: Any) -> str:
        return self.slurm.submit(name, "vc", gpus, comment=comment, uid=os.getuid(), **rest)

    def report(self, name: str, **said: Any) -> None:
        (self.home / f"{name}.json").write_text(json.dumps({"epochs": 1.0, "epoch_s": [[2, 10.0]], **said}))

    def entry(self, name: str, kind: Any = (Pending, Running)) -> Any:
        part = self.look()
        (found,) = [e for e in (*part.pending, *part.running) if e.job.id == name]
        assert isinstance(found, kind), found
        return found

    def begins(self, name: str, where: str) -> None:
        assert self.do(name, Start(at(where), WHY)) is None

    def resized(self, name: str, where: str, rounds: int = 0, **rest: Any) -> None:
        """Tells the job to go on at this place, and lets so many rounds pass."""
        assert self.do(name, Resize(at(where), WHY, **rest)) is None
        self.round(rounds=rounds)

    def running(self, name: str, where: str = "n1:0,1", gpus: int = 2, to: str = "", **rest: Any) -> None:
        """Starts a job on these GPUs, which reports. ``to``: the GPUs to which it is resized then."""
        self.submit(name, gpus, **rest)
        self.begins(name, where)
        self.report(name)
        self.round()
        if to:
            self.resized(name, to)

    def round(self, seconds: float = 1.0, rounds: int = 1) -> list[str]:
        said: list[str] = []
        for _ in range(rounds):
            self.slurm.advance(seconds)
            said += self.mend()
        return said

    @property
    def story(self) -> str:
        """What is said of job 1's elasticity."""
        return str(self.cluster.status()["elastic"]["1"])


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


# -- opting in -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "limits"),
    [
        ("lucid:elastic=1-8", Elastic(8, 1)),
        ("my lucid:elastic=2-4,batch=8:64,epochs=30 run", Elastic(4, 2, 8, 8, 64, 1, 64, epochs=30.0)),
        ("lucid:elastic=1-2,lucid:restart", Elastic(2, 1)),
        ("lucid:elastic=1-8,nodes=2", Elastic(8, 1, max_nodes=2)),
        ("lucid:elastic=1-2,colour=blue", Elastic(2, 1)),
        *((text, None) for text in ("", "elastic=1-8", "xlucid:elastic=1-8", "lucid:exclusive")),
    ],
)
def test_a_comment_opts_in(comment: str, limits: Elastic | None) -> None:
    found = elastic_request(comment)
    assert found == elastic_request("") if limits is None else found.limits == limits


BAD_TEXTS = [
    "", "8", "0-4", "4-2", "1-²", "1-99999999", "1-8,batch=x", "1-8,batch=0:4", "1-8,epochs=-1", "1-8,epochs=inf",
    "1-8,epochs=nan", "1-8,epochs=" + "9" * 400, "-", "1-8-9", "a" * 5000, "1-8,nodes=0", "1-8,nodes=x", "1-8,nodes=",
]  # fmt: skip
BAD_STARTS = ["1-8,start=0", "1-8,start=9", "1-8,start=x", "1-8,start="]


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        *(({"gpus": 4, "comment": f"lucid:elastic={text}"}, "cannot be read") for text in BAD_TEXTS),
        *(({"gpus": 4, "comment": f"lucid:elastic={text}"}, "within 1-8 is wanted") for text in BAD_STARTS),
        ({"requeue": False}, "requeued"),
        ({"batch": False}, "batch"),
        ({"features": "ib"}, "features"),
        ({"gpus": 9}, "9 GPUs"),
        ({"mark": "lucid:vc=vc"}, "after its submission"),
        ({"gpus": 4, "comment": ASKS + ",nodes=1", "min_nodes": 2}, "2 nodes, and its comment says 1 at the most"),
    ],
)
def test_a_job_that_cannot_be_read_or_resized_keeps_its_size_and_its_story_says_why(
    stage: Stage, rest: dict[str, Any], words: str
) -> None:
    stage.submit("1", **rest)
    stage.report("1")
    assert stage.entry("1").job.elastic is None
    assert words in stage.story


def test_a_job_without_reports_is_rigid_and_loses_nothing(stage: Stage) -> None:
    stage.submit("1")
    before = stage.slurm.records["1"].request
    assert stage.entry("1").job.elastic is None
    stage.begins("1", "n1:0,1")
    assert structs.replace(stage.slurm.records["1"].request, req_nodes="") == before
    assert "first report" in stage.story
    stage.report("1")
    stage.round()
    entry = stage.entry("1")
    assert entry.job.elastic == Elastic(8, 1, 8, pinned=True, epochs=30.0)
    assert entry.progress.epoch_s == ((2, 10.0),)
    assert "between 1 and 8 GPUs" in stage.story


def flagged(state: str, *flags: str) -> Callable[[Stage], object]:
    """What Slurm says of the job from now on."""
    return lambda stage: stage.slurm._set("1", state=state, flags=stage.slurm.records["1"].flags | {*flags})


def without_folder(stage: Stage) -> None:
    stage.folder.rename(stage.folder.with_name("away"))
    stage.round(4000.0, 3)
    assert stage.cluster.reports_trouble().blind


RIGID: dict[str, tuple[dict[str, float], Callable[[Stage], object], str]] = {
    "no report for a minute": ({"silent_s": 60.0}, lambda stage: stage.round(100.0), "no report for"),
    "the policy resizes nothing": ({}, lambda stage: stage.restart(resizes=False), "resizes no job"),
    "just started": ({"resize_every_s": 50.0}, lambda stage: None, ""),
    # Slurm requeues no job that an administrator has suspended: a policy that counts on its GPUs waits in vain
    "suspended": ({}, flagged("SUSPENDED"), "suspended"),
    "ending": ({}, flagged("COMPLETED", "COMPLETING"), ""),
    "the folder is gone": ({}, without_folder, "there is no such folder"),
}


@pytest.mark.parametrize("how", RIGID)
def test_a_job_is_rigid_for_a_while_and_nobody_is_judged(tmp_path: Path, how: str) -> None:
    settings, begin, words = RIGID[how]
    (tmp_path / "reports").mkdir()
    stage = Stage(tmp_path / "reports", **settings)
    stage.running("1")
    assert (stage.entry("1").job.elastic is None) is (how == "just started")
    begin(stage)
    entry = stage.entry("1")
    assert (entry.job.elastic, entry.job.gpus) == (None, 2)
    assert words in stage.story
    assert stage.cluster.status()["doubted"] == {}
    if how == "ending":
        return
    stage.slurm._set("1", state="RUNNING")
    if not stage.folder.exists():
        stage.folder.with_name("away").rename(stage.folder)
    stage.round(60.0 if how == "just started" else 1.0)
    stage.report("1", epochs=2.0)
    stage.restart()
    assert stage.entry("1").job.elastic is not None
    assert not stage.cluster.reports_trouble().blind


# -- reports -------------------------------------------------------------------------------------------------


RUBBISH = {
    "epochs": 'NaN 1e999 -1 "3" true', "epoch_s": "[[1e30,1]] [[1]] 3", "losses": "[[0,1e400]]",
    "batch": "9" * 5000, "gradient": "[1]", "batch_range": "[8] [0,8] [9,8]", "atomic_range": '[1,1e300] "1-8"',
    "step_model": "{} [1,1] [-1,0,0,0,0,0,1] [0,0,0,0,0,0,11] [1e9,0,0,0,0,0,1]",
    "profile": "3 [[1,1,8,0.1]] [[2,1,8,0.1,0.1]] [[1,1,0.5,0.1,0.1]] [[1,1,8,0,0.1]] [[1,1,8,0.1,1e999]] "
    "[[1,99999,8,0.1,1]]",
}  # fmt: skip
MANY = [{"profile": [[1, 1, 8, 0.1, 0.1]] * 65}, {"losses": [[0, 0]] * 2000}]
NO_REPORTS = [b"", b"\xff\xfe\x00", b"[" * 100_000, b"[]", b"null", *(json.dumps(said).encode() for said in MANY)]
NO_REPORTS += [f'{{"{key}": {text}}}'.encode() for key, texts in RUBBISH.items() for text in texts.split()]


@pytest.mark.parametrize("content", NO_REPORTS)
def test_rubbish_is_refused_by_rule(stage: Stage, content: bytes) -> None:
    with pytest.raises(ValueError):
        said_in(content)
    stage.submit("1")
    (stage.home / "1.json").write_bytes(content)
    assert stage.entry("1").job.elastic is None
    assert "refused" in stage.story


# -- a resize ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "total", "request_", "nodes"),
    [
        ("n1:0,1,2,3", 4, {"tres_per_node": "gres/gpu:4", "tres_per_job": "", "req_nodes": "n1"}, 1),
        ("n1:0 n2:1", 2, {"tres_per_node": "gres/gpu:1", "tres_per_job": "", "req_nodes": "n1,n2"}, 2),
        ("n1:0,1,2,3 n2:0", 5, {"tres_per_node": "", "tres_per_job": "gres/gpu:5", "req_nodes": "n1,n2"}, 2),
    ],
)
def test_a_resize_is_stop_wait_change_release(
    stage: Stage, where: str, total: int, request_: dict[str, str], nodes: int
) -> None:
    stage.running("1", to=where)
    asked, coming = stage.slurm.now, stage.entry("1")
    assert coming.job.elastic is None, "while it is on its way"
    assert show_placement(coming.placement) == show_placement(at(where))
    stage.round(1.5)
    stopped = stage.entry("1").job
    assert (stopped.gpus, stopped.elastic) == (total, None), "it is held"
    assert any("goes on" in words for words in stage.round(rounds=4))
    record = stage.slurm.records["1"]
    assert {key: getattr(record.request, key) for key in request_} == request_ == sized(at(where))
    assert (record.min_nodes, record.state) == (nodes, "RUNNING")
    assert record.start_s - asked >= 2.0
    assert [what for name, what in stage.slurm.writes if name == "1"][-3:] == ["requeuehold", "update", "release"]
    note = stage.cluster.notes["1"]
    assert not note.going_to
    assert note.restart_s == pytest.approx(record.start_s - asked)
    entry = stage.entry("1", Running)
    assert entry.job.elastic is not None
    assert (entry.gpus, entry.job.gpus, entry.job.cpus) == (total, 2, 1)


@pytest.mark.parametrize(("own", "told"), [("", "lucid-batch=4:64x2"), ("my own: batch=9", "my own: batch=9")])
def test_a_resized_job_is_told_the_batch_that_was_chosen(stage: Stage, own: str, told: str) -> None:
    stage.running("1")
    stage.slurm._set("1", extra=own)
    stage.resized("1", "n1:0,1,2,3", rounds=6, batch=(64, 2))
    assert stage.entry("1", Running).gpus == 4
    assert stage.slurm.records["1"].extra == told
    assert stage.do("1", Requeue(WHY)) is None
    stage.round(rounds=3)
    stage.begins("1", "n2:0,1,2,3")
    assert stage.slurm.records["1"].extra == told, "it names its GPUs, and stays until the next resize"


def test_nobody_starts_on_gpus_that_a_resized_job_has_not_left(stage: Stage) -> None:
    stage.slurm.completing_s = 30.0  # it ignores SIGTERM
    stage.running("1", "n1:0,1,2,3", 4)
    stage.submit("2", 2, comment="")
    stage.cluster.observe()
    starts = Start(at("n1:2,3"), WHY)
    early, resize = stage.cluster.apply([Action("2", "vc", starts), Action("1", "vc", Resize(at("n1:0,1"), WHY))])
    assert ("has left" in str(early.refused), resize.refused) == (True, None)
    stage.round(rounds=20)
    assert "has left" in str(stage.do("2", starts))
    assert stage.slurm.records["1"].completing
    stage.round(rounds=15)
    assert stage.do("2", starts) is None
    assert [name for _, name, _ in stage.slurm.starts] == ["1", "1", "2"]


def test_a_job_goes_on_only_when_others_have_left_its_node(stage: Stage) -> None:
    stage.running("1", "n1:0,1,2", 3)
    stage.running("2", "n2:0", 1)
    stage.slurm.completing_s = 10.0
    stage.resized("1", "n1:0")
    stage.slurm.completing_s = 0.0
    stage.resized("2", "n1:1,2", rounds=6)
    assert stage.slurm.records["2"].held
    stage.round(rounds=8)
    assert stage.slurm.records["2"].state == stage.slurm.records["1"].state == "RUNNING"


def test_a_job_that_ends_while_it_is_told_to_stop_is_over(stage: Stage) -> None:
    stage.running("1")
    stage.slurm._set("1", state="FAILED", placement=(), end_s=stage.slurm.now)
    stage.cluster._jobs["1"] = replace(stage.slurm.records["1"], state="RUNNING", placement=at("n1:0,1"))
    stage.cluster._actions.observe(stage.cluster.facts, stage.cluster._jobs)
    (done,) = stage.cluster.apply([Action("1", "vc", Resize(at("n1:0"), WHY))])
    assert done.refused is None, "Slurm takes it, and leaves the job as it is"
    stage.round(rounds=5)
    assert stage.slurm.records["1"].state == "FAILED"
    assert len(stage.slurm.starts) == 1
    assert "1" not in stage.cluster.notes


@pytest.mark.parametrize("restarted", [False, True])
def test_in_a_partition_that_is_no_longer_packed_the_job_runs_as_its_user_wrote_it(
    stage: Stage, restarted: bool
) -> None:
    """One that still stops is held once it has stopped: 'no job is held any more' was said too early, and it stayed
    held for ever."""
    stage.running("1", to="n1:0")
    assert stage.slurm.records["1"].completing
    stage.mode = Mode.OBSERVE
    if restarted:
        stage.restart()
    stage.cluster.observe()
    assert stage.cluster.still_ours() == ["1"]
    stage.round(rounds=6)
    assert stage.cluster.still_ours() == []
    record = stage.slurm.records["1"]
    assert (record.state, record.gpus, record.request.req_nodes, record.held) == ("RUNNING", 2, "", False)


def test_a_job_resized_and_put_back_can_start_at_the_size_its_user_wrote(stage: Stage) -> None:
    stage.running("1", mark="lucid:vc=vc;elastic=1;most=3")
    stage.resized("1", "n1:0 n2:0,1,2", rounds=4)
    record = stage.slurm.records["1"]
    assert record.min_nodes == 2
    assert back_to(replace(record, state="PENDING"), stage.cluster.notes["1"]).nodes == "1-3", "a range, as a range"
    assert stage.do("1", Requeue(WHY)) is None
    stage.round(rounds=3)
    job = stage.entry("1", Pending).job
    assert (job.gpus, job.min_nodes) == (2, 1)
    stage.begins("1", "n2:0,1")
    record = stage.slurm.records["1"]
    assert (record.gpus, record.min_nodes, record.request.tres_per_job) == (2, 1, "")


@pytest.mark.parametrize("at_write", range(7))
@pytest.mark.parametrize("done", [False, True])
def test_lucidd_may_die_at_any_point(tmp_path: Path, at_write: int, done: bool) -> None:
    """Before Slurm was told something, and after; the job goes on exactly once, never twice, and never stays held."""
    stage, calls = Stage(tmp_path), list[str]()
    stage.running("1")
    first = len(stage.slurm.writes)

    def dies(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            calls.append(name)
            now = len(calls) - 1 == at_write
            if not now or done:
                real(*args)
            if now:
                raise Killed

        return call

    for name in ("requeue_hold", "update", "release"):
        setattr(stage.slurm, name, dies(name, getattr(stage.slurm, name)))
    rules, chosen = settings(), policy("elastic", HistoryPredictor())
    for _ in range(40):
        try:
            if not calls:
                stage.do("1", Resize(at("n1:0,1,2,3"), WHY))
            stage.round()
            Cycle(stage.cluster, HistoryPredictor(), chosen, rules, tolerant=True).run()
            stage.cluster.heal()
        except Killed:
            stage.restart()
    record = stage.slurm.records["1"]
    assert (record.state, record.held) == ("RUNNING", False)
    assert len(stage.slurm.writes) > first
    assert not stage.cluster.notes["1"].going_to
    assert len(stage.slurm.starts) == 1 + record.restarts


# -- which policies may run ----------------------------------------------------------------------------------


def asked(name: str, folder: str) -> None:
    check_policy(settings_from({"daemon": {"policy": name, "elastic": {"reports_dir": folder}}}, "t"), "lucid.toml")


@pytest.mark.parametrize(
    ("name", "folder", "words"),
    [
        ("elastic", "", r"'elastic'.*resize.*daemon\.elastic\.reports_dir"),
        ("pollux", "", r"'pollux'.*resize.*daemon\.elastic\.reports_dir"),
        ("muri-l", "", r"'muri-l'.*interleave.*daemon\.elastic\.reports_dir"),
        ("optimus", "/r", r"'optimus'.*only a replay knows.*optimus-fitted learns"),
        ("elastic", "shared/reports", r"reports_dir = .shared/reports.: write a path that begins with /"),
    ],
)
def test_lucidd_refuses_a_policy_that_this_cluster_cannot_serve(name: str, folder: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        asked(name, folder)
    for served in ("elastic", "pollux", "optimus-fitted", "optimus-drf", "muri-s", "muri-l"):
        asked(served, "/r")  # with a folder for reports


def test_a_job_on_its_way_is_never_shown_on_the_gpus_that_slurm_gave_to_another(stage: Stage) -> None:
    """Slurm chose n1:0 for the rigid job; the resized one was to go there."""
    stage.running("1", "n1:0,1,2", 3, to="n1:0")
    stage.slurm.advance(1.0)
    stage.slurm.submit("2", "vc", 1, held=False)  # Slurm gives it the first one
    entry, other = stage.entry("1", Running), stage.entry("2", Running)
    assert show_placement(other.placement) == "n1:0"
    assert show_placement(entry.placement) == "n1:1"
    assert entry.partner is other.partner is None


def test_a_requeue_that_slurm_is_slow_to_take_is_waited_for_and_a_users_own_hold_stays(stage: Stage) -> None:
    stage.running("1")
    before = stage.slurm.records["1"]
    stage.resized("1", "n1:0")
    after = stage.slurm.records["1"]
    stage.slurm.records["1"] = before  # not taken yet
    stage.slurm.gone_s.clear()
    assert stage.round() == []
    stage.slurm.records["1"] = replace(after, flags=frozenset())
    stage.round(rounds=3)
    assert stage.slurm.records["1"].gpus == 1
    stage.resized("1", "n1:0,1")
    stage.slurm._set("1", comment=f"{ASKS} lucid:held")
    stage.round(rounds=5)
    assert stage.slurm.records["1"].held
    assert not stage.cluster.notes["1"].going_to


def test_a_job_with_different_numbers_on_its_nodes_goes_on_last(stage: Stage) -> None:
    """Slurm deals its GPUs out by itself: it took two of a node where one was planned, and a job did not start."""
    stage.running("1")
    stage.running("2", "n2:0", 1)
    stage.cluster.observe()
    places = {"1": "n1:0 n2:0,1", "2": "n1:1,2,3"}
    stage.cluster.apply([Action(name, "vc", Resize(at(where), WHY)) for name, where in places.items()])
    stage.round(rounds=8)
    assert [name for _, name, _ in stage.slurm.starts] == ["1", "2", "2", "1"]
    assert stage.slurm.records["1"].state == stage.slurm.records["2"].state == "RUNNING"


# -- reports that the clock contradicts, and folders that hold none --------------------------------------------


def tells(stage: Stage, seconds: int, epochs: float, every: int = 5, **said: Any) -> None:
    """Reports anew every few seconds."""
    for _ in range(seconds // every):
        stage.slurm.advance(float(every))
        stage.report("1", epochs=epochs, **said)
        stage.cluster.observe()


def test_a_liar_is_not_grown_then_brought_back_then_left_rigid(stage: Stage) -> None:
    """As of 1000/n² s an epoch, and 0.1 epochs, as long as it lives."""
    lie = {"epochs": 0.1, "epoch_s": [[n, 1000 / n**2] for n in range(1, 9)]}
    stage.submit("1", 1)
    stage.begins("1", "n1:0")
    stage.round()
    tells(stage, 20, **lie)
    assert stage.entry("1").job.elastic.max_gpus == 8
    stage.resized("1", "n1:0,1,2,3 n2:0", rounds=6)
    tells(stage, 120, **lie)
    assert stage.entry("1").job.elastic.max_gpus == 5
    assert "it does not grow beyond 5 GPUs: lucidd's clock contradicts its reports" in stage.story
    assert "it has told no progress for" in stage.cluster.status()["doubted"]["1"]
    tells(stage, 120, **lie)
    assert stage.entry("1").job.elastic.max_gpus == 1
    assert "it goes back to the 1 GPU that its user asked for" in stage.story
    (stage.home / "1.json").unlink()  # nor does it keep them by saying nothing
    assert stage.entry("1").job.elastic.max_gpus == 1
    stage.resized("1", "n1:0", rounds=6)
    tells(stage, 60, **lie)
    assert (stage.entry("1").job.elastic, stage.entry("1").job.gpus) == (None, 1)
    assert "it is not resized: lucidd's clock contradicts" in stage.story
    for number in range(1, 40):  # and who is honest again is believed again
        tells(stage, 10, 10.0 + number, every=10, epoch_s=[[1, 10.0]])
    assert stage.entry("1").job.elastic.max_gpus == 8
    assert stage.cluster.status()["doubted"] == {}


def test_no_gpu_works_while_progress_is_told(stage: Stage) -> None:
    sampler = FakeSampler(stage.slurm, {})
    stage.restart(source=sampler)
    stage.running("1")
    began_s = stage.slurm.now
    for number in range(1, 30):
        sampler.measured["1"] = [GpuUse("g0", began_s, stage.slurm.now, stage.slurm.now - began_s, 0.0)]
        tells(stage, 10, 1.0 + number, every=10, epoch_s=[[2, 10.0]])
    assert stage.entry("1").job.elastic is None
    assert "its GPUs have not worked for" in stage.story


# -- few nodes -----------------------------------------------------------------------------------------------


ONE = "lucid:elastic=1-8,nodes=1"


@pytest.mark.parametrize(
    ("most", "comment", "nodes"),
    [("", ASKS, None), ("1", ASKS, 1), ("2", ASKS, 2), ("", ONE, 1), ("2", ONE, 1), ("x", ASKS, None)],
)
def test_its_user_says_on_how_many_nodes_it_may_be(stage: Stage, most: str, comment: str, nodes: int | None) -> None:
    """Slurm's own number is 1 for a waiting job whose user wrote nothing, and 0 for one that runs."""
    asks = structs.replace(Request(tres_per_node="gres/gpu:2"), max_nodes=1)
    stage.running("1", mark=f"lucid:vc=vc;elastic=1{most and f';most={most}'}", comment=comment, request=asks)
    assert stage.entry("1").job.elastic.max_nodes == nodes
    assert ("at the most" in stage.story) == (nodes is not None)
    stage.resized("1", "n1:0,1,2,3 n2:0,1,2,3", rounds=8)
    stage.report("1", epochs=2.0)
    stage.restart()
    assert stage.entry("1").job.elastic.max_nodes == nodes, "whatever Lucid has written into the request since"


# -- the first start -----------------------------------------------------------------------------------------


def test_a_user_may_let_the_job_start_on_fewer_gpus_than_written(stage: Stage) -> None:
    stage.submit("1", 4, comment="lucid:elastic=1-8,start=2")
    assert stage.entry("1").job.elastic == Elastic(4, 2)
    assert "may start on 2 to 4 GPUs" in stage.story
    stage.begins("1", "n1:0,1")
    coming = stage.entry("1", Running)
    assert (coming.gpus, coming.job.elastic) == (2, None), "on its way it is nobody's to move"
    stage.round(1.0, 2)
    running = stage.entry("1", Running)
    assert (running.gpus, running.job.gpus, running.job.elastic) == (2, 2, None), "rigid until it reports"
    stage.report("1")
    job = stage.entry("1").job
    assert (job.elastic, job.gpus) == (Elastic(8, 1, 8, pinned=True), 4), "what its user wrote is not forgotten"
