"""What every ``Cluster`` keeps to, simulated or live. A new adapter joins by adding its stage to ``STAGES``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import pytest

from builders import LIGHT, VC, a_cluster, a_trace, at, by, elastic, nodes
from fake_commands import NamedClient
from fake_slurm import FakeSampler, FakeSlurm, fake_node
from lucid.config.live import DaemonSettings, ElasticSettings, SlurmSettings
from lucid.core.decision import Action, EndProfiling, Keep, Regroup, Requeue, Resize, Start
from lucid.core.job import Stage
from lucid.core.ports import Applied, Cluster
from lucid.core.prediction import StageTimes
from lucid.core.reasons.queue import FairOrder
from lucid.core.snapshot import Partition
from lucid.orchestrator.policies.muri.interleave import PUBLISHED
from lucid.places import Mode
from lucid.simulator.cluster.truth import Interleaving
from lucid.slurm.cluster import SlurmCluster
from lucid.slurm.commands import CommandClient
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore

WHY = (FairOrder(0.0),)


class Scene(Protocol):
    """A cluster with VC ``vc`` (nodes n1 and n2 of 4 GPUs) and VC ``other`` (node o1), the profiling partition
    (node p1), and pending: a and b (1 GPU) and c (2 GPUs) in vc, o in other, d in profiling. All of a, b and c
    have a profile by the time that they have run 100 s. Where the cluster can resize: also e (2 GPUs, takes
    1 to 4) in VC ``stretch`` (node s1). Where it can interleave: also x, y and z (2 GPUs each, whose users opted in)
    and r (2 GPUs, rigid) in VC ``turns`` (node t1)."""

    cluster: Cluster
    profiling: str

    def pass_time(self, seconds: float) -> None: ...


class Simulated:
    def __init__(self) -> None:
        light = (by(name, gpus, 5000.0, profile=LIGHT) for name, gpus in zip("abcd", (1, 1, 2, 1), strict=True))
        turns = (replace(by(name, 2, 5000.0, vc="turns"), stages=stages) for name, stages in STAGED.items())
        others = (by("o", vc="other"), elastic("e", 2, vc="stretch"), by("r", 2, 5000.0, vc="turns"))
        simulated = a_cluster(
            a_trace(*light, *turns, *others),
            {VC: nodes(2, 4), **{vc: nodes(1, 4, prefix=vc[0]) for vc in ("other", "stretch", "turns")}},
            profiled=lambda job: job.id == "d",
            profiling_nodes=nodes(1, 4, prefix="p"),
            interleaving=Interleaving(3, "best", PUBLISHED),
        )
        simulated.advance(0.0)
        self.profiling = "profiling"
        self.cluster: Cluster = simulated
        self.pass_time = lambda seconds: simulated.advance(simulated.now_s() + seconds)


class Looking(SlurmCluster):
    """The live adapter acts on what its last look showed, as the cycle does; these tests act at any moment."""

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        self.observe()
        return super().apply(actions)


class Live:
    """The live adapter over a slurmctld in memory. Every job starts in slots, so that it may be joined at once and
    stands on exactly the GPUs that were decided."""

    client: Callable[[FakeSlurm], CommandClient] = staticmethod(lambda slurm: slurm)

    def __init__(self) -> None:
        slurm = FakeSlurm([fake_node(name, room, slots=frozenset({4})) for name, room in NODES.items()])
        for name, gpus, home in (("a", 1, VC), ("b", 1, VC), ("c", 2, VC), ("d", 1, VC), ("o", 1, "other")):
            slurm.submit(name, home, gpus)
        for name in "xyzr":
            slurm.submit(name, "turns", 2, mark="lucid:vc=turns;turns=1" if name != "r" else "")
        modes = dict.fromkeys((VC, "other", "turns"), Mode.PACK)
        store = SqliteStore(IN_MEMORY)
        lease = store.take_lease("test", 0.0, 1e9)
        assert lease is not None
        self.profiling = "prof"
        reports = ElasticSettings(reports_dir="/nonexistent")
        self.cluster: Cluster = Looking(
            self.client(slurm), store, FakeSampler(slurm, dict.fromkeys("abcd", LIGHT)), slurm, SlurmSettings(),
            DaemonSettings(partitions=modes, profiling_partition="prof", elastic=reports),
            lambda: modes, lambda job: job.id == "d", lease.token, interleaves=lambda _: True,
        )  # fmt: skip
        self.pass_time = slurm.advance


class LiveByCommands(Live):
    """The same by Slurm's commands: words, JSON and all."""

    client = staticmethod(NamedClient)


NODES = {"n1": VC, "n2": VC, "o1": "other", "p1": "prof", "t1": "turns"}
STAGED = {
    name: StageTimes(tuple(9.0 if i == at else 0.5 for i in range(3)), 10.0, start_s=1.0)
    for at, name in enumerate("xyz")
}

STAGES: list[Callable[[], Scene]] = [Simulated, Live, LiveByCommands]


@pytest.fixture(params=STAGES, ids=lambda factory: factory.__name__)
def scene(request: pytest.FixtureRequest) -> Scene:
    return request.param()  # type: ignore[no-any-return]


def room(scene: Scene, name: str = VC) -> Partition:
    return scene.cluster.observe().partitions[name]


def waiting(scene: Scene, name: str = VC) -> list[str]:
    return [e.job.id for e in room(scene, name).pending]


def at_work(scene: Scene, name: str = VC) -> list[str]:
    return [e.job.id for e in room(scene, name).running]


def start(scene: Scene, job_id: str, where: str, beside: str | None = None, name: str = VC) -> Applied:
    (done,) = scene.cluster.apply([Action(job_id, name, Start(at(where), WHY, beside, slots=True))])
    return done


def test_only_a_job_that_started_in_slots_may_be_joined(scene: Scene) -> None:
    on_whole = Action("b", VC, Start(at("n2:0"), WHY, slots=False))
    assert not start(scene, "a", "n1:0").refused
    assert [done.refused for done in scene.cluster.apply([on_whole])] == [None]
    scene.pass_time(5.0)
    assert {e.job.id: e.alone for e in room(scene).running} == {"a": False, "b": True}


def test_looking_changes_nothing_and_a_view_shares_with_the_one_before_what_did_not_change(scene: Scene) -> None:
    first, second = scene.cluster.observe(), scene.cluster.observe()
    assert first.now_s == second.now_s
    assert dict(first.partitions) == dict(second.partitions)
    assert not second.ended
    names = [n.name for p in first.partitions.values() for n in p.nodes]
    assert len(names) == len(set(names)), "every node stands in one partition"
    start(scene, "a", "n1:0")
    before, after = second.partitions, scene.cluster.observe().partitions
    assert after["other"] is before["other"]
    assert after[scene.profiling] is before[scene.profiling]
    assert after[VC] is not before[VC]
    assert [e.job.id for e in before[VC].pending] == ["a", "b", "c"], "as they came"
    assert not before[VC].running


def test_a_started_job_runs_on_exactly_those_gpus_and_waits_again_once_requeued(scene: Scene) -> None:
    assert start(scene, "c", "n2:1,3").refused is None
    (entry,) = room(scene).running
    assert (entry.job.id, entry.placement, entry.stage, entry.partner) == ("c", at("n2:1,3"), Stage.MAIN, None)
    assert waiting(scene) == ["a", "b"]
    scene.pass_time(50.0)
    assert [done.refused for done in scene.cluster.apply([Action("c", VC, Requeue(WHY))])] == [None]
    again = room(scene).pending[-1]
    assert (again.job.id, again.ran_s, again.restarts, again.alone) == ("c", 50.0, 1, False)
    assert not at_work(scene)


def test_jobs_of_a_pair_know_of_each_other_until_one_is_parted_which_is_marked(scene: Scene) -> None:
    start(scene, "a", "n1:0")
    start(scene, "b", "n1:1")
    scene.pass_time(100.0)
    scene.cluster.apply([Action("b", VC, Requeue(WHY))])
    assert start(scene, "b", "n1:0", beside="a").refused is None
    assert {e.job.id: e.partner for e in room(scene).running} == {"a": "b", "b": "a"}
    scene.cluster.apply([Action("b", VC, Requeue(WHY, part=True))])
    assert [e.partner for e in room(scene).running] == [None]
    assert room(scene).pending[-1].alone


def test_a_profiled_job_is_released_to_its_vc_with_its_profile(scene: Scene) -> None:
    start(scene, "d", "p1:0", name=scene.profiling)
    assert room(scene, scene.profiling).running[0].stage is Stage.PROFILE
    scene.pass_time(100.0)
    scene.cluster.apply([Action("d", scene.profiling, EndProfiling(WHY))])
    assert room(scene).pending[-1].profile is not None
    assert waiting(scene)[-1] == "d"


def test_a_job_that_waits_for_profiling_may_be_released(scene: Scene) -> None:
    scene.cluster.apply([Action("d", scene.profiling, EndProfiling(WHY))])
    assert waiting(scene)[-1] == "d"
    assert not waiting(scene, scene.profiling)


def test_a_kept_job_goes_on_in_place(scene: Scene) -> None:
    start(scene, "d", "p1:0", name=scene.profiling)
    scene.pass_time(100.0)
    scene.cluster.apply([Action("d", scene.profiling, Keep(WHY))])
    (entry,) = room(scene, scene.profiling).running
    assert (entry.job.id, entry.stage) == ("d", Stage.MAIN)


def test_what_leaves_makes_room_for_what_starts_in_the_same_call(scene: Scene) -> None:
    start(scene, "a", "n1:0")
    done = scene.cluster.apply([Action("b", VC, Start(at("n1:0"), WHY, slots=True)), Action("a", VC, Requeue(WHY))])
    assert [item.refused for item in done] == [None, None]
    assert at_work(scene) == ["b"]


def test_an_elastic_job_goes_on_elsewhere_with_what_it_has_reached_and_keeps_it_when_preempted(scene: Scene) -> None:
    if "stretch" not in scene.cluster.observe().partitions:
        pytest.skip("this scene has no jobs to resize")
    assert start(scene, "e", "s1:0-1", name="stretch").refused is None
    scene.pass_time(100.0)
    (before,) = room(scene, "stretch").running
    (done,) = scene.cluster.apply([Action("e", "stretch", Resize(at("s1:1-3"), WHY))])
    assert done.refused is None
    (entry,) = room(scene, "stretch").running
    assert (entry.placement, entry.gpus, entry.restarts, entry.start_s) == (at("s1:1-3"), 3, 1, before.start_s)
    assert entry.progress.epochs == before.progress.epochs > 0
    scene.pass_time(50.0)
    reached = room(scene, "stretch").running[0].progress.epochs
    assert reached > entry.progress.epochs
    scene.cluster.apply([Action("e", "stretch", Requeue(WHY))])
    assert room(scene, "stretch").pending[0].progress.epochs == reached


def groups(scene: Scene) -> dict[str, set[str]]:
    return {entry.job.id: set(entry.group) for entry in room(scene, "turns").running}


def regrouped(*ids: str) -> list[Action]:
    return [Action(name, "turns", Regroup(at("t1:0-1"), WHY, ids)) for name in "xy"]


def test_jobs_of_a_group_hold_the_same_gpus_one_joins_without_a_stop_and_one_leaves(scene: Scene) -> None:
    starts = [Action(name, "turns", Start(at("t1:0-1"), WHY, group=("x", "y"), slots=True)) for name in "xy"]
    assert [done.refused for done in scene.cluster.apply(starts)] == [None] * 2
    scene.pass_time(50.0)
    now = {entry.job.id: entry for entry in room(scene, "turns").running}
    joins = Action("z", "turns", Start(at("t1:0-1"), WHY, group=("x", "y", "z"), slots=True))
    assert [done.refused for done in scene.cluster.apply([*regrouped("x", "y", "z"), joins])] == [None] * 3
    scene.pass_time(5.0)
    assert groups(scene) == {name: {"x", "y", "z"} for name in "xyz"}
    then = {entry.job.id: entry for entry in room(scene, "turns").running}
    assert all(then[name].start_s == now[name].start_s for name in "xy")
    assert {(entry.placement, entry.partner) for entry in then.values()} == {(at("t1:0-1"), None)}
    scene.cluster.apply([Action("z", "turns", Requeue(WHY)), *regrouped("x", "y")])
    scene.pass_time(5.0)
    assert groups(scene) == {"x": {"x", "y"}, "y": {"x", "y"}}
    assert "z" in waiting(scene, "turns")


REFUSED = {
    "start a job that is not there": Action("ghost", VC, Start(at("n1:0"), WHY, slots=True)),
    "requeue a job that is not there": Action("ghost", VC, Requeue(WHY)),
    "start a job that runs": Action("c", VC, Start(at("n1:0-1"), WHY, slots=True)),
    "requeue a job that waits": Action("a", VC, Requeue(WHY)),
    "keep a job that waits": Action("a", VC, Keep(WHY)),
    "release a job that is at home": Action("a", VC, EndProfiling(WHY)),
    "resize a job that is not elastic": Action("c", VC, Resize(at("n2:0"), WHY)),
    "resize a job that waits": Action("a", VC, Resize(at("n1:0"), WHY)),
    "start beside a job that is not there": Action("a", VC, Start(at("n1:0"), WHY, "ghost", slots=True)),
    "regroup a job that waits": Action("a", VC, Regroup(at("n1:0"), WHY)),
    "start beside a job that waits": Action("a", VC, Start(at("n1:0"), WHY, "b", slots=True)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_reported_and_the_rest_goes_on(scene: Scene, name: str) -> None:
    start(scene, "c", "n2:0-1")
    rest = Action("o", "other", Start(at("o1:0"), WHY, slots=True))
    done = scene.cluster.apply([REFUSED[name], rest])
    assert [item.action for item in done] == [REFUSED[name], rest]
    assert REFUSED[name].job_id in (done[0].refused or "")
    assert done[1].refused is None
    assert at_work(scene, "other") == ["o"]
    assert (waiting(scene), at_work(scene)) == (["a", "b"], ["c"])
