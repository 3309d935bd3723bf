"""Whole turns over a slurmctld that shows hostile jobs: every turn comes to its end, innocent jobs start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hostile import SEED, Hostile, inputs, short

from fake_commands import job_json, node_json
from fake_slurm import FakeSampler, FakeSlurm, fake_node
from lucid.config.load import settings_from
from lucid.daemon.build import Parts
from lucid.daemon.learning.models import WithContention
from lucid.daemon.loop import Daemon
from lucid.daemon.reporting.status import words_of_left_out
from lucid.errors import ActionRefused
from lucid.left_out import LeftOut
from lucid.models.history import HistoryPredictor
from lucid.slurm.client import Breaker, Changes
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.records.from_json import jobs_from, nodes_from
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.store.sqlite import SqliteStore


class Beset(FakeSlurm):
    """A slurmctld that shows, beside its own, records that a user or a bad disk made up."""

    def __init__(self, **rest: Any) -> None:
        super().__init__([fake_node("n1", "vc"), fake_node("n2", "vc")], now=1000.0, **rest)
        self.hostile: list[Any] = []
        self.hostile_nodes: list[Any] = []
        self.left_out = LeftOut()

    def jobs(self) -> list[SlurmJob]:
        real = [job_json(job) for job in super().jobs()]
        half = len(self.hostile) // 2
        return jobs_from({"jobs": [*self.hostile[:half], *real, *self.hostile[half:]]}, self.left_out)

    def nodes(self) -> Sequence[SlurmNode]:
        return nodes_from({"nodes": [*self.hostile_nodes, *map(node_json, super().nodes())]}, self.left_out)

    def _known(self, job_id: str) -> None:
        if job_id not in self.records:
            raise ActionRefused("slurm_update error: Invalid job id specified")

    def update(self, job_id: str, changes: Changes) -> None:
        self._known(job_id)
        super().update(job_id, changes)

    def hold(self, job_id: str, begin_s: float = 0.0) -> None:
        self._known(job_id)
        super().hold(job_id, begin_s)

    def release(self, job_id: str) -> None:
        self._known(job_id)
        super().release(job_id)

    def requeue_hold(self, job_id: str) -> None:
        self._known(job_id)
        super().requeue_hold(job_id)

    def cancel(self, job_id: str) -> None:
        self._known(job_id)
        super().cancel(job_id)


def base(draw: Hostile, number: int) -> dict[str, Any]:
    """A waiting job of Lucid's, of another user's, or one that ended."""
    slurm = FakeSlurm([])
    slurm.submit(str(number), "vc", draw.choice((0, 1, 1, 2)))
    record = replace(
        slurm.records[str(number)], number=number, state=draw.choice(("PENDING", "PENDING", "FAILED", "COMPLETED"))
    )
    made: dict[str, Any] = draw.mutated({**job_json(record), "array_task_string": "", "dependency": ""}, 3)
    return made


@pytest.mark.parametrize("mode", ["pack", "observe"])
def test_the_daemon_keeps_turning(tmp_path: Path, mode: str) -> None:
    slurm = Beset()
    data = {
        "slurm": {"nodes_every_s": 1},
        "daemon": {
            "partitions": {"vc": mode},
            "state_dir": str(tmp_path),
            "heartbeat": str(tmp_path / "beat"),
            "first_guess_s": 60.0,
        },
    }
    store = SqliteStore(tmp_path / "lucid.db", left_out=slurm.left_out)
    store._db.execute("PRAGMA synchronous = OFF")
    parts = Parts(
        settings_from(data, "test"),
        slurm,
        Breaker(lambda: slurm.now),
        store,
        FakeSampler(slurm, {}),
        slurm,
        WithContention(HistoryPredictor(60.0)),
        left_out=slurm.left_out,
    )
    daemon = Daemon(parts, "one")
    named = 0
    for innocent, draw in enumerate(inputs(f"turns in {mode}"), start=1):
        slurm.hostile = [base(draw, 5000 + n) for n in range(draw.randrange(1, 6))]
        slurm.hostile_nodes = [draw.mutated(node_json(fake_node("n9", "other")))] if draw.random() < 0.3 else []
        slurm.submit(str(innocent), "vc", 1, run_s=20.0, held=mode == "pack")
        for _ in range(40):
            wait_s = daemon.turn()
            given = f"LUCID_FUZZ_SEED={SEED}, {innocent} in {mode}: {short([slurm.hostile, slurm.hostile_nodes])}"
            assert daemon._barrier.failed == 0, f"{daemon._barrier.last_error}: {given}"
            beat = read_heartbeat(tmp_path / "beat")
            assert abs(beat.at_s - slurm.now) < 1.0, given
            if slurm.records[str(innocent)].start_s:
                break
            slurm.advance(min(max(wait_s, 0.5), 5.0))
        assert slurm.records[str(innocent)].start_s, f"an innocent job does not start: {given}"
        named += bool(words_of_left_out(store.view("status")))
        slurm.advance(25.0)
    assert named, "what is left out is named in status"
