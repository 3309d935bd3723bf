"""The live adapter over a slurmctld in memory: a cluster in a line, ``Scene()``, and jobs in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fake_slurm import FakeSampler, FakeSlurm, fake_node
from lucid.config.live import DaemonSettings, SlurmSettings
from lucid.core.decision import Action, EndProfiling, Keep, Requeue, Resize, Start
from lucid.core.job import Job
from lucid.core.reasons.queue import FairOrder
from lucid.core.snapshot import Partition
from lucid.places import Mode
from lucid.slurm.cluster import SlurmCluster
from lucid.slurm.records.request import Request
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore
from scenes.jobs import LIGHT, VC, at

WHY = (FairOrder(0.0),)
MINE = "lucid:vc=vc;held=1;v=2"
"""The mark of a job that is held for Lucid, as job_submit.lua writes it."""


class Scene:
    """One VC with nodes n1 and n2, a profiling partition with p1; jobs measured light may be joined."""

    def __init__(
        self, mps: bool = True, state: Path | None = None, slurm: FakeSlurm | None = None, **settings: Any
    ) -> None:
        """``state``: where lucidd's list of its jobs lies; without, there is none."""
        self.state = state
        self.mps = mps
        self.slurm = slurm or FakeSlurm([fake_node("n1", "vc"), fake_node("n2", "vc"), fake_node("p1", "prof")])
        self.store = SqliteStore(IN_MEMORY)
        self.token = self.store.take_lease("me", 0.0, 1e9).token
        self.modes = {"vc": Mode.PACK}
        self.new: set[str] = set()
        self.sampler = FakeSampler(self.slurm, {})
        self.settings = SlurmSettings(**settings)
        self.cluster = self.restart()

    def restart(self) -> SlurmCluster:
        """A new daemon on the same store and Slurm."""
        folder = {} if self.state is None else {"state_dir": str(self.state)}
        self.cluster = SlurmCluster(
            self.slurm, self.store, self.sampler, self.slurm, self.settings,
            DaemonSettings(partitions=dict(self.modes), profiling_partition="prof", mps=self.mps, **folder),
            lambda: self.modes, self.profiled, self.token, keeps_list=self.state is not None,
        )  # fmt: skip
        return self.cluster

    def profiled(self, job: Job) -> bool:
        """Jobs that the test named go through profiling first."""
        return job.id in self.new

    def jobs(self, names: str, gpus: int = 1, light: bool = False, **rest: Any) -> None:
        """Jobs that wait in the VC; of a ``light`` one a profile is on record before it runs."""
        for name in names.split():
            self.slurm.submit(name, "vc", gpus, **rest)
        if light:
            self.known(*names.split())

    def known(self, *names: str) -> None:
        for name in names:
            self.cluster.known.set(name, LIGHT)

    def look(self, name: str = "vc") -> Partition:
        return self.cluster.observe().partitions[name]

    def do(self, job_id: str, decision: Start | Requeue | Resize | EndProfiling | Keep, room: str = VC) -> str | None:
        self.cluster.observe()
        (done,) = self.cluster.apply([Action(job_id, room, decision)])
        return done.refused

    def start(self, job_id: str, where: str, beside: str | None = None, room: str = "vc") -> str | None:
        self.cluster.observe()
        return self.do(job_id, self.decided(job_id, where, beside, room), room)

    def decided(self, job_id: str, where: str, beside: str | None = None, room: str = "vc") -> Start:
        """In slots where the policy would say so: on one node of its VC, willing, and measured light."""
        parts = self.cluster.observe().partitions.values()
        found = [entry for part in parts for entry in part.pending if entry.job.id == job_id]
        slots = (
            room == "vc"
            and len(at(where)) == 1
            and any(entry.profile is LIGHT and entry.job.shareable and not entry.alone for entry in found)
        )
        return Start(at(where), WHY, beside, slots=slots or beside is not None)

    def measured(self, name: str, gpus: int = 1, **rest: Any) -> None:
        self.slurm.submit(name, "vc", gpus, **rest)
        self.sampler.profiles[name] = LIGHT

    def mend(self) -> list[str]:
        self.cluster.observe()
        return self.cluster.heal()

    def turns(self, seconds: float, every_s: float = 1.0) -> list[str]:
        until_s, told = self.slurm.now + seconds, list[str]()
        while self.slurm.now < until_s:
            told += self.mend()
            self.slurm.advance(every_s)
        return told

    def request(self, job_id: str) -> Request:
        return self.slurm.records[job_id].request
