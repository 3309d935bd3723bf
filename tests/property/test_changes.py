"""What is followed equals what is made anew: changes, boots, partitions, plans handed on."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from daemon_site import Site
from examples import tried
from lucid.config.policy import BackfillSettings
from lucid.core.decision import Action, EndProfiling, Keep, PartitionPlan, Requeue, Start
from lucid.core.job import Pending
from lucid.core.placement import Placement
from lucid.core.snapshot import Changes, Partition, Snapshot
from lucid.orchestrator.capacity.timeline import Timeline
from lucid.orchestrator.policies import backfill
from lucid.orchestrator.policies.backfill import BackfillPolicy
from lucid.orchestrator.policies.waiting import WaitingJob
from lucid.places import Mode
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise
from lucid.slurm.view.snapshot import Viewer, handed_on
from scenes.crowded import some_crowded_vc
from scenes.jobs import a_job, nodes, runs
from scenes.plans import guess, part, snap
from scenes.slurm import WHY, Scene


def test_an_entry_of_which_anything_is_new_came_and_the_one_before_it_went() -> None:
    stays, waits, leaves, comes = (Pending(a_job(name, 1), 0.0) for name in ("stays", "waits", "leaves", "comes"))
    before, told = part((), (stays, waits, leaves)), replace(waits, barred="licences")
    after = part((), (stays, told, comes))
    assert after.since(before) == Changes((told, comes), (waits, leaves))
    assert before.since(after) == Changes((waits, leaves), (told, comes))
    after.follows(before, Changes((stays,), ()))
    assert replace(after, pending=before.pending).since(before) == Changes((), ()), "a copy was told nothing"


@pytest.mark.parametrize(("policy", "as_live"), [("lucid", False), ("srtf", False), ("lucid", True)])
def test_what_a_simulated_cluster_says_is_what_differs(
    policy: str, as_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = synthesise(preset("month-small").resized(150, None), 5)
    scenario = Scenario(trace, vc_layout("month-small"), semantics=Semantics.AS_LIVE if as_live else Semantics.HONEST)
    observe, before, told = SimulatedCluster.observe, dict[str, Partition](), 0

    def compared(self: SimulatedCluster) -> Snapshot:
        nonlocal told
        seen = observe(self)
        for name, now in seen.partitions.items():
            last = before.get(name, now)
            if last is not now:
                told += hasattr(now, "_last")
                said, found = now.since(last), replace(now).since(replace(last))
                assert set(map(id, said.came)) == set(map(id, found.came))
                assert set(map(id, said.went)) == set(map(id, found.went))
            before[name] = now
        return seen

    monkeypatch.setattr(SimulatedCluster, "observe", compared)
    simulate(scenario, policy)
    assert told > 200


def _scene(rng: random.Random, folder: Path, restarts: str | None) -> Site:
    site = Site(folder, restarts=restarts)
    slurm = site.slurm
    slurm.boot_s, slurm.completing_s = float(rng.choice([5, 40, 200])), rng.choice([0.0, 3.0])
    slurm.sleep(*rng.sample(["n1", "n2", "p1"], rng.randint(1, 3)))
    if rng.random() < 0.3:
        slurm.boot_fails = {rng.choice(["n1", "n2"])}
    bar = rng.random() < 0.3  # a limit that holds for a while
    slurm.limits = lambda job: "QOSMaxJobsPerUserLimit" if bar and slurm.now < 1100 and job.gpus == 2 else ""
    return site


@tried(100, 5)
def test_no_node_is_woken_on_which_then_nothing_starts(rng: random.Random) -> None:
    """Jobs of several sizes come while nodes sleep, boot, fail to boot and fall asleep again; limits bar some."""
    with TemporaryDirectory() as folder:
        restarts = rng.choice(["allowed", None])
        site = _scene(rng, Path(folder), restarts)
        slurm, names = site.slurm, [f"{i}" for i in range(1, rng.randint(2, 7))]
        for name in names:
            site.submit(name, rng.choice([1, 2, 4]), run_s=float(rng.choice([10, 100, 300])))
            site.turns(rng.choice([0.5, 2.0, 30.0]))
        site.turns(300.0, every_s=1.0)
        site.turns(3000.0, every_s=10.0)
        started = {name: [place for _, who, place in slurm.starts if who == name] for name in names}
        assert len(slurm.booted) <= len(slurm.woken)
        assert all(jobs for _, jobs in slurm.booted), "a job was there when each of them had booted"
        assert all(slurm.records[name].state == "COMPLETED" for name in names), "none is held for ever"
        stopped = [(job_id, what) for job_id, what in slurm.writes if what == "requeuehold"]
        profiled = [name for name in names if any(part.node == "p1" for place in started[name] for part in place)]
        assert {job_id for job_id, _ in stopped} <= set(profiled), "only profiling runs are ended"
        if restarts == "allowed":  # else jobs run there for whom their VC has no place
            assert "p1" not in [node for _, node in slurm.woken], "profiling wakes none"


NOW_S = 1000.0


class AtOnce(backfill._Plan):
    """Keeps GPUs for each job that waits when its turn comes, and looks for the place of every job."""

    def _fits_now(self, timeline: Timeline, row: WaitingJob, limit: float) -> bool:
        slot = timeline.find(row.entry.job, limit)
        return slot is not None and slot.step == 0

    def _owe(self, timeline: Timeline, row: WaitingJob, limit: float) -> None:
        slot = timeline.find(row.entry.job, limit)
        if slot is not None:
            timeline.book(row.entry.job, slot, limit)
            self._reserved += 1


def some_queue(rng: random.Random) -> Snapshot:
    """A few nodes, one of them down now and then, half taken; behind the first that waits a long line."""
    size, limited = rng.choice([2, 4, 8]), rng.random() < 0.4
    machines = [*nodes(rng.randint(1, 5), size, cpus=4 * size if limited else 0)]
    running = []
    for node in machines:
        first = 0
        while first < size and rng.random() < 0.8:
            last = min(first + rng.choice([0, 1, size - 1]), size - 1)
            limit_s = rng.choice([None, 1100.0, 1500.0, 1500.0, 3000.0, 9000.0])
            job = {"time_limit_s": limit_s, "cpus": rng.choice([0, 0, 3]) if limited else 0}
            running.append(runs(f"{node.name}-{first}", f"{node.name}:{first}-{last}", start_s=0.0, job=job))
            first = last + 1
    most = size * len(machines)
    waiting = []
    for number in range(rng.randint(1, 25)):
        gpus = min(rng.choice([1, 1, 1, 2, 2, size, 2 * size]), most + 1)
        limit_s = rng.choice([None, 50.0, 90.0, 100.0, 400.0, 500.0, 2000.0])
        cpus = rng.choice([0, 2, 8]) if limited else 0
        spread = rng.choice([1, 1, 1, 2])
        job = a_job(f"w{number}", gpus, float(number), time_limit_s=limit_s, cpus=cpus, min_nodes=spread)
        waiting.append(Pending(job, float(number)))
    room = part(machines, waiting, running)
    estimates = {e.job.id: guess(rng.choice([10.0, 400.0, 4000.0])) for e in (*waiting, *running)}
    return snap(NOW_S, room, predictions=estimates)


def decided(snapshot: Snapshot, rules: BackfillSettings) -> PartitionPlan:
    (made,) = BackfillPolicy(rules).plan(snapshot).partitions.values()
    return made


@tried(300)
def test_gpus_kept_only_where_somebody_asks_are_those_kept_at_once(rng: random.Random) -> None:
    """Every decision with its reasons, and the starts alone as the shadow asks for them; also where nodes close, are
    asleep, or jobs give way."""
    snapshot, rules = rng.choice([some_queue, some_crowded_vc])(rng), BackfillSettings(depth=rng.choice([1, 2, 100]))
    quick = decided(snapshot, rules)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backfill, "_Plan", AtOnce)
        plain = decided(snapshot, rules)
    assert quick.decisions == plain.decisions
    assert list(quick.decisions) == list(plain.decisions)
    assert (quick.actions, quick.wake_s) == (plain.actions, plain.wake_s)
    (partition,) = snapshot.partitions.values()
    alone = BackfillPolicy(rules).starts(partition, snapshot)  # these do not say which nodes have to boot
    assert [*map(_where, alone)] == [*map(_where, quick.actions)]


def _where(action: Action) -> tuple[str, Placement, tuple[str, ...]]:
    start = action.decision
    assert isinstance(start, Start)
    return action.job_id, start.placement, start.preempts


Step = Callable[[Scene, random.Random], object]


def submit(scene: Scene, rng: random.Random) -> None:
    name = f"j{len(scene.slurm.records)}"
    if rng.random() < 0.3:
        scene.new.add(name)
    make = scene.measured if rng.random() < 0.5 else scene.jobs
    make(name, rng.choice([1, 2, 4]), features=rng.choice(["", "", "fast"]))


def decide(scene: Scene, rng: random.Random) -> None:
    """Something, of whichever job: Slurm refuses what cannot be."""
    seen = scene.cluster.observe().partitions
    jobs = [(name, e) for name, part in seen.items() for e in part.listed()]
    if not jobs:
        return
    room, entry = rng.choice(jobs)
    decision = rng.choice([Requeue(WHY), Requeue(WHY, part=True), EndProfiling(WHY), Keep(WHY)])
    if isinstance(entry, Pending):
        scene.start(entry.job.id, f"{rng.choice(['n1', 'n2'])}:0-{entry.job.gpus - 1}", room="vc")
    else:
        scene.do(entry.job.id, decision, room)


def node(scene: Scene, rng: random.Random) -> None:
    at = rng.randrange(len(scene.slurm.machines))
    states = {"states": frozenset({rng.choice(["DOWN", "IDLE"])})}
    change = rng.choice([states, {"weight": rng.randrange(3)}])
    features = frozenset(rng.choice([{"fast"}, set()]))
    scene.slurm.machines[at] = replace(scene.slurm.machines[at], **change, features=features)


def cancel(scene: Scene, rng: random.Random) -> None:
    if scene.slurm.records:
        name, one = rng.choice(list(scene.slurm.records.items()))
        scene.slurm.records[name] = replace(one, state="CANCELLED", end_s=scene.slurm.now, placement=())


STEPS: tuple[Step, ...] = (
    submit, submit, decide, decide, node, cancel,
    lambda scene, rng: scene.slurm.advance(rng.choice([0.0, 1.0, 30.0, 400.0])),
    lambda scene, rng: scene.modes.update(vc=rng.choice([Mode.PACK, Mode.PACK, Mode.OBSERVE, Mode.ORDER])),
    lambda scene, rng: scene.mend(),
    lambda scene, rng: scene.restart(),
)  # fmt: skip


def made_anew(scene: Scene) -> Mapping[str, Partition]:
    viewer: Viewer = copy.copy(scene.cluster._viewer)
    viewer._shown = {}
    return viewer.partitions(scene.cluster.facts)


def parts(partition: Partition) -> dict[str, object]:
    return {one.name: getattr(partition, one.name) for one in fields(partition)}


def test_another_word_about_a_partition_is_another_partition() -> None:
    before = handed_on({}, {"vc": part((), quotas={"vc": 4})})
    for but in ({"quotas": {"vc": 8}}, {"acting": False}, {"profiling": True}, {"fitting": {"fast": ("n1",)}}):
        made = replace(before["vc"], **but)  # type: ignore[arg-type]
        assert handed_on(before, {"vc": made})["vc"] is not before["vc"], but
    assert handed_on(before, {"vc": replace(before["vc"])})["vc"] is before["vc"]


@tried(60)
def test_what_is_handed_on_is_what_would_be_made_anew(rng: random.Random) -> None:
    scene = Scene()
    for _ in range(25):
        rng.choice(STEPS)(scene, rng)
        before = scene.cluster._viewer._shown
        now = scene.cluster.observe().partitions
        anew = made_anew(scene)
        assert {name: parts(one) for name, one in now.items()} == {name: parts(one) for name, one in anew.items()}
        for name in before:
            nothing_equal_is_another(before[name], now[name])


def nothing_equal_is_another(before: Partition, now: Partition) -> None:
    known, found = ({(type(e), e.job.id): e for e in room.listed()} for room in (before, now))
    assert all(entry is known.get(key) or entry != known.get(key) for key, entry in found.items())
    for was, one in ((before.nodes, now.nodes), (before.pending, now.pending), (before.running, now.running)):
        assert was is one or was != one
    assert before is now or parts(before) != parts(now)
