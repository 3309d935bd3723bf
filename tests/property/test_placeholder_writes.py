"""Placeholders on GPUs that are out: every command counts for both caps, and none ends for want of a turn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fake_slurm import FakeSlurm, fake_node
from lucid.config.live import DaemonSettings, SlurmSettings
from lucid.core.gpu import GpuOut
from lucid.core.placement import NodeGpus
from lucid.errors import ActionRefused
from lucid.places import Mode
from lucid.slurm.act.placeholders import NAME, Placeholders
from lucid.slurm.act.write import JobWriter
from lucid.slurm.client import HeldGpu
from lucid.slurm.view.observation import Observation

LASTS_S, CYCLE_S, CAP = 900.0, 7.0, 8


class Slurm:
    """What becomes of placeholders: those of some nodes are never renewed, begun or ended."""

    def __init__(self, gpus: int, refuses: int, running: bool) -> None:
        self.fake = FakeSlurm([fake_node(f"n{i}", "vc") for i in range(gpus)], now=10000.0)
        self.refused = {f"n{i}" for i in range(refuses)}
        self.sent: list[str] = []
        self.jobs: dict[str, Any] = {}
        for i in range(gpus if running else 0):
            self.begin(f"n{i}")

    def begin(self, node: str) -> str:
        fake = self.fake
        job_id = fake.submit(str(len(fake.records) + 1), "vc")
        self.jobs[job_id] = replace(
            fake.records[job_id], state="RUNNING", name=f"{NAME}{node}:0", user="lucid", uid=990, start_s=fake.now,
            time_limit_s=LASTS_S, placement=(NodeGpus(node, 1),), admin_comment="",
        )  # fmt: skip
        return job_id

    def who(self) -> tuple[int, str]:
        return 990, "lucid"

    def _send(self, node: str) -> None:
        self.sent.append(node)
        if node in self.refused:
            raise ActionRefused("no")

    def hold_gpu(self, held: HeldGpu) -> str:
        self._send(held.node)
        return self.begin(held.node)

    def renew_held_gpu(self, job_id: str, limit_min: int, after: object) -> None:
        job = self.jobs[job_id]
        self._send(job.placement[0].node)
        self.jobs[job_id] = replace(job, time_limit_s=limit_min * 60.0)

    def cancel(self, job_id: str) -> None:
        self._send(self.jobs[job_id].placement[0].node)
        del self.jobs[job_id]

    def ends(self) -> list[str]:
        """Those whose time is up."""
        over = [i for i, job in self.jobs.items() if self.fake.now >= job.start_s + job.time_limit_s]
        return [self.jobs.pop(i).placement[0].node for i in over]


@settings(max_examples=8)
@given(
    gpus=st.integers(1, 40),
    refuses=st.integers(0, 12),
    running=st.booleans(),
    wanted_until=st.integers(0, 200),
    spent=st.integers(0, 6),
)
def test_every_command_counts_and_none_ends_for_want_of_a_turn(
    gpus: int, refuses: int, running: bool, wanted_until: int, spent: int
) -> None:
    slurm = Slurm(gpus, min(refuses, gpus), running)
    client: Any = slurm
    store: Any = SimpleNamespace(notes=dict)
    writer = JobWriter(client, store, slurm.fake, SlurmSettings(writes_per_cycle=CAP), DaemonSettings(), 1)
    held = Placeholders(client, writer, LASTS_S)
    outs = {f"n{i}:0": GpuOut(f"n{i}", 0, 0.0, "Xid 79") for i in range(gpus)}
    for cycle in range(240):
        before = len(slurm.sent)
        writer.new_cycle({})
        writer.tell(*[lambda: None] * spent)  # what plans and mending wrote before
        jobs = tuple(slurm.jobs.values())
        facts = Observation(jobs, tuple(slurm.fake.nodes()), {}, {"vc": Mode.PACK}, slurm.fake.now)
        held.others(jobs, slurm.fake.now)
        held.settle(outs if cycle < wanted_until or not running else {}, facts)
        sent = len(slurm.sent) - before
        assert sent <= min(4, CAP - spent)
        assert writer.full(CAP - spent - sent + 1), "each counts as a write of the cycle"
        slurm.fake.now += CYCLE_S
        ended = slurm.ends()
        assert set(ended) <= slurm.refused, "one that Slurm would have renewed ended"
    assert slurm.sent
