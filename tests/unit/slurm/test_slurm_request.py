"""What a job asks for: whether it can be said in slots, how it is said, and how it is given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import at
from lucid.core.decision import Requeue, Start
from lucid.errors import ActionRefused
from lucid.slurm.client import Changes
from lucid.slurm.records.from_json import JOB_NEEDS, jobs_from
from lucid.slurm.records.request import (
    EXCLUSIVE,
    JobDefaults,
    Request,
    defaults_from,
    host_needs,
    per_gpu,
    whole_because,
)
from scenes.slurm import WHY, Scene

TEXT = """\
PartitionName=vc-a AllowGroups=ALL SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED
PartitionName=vc-b AllowGroups=ALL SelectTypeParameters=NONE JobDefaults=DefCpuPerGPU=2,DefMemPerGPU=4000 TRES=cpu=16
"""
HELD = {"vc": "vc-a", "held": "1"}


def test_defaults_are_read_by_partition_and_the_configurations_own_fill_the_gaps() -> None:
    assert defaults_from(TEXT, {}) == {"vc-a": JobDefaults(), "vc-b": JobDefaults(2, 4000)}
    assert defaults_from(TEXT, {"JobDefaults": "DefCpuPerGPU=8"}) == {
        "vc-a": JobDefaults(8),
        "vc-b": JobDefaults(2, 4000),
    }


@pytest.mark.parametrize(
    ("request_", "nodes", "defaults", "why"),
    [
        (Request("gres/gpu:1"), 1, JobDefaults(), ""),
        (Request("gres/gpu:1", cpus_per_tres="gres/gpu:3", mem_per_tres="gres/gpu:500"), 1, JobDefaults(), ""),
        (Request("gres/gpu:1"), 1, JobDefaults(2, 4000), ""),
        (Request("gres/gpu:1"), 2, JobDefaults(), "it asks for 2 nodes"),
        (Request("gres/gpu:1", max_nodes=4), 1, JobDefaults(), "it may be given up to 4 nodes"),
        (Request("gres/gpu:1", tasks_per_gpu=2), 1, JobDefaults(), "--ntasks-per-gpu"),
        (Request("gres/gpu:1", others=("it excludes nodes",)), 1, JobDefaults(), "it excludes nodes"),
        (Request("gres/gpu:1"), 1, None, "not known"),
        (Request("gres/gpu:1", tasks=2), 1, JobDefaults(2), "several tasks"),
        (Request("gres/gpu:1", tasks=2, exact_cpus=True), 1, JobDefaults(2), ""),
        (Request("gres/gpu:1", tasks=2, cpus_per_tres="gres/gpu:2"), 1, JobDefaults(), "CPUs by GPU"),
        (Request("gres/gpu:1", tasks=2), 1, JobDefaults(None, 4000), ""),
    ],
)
def test_what_slots_cannot_say_is_told(request_: Request, nodes: int, defaults: JobDefaults | None, why: str) -> None:
    mark = {**HELD, "cpg": request_.cpus_per_tres}
    told = whole_because(request_, mark, nodes, True, defaults)
    assert why in told
    assert bool(told) == bool(why)


def test_the_plugins_word_is_told_in_words() -> None:
    told = whole_because(Request("gres/gpu:1"), {**HELD, "share": "0", "why": "srun"}, 1, True, JobDefaults())
    assert told == "its script asks for GPUs in an srun of its own"


@pytest.mark.parametrize(
    ("written", "request_", "defaults", "needs"),
    [
        ({}, Request(), JobDefaults(), (None, None)),
        ({"cpus_per_tres": "gres/gpu:3"}, Request(), JobDefaults(16), (6, None)),
        ({"mem_per_tres": "gres/gpu:500"}, Request(), JobDefaults(), (None, 1000)),
        ({}, Request(), JobDefaults(16, 4000), (32, 8000)),
        ({}, Request(exact_cpus=True, exact_mem=True), JobDefaults(16, 4000), (None, None)),
    ],
)
def test_cpus_and_memory_that_follow_from_gpus(
    written: dict[str, str], request_: Request, defaults: JobDefaults, needs: tuple[int | None, int | None]
) -> None:
    assert host_needs(written, request_, 2, defaults) == needs


def test_what_slurm_took_from_job_defaults_reads_like_what_users_ask_for() -> None:
    assert (per_gpu("gpu:2"), per_gpu("gres/gpu:2"), per_gpu("")) == ("gres/gpu:2", "gres/gpu:2", "")


def test_a_job_that_stands_half_way_is_known_by_its_tag() -> None:
    raw = {
        **dict.fromkeys(JOB_NEEDS), "job_id": 7, "job_state": ["PENDING"],
        "priority": {"set": True, "number": 0}, "node_count": {"number": 1},
        "admin_comment": "lucid:vc=vc-a;held=1;node=gres/gpu:2;cpg=gres/gpu:3", "tres_per_node": "",
    }  # fmt: skip
    (record,) = jobs_from({"jobs": [raw]})
    assert record.gpus == 2
    assert record.request.emptied


class Asked(Scene):
    """No MPS; job 1 asks for GPUs as a test says."""

    def __init__(self, request: Request, cpus: int = 1, **rest: object) -> None:
        super().__init__(mps=False)
        mark = "lucid:vc=vc;held=1;node=gres/gpu:2"
        mark += f";cpg={request.cpus_per_tres}" if request.cpus_per_tres else ""
        mark += f";mpg={request.mem_per_tres}" if request.mem_per_tres else ""
        self.jobs("1", 2, light=True, mark=mark, request=replace(request, num_cpus=cpus), cpus=cpus, **rest)


SLOTS = "gres/shard:g1:1,gres/shard:g2:1"
START = Start(at("n1:1-2"), WHY, slots=True)


def test_cpus_by_gpu_become_cpus_and_come_back_with_the_request() -> None:
    asked = Request("gres/gpu:2", cpus_per_tres="gres/gpu:3", mem_per_tres="gres/gpu:500")
    scene = Asked(asked, cpus=6)
    assert scene.do("1", START) is None
    assert scene.request("1") == Request(SLOTS, req_nodes="n1")
    record = scene.slurm.records["1"]
    assert (record.state, record.cpus, record.mem_mib) == ("RUNNING", 6, 1000)
    assert scene.do("1", Requeue(WHY)) is None
    scene.slurm.advance(10)
    scene.mend()
    assert scene.request("1") == asked


def test_job_defaults_are_said_with_the_slots() -> None:
    scene = Asked(Request("gres/gpu:2"))
    scene.slurm.defaults = {"vc": JobDefaults(4, 4000)}
    assert scene.do("1", START) is None
    record = scene.slurm.records["1"]
    assert (record.request.shards, record.cpus, record.mem_mib) == (True, 8, 8000)


def test_job_defaults_that_slurm_wrote_into_a_job_it_judged_are_not_its_users() -> None:
    asked = Request("gres/gpu:2", mem_per_tres="gres/gpu:4000", exact_mem=True)
    scene = Scene(mps=False)
    scene.jobs("1", 2, light=True, mark="lucid:vc=vc;held=1;node=gres/gpu:2", request=asked, mem_mib=500)
    scene.slurm.defaults = {"vc": JobDefaults(2, 4000)}
    assert scene.do("1", START) is None
    assert (scene.request("1").mem_per_tres, scene.slurm.records["1"].mem_mib) == ("", 500)


def test_killed_half_way_the_request_is_given_back() -> None:
    asked = Request("gres/gpu:2", cpus_per_tres="gres/gpu:3")
    scene = Asked(asked, cpus=6)
    whole = scene.slurm.update

    def first_only(job_id: str, changes: Changes) -> None:
        assert changes.first is not None
        whole(job_id, changes.first)
        raise ActionRefused("slurmctld is gone")

    scene.slurm.update = first_only  # type: ignore[method-assign]
    assert "slurmctld is gone" in str(scene.do("1", START))
    assert scene.request("1").emptied
    scene.slurm.update = whole  # type: ignore[method-assign]
    scene.mend()
    assert scene.request("1") == asked
    assert scene.slurm.records["1"].held


def test_why_it_runs_whole_stands_in_the_job() -> None:
    scene = Asked(Request("gres/gpu:2", tasks_per_gpu=2))
    (entry,) = scene.look().pending
    assert not entry.job.shareable
    assert "--ntasks-per-gpu" in entry.job.whole_because
    assert scene.do("1", replace(START, slots=False)) is None
    assert not scene.request("1").shards


def test_an_exclusive_job_has_whole_nodes_in_the_books() -> None:
    scene = Asked(Request("gres/gpu:1", others=(EXCLUSIVE,)), simple=False)
    (entry,) = scene.look().pending
    assert entry.job.gpus == 4
    assert scene.do("1", Start(at("n1:0-3"), WHY)) is None
    assert scene.request("1") == Request("gres/gpu:1", req_nodes="n1"), "as written, on the node of the plan"
    (running,) = scene.look().running
    assert running.placement == at("n1:0-3")
