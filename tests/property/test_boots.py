"""Nodes that sleep, in random scenes: a whole lucidd over a slurmctld in memory."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

from daemon_site import Site
from examples import tried
from lucid.core.placement import NodeGpus


def _scene(rng: random.Random, folder: Path, restarts: str | None) -> Site:
    site = Site(folder, restarts=restarts)
    slurm = site.slurm
    slurm.boot_s = float(rng.choice([5, 40, 200]))
    slurm.completing_s = rng.choice([0.0, 3.0])
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
        profiled = [name for name in names if any(map(_is_profiling, started[name]))]
        assert {job_id for job_id, _ in stopped} <= set(profiled), "only profiling runs are ended"
        if restarts == "allowed":  # else jobs run there for whom their VC has no place
            assert "p1" not in [node for _, node in slurm.woken], "profiling wakes none"


def _is_profiling(place: tuple[NodeGpus, ...]) -> bool:
    return any(part.node == "p1" for part in place)
