"""What samplers say of jobs that do nothing, in the snapshot of a live cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lucid.adapters.gpu.profile_files import read_summary, write_summary
from lucid.adapters.gpu.profiles import ProfileFolder
from lucid.config import IdleHostSettings
from lucid.core.decision import Requeue
from lucid.core.job import Idle, Running
from lucid.core.readings import GpuProcess, GpuReading
from lucid.core.reason import HostIdle
from lucid.node.host import Host
from lucid.node.jobs import JobSpec
from lucid.node.sampler import Sampler
from lucid.profiler.shares import HostUse
from lucid.profiler.summary import Summary
from scenes.slurm import Scene
from unit.node.test_node_sampler import Given, Readings


def a_scene() -> Scene:
    scene = Scene()
    scene.hosts = IdleHostSettings(host=True, after_s=100.0)
    scene.restart()
    scene.jobs("a b", light=True)
    assert scene.start("a", "n1:0") is None
    scene.slurm.advance(200.0)
    return scene


def seen(scene: Scene, job_id: str) -> Running | None:
    return next((entry for entry in scene.look().running if entry.job.id == job_id), None)


def test_a_job_is_idle_by_fresh_words_about_its_present_run() -> None:
    scene = a_scene()
    now_s, start_s = scene.slurm.now, scene.slurm.records["a"].start_s
    idle = Idle(now_s - 150.0, 2000.0)
    told = {
        "fresh": ((idle, now_s - 60.0), idle),
        "for too short": ((Idle(now_s - 50.0, 0.0), now_s), None),
        "stale": ((idle, now_s - 200.0), None),
        "of the run before": ((Idle(start_s - 10.0, 0.0), now_s), None),
    }
    for words, (said, expected) in told.items():
        scene.sampler.idles["a"] = said
        entry = seen(scene, "a")
        assert entry is not None
        assert entry.idle == expected, words
    scene.hosts = None
    scene.restart()
    scene.sampler.idles["a"] = (idle, now_s)
    assert (entry := seen(scene, "a"))
    assert entry.idle is None, "where no job is a host"


@pytest.mark.parametrize("again", [True, False])
def test_a_guest_is_known_as_one_by_the_next_lucidd_and_not_after_it_left(again: bool) -> None:
    scene = a_scene()
    scene.sampler.idles["a"] = (Idle(scene.slurm.now - 150.0, 2000.0), scene.slurm.now)
    assert scene.do("b", replace(scene.decided("b", "n1:0", "a"), visits=True)) is None
    scene.slurm.advance(20.0)
    scene.restart()
    assert (guest := seen(scene, "b"))
    assert (guest.visits, guest.partner) == ("a", "a")
    assert scene.do("b", Requeue((HostIdle("a", None),), part=True, again=again)) is None
    scene.slurm.advance(60.0)
    scene.restart()
    (waits,) = (entry for entry in scene.look().pending if entry.job.id == "b")
    assert waits.alone is not again
    assert scene.start("b", "n2:0") is None
    scene.slurm.advance(20.0)
    assert (again := seen(scene, "b"))
    assert again.visits == ""


class Cpus(Host):
    busy = 0.0

    def use(self, job: str, number: str, pids: object, now_s: float) -> HostUse:
        return HostUse(self.busy if job == "a" else 1.0, 4)


def test_a_host_that_wakes_is_told_of_at_once(tmp_path: Path) -> None:
    profiles, source, cpus = tmp_path / "profiles", Readings(), Cpus()
    profiles.mkdir()
    sampler = Sampler(source, tmp_path / "spool", profiles, "n1", owners=Given(), host=cpus)
    a, b = JobSpec("a", ("GPU-0",)), JobSpec("b", ("GPU-0",))
    source.now = {"GPU-0": GpuReading("GPU-0", 0.0, 0.0, 3000.0, processes=(GpuProcess(100, 3000.0),))}
    for second in range(1000):
        sampler.tick({"a": a}, float(second))
    pair = (GpuProcess(100, 3000.0), GpuProcess(200, 5000.0))
    source.now = {"GPU-0": GpuReading("GPU-0", 90.0, 40.0, 8000.0, processes=pair)}
    for second in range(1000, 1100):
        sampler.tick({"a": a, "b": b}, float(second))
    folder = ProfileFolder(profiles)
    folder.new()
    assert folder.idle("a") == (Idle(1.0, 3000.0), pytest.approx(1099.0, abs=61.0))
    assert not (profiles / "health").exists()
    cpus.busy = 1.0
    for second in range(1100, 1103):
        sampler.tick({"a": a, "b": b}, float(second))
    folder.new()
    assert folder.idle("a") is None
    assert (profiles / "health").is_dir(), "the change of its time wakes lucidd"
    sampler.close()


def test_a_job_of_several_nodes_is_not_idle_by_one_of_them(tmp_path: Path) -> None:
    for node in ("n1", "n2"):
        write_summary(tmp_path, Summary("7", node, (), 0.0, 9.0, 9, idle=Idle(1.0, 5.0)), several_nodes=True)
    folder = ProfileFolder(tmp_path)
    folder.new()
    assert folder.idle("7") is None
    (tmp_path / "7@n2.json").unlink()
    folder.new()
    assert folder.idle("7") == (Idle(1.0, 5.0), 9.0)
    assert read_summary(tmp_path / "7@n1.json").idle == Idle(1.0, 5.0)
