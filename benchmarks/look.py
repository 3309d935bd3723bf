"""What a cycle of lucidd costs where one job has changed, over the reader of a real Slurm: the records of a slurmctld
in memory, the view made of them, predictions, plan and safety check. Slurm's commands, and the reading of what they
print, are not in it (``--only scale``)."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from lucid.config.live import DaemonSettings
from lucid.config.load import Settings
from lucid.core.decision import Action
from lucid.core.job import Job
from lucid.core.placement import NodeGpus
from lucid.core.ports import Applied
from lucid.core.snapshot import Snapshot
from lucid.daemon.policies import live_policy
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.cycle import Cycle
from lucid.places import Mode
from lucid.slurm.cluster import SlurmCluster
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore

__all__ = ["figures"]

_NODES, _GPUS, _WAITING, _VCS = 1_000, 8, 10_000, ("vc-a", "vc-b", "vc-c", "vc-d")
_SIZES = (1, 2, 4, 8)
_SETTINGS = Settings(daemon=DaemonSettings(partitions=dict.fromkeys(_VCS, Mode.PACK)))
_TRIES = 5


def _never(job: Job) -> bool:  # noqa: ARG001 - a Profiled
    """No job is profiled first."""
    return False


class _Watched(SlurmCluster):
    """Nothing is written: what a plan would start is to be decided in the cold cycle, too."""

    observed_s = 0.0

    def observe(self) -> Snapshot:
        began_s = time.process_time()
        found = super().observe()
        self.observed_s = time.process_time() - began_s
        return found

    def apply(self, actions: Sequence[Action]) -> list[Applied]:
        return [Applied(action) for action in actions]


class _Site:
    """Nodes full of jobs that share with nobody, and a queue."""

    def __init__(self) -> None:
        sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
        from fake_slurm import FakeSampler, FakeSlurm, fake_node

        self._rng = random.Random(1)
        machines = [fake_node(f"n{at:04}", _VCS[at % 4], _GPUS, cpus=96, mem_mib=1 << 20) for at in range(_NODES)]
        self.slurm = FakeSlurm(machines, now=1e9)
        self.slurm._schedule = lambda: None  # type: ignore[method-assign] # what runs is said here
        for at, node in enumerate(machines):
            gpus = _SIZES[at % 4]
            for first in range(0, _GPUS, gpus):
                here = (NodeGpus(node.name, ((1 << gpus) - 1) << first),)
                self._submit(gpus, _VCS[at % 4], state="RUNNING", held=False, placement=here, start_s=1e9 - 50.0)
        for _ in range(_WAITING):
            self.submit()
        store, daemon = SqliteStore(IN_MEMORY), _SETTINGS.daemon
        lease = store.take_lease("bench", self.slurm.now, 1e9)
        assert lease is not None
        self._make: Any = lambda: _Watched(
            self.slurm, store, FakeSampler(self.slurm, {}), self.slurm, _SETTINGS.slurm, daemon,
            lambda: daemon.partitions, _never, lease.token,
        )  # fmt: skip
        self.cluster, self.cycle = self._fresh()

    def _fresh(self) -> tuple[_Watched, Cycle]:
        cluster, predictor = self._make(), HistoryPredictor()
        live = live_policy(_SETTINGS, cluster.capabilities)
        return cluster, Cycle(cluster, predictor, live.make(predictor), live.settings)

    def _submit(self, gpus: int, vc: str, **rest: Any) -> str:
        job_id = str(len(self.slurm.records) + 1)
        mark = f"lucid:vc={vc};held=1;v=2;share=0"
        user, limit_s = f"user-{self._rng.randrange(300)}", 3600.0 * self._rng.randint(1, 72)
        return self.slurm.submit(job_id, vc, gpus, mark=mark, user=user, time_limit_s=limit_s, **rest)

    def submit(self) -> None:
        """One more waits."""
        self._submit(self._rng.choice(_SIZES), self._rng.choice(_VCS))

    def end(self) -> None:
        """One that runs ends."""
        name = next(name for name, one in self.slurm.records.items() if one.state == "RUNNING")
        ended = replace(self.slurm.records[name], state="COMPLETED", placement=(), end_s=self.slurm.now)
        self.slurm.records[name] = ended

    def cold(self) -> tuple[float, float]:
        """CPU ms of the look, and of the rest of a cycle, with nothing kept."""
        cluster, cycle = self._fresh()
        return _timed(cluster, cycle)

    def warm(self) -> tuple[float, float]:
        """The same of the cycle that goes on."""
        self.slurm.now += 2.0
        return _timed(self.cluster, self.cycle)


def _timed(cluster: _Watched, cycle: Cycle) -> tuple[float, float]:
    gc.collect()
    began_s = time.process_time()
    cycle.run()
    whole_s = time.process_time() - began_s
    return 1000.0 * cluster.observed_s, 1000.0 * (whole_s - cluster.observed_s)


def figures(runs: int) -> Iterator[Figure]:
    """The look and the rest, after a job came that waits and after one ended, beside a cycle with nothing kept."""
    site, tries = _Site(), max(runs, _TRIES)
    site.warm()
    for change, words in ((site.submit, "a job came that waits"), (site.end, "a job ended")):
        cold, warm = [], []
        for _ in range(tries):
            change()
            cold.append(site.cold())
            warm.append(site.warm())
        for at, what in enumerate(("look", "the rest of the cycle")):
            value, beside = min(one[at] for one in warm), min(one[at] for one in cold)
            yield Figure(f"{what}, {words}", value, "ms", tries, beside, "nothing kept")
