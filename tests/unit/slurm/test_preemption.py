"""Slurm's preemption as Lucid reads it, and starts that preempt others, over a slurmctld in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from builders import at
from fake_slurm import fake_node
from lucid.config.load import Settings
from lucid.core.decision import Action, Start
from lucid.core.job import Yields
from lucid.errors import ActionRefused, Finding
from lucid.places import Mode
from lucid.setup.doctor_slurm import check_preemption, without_layers
from lucid.setup.site import Look, Site
from lucid.slurm.records.preemption import NO_PREEMPTION, Preemption, Qos, preemption_from
from lucid.slurm.records.request import Request
from scenes.slurm import WHY, Scene

PARTITIONS = """\
PartitionName=vc AllowGroups=ALL GraceTime=0 PriorityJobFactor=1 PriorityTier=10 OverSubscribe=NO PreemptMode=REQUEUE
PartitionName=scav GraceTime=30 PriorityJobFactor=1 PriorityTier=1 OverSubscribe=NO PreemptMode=REQUEUE
PartitionName=fixed GraceTime=0 PriorityTier=1 PreemptMode=OFF
PartitionName=dies GraceTime=0 PriorityTier=1 PreemptMode=CANCEL
PartitionName=naps GraceTime=0 PriorityTier=1 PreemptMode=GANG,SUSPEND
PartitionName=peer GraceTime=0 PriorityTier=10 PreemptMode=REQUEUE
"""
BY_TIER = preemption_from(
    {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "PreemptExemptTime": "00:00:00"}, PARTITIONS
)
BY_QOS = preemption_from(
    {"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE", "PreemptExemptTime": "00:05:00"},
    PARTITIONS,
    "normal||cluster||00:00:30\nhigh|normal,low|cluster||\nlow||cancel|1-00:00:01|\nurgent|low,high|cluster||\nstill||off||\n"
    "slow||cluster||00:00:31\nlast|slow|cluster||\n",
)


def scene(preempts: Preemption = BY_TIER, **scavengers: str) -> Scene:
    """``scavengers``: plain jobs of Slurm's, on these GPUs."""
    made = Scene()
    made.slurm.preempts = preempts
    made.slurm.machines = [fake_node(name, "vc", partitions=frozenset({"vc", "scav"})) for name in ("n1", "n2")]
    for name, where in scavengers.items():
        scavenger(made, name, where)
    return made


def scavenger(stage: Scene, name: str, where: str, **rest: object) -> None:
    stage.slurm.submit(name, "scav", 1, mark="other", held=True)
    gpus = sum(len(part.gpus) for part in at(where))
    stage.slurm.records[name] = replace(
        stage.slurm.records[name], state="RUNNING", held=False, start_s=stage.slurm.now, placement=at(where),
        gpus=gpus, reason="None", request=Request(tres_per_node=f"gres/gpu:{gpus}"), admin_comment="", **rest,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("partition", "changes", "expected"),
    [
        ("scav", {}, Yields()),
        ("scav", {"requeue": False}, Yields(ends=True)),
        ("scav", {"batch": False}, Yields(ends=True)),
        ("scav", {"comment": "lucid:elastic=1-8"}, Yields(saves=True)),
        ("dies", {"comment": "lucid:elastic=1-8"}, Yields(ends=True)),
        *((partition, {}, None) for partition in ("fixed", "naps", "peer", "vc", "gone")),
    ],
)
def test_by_tier_and_mode_of_its_partition(partition: str, changes: dict[str, Any], expected: Yields | None) -> None:
    stage = scene()
    scavenger(stage, "s", "n1:0", partition=partition, **changes)
    assert BY_TIER.yields(stage.slurm.records["s"], ("vc",)) == expected
    assert NO_PREEMPTION.yields(stage.slurm.records["s"], ("vc",)) is None


def test_times_are_read() -> None:
    config = {"PreemptType": "preempt/partition_prio", "KillWait": "5 sec", "MessageTimeout": "11 sec"}
    read = preemption_from({**config, "PreemptExemptTime": "1-00:00:02"}, PARTITIONS)
    assert (read.kill_wait_s, read.again_s, read.exempt_s, read.grace_s["scav"]) == (5.0, 16.0, 86402.0, 30.0)
    assert (BY_TIER.kill_wait_s, BY_TIER.again_s) == (30.0, 40.0)


def test_by_qos() -> None:
    assert BY_QOS.qos["low"] == Qos(frozenset(), "CANCEL", 86401.0)
    stage = scene()
    expected = {
        "normal": Yields(300.0, ("high",)),
        "low": Yields(86401.0, ("high", "urgent"), ends=True),
        "high": Yields(300.0, ("urgent",)),
        "urgent": None,
        "still": None,
    }
    for qos, yields in expected.items():
        scavenger(stage, qos, "n1:0", qos=qos)
        assert BY_QOS.yields(stage.slurm.records[qos], ("vc",)) == yields


def claim(stage: Scene, job_id: str, where: str, *victims: str) -> str | None:
    stage.cluster.observe()
    return stage.do(job_id, Start(at(where), (), preempts=victims, lost_gpu_s=(3600.0,) * len(victims)))


def words(stage: Scene, job_id: str) -> list[str]:
    return [f"{row.verb} {row.detail}" for row in stage.store.actions(job_id)]


def test_a_start_asks_for_the_very_gpus_and_each_story_says_who_went() -> None:
    stage = scene(a="n1:0-1", b="n1:2", c="n1:3")
    stage.jobs("own", 2, request=Request(tres_per_job="gres/gpu:2", tres_per_task="cpu=2"))
    assert claim(stage, "own", "n1:2-3", "b", "c") is None
    assert stage.request("own") == Request("gres/gpu:g2:1,gres/gpu:g3:1", "", "", "cpu=2", "n1")
    assert stage.slurm.records["own"].placement == at("n1:2-3")
    assert stage.mend() == []
    assert words(stage, "own") == ["start n1:2-3, preempting b c", "preempts b c for its GPUs"]
    rule = "of all that would do, it loses least (1.00 GPU-hours)"
    claimed = f"claimed by job own of vc, which gets n1:2-3: {rule}"
    assert (words(stage, "a"), words(stage, "b")) == ([], [claimed, "preempted for job own"])
    assert stage.mend() == []
    stage.slurm._set("own", state="PENDING", placement=(), restarts=1, reason="None", held=True)
    stage.mend()
    assert stage.request("own") == Request(tres_per_job="gres/gpu:2", tres_per_task="cpu=2")


def test_while_they_go_their_gpus_are_the_owners_and_the_start_is_not_taken_back() -> None:
    stage = scene(a="n1:0-1")
    stage.slurm.completing_s = 25.0
    stage.jobs("own late")
    assert claim(stage, "own", "n1:1", "a") is None
    seen = {entry.job.id: (entry.placement, entry.yields) for entry in stage.look().running}
    assert seen == {"own": (at("n1:1"), None), "a": (at("n1:0"), Yields(going=True))}
    assert stage.start("late", "n1:2") == "job late: waits until job own has started on node n1"
    stage.slurm.advance(24.0)
    assert stage.mend() == []
    stage.slurm.advance(2.0)
    assert stage.slurm.records["own"].state == "RUNNING"
    stage.mend()
    assert words(stage, "own")[-1] == "preempts a for its GPUs"
    assert [entry.job.id for entry in stage.look().running] == ["own"]


def test_no_gpu_is_claimed_by_address_where_slurm_chooses_those_of_another_claim() -> None:
    """Of one over nodes with different GPUs: it may get the very GPU (seen by the campaign)."""
    stage = scene(a="n1:0-1 n2:1", b="n1:2")
    stage.slurm.limits = lambda job: "Priority" if job.id == "wide" else ""
    stage.jobs("wide", 3, request=Request(tres_per_job="gres/gpu:3"), min_nodes=2)
    stage.jobs("one")
    assert claim(stage, "wide", "n1:0-1 n2:1", "a") is None
    assert not stage.request("wide").addressed
    assert claim(stage, "one", "n1:2", "b") == "job one: waits until job wide has started on node n1"


def barred_from_starting(stage: Scene, **own: Any) -> Scene:
    """``own`` has claimed n1:0 of ``a``, and Slurm does not start it."""
    stage.slurm.limits = lambda job: "Priority" if job.id == "own" else ""
    stage.jobs("own", **own)
    assert claim(stage, "own", "n1:0", "a") is None
    return stage


# Three tasks, of which the CPUs of one GPU hold two: with two CPUs in all it never started (seen by the campaign).
BY_GPU = Request("gres/gpu:1", cpus_per_tres="gres/gpu:2", tasks=3, num_cpus=3)


@pytest.mark.parametrize("asked", [Request("gres/gpu:1"), BY_GPU])
def test_those_that_never_go_are_waited_for_as_long_as_their_grace_time(asked: Request) -> None:
    stage = barred_from_starting(scene(a="n1:0"), request=asked)
    assert (stage.request("own").addressed, stage.request("own").num_cpus) == (True, asked.num_cpus)
    stage.slurm.advance(stage.settings.start_grace_s + 29.0)
    assert stage.mend() == []
    stage.slurm.advance(3.0)
    (said,) = stage.mend()
    assert "did not start" in said
    assert stage.request("own") == asked
    assert stage.slurm.records["own"].held


def test_it_is_told_where_slurm_chose_others() -> None:
    stage = barred_from_starting(scene(a="n1:0", b="n1:1"))
    stage.slurm._set("b", state="PENDING", placement=(), restarts=1)
    stage.slurm._set("own", state="RUNNING", placement=at("n1:1"), start_s=stage.slurm.now, reason="None")
    assert stage.mend() == ["job own: Slurm preempted b, which Lucid had not chosen"]
    assert words(stage, "own")[-1] == "preempts b for its GPUs; Lucid had chosen a"
    assert words(stage, "b") == ["preempted for job own"]
    assert {entry.job.id for entry in stage.look().running} == {"a", "own"}


def packed(*pair: str, own: Mapping[str, Any] | None = None, preempts: Preemption = BY_TIER, **rest: Any) -> Scene:
    """Both partitions in pack mode; scavengers of two GPUs that share n1:0-1, and ``own`` waits where asked."""
    stage = scene(preempts)
    stage.modes = {"scav": Mode.PACK, "vc": Mode.PACK}
    stage.restart()
    for name in pair:
        stage.slurm.submit(name, "scav", 2, **rest)
    stage.known(*pair)
    for name in pair:
        beside = pair[0] if name != pair[0] else None
        assert stage.do(name, Start(at("n1:0-1"), WHY, beside, slots=True), "scav") is None
    if own is not None:
        stage.jobs("own", **own)
    return stage


def begun(stage: Scene, job_id: str) -> list[str]:
    """The first word of each row of its story."""
    return [row.partition(" ")[0] for row in words(stage, job_id)]


def test_partitions_in_layers_have_the_nodes_in_common() -> None:
    stage = packed()
    scavenger(stage, "s", "n1:0")
    stage.jobs("own")
    stage.start("own", "n2:0")
    parts = stage.cluster.observe().partitions
    assert list(parts)[:2] == ["vc", "scav"]
    for part in (parts["vc"], parts["scav"]):
        assert [node.name for node in part.nodes] == ["n1", "n2"]
        assert {entry.job.id for entry in part.running} == {"s", "own"}
    seen = {entry.job.id: (entry.yields, entry.alone) for entry in parts["scav"].running}
    assert (seen["s"][0], seen["own"]) == (None, (None, True))


def test_without_layers_the_first_of_them_has_the_nodes() -> None:
    stage = packed()
    for preempts in (NO_PREEMPTION, BY_QOS, replace(BY_TIER, modes={**BY_TIER.modes, "scav": "SUSPEND"})):
        stage.slurm.preempts = preempts
        stage.restart()
        stage.jobs(f"j{len(stage.slurm.records)}")
        parts = stage.cluster.observe().partitions
        first = "vc" if preempts.by == "partition" else "scav"
        assert {name for name in ("vc", "scav") if parts[name].nodes} == {first if preempts.by != "qos" else "vc"}


def test_two_plans_of_one_turn_do_not_start_on_the_same_gpu() -> None:
    stage = packed()
    stage.jobs("own")
    stage.slurm.submit("low", "scav")
    stage.cluster.observe()
    starts = [Action(job, part, Start(at("n1:0"), WHY)) for job, part in (("own", "vc"), ("low", "scav"))]
    refused = [done.refused for done in stage.cluster.apply(starts)]
    assert refused == [None, "job low: a job of partition 'vc' starts on these GPUs"]


def test_who_shared_gpus_with_a_job_that_slurm_preempted_is_alone_and_told() -> None:
    stage = packed("a", "b", mark="lucid:vc=scav;held=1;v=2;node=gres/gpu:2")
    assert {e.job.id: e.partner for e in stage.look("scav").running} == {"a": "b", "b": "a"}
    stage.slurm._set("b", state="PENDING", placement=(), restarts=1, eligible_s=120.0)
    stage.mend()
    assert words(stage, "a")[-1] == "alone on its GPUs, since Slurm requeued its partner b"
    (left,) = stage.look("scav").running
    assert (left.job.id, left.partner, left.alone) == ("a", None, False)
    gone = stage.slurm.records["b"]
    assert (gone.held, gone.request.tres_per_node) == (True, "gres/gpu:2")
    assert gone.eligible_s == 120.0, "as Slurm has it for a job that it requeues"
    assert "resized" not in gone.comment, "no user changed it: it is Lucid's as before"


def test_a_job_is_let_to_gpus_in_slots_once_lucid_has_emptied_them() -> None:
    """While they are in slots, of jobs that complete, too, Slurm preempts whoever comes first: here ``c``."""
    stage = packed("a", "b", own={})
    scavenger(stage, "c", "n1:3")
    stage.slurm.completing_s = 0.4
    assert claim(stage, "own", "n1:0", "a", "b") is None
    own = stage.slurm.records["own"]
    assert (own.held, own.request.tres_per_node, own.request.req_nodes) == (True, "gres/gpu:g0:1", "n1")
    assert stage.cluster.settling
    assert stage.cluster.emptying
    for _ in range(2):  # a lucidd that is started anew knows it, too
        stage.restart()
        seen = {entry.job.id: entry for entry in stage.look().running}
        assert seen["own"].placement == at("n1:0")
        assert not stage.look().pending
        assert "waits" not in str(stage.cluster.aside())
        assert stage.mend() == []
        stage.slurm.advance(0.1)
    stage.slurm.advance(0.3)
    assert stage.start("a", "n2:0-1") is None
    assert [job_id for _, job_id, _ in stage.slurm.starts[-2:]] == ["own", "a"]
    assert stage.slurm.records["own"].placement == at("n1:0")
    assert stage.slurm.records["c"].state == "RUNNING"
    stage.mend()
    assert not stage.cluster.emptying
    assert begun(stage, "a") == ["start", "requeue", "claimed", "start", "preempted"]
    assert words(stage, "own") == ["start n1:0, preempting a b", "let in n1:0", "preempts a b for its GPUs"]


@pytest.mark.parametrize(("comment", "later_s"), [("lucid:held", 0.0), ("lucid:off", 0.0), ("", 400.0)])
def test_who_is_to_be_let_in_waits_again_where_its_user_wants_it_or_none_goes(comment: str, later_s: float) -> None:
    stage = packed("a", own={})
    stage.slurm.completing_s = 1e6
    assert claim(stage, "own", "n1:0", "a") is None
    stage.slurm._set("own", comment=comment)
    stage.slurm.advance(later_s)
    stage.mend()
    stage.mend()
    assert stage.request("own") == Request(tres_per_node="gres/gpu:1")
    assert stage.slurm.records["own"].state == ("RUNNING" if comment == "lucid:off" else "PENDING")
    assert ("own", at("n1:0")) not in [(entry.job.id, entry.placement) for entry in stage.look().running]


def test_no_job_of_slurms_is_let_go_onto_gpus_that_are_emptied_for_another() -> None:
    stage = packed("a", own={})
    stage.slurm.submit("plain", "scav", comment="lucid:off")
    stage.slurm.completing_s = 0.4
    assert claim(stage, "own", "n1:0", "a") is None
    for held in (True, False):
        stage.mend()
        stage.mend()
        assert stage.slurm.records["plain"].held is held
        stage.slurm.advance(0.5)
    assert (stage.slurm.records["own"].state, stage.slurm.records["plain"].state) == ("RUNNING", "RUNNING")


def test_where_another_job_has_come_to_the_emptied_gpus_it_is_planned_anew() -> None:
    """Let in, it would have Slurm preempt that one, which nobody has chosen."""
    stage = packed("a", own={})
    assert claim(stage, "own", "n1:0", "a") is None
    scavenger(stage, "new", "n1:0")
    assert "job own: another job has come to the GPUs that were emptied for it" in stage.mend()
    assert stage.slurm.records["new"].state == "RUNNING"
    assert [entry.job.id for entry in stage.look().pending] == ["own"]
    assert claim(stage, "own", "n1:0", "new") is None
    assert stage.slurm.records["own"].state == "RUNNING"


def test_where_a_victim_could_not_be_stopped_the_job_waits_and_has_its_request_back() -> None:
    stage = packed("a", own={})
    stop, claiming = len(stage.slurm.writes) + 1, lambda: stage.request("own").addressed
    stage.slurm.fails_at_write = lambda n: ActionRefused("no") if n == stop and claiming() else None
    assert claim(stage, "own", "n1:0", "a") is not None
    stage.slurm.fails_at_write = lambda n: None
    stage.mend()
    assert stage.slurm.records["a"].state == "RUNNING"
    assert stage.request("own") == Request(tres_per_node="gres/gpu:1")
    assert [entry.job.id for entry in stage.look().pending] == ["own"]


@pytest.mark.parametrize(
    ("changes", "preempts", "shares"),
    [
        ({}, BY_TIER, True),
        ({"requeue": False}, BY_TIER, False),
        ({}, replace(BY_TIER, grace_s={"scav": 31.0}), False),
        ({}, replace(BY_TIER, modes={**BY_TIER.modes, "scav": "CANCEL"}), False),
        ({"requeue": False}, NO_PREEMPTION, True),
        ({"requeue": False}, replace(BY_TIER, modes={**BY_TIER.modes, "scav": "OFF"}), True),
        ({"qos": "normal"}, BY_QOS, True),
        *(({"qos": qos}, BY_QOS, False) for qos in ("low", "slow")),
        ({"qos": "urgent", "requeue": False}, BY_QOS, True),
    ],
)
def test_only_jobs_lucid_can_requeue_share_gpus(changes: dict[str, Any], preempts: Preemption, shares: bool) -> None:
    """In slots Slurm would preempt the wrong ones."""
    stage = packed(preempts=preempts)
    stage.slurm.submit("a", "scav", **changes)
    stage.cluster.observe()
    job = stage.cluster._viewer.jobs.job(stage.slurm.records["a"], None, stage.cluster.facts)
    assert (job.shareable, "preempted" in job.whole_because) == (shares, not shares)


@pytest.mark.parametrize(
    ("asks", "story"),
    [
        ({"features": "a100"}, ["start", "claimed"]),
        ({"request": Request("gres/gpu:1", req_nodes="n1")}, ["start", "requeue", "claimed"]),
    ],
)
def test_lucid_requeues_nobody_for_a_job_whose_node_slurm_chooses(asks: dict[str, Any], story: list[str]) -> None:
    """It may start beside the victims, on a node where GPUs have come free meanwhile."""
    stage = packed("a", own=asks)
    assert claim(stage, "own", "n1:0", "a") is None
    assert begun(stage, "a") == story


def test_a_victim_does_not_start_again_at_once_where_it_was_stopped() -> None:
    """Its node would kill it: Job credential revoked (seen by the campaign, 0.4 s after its requeue)."""
    stage = packed("a", own={})
    assert claim(stage, "own", "n1:0", "a") is None
    stage.slurm.advance(1.0)
    stage.mend()
    again = Start(at("n1:2-3"), WHY, slots=True)
    assert "credential revoked" in (stage.do("a", again, "scav") or "")
    stage.slurm.advance(5.0)
    assert "credential revoked" not in (stage.do("a", again, "scav") or "")


def test_nobody_joins_a_victim_on_what_is_left_to_it() -> None:
    """It asked for two GPUs, goes, and one of them is the owner's: a partner would get the other alone."""
    stage = packed("a", preempts=replace(BY_TIER, grace_s={"scav": 31.0}))  # Slurm stops it
    assert [entry.alone for entry in stage.look("scav").running] == [False]
    barred_from_starting(stage)
    seen = {entry.job.id: (entry.placement, entry.alone) for entry in stage.look("scav").running}
    assert seen["a"] == (at("n1:1"), True)


@pytest.mark.parametrize(
    ("asks", "gpus", "nodes"),
    [
        ({"features": "a100"}, "gres/gpu:g0:1", "n1"),
        ({"features": "a100&ib"}, "gres/gpu:1", ""),
        ({"features": "a100|ib"}, "gres/gpu:1", ""),
        ({"request": Request("gres/gpu:1", req_nodes="n1")}, "gres/gpu:1", "n1"),
    ],
)
def test_a_job_that_names_features_and_no_nodes_has_an_address(asks: dict[str, Any], gpus: str, nodes: str) -> None:
    """Left to choose, Slurm preempts others, and Lucid gives their GPUs to the next in its queue."""
    stage = scene(a="n1:0-1")
    stage.slurm.machines = [replace(node, features=frozenset({"a100"})) for node in stage.slurm.machines]
    barred_from_starting(stage, **asks)
    assert (stage.request("own").tres_per_node, stage.request("own").req_nodes) == (gpus, nodes)


def told(mode: Mode, by: Preemption = BY_TIER, *partitions: str) -> list[Finding]:
    """What doctor says of a node in these."""
    nodes = [fake_node("n1", "vc", partitions=frozenset({"vc", *partitions}))]
    return [*check_preemption(Look(Settings(), {"vc": mode}, Site((24, 11), {}, nodes, (), (), preemption=by)))]


@pytest.mark.parametrize(
    ("other", "level", "words"),
    [
        ("scav", "ok", "jobs of vc claim GPUs of scav where none are free: those that lose least are requeued"),
        ("dies", "ok", "those that lose least are cancelled"),
        ("fixed", "warn", "jobs of fixed are not preempted (PreemptMode=OFF): they keep GPUs of vc"),
        ("naps", "bad", "jobs of naps are suspended for jobs of vc (PreemptMode), and keep their GPUs' memory"),
        ("peer", "", ""),
    ],
)
def test_doctor_says_what_is_served(other: str, level: str, words: str) -> None:
    found = told(Mode.PACK, BY_TIER, other)
    assert [item.level for item in found] == [level] * bool(level)
    assert all(words in item.what for item in found)
    assert not told(Mode.PACK) + told(Mode.ORDER, BY_TIER, other)


def test_doctor_on_qos() -> None:
    found = told(Mode.PACK, replace(BY_QOS, qos={**BY_QOS.qos, "naps": Qos(mode="SUSPEND")}))
    assert [item.level for item in found] == ["ok", "bad"]
    assert "jobs of QOS naps are suspended" in found[1].what


def test_nodes_that_lucid_plans_for_one_partition_only() -> None:
    stand = {"n1": ("vc", "scav"), "n2": ("vc", "peer"), "n3": ("vc",)}
    nodes = [fake_node(name, "vc", partitions=frozenset(partitions)) for name, partitions in stand.items()]
    names = ("vc", "scav", "peer")
    assert list(without_layers(names, nodes, BY_TIER)) == [("n2", ("vc", "peer"))]
    assert [name for name, _ in without_layers(names, nodes, NO_PREEMPTION)] == ["n1", "n2"]
