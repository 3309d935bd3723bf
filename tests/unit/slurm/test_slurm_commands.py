"""Slurm's commands, the client that runs them, and pyslurm."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.config.live import SlurmSettings
from lucid.errors import ActionRefused, ClusterError, ClusterUnavailable, ConfigError
from lucid.slurm.client import Breaker, Changes, checked_id, guarded
from lucid.slurm.commands import CommandClient
from lucid.slurm.pyslurm import PyslurmClient, make_client
from lucid.slurm.records.from_json import jobs_from, nodes_from
from lucid.slurm.records.request import EXCLUSIVE

ASSETS = Path(__file__).parents[2] / "assets/slurm"
TOLD = json.loads((ASSETS / "pyslurm-25.11.json").read_text())


def recorded(name: str) -> Any:
    return json.loads((ASSETS / f"{name}.json").read_text())


class Watch:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def client(tmp_path: Path, script: str, timeout_s: float = 10.0) -> CommandClient:
    """A client whose prefix is a program of the test's; what it was called with stands in ``said``."""
    path = tmp_path / "slurm.py"
    noting = f"with open({str(tmp_path / 'said')!r}, 'a') as f: f.write(json.dumps(sys.argv[1:]) + '\\n')\n"
    path.write_text(f"import json, os, sys, time\n{noting}{script}")
    return CommandClient([sys.executable, str(path)], Breaker(Watch()), timeout_s)


def said(tmp_path: Path) -> list[list[str]]:
    return [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]


def test_jobs_and_nodes_are_asked_for_once_each(tmp_path: Path) -> None:
    name = "'jobs' if sys.argv[1] == 'squeue' else 'nodes'"
    slurm = client(tmp_path, f"print(open({str(ASSETS)!r} + '/24.11/' + ({name}) + '.json').read())")
    assert {job.name for job in slurm.jobs()} >= {"gres", "gpus"}
    assert [node.name for node in slurm.nodes()] == ["n1", "n2", "n3", "p1"]
    assert slurm.version() == (24, 11)
    count, look = "scontrol --oneliner show job", "squeue --json --states=all"  # the first only before the first look
    assert said(tmp_path) == [words.split() for words in (count, look, "scontrol show nodes --json")]


def test_only_fields_that_change_are_written(tmp_path: Path) -> None:
    slurm = client(tmp_path, "")
    slurm.update("3_1", Changes(tres_per_node="gres/shard:g1:1", tres_per_job="", req_nodes="n2", start_now=True))
    each: list[dict[str, Any]] = [
        {"site_factor": 0},
        {"extra": "lucid-mem=9"},
        {"extra": ""},
        {"start_at_s": 1.9e9},
        {},
    ]
    for one in each:
        slurm.update("4", Changes(**one))
    slurm.release("4")
    slurm.hold("4")
    slurm.requeue_hold("4")
    written = [
        "scontrol update JobId=3_1 TresPerNode=gres/shard:g1:1 TresPerJob= ReqNodeList=n2 StartTime=now",
        "scontrol update JobId=4 SiteFactor=0",
        "scontrol update JobId=4 Extra=lucid-mem=9",
        "scontrol update JobId=4 Extra=",
        "scontrol update JobId=4 StartTime=uts1900000000",
        "scontrol release 4",
        "scontrol update JobId=4 Priority=0 StartTime=now",
        "scontrol requeuehold Incomplete 4",
    ]
    assert said(tmp_path) == [words.split() for words in written]


def test_what_goes_through_ssh_reaches_slurm_as_it_is(tmp_path: Path) -> None:
    """ssh gives its words to a shell, for which a semicolon ends a command."""
    printing = f"printf '%s\\n' \"$@\" > {tmp_path}/said"
    for name, script in (("ssh", 'shift\nexec sh -c "$*"'), ("scontrol", printing)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    prefix = [str(tmp_path / "ssh"), "head", "env", f"PATH={tmp_path}:/usr/bin:/bin"]
    slurm = CommandClient(prefix, Breaker(Watch()), 10.0)
    slurm.update("4", Changes(req_nodes="n1", extra="lucid-gpus=1,3;lucid-mem=9"))
    assert (tmp_path / "said").read_text() == "update\nJobId=4\nReqNodeList=n1\nExtra=lucid-gpus=1,3;lucid-mem=9\n"


@pytest.mark.parametrize("job_id", ["", "1;rm -rf /", "1 2", "$(x)", "-1", "1_", "1\n2", "9" * 20, "１"])
def test_what_is_no_job_id_never_reaches_a_command(tmp_path: Path, job_id: str) -> None:
    slurm = client(tmp_path, "")
    for act in (slurm.hold, slurm.release, slurm.requeue_hold, lambda i: slurm.update(i, Changes(start_now=True))):
        with pytest.raises(ActionRefused, match="not a Slurm job id"):
            act(job_id)
    assert not (tmp_path / "said").exists()
    assert checked_id("123_4") == "123_4"


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("sys.exit('Job is no longer pending execution for job 4')", ActionRefused, "no longer pending"),
        ("sys.exit('Unable to contact slurm controller (connect failure)')", ClusterUnavailable, "Unable to contact"),
        ("sys.exit('Socket timed out')", ClusterUnavailable, "timed out"),
        ("time.sleep(60)", ClusterUnavailable, "no answer within"),
        ("print('slurm 20.02 knows no --json')", ClusterError, "is not JSON"),
    ],
)
def test_no_answer_is_told_from_a_refusal(tmp_path: Path, script: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        client(tmp_path, script, 0.3 if "sleep" in script else 10.0).jobs()
    with pytest.raises(ClusterUnavailable, match="/no/such/program"):
        CommandClient(["/no/such/program"], Breaker(Watch())).jobs()


def fails(breaker: Breaker, words: str = "timed out") -> None:
    with pytest.raises(ClusterUnavailable, match=words):
        guarded(breaker, MagicMock(side_effect=ClusterUnavailable("timed out")))


def test_the_breaker_opens_after_failures_and_rests_longer_each_time() -> None:
    watch = Watch()
    breaker = Breaker(watch, errors=2, rest_s=10.0)
    fails(breaker)
    fails(breaker)
    fails(breaker, "Slurm is not asked")
    assert breaker.calls.failed == 2
    watch.now = 10.0
    fails(breaker)
    assert breaker.open_s == 20.0
    watch.now = 30.0
    assert guarded(breaker, lambda: 1) == 1
    assert breaker.open_s == 0.0
    fails(breaker)
    assert breaker.open_s == 0.0, "a success closed it, so it counts anew"


def test_the_breaker_opens_for_a_slow_slurm() -> None:
    watch = Watch()
    breaker = Breaker(watch, latency_s=5.0, slow=2)

    def slow() -> None:
        watch.now += 6.0

    for call, rests in ((slow, False), (lambda: None, False), (slow, False), (slow, True)):
        guarded(breaker, call)
        assert (breaker.open_s > 0) is rests
    assert "longer than 5 s" in breaker.why


def test_a_refusal_is_an_answer() -> None:
    breaker = Breaker(Watch(), errors=1)
    with pytest.raises(ActionRefused):
        guarded(breaker, MagicMock(side_effect=ActionRefused("no")))
    assert (breaker.open_s, breaker.calls.refused) == (0.0, 1)


def test_accounting_that_does_not_answer_is_no_silence_of_slurm(tmp_path: Path) -> None:
    """As sacctmgr of 26.05 says it; three such answers once kept lucidctl doctor from asking slurmctld at all."""
    said = "sacctmgr: error: _open_persist_conn: failed to open persistent connection: Connection refused"
    down = tmp_path / "down"
    down.touch()
    broken = f"if sys.argv[1] == 'sacctmgr' and os.path.exists({str(down)!r}): sys.exit({said!r})"
    slurm = client(tmp_path, f"{broken}\nprint('lucid')")
    for _ in range(4):
        assert slurm.rights() is None
        with pytest.raises(ActionRefused):
            slurm.gpu_limits()
    assert slurm.accounting == said
    down.unlink()
    assert (slurm.rights(), slurm.accounting) == (("lucid", "lucid"), "")


NODES = ["slurm", "render", "--nodes", "n[1-2]:gpus=2,type=a100"]


def test_render_as_json_and_into_a_folder_give_the_same_texts_and_what_cannot_be_written_is_refused(
    tmp_path: Path,
) -> None:
    done = CliRunner().invoke(lucidctl, [*NODES, "--json", "--out", str(tmp_path)])
    texts = json.loads(done.output)
    for name, key in (("gres", "gres_conf"), ("lucid.slurm", "slurm_conf"), ("lucid.plugin", "plugin_conf")):
        assert (tmp_path / f"{name}.conf").read_text() == texts[key]
    done = CliRunner().invoke(lucidctl, [*NODES, "--out", str(tmp_path / "gres.conf" / "deeper")])
    assert isinstance(done.exception, ConfigError)
    with pytest.raises(ConfigError, match="no gpus"):
        CliRunner().invoke(lucidctl, ["slurm", "render", "--nodes", "n1"], catch_exceptions=False)


class Refused(Exception):
    """As pyslurm's RPCError."""


class Job(SimpleNamespace):
    """One recorded job; a new one is only written to."""

    requested_tres: Any = None
    extra = ""

    def __init__(self, number: int = 0, **told: Any) -> None:
        wanted = told.pop("requested_tres", None)
        super().__init__(**{"id": number, **told})
        if wanted:
            gres = {name: SimpleNamespace(count=count) for name, count in wanted["gres"].items()}
            self.requested_tres = SimpleNamespace(gres=gres, mem=SimpleNamespace(count=wanted["mem"]))

    def get_resource_layout_per_node(self) -> Any:
        return self.layout

    def modify(self, changes: SimpleNamespace) -> None:
        WRITTEN.append((self.id, vars(changes)))
        if SAYS:
            raise Refused(SAYS[0])

    def release(self) -> None:
        WRITTEN.append((self.id, "release"))


WRITTEN: list[Any] = []
SAYS: list[str] = []


def module(jobs: list[Any]) -> Any:
    listed = {job.id: job for job in jobs}
    nodes = {node["name"]: SimpleNamespace(**node) for node in TOLD["nodes"]}
    return SimpleNamespace(
        __version__=TOLD["version"], Job=Job, RPCError=Refused, JobSubmitDescription=SimpleNamespace,
        Jobs=SimpleNamespace(load=lambda: listed), Nodes=SimpleNamespace(load=lambda: nodes),
    )  # fmt: skip


class Noting(PyslurmClient):
    """Notes what goes through Slurm's commands."""

    def _run(self, command: Any) -> str:
        WRITTEN.append(list(command))
        return ""


def pyslurm_client(jobs: list[Any] | None = None) -> PyslurmClient:
    WRITTEN.clear()
    SAYS.clear()
    told = [Job(**job) for job in TOLD["jobs"]] if jobs is None else jobs
    return Noting([], Breaker(lambda: 0.0), pyslurm=module(told))


def test_it_tells_of_jobs_and_nodes_what_the_commands_tell() -> None:
    made, nodes = {node.name: node for node in pyslurm_client().nodes()}, nodes_from(recorded("25.11/nodes"))
    assert [made[node.name] for node in nodes] == nodes
    mine = {job.name: job for job in pyslurm_client().jobs()}
    theirs = {job.name: job for job in jobs_from(recorded("25.11/jobs"))}
    assert mine.keys() == theirs.keys()
    for name, job in mine.items():
        other = theirs[name]
        assert not job.unread, job.unread
        assert (EXCLUSIVE in job.request.others) is (EXCLUSIVE in other.request.others)
        if name == "gres":  # it completes, of which pyslurm tells nothing else
            assert (job.completing, other.completing) == (True, True)
            continue
        assert job == replace(other, flags=job.flags, request=job.request, dependency=job.dependency)
        assert job.request.tres_per_node == other.request.tres_per_node


def test_a_job_that_cannot_be_read_is_told_as_such() -> None:
    raw = next(job for job in TOLD["jobs"] if job["name"] == "gpus")
    slots = {"n1": {"cpu_ids": "0", "gres": {"shard:a100": 2}, "memory": 5}}
    (job,) = pyslurm_client([Job(**{**raw, "layout": slots})]).jobs()
    assert "slots of a100" in job.unread
    assert job.lost


@pytest.mark.parametrize(
    ("target", "changes", "written"),
    [
        ("7", Changes(site_factor=500), ("7", {"site_factor": 500})),
        ("7", Changes(site_factor=0), ["scontrol", "update", "JobId=7", "SiteFactor=0"]),
        ("7_2", Changes(site_factor=5), ["scontrol", "update", "JobId=7_2", "SiteFactor=5"]),
        ("7", Changes(extra="x"), ["scontrol", "update", "JobId=7", "Extra=x"]),
        ("7", Changes(site_factor=5, extra="x"), ["scontrol", "update", "JobId=7", "SiteFactor=5", "Extra=x"]),
    ],
)
def test_what_pyslurm_cannot_write_goes_through_scontrol(target: str, changes: Changes, written: Any) -> None:
    pyslurm_client([]).update(target, changes)
    assert [(7, written[1]) if isinstance(written, tuple) else written] == WRITTEN


def test_one_task_of_an_array_is_held_and_released_by_scontrol() -> None:
    slurm = pyslurm_client([])
    for job_id in ("7", "7_2"):
        slurm.hold(job_id)
        slurm.release(job_id)
    assert (WRITTEN[0][1]["priority"], WRITTEN[1]) == (0, (7, "release"))
    assert [words[0] for words in WRITTEN[2:]] == ["scontrol"] * 2
    for job_id in ("7;", "7_2 x", ""):
        with pytest.raises(ActionRefused):
            slurm.hold(job_id)


def test_its_errors_are_refusals_or_silence() -> None:
    slurm = pyslurm_client([])
    SAYS.append("Invalid job id specified")
    with pytest.raises(ActionRefused, match="Invalid job id"):
        slurm.hold("7")
    SAYS[0] = "Unable to contact slurm controller (connect failure)"
    with pytest.raises(ClusterUnavailable):
        slurm.hold("7")


def test_without_pyslurm_and_with_one_that_does_not_tell_requests_the_reason_is_said() -> None:
    settings = SlurmSettings(client="pyslurm")
    with pytest.raises(ConfigError, match=r"slurm\.client = 'pyslurm': it cannot be loaded"):
        make_client(settings, Breaker(lambda: 0.0))
    assert not settings.packs
    old = SimpleNamespace(__version__="24.11.0", Job=object)
    with pytest.raises(ConfigError, match=r"24\.11\.0 does not tell requested_tres and extra"):
        PyslurmClient([], Breaker(lambda: 0.0), pyslurm=old)
