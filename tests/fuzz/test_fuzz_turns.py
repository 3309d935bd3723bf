"""Whole turns over a slurmctld that shows hostile jobs: every turn comes to its end, innocent jobs start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hostile import SEED, Hostile, inputs, short

from daemon_site import Site
from fake_commands import job_json, node_json
from fake_slurm import FakeSlurm, fake_node
from lucid.daemon.reporting.status import words_of_left_out
from lucid.left_out import LeftOut
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.records.from_json import jobs_from, nodes_from
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.store.sqlite import SqliteStore


class Beset(FakeSlurm):
    """A slurmctld that shows, beside its own, records that a user or a bad disk made up."""

    def __init__(self, machines: Sequence[SlurmNode], now: float) -> None:
        super().__init__(list(machines), now)
        self.hostile: list[Any] = []
        self.hostile_nodes: list[Any] = []
        self.left_out = LeftOut()

    def jobs(self) -> list[SlurmJob]:
        real = [job_json(job) for job in super().jobs()]
        half = len(self.hostile) // 2
        return jobs_from({"jobs": [*self.hostile[:half], *real, *self.hostile[half:]]}, self.left_out)

    def nodes(self) -> Sequence[SlurmNode]:
        return nodes_from({"nodes": [*self.hostile_nodes, *map(node_json, super().nodes())]}, self.left_out)


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
    site = Site(
        tmp_path, None, [fake_node("n1", "vc"), fake_node("n2", "vc")], slurm=Beset, partitions={"vc": mode},
        first_guess_s=60.0,
    )  # fmt: skip
    site.settings = site.settings.changed({"slurm.nodes_every_s": 1})
    slurm = site.slurm
    store = SqliteStore(tmp_path / "lucid.db", left_out=slurm.left_out)
    store._db.execute("PRAGMA synchronous = OFF")
    daemon = site.lucidd("one", store, left_out=slurm.left_out)
    named = 0
    for innocent, draw in enumerate(inputs(f"turns in {mode}"), start=1):
        slurm.hostile = [base(draw, 5000 + n) for n in range(draw.randrange(1, 6))]
        slurm.hostile_nodes = [draw.mutated(node_json(fake_node("n9", "other")))] if draw.random() < 0.3 else []
        slurm.submit(str(innocent), "vc", 1, run_s=20.0, held=mode == "pack")
        for _ in range(40):
            wait_s = daemon.turn()
            given = f"LUCID_FUZZ_SEED={SEED}, {innocent} in {mode}: {short([slurm.hostile, slurm.hostile_nodes])}"
            assert daemon._barrier.failed == 0, f"{daemon._barrier.last_error}: {given}"
            beat = read_heartbeat(tmp_path / "run/heartbeat")
            assert abs(beat.at_s - slurm.now) < 1.0, given
            if slurm.records[str(innocent)].start_s:
                break
            slurm.advance(min(max(wait_s, 0.5), 5.0))
        assert slurm.records[str(innocent)].start_s, f"an innocent job does not start: {given}"
        named += bool(words_of_left_out(store.view("status")))
        slurm.advance(25.0)
    assert named, "what is left out is named in status"
