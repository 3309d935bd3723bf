"""Slurm's records: JSON values, states, lists of hosts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from builders import at
from fake_slurm import FakeSlurm
from lucid.config.live import DaemonSettings
from lucid.core.placement import hosts_in
from lucid.errors import ClusterError, ConfigError
from lucid.slurm.accounting import accounted_from
from lucid.slurm.act.changes import shard_request
from lucid.slurm.own.state import JobState, Ownership
from lucid.slurm.records.fields import array_tasks, gpu_count, gpu_mask, hosts, is_shards, memory_mib, parse_mark
from lucid.slurm.records.from_json import JOB_NEEDS, jobs_from, nodes_from, reads_whole, version_of
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.json import accounting_trouble, checked_list
from lucid.slurm.records.request import Request
from lucid.store.port import JobNote
from scenes.slurm import MINE

RECORDED = sorted(path for path in (Path(__file__).parents[2] / "assets/slurm").iterdir() if path.is_dir())


def answer(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def nodes_of(folder: Path) -> list[SlurmNode]:
    return nodes_from(answer(folder, "nodes"))


@pytest.fixture(params=RECORDED, ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def jobs(folder: Path) -> dict[str, SlurmJob]:
    return {job.name: job for job in jobs_from(answer(folder, "jobs"))}


def test_the_release_is_told(folder: Path) -> None:
    release = folder.name.partition("-")[0]
    assert version_of(answer(folder, "jobs")) == tuple(map(int, release.split(".")))


@pytest.mark.parametrize(
    ("name", "gpus", "nodes", "request_"),
    [
        ("gres", 1, 1, Request(tres_per_node="gres/gpu:1")),
        ("gpus", 2, 1, Request(tres_per_job="gres/gpu:2", tres_per_task="cpu=2")),
        ("distributed", 8, 2, Request(tres_per_node="gres/gpu:4")),
        ("per-task", 2, 1, Request(tres_per_task="gres/gpu=1")),
        ("slots", 2, 1, Request(tres_per_node="gres/shard:g2:1,gres/shard:g3:1", req_nodes="n2")),
    ],
)
def test_what_a_job_asks_for(jobs: dict[str, SlurmJob], name: str, gpus: int, nodes: int, request_: Request) -> None:
    job = jobs[name]
    assert (job.gpus, job.min_nodes) == (gpus, nodes)
    assert job.request.shards is (name == "slots")
    for field in ("tres_per_node", "tres_per_job", "req_nodes"):
        assert getattr(job.request, field) == getattr(request_, field)
    assert gpu_count(job.request.tres_per_task) == gpu_count(request_.tres_per_task)


def test_of_a_range_of_nodes_the_least_is_what_a_job_asks_for() -> None:
    """While it waits squeue shows the most as node_count; a job moved to a partition of one node never started."""
    known = next(job for job in answer(RECORDED[-1], "jobs")["jobs"] if "PENDING" in job["job_state"])
    raw = {**known, "node_count": 2, "tres_req_str": "cpu=1,node=1"}
    for most in (2, 4):
        (job,) = jobs_from({"jobs": [{**raw, "max_nodes": most}]})
        assert (job.unread, job.min_nodes) == ("", 1 if most == 2 else 2)


def test_what_recorded_jobs_tell(jobs: dict[str, SlurmJob]) -> None:
    assert {job.unread for job in jobs.values()} == {""}
    runs = jobs["gpus"]
    assert (runs.state, runs.ended) == ("RUNNING", False)
    assert sum(part.mask.bit_count() for part in runs.placement) == 2, "it holds exactly its GPUs"
    assert runs.hosts_used == ((runs.placement[0].node, 2, 2 * runs.mem_mib // 2),)
    assert runs.start_s > runs.submit_s - 1 > 1e9
    assert jobs["slots"].placement == jobs["guest"].placement == at("n2:2-3"), "two in slots stand on the same GPUs"
    requeued = jobs["gres"]
    assert (requeued.state, requeued.completing, requeued.pending, requeued.running) == ("PENDING", True, False, True)
    assert (requeued.held, requeued.restarts) == (True, 1)
    assert jobs["cancelled"].ended
    assert parse_mark(jobs["per-task"].admin_comment) == {"vc": "vc", "cold": "1"}
    assert parse_mark(requeued.admin_comment) is None
    assert any(name.startswith("no gpu; rm -rf") and "ü" in name for name in jobs), "a hostile name is just a name"


def test_tasks_of_a_waiting_array_stand_apart_up_to_its_limit(folder: Path) -> None:
    tasks = [job for job in jobs_from(answer(folder, "jobs")) if job.name == "array"]
    assert [job.id.partition("_")[2] for job in tasks] == ["1", "2"]
    assert all(job.held and job.gpus == 2 for job in tasks)


def test_what_keeps_a_job_from_being_placed_by_others(folder: Path, jobs: dict[str, SlurmJob]) -> None:
    simple = {name for name, job in jobs.items() if job.simple}
    assert "excludes" not in simple
    # v0.0.45 does not tell, which is why nothing is read through it.
    assert ("exclusive" in simple) is not reads_whole(answer(folder, "jobs"))
    assert {"gres", "gpus", "distributed", "per-task", "stays"} <= simple
    assert jobs["stays"].features == "a100"
    assert not jobs["stays"].requeue
    assert jobs["gres"].requeue


def test_nodes_have_gpus_that_can_be_asked_for_by_name(folder: Path) -> None:
    nodes = {node.name: node for node in nodes_of(folder)}
    assert nodes["n1"].gpu_types == ("g0", "g1", "g2", "g3")
    assert nodes["n1"].addressable
    assert nodes["n1"].available
    assert nodes["n1"].cpus >= 16


def plain(job: SlurmJob) -> SlurmJob:
    """Without what changes between two looks: flags, and a waiting job's forecast."""
    changed = replace(job, flags=frozenset())
    return replace(changed, start_s=0.0, end_s=0.0) if job.state == "PENDING" else changed


def test_both_forms_of_26_05_tell_the_same_but_of_exclusive_jobs() -> None:
    whole, less = (folder for folder in RECORDED if folder.name.startswith("26.05"))
    jobs, told = ({job.name: job for job in jobs_from(answer(folder, "jobs"))} for folder in (whole, less))
    assert jobs.keys() == told.keys()
    for name in jobs.keys() - {"exclusive"}:
        # Of the flags, only whether it completes is read; others come and go with versions.
        assert plain(jobs[name]) == plain(told[name])
        assert jobs[name].completing == told[name].completing
    assert nodes_of(whole) == nodes_of(less)


@pytest.mark.parametrize(
    "document", [None, [], {}, {"jobs": None}, {"jobs": [], "errors": [{"description": "no such thing"}]}], ids=str
)
def test_what_is_no_answer_is_an_error(document: Any) -> None:
    with pytest.raises(ClusterError):
        jobs_from(document)


def test_an_answer_that_tells_nothing_in_most_fields_is_read_as_unknown() -> None:
    (job,) = jobs_from({"jobs": [{**dict.fromkeys(JOB_NEEDS), "job_id": 7, "job_state": "PENDING"}]})
    assert (job.id, job.gpus, job.placement, job.time_limit_s, job.held) == ("7", 0, (), None, False)


@pytest.mark.parametrize(("minutes", "limit_s"), [(525_599, 525_599 * 60.0), (525_600, None)])
def test_the_year_that_slurm_writes_to_a_job_without_a_limit_is_no_limit(minutes: int, limit_s: float | None) -> None:
    known = {**dict.fromkeys(JOB_NEEDS), "job_id": 7, "job_state": "PENDING"}
    (job,) = jobs_from({"jobs": [{**known, "time_limit": {"set": True, "infinite": False, "number": minutes}}]})
    assert job.time_limit_s == limit_s


@pytest.mark.parametrize(
    ("read", "text", "found"),
    [
        (lambda text: array_tasks(text, 100), "1-5%2", ([1, 2, 3, 4, 5], 2)),
        (lambda text: array_tasks(text, 2), "1-5%2", ([1, 2], 2)),
        (lambda text: array_tasks(text, 100), "0-10:5,12", ([0, 5, 10, 12], None)),
        (lambda text: array_tasks(text, 2), "0-10:5,12", ([0, 5], None)),
        (lambda text: array_tasks(text, 100), "3", ([3], None)),
        (lambda text: array_tasks(text, 100), "", ([], None)),
        (gpu_mask, "gpu:g0:1(IDX:0),gpu:g1:0(IDX:),gpu:g2:1(IDX:2)", 0b101),
        (gpu_mask, "gpu:a100:4(IDX:0-2,5)", 0b100111),
        (gpu_mask, "shard:g1:1(0/2,1/2,0/2,0/2),shard:g3:1(0/2,0/2,0/2,1/2)", 0b1010),
        (gpu_mask, "craynetwork:1", 0),
        (gpu_mask, "", 0),
        (gpu_count, "gres/gpu:a100:2,gres/gpu:t4:1", 3),
        (memory_mib, "cpu=2,mem=1.50G,node=1", 1536),
        (memory_mib, "cpu=2", 0),
        *((parse_mark, text, None) for text in ("", "by hand", "xlucid:vc=a", '{"lucid": 1}')),
        (parse_mark, "lucid:", {}),
        (parse_mark, 'lucid:vc=vc;held=1 {"of": "a site;held=0"}', {"vc": "vc", "held": "1"}),
        (parse_mark, 'lucid:vc=vc;held=1\n{"of": "a site;held=0"}', {"vc": "vc", "held": "1"}),
        (parse_mark, "lucid:vc=a;;=;x;y==;" + "z" * 1024, {"vc": "a", "": "", "y": "="}),
    ],
)
def test_the_small_languages_are_read(read: Callable[[str], Any], text: str, found: Any) -> None:
    assert read(text) == found


def test_requests_are_written_as_they_are_read() -> None:
    text = shard_request(["g1", "g3"])
    assert text == "gres/shard:g1:1,gres/shard:g3:1"
    assert (gpu_count(text), is_shards(text)) == (2, True)


SILENT = {"description": "Slurmdb query failed", "error": "Connection refused", "source": "slurmdb_tres_get"}
OTHER = {"description": "Unable to contact slurm controller", "source": "slurm_load_jobs"}
ROWS = [{"job_id": 1}]


def test_a_list_is_used_though_accounting_is_silent() -> None:
    document = {"jobs": ROWS, "errors": [SILENT]}
    assert checked_list(document, "jobs", "jobs") == ROWS
    assert accounting_trouble(document) == "Slurmdb query failed: Connection refused"
    assert accounting_trouble({"jobs": ROWS, "errors": []}) == ""


@pytest.mark.parametrize(
    "document",
    [
        {"jobs": [], "errors": [SILENT]},
        {"jobs": ROWS, "errors": [SILENT, OTHER]},
        {"jobs": ROWS, "errors": [OTHER]},
        {"jobs": ROWS, "errors": ["slurmdb"]},
    ],
)
def test_an_empty_list_and_any_other_error_are_refused(document: Any) -> None:
    assert accounting_trouble(document) == ""
    with pytest.raises(ClusterError, match="answers with an error"):
        checked_list(document, "jobs", "jobs")


def test_what_slurmdbd_itself_lists_beside_an_error_is_refused() -> None:
    with pytest.raises(ClusterError, match="Slurmdb query failed: Connection refused"):
        accounted_from({"jobs": ROWS, "errors": [SILENT]})


PARKED = f"{MINE};park=1300"
NOW_S = 1000.0


def shows(**record: Any) -> SlurmJob:
    slurm = FakeSlurm([], now=900.0)
    slurm.submit("1", "vc", 1, mark=MINE)
    return replace(slurm.records["1"], **record)


@pytest.mark.parametrize(
    ("record", "note", "state"),
    [
        ({}, {}, JobState.QUEUED),
        ({"admin_comment": ""}, {}, JobState.NOT_OURS),
        ({"gpus": 0}, {}, JobState.NOT_OURS),
        ({"held": False, "eligible_s": 1300.0, "admin_comment": PARKED}, {}, JobState.QUEUED),
        ({"held": False, "eligible_s": 1300.0, "admin_comment": f"{PARKED};wait=1"}, {}, JobState.PARKED),
        ({"held": False}, {"where": "n1:0"}, JobState.STARTING),
        ({}, {"where": "n1:0"}, JobState.QUEUED),  # killed before Slurm was told
        ({}, {"where": "n1:0", "claims": "7"}, JobState.EMPTYING),
        ({"state": "RUNNING", "held": False}, {"where": "n1:0"}, JobState.RUNNING),
        ({"state": "RUNNING", "held": False}, {"going_to": "n2:0"}, JobState.RESIZING),
        ({"state": "COMPLETED", "held": False}, {"going_to": "n2:0"}, JobState.ENDED),
        ({"comment": "lucid:held"}, {}, JobState.HELD_BY_USER),
        ({"held": False}, {"released": True}, JobState.RELEASED),
        ({"held": False}, {}, JobState.RELEASED),
    ],
)
def test_the_state_of_a_job(record: dict[str, Any], note: dict[str, Any], state: JobState) -> None:
    ownership = Ownership(DaemonSettings(), lambda *_: None)
    assert ownership.state(shows(**record), JobNote("1", **note) if note else None, NOW_S) is state


SUFFIXES = (23, 11)
"""From here on Slurm reads text behind the last bracket."""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("n[1-3,07-08]", "n1 n2 n3 n07 n08"),
        ("rack[1-2]n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"),
        ("x[1-2]y[1-2]z[1-2]", "x1y1z1 x1y1z2 x2y1z1 x2y1z2 x1y2z1 x1y2z2 x2y2z1 x2y2z2"),
        ("a[1-2][3-4][5-6]", "a135 a136 a235 a236 a145 a146 a245 a246"),
        ("a[1-2]-b[01-02].x", "a1-b01.x a1-b02.x a2-b01.x a2-b02.x"),
        ("n[1-2]b,c[3],", "n1b n2b c3"),
        ("a,,b\tc d", "a b c d"),
        ("n[2-]", "n2"),
        ("n[9-010]", "n9 n10"),
        ("n[08-10]-ib,gpu-a", "n08-ib n09-ib n10-ib gpu-a"),
        ("[1-3]", "1 2 3"),
    ],
)
def test_both_readers_give_what_slurm_24_11_gave(text: str, named: str) -> None:
    assert hosts_in(text) == hosts(text) == named.split()


@pytest.mark.parametrize(
    "text",
    ["", ",", "n[1-", "n[1-2,]", "n[2-1]", "n[a-b]", "n[]", "n[,]", "n[1-65537]", "n[1-2]][3]", "n[0x2]", "n]1"],
)
def test_what_is_no_host_list_is_refused_by_one_and_nothing_to_the_other(text: str) -> None:
    with pytest.raises(ConfigError, match=r"host|range"):
        hosts_in(text)
    assert hosts(text) == []


def test_what_a_host_list_costs_is_bounded() -> None:
    with pytest.raises(ConfigError, match="100,000"):
        hosts_in("n[1-60000]m[1-60000]")
    assert len(hosts("n[1-60000]m[1-60000]")) == 100_000


@st.composite
def _range(draw: st.DrawFn) -> str:
    first = draw(st.integers(0, 120))
    text = str(first).zfill(draw(st.integers(0, 4)))
    return draw(st.sampled_from([text, f"{text}-{max(0, first + draw(st.integers(-1, 4)))}"]))


BRACKET = st.lists(_range(), min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
WORD = st.sampled_from(["n", "gpu-", "a.b", "r2_", "01", "7"])
NAME = st.lists(st.one_of(WORD, BRACKET, BRACKET), min_size=1, max_size=5).map("".join)
LIST = st.lists(NAME, min_size=1, max_size=3).flatmap(
    lambda names: st.sampled_from([",", ",,"]).map(lambda by: by.join(names))
)


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The command, and its version."""
    command = shutil.which("scontrol")
    if command is None:
        pytest.skip("no scontrol on this machine (apt-get install slurm-client)")
    conf: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=p Nodes=ALL\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(conf))
        said = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
        if said.returncode:
            pytest.skip(f"scontrol does not work here: {said.stderr[-200:]}")
        yield command, tuple(map(int, re.findall(r"\d+", said.stdout)))


@settings(max_examples=80)
@given(text=LIST)
def test_generated_lists_are_read_as_scontrol_reads_them(scontrol: tuple[str, tuple[int, ...]], text: str) -> None:
    command, version = scontrol
    assume(version >= SUFFIXES or not re.search(r"\][^\[,]+(,|$)", text))
    done = subprocess.run([command, "show", "hostnames", text], capture_output=True, text=True, check=False)
    if "Invalid" in done.stderr:
        with pytest.raises(ConfigError):
            hosts_in(text)
    else:
        assert hosts_in(text) == done.stdout.split()
