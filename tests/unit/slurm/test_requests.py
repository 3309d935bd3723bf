"""Requests as they are read and written: defaults, what slots cannot say, features, switches, other constraints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from builders import a_job, at, decide, decided, nodes, part, runs, snap
from fake_slurm import fake_node
from lucid.core.decision import Hold, Requeue, Start
from lucid.core.job import Pending
from lucid.core.ledger import Ledger
from lucid.core.reasons.queue import OtherNodes
from lucid.errors import ActionRefused
from lucid.orchestrator.capacity.placement import consolidated
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.slurm.client import Changes
from lucid.slurm.records.configuration import NO_NETWORK, Network, network_from, with_network
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
from lucid.slurm.view.nodes import met_by
from scenes.slurm import MINE, WHY, Scene

TEXT = """\
PartitionName=vc-a AllowGroups=ALL SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED
PartitionName=vc-b AllowGroups=ALL SelectTypeParameters=NONE JobDefaults=DefCpuPerGPU=2,DefMemPerGPU=4000 TRES=cpu=16
"""
HELD = {"vc": "vc-a", "held": "1"}


def test_defaults_are_read_by_partition_and_the_configurations_own_fill_the_gaps() -> None:
    assert defaults_from(TEXT, {}) == {"vc-a": JobDefaults(), "vc-b": JobDefaults(2, 4000)}
    filled = defaults_from(TEXT, {"JobDefaults": "DefCpuPerGPU=8"})
    assert filled == {"vc-a": JobDefaults(8), "vc-b": JobDefaults(2, 4000)}


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
        self.jobs("1", 2, light=True, mark=mark, request=structs.replace(request, num_cpus=cpus), cpus=cpus, **rest)


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
    assert scene.do("1", structs.replace(START, slots=False)) is None
    assert not scene.request("1").shards


def test_an_exclusive_job_has_whole_nodes_in_the_books() -> None:
    scene = Asked(Request("gres/gpu:1", others=(EXCLUSIVE,)), simple=False)
    (entry,) = scene.look().pending
    assert entry.job.gpus == 4
    assert scene.do("1", Start(at("n1:0-3"), WHY)) is None
    assert scene.request("1") == Request("gres/gpu:1", req_nodes="n1"), "as written, on the node of the plan"
    (running,) = scene.look().running
    assert running.placement == at("n1:0-3")


ASSETS = Path(__file__).parents[2] / "assets/slurm"
FITTING = {"h100": ("n2",)}


@pytest.mark.parametrize(
    ("constraints", "met"),
    [
        ("a a&b c|b a&(c|b) [c|a]", True),
        ("c a,c (c|d)&a", False),
        (f"a*2 [(a*2)&(c*1)] c|a&b a& (a a) {'(' * 4000}", None),
    ],
)
def test_constraints_are_read_as_slurm_reads_them_or_not_at_all(constraints: str, met: bool | None) -> None:
    for constraint in constraints.split():
        assert met_by(constraint, frozenset("ab")) is met, constraint
    assert met_by("", frozenset("ab")) is None


def test_no_place_and_no_time_is_found_on_other_nodes() -> None:
    ledger = Ledger(part(nodes(3), (), [runs("r", "n2:0-3")], fitting=FITTING), 0.0)
    ends = [(50.0, a_job("r", 4), at("n2:0-3"))]
    wants = a_job("j", 8, constraint="h100")
    assert consolidated(ledger, wants) is None
    assert consolidated(ledger, a_job("k", 8)) == at("n1:0-7")
    assert consolidated(ledger, a_job("l", 2, constraint="h100")) == at("n2:4-5")
    slot = Timeline(ledger, 0.0, ends).find(wants, 10.0)
    assert (slot.start_s, slot.parts) == (50.0, ((1, 8),))
    assert consolidated(ledger, a_job("m", 8, constraint="not known here")) == at("n1:0-7")


@pytest.mark.parametrize("name", ["lucid", "fifo", "sjf", "backfill"])
def test_a_job_that_waits_for_its_nodes_says_so_and_keeps_no_others_from_anybody(name: str) -> None:
    wants = Pending(a_job("j", 8, 0.0, constraint="h100"), 0.0)
    other = Pending(a_job("k", 8, 1.0), 1.0)
    stage = part(nodes(3), [wants, other], [runs("r", "n2:0-7")], fitting=FITTING)
    plan = decide(name, snap(10.0, stage))
    held = decided(plan, "j", Hold)
    if name not in ("fifo", "sjf"):  # these stop at the first that does not fit
        assert decided(plan, "k", Start).placement == at("n1:0-7")
    (why,) = (item for item in held.reasons if isinstance(item, OtherNodes))
    assert (why.gpus, why.asked) == (16, "h100")


def scene() -> Scene:
    stage = Scene()
    features = {"n1": "a100", "n2": "h100", "p1": "a100"}
    for name, feature in features.items():
        stage.slurm.node(name, features=frozenset({feature}))
    return stage


@pytest.mark.parametrize(
    ("asks", "names"),
    [
        ({"features": "h100"}, ("n2",)),
        ({"features": "a100|h100"}, None),
        ({"features": "v100"}, None),
        ({"request": Request(tres_per_node="gres/gpu:4", req_nodes="n2")}, ("n2",)),
        ({"excludes": "n[1,7]"}, ("n2",)),
    ],
)
def test_what_a_user_asks_of_nodes_is_read_from_slurm(asks: dict[str, object], names: tuple[str, ...] | None) -> None:
    stage = scene()
    stage.jobs("wants", 4, mark=MINE + ";share=0;why=nodes;nodes=1", **asks)
    seen = stage.look()
    (entry,) = seen.pending
    assert seen.fitting.get(entry.job.constraint) == names
    assert bool(entry.job.constraint) == (names is not None)


def test_a_node_that_can_be_booted_for_a_feature_is_not_ruled_out() -> None:
    stage = scene()
    stage.slurm.machines[0] = fake_node("n1", "vc", available_features=frozenset({"h100"}))
    stage.jobs("wants", 4, mark=MINE, features="h100")
    (entry,) = stage.look().pending
    assert entry.job.constraint == ""


def test_who_may_stand_on_no_profiling_node_does_not_queue_for_one() -> None:
    stage = scene()
    stage.new |= {"mine", "other"}
    stage.jobs("mine", mark=MINE, features="a100")
    stage.jobs("other", mark=MINE, features="h100")
    parts = stage.cluster.observe().partitions
    assert [e.job.id for e in parts["prof"].pending] == ["mine"]
    assert [e.job.id for e in parts["vc"].pending] == ["other"]


def test_of_nodes_that_fit_equally_well_the_one_with_the_least_weight_comes_first() -> None:
    stage = scene()
    stage.slurm.machines[0] = fake_node("n1", "vc", weight=100)
    seen = stage.look()
    assert [node.name for node in seen.nodes] == ["n2", "n1"]
    assert consolidated(Ledger(seen), a_job("j", 1)) == at("n2:0")


def test_a_job_that_prefers_nodes_is_bound_to_none_and_shares_with_nobody() -> None:
    """Slurm alone knows what it prefers (``--prefer``); in slots it would be bound to the node of its slots."""
    raw = json.loads((ASSETS / "24.11/jobs.json").read_text())["jobs"][0]
    (job,) = jobs_from({"jobs": [{**raw, "prefer": "ib", "job_state": ["PENDING"]}]})
    assert "it prefers some nodes (--prefer)" in job.request.others


TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n3
SwitchName=root Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=s[0-1]
"""  # 24.11.5
BLOCKS = """\
BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4
"""


def test_a_tree_is_read_from_the_leaf_up() -> None:
    options = {"SchedulerParameters": "bf_interval=1,max_switch_wait=20", "TopologyPlugin": "topology/tree"}
    found = network_from(TREE, options)
    assert found == Network({"n1": ("s0", "root"), "n2": ("s0", "root"), "n3": ("s1", "root")}, False, 20.0)


def test_among_blocks_slurm_chooses_the_nodes_of_a_job_of_several() -> None:
    found = network_from(BLOCKS)
    assert (found.above["n3"], found.slurms, found.max_wait_s) == (("b2", "b[1-2]"), True, 300.0)


@pytest.mark.parametrize(
    ("text", "plugin", "slurms"),
    [
        ("", "topology/default", False),
        ("", "", False),
        ("", "topology/3d_torus", True),
        ("", "topology/tree", True),
        ("SwitchName=s0 Level=0 Nodes=n[", "topology/tree", True),
        ("SwitchName=s0 Level=x", "", True),
    ],
)
def test_what_cannot_be_read_leaves_the_choice_to_slurm(text: str, plugin: str, slurms: bool) -> None:
    assert network_from(text, {"TopologyPlugin": plugin}) == Network({}, slurms)


def test_nodes_that_stand_as_before_stay_the_same() -> None:
    node = fake_node("n1", "vc")
    assert with_network([node], NO_NETWORK)[0] is node
    (made,) = with_network([node], network_from(TREE))
    assert made.switches == ("s0", "root")
    assert with_network([made], network_from(TREE))[0] is made


def several(network: Network, **job: object) -> Scene:
    stage = Scene()
    stage.slurm.switches = network
    stage.jobs("wide", 8, mark=MINE, min_nodes=2, **job)
    return stage


def test_the_nodes_of_a_job_are_named_among_switches_and_not_among_blocks() -> None:
    for network, names in ((network_from(TREE), "n1,n2"), (network_from(BLOCKS), "")):
        stage = several(network)
        assert stage.start("wide", "n1:0-3 n2:0-3") is None
        assert stage.request("wide").req_nodes == names


def test_a_job_waits_for_switches_from_its_submission_as_long_as_its_user_and_slurm_allow() -> None:
    for said_s, until_s in ((0.0, 300.0), (120.0, 120.0), (900.0, 300.0)):
        stage = several(network_from(TREE), most_switches=1, switch_wait_s=said_s)
        (entry,) = stage.look().pending
        assert (entry.job.most_switches, entry.job.switches_until_s) == (1, entry.job.submit_s + until_s)
        assert stage.look().nodes[0].switches == ("s0", "root")


def test_slurm_does_not_wait_again_for_switches_that_lucid_has_waited_for() -> None:
    apart = replace(network_from(TREE), above={"n1": ("s0",), "n2": ("s1",)})
    for network, switches in ((apart, [1]), (network_from(TREE), [])):
        stage = several(network, most_switches=1)
        seen: list[int | None] = []
        update = stage.slurm.update
        stage.slurm.update = lambda job, changes, update=update, seen=seen: (  # type: ignore[method-assign]
            seen.append(changes.switches),
            update(job, changes),
        )[1]
        assert stage.start("wide", "n1:0-3 n2:0-3") is None
        assert [found for found in seen if found] == switches
