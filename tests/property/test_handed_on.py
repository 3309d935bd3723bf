"""What a look hands on from the look before is equal to what it would make anew, and nothing equal is made anew."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from examples import tried
from lucid.core.decision import EndProfiling, Keep, Requeue
from lucid.core.job import Pending, Running
from lucid.core.snapshot import Partition, changed_names, key_of
from lucid.places import Mode
from lucid.slurm.view.snapshot import Viewer, handed_on
from scenes.plans import part
from scenes.slurm import WHY, Scene

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
    jobs = [(name, e) for name, part in seen.items() for e in (*part.pending, *part.running)]
    if not jobs:
        return
    room, entry = rng.choice(jobs)
    if isinstance(entry, Pending):
        scene.start(entry.job.id, f"{rng.choice(['n1', 'n2'])}:0-{entry.job.gpus - 1}", room="vc")
    else:
        scene.do(
            entry.job.id, rng.choice([Requeue(WHY), Requeue(WHY, part=True), EndProfiling(WHY), Keep(WHY)]), room
        )


def node(scene: Scene, rng: random.Random) -> None:
    at = rng.randrange(len(scene.slurm.machines))
    one = scene.slurm.machines[at]
    change = rng.choice(
        [{"states": frozenset({"DOWN"})}, {"states": frozenset({"IDLE"})}, {"weight": rng.randrange(3)}]
    )
    scene.slurm.machines[at] = replace(one, **change, features=frozenset(rng.choice([{"fast"}, set()])))


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
    viewer._shown = None
    return viewer.partitions(scene.cluster.facts)


def parts(partition: Partition) -> dict[str, object]:
    return {one.name: getattr(partition, one.name) for one in fields(partition)}


def by_id(partition: Partition) -> dict[tuple[type, str], Pending | Running]:
    return {(type(e), e.job.id): e for e in (*partition.pending, *partition.running)}


def test_another_word_about_a_partition_is_another_partition() -> None:
    before = handed_on(None, {"vc": part((), quotas={"vc": 4})})
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
        assert {name: parts(one) for name, one in now.items()} == {
            name: parts(one) for name, one in made_anew(scene).items()
        }
        if before is not None:
            assert list(changed_names(key_of(before), now)) == [n for n in now if now[n] is not before[n]]
            for name in now:
                nothing_equal_is_another(before[name], now[name])


def nothing_equal_is_another(before: Partition, now: Partition) -> None:
    known, found = by_id(before), by_id(now)
    assert all(entry is known.get(key) or entry != known.get(key) for key, entry in found.items())
    for was, one in ((before.nodes, now.nodes), (before.pending, now.pending), (before.running, now.running)):
        assert was is one or was != one
    assert before is now or parts(before) != parts(now)
