"""Tags that get lost, placeholders that are written, reports of hostile jobs."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import Dice, tried
from fake_slurm import AHEAD_S, FakeSlurm, fake_node
from lucid.config.live import DaemonSettings, SlurmSettings
from lucid.core.decision import Requeue
from lucid.core.gpu import GpuOut
from lucid.core.job import Elastic, Progress, Running
from lucid.errors import ActionRefused
from lucid.places import Mode
from lucid.slurm.act.placeholders import NAME, Placeholders
from lucid.slurm.act.write import JobWriter
from lucid.slurm.client import HeldGpu
from lucid.slurm.records.request import Request
from lucid.slurm.view.observation import Observation
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore
from scenes.jobs import VC, nodes, runs, waits
from scenes.plans import check_plan, part, policy, snap
from scenes.released import lucid_release
from scenes.slurm import WHY, Scene

SITES = '[{"vm_size": "x"}]'
PLACES = ("n1:0", "n1:1", "n1:2,3", "n2:0", "n2:1", "n2:2,3")


class Killed(Exception):
    """lucidd, before this write."""


def by_lot(rng: random.Random, folder: Path) -> tuple[Scene, list[str]]:
    """A site after some dozen events, and what they were."""
    s, story = Scene(state=folder), list[str]()
    s.slurm.completing_s = rng.choice([0.0, 3.0])
    for n in range(1, 6):
        asked = f"gres/gpu:{(gpus := rng.choice([1, 2]))}"
        request, mark = Request(tres_per_node=asked), f"lucid:vc=vc;held=1;node={asked};v=2"
        s.jobs(f"{n}", gpus, light=rng.random() < 0.7, request=request, mark=mark)
    s.mend()
    for _ in range(rng.randint(4, 24)):
        job = rng.choice(list(s.slurm.records.values()))
        event = rng.choice(["start", "start", "tag", "tag", "slurm", "lucid", "restart", "lost", "time", "kill"])
        story.append(f"{event} {job.id}")
        if event == "start":
            where = rng.choice([place for place in PLACES if place.count(",") + 1 == job.gpus])
            s.start(job.id, where)
            s.slurm.advance(1.0)
        elif event == "tag" and not job.pending:
            s.slurm._set(job.id, admin_comment=SITES)
        elif event == "slurm" and job.state == "RUNNING":
            s.slurm._set(
                job.id, state="PENDING", placement=(), restarts=job.restarts + 1, submit_s=s.slurm.now,
                eligible_s=s.slurm.now + AHEAD_S, reason="BeginTime",
            )  # fmt: skip
        elif event == "lucid":
            s.do(job.id, Requeue(WHY))
        elif event == "restart":
            s.restart()
        elif event == "lost":
            if rng.random() < 0.5:
                s.look()  # the list is whole
                story.append("store")
                s.store = SqliteStore(IN_MEMORY)
                s.store.take_lease("me", 0.0, 1e9)
                s.restart()
            else:
                (folder / "ours").unlink(missing_ok=True)
                s.look()
        elif event == "kill":
            at = len(s.slurm.writes) + rng.randint(0, 2)
            s.slurm.fails_at_write = lambda n, at=at: Killed() if n == at else None  # type: ignore[misc]
            with suppress(Killed):
                s.mend()
                s.do(job.id, Requeue(WHY))
                s.start(job.id, "n1:0" if job.gpus == 1 else "n1:2,3")
                s.mend()
            s.slurm.fails_at_write = lambda n: None
            s.restart()
        s.mend()
        s.slurm.advance(rng.choice([0.5, 5.0]))
    return s, story


@tried(100, least=8)
def test_with_lucidd_alive_nothing_stays_outside_its_queue(rng: random.Random) -> None:
    nothing_stays_outside(rng)


def test_a_job_on_its_way_into_slots_comes_back_from_a_lost_store() -> None:
    nothing_stays_outside(Dice(323))


def nothing_stays_outside(rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as name:
        s, story = by_lot(rng, Path(name))
        for _ in range(100):
            s.mend()
            s.slurm.advance(10.0)
        queued = {entry.job.id for entry in s.look().pending}
        for job in s.slurm.records.values():
            if not job.pending or job.id in queued:
                continue
            # a job on its way to a start as the store was lost is Slurm's, as its user wrote it
            assert "store" in story, (job.id, story)
            assert not job.held, (job.id, story)
            assert not job.request.shards, (job.id, story)


@tried(100, least=8)
def test_nothing_is_held_after_lucid_release(rng: random.Random) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        s, story = by_lot(rng, folder)
        s.slurm.advance(5.0)  # what completes has gone
        tagless = rng.random() < 0.3
        if tagless:
            (folder / "ours").unlink(missing_ok=True)
        lucid_release(s.slurm, folder, folder, *rng.choice([(), ("--all",)]))
        for job in s.slurm.records.values():
            assert not (job.pending and job.request.shards), story
            assert not job.held or (tagless and job.admin_comment == SITES), story


LASTS_S, CYCLE_S, CAP = 900.0, 7.0, 8


class Refusing(FakeSlurm):
    """What becomes of placeholders: those of some nodes are never renewed, begun or ended."""

    def __init__(self, gpus: int, refuses: int) -> None:
        super().__init__([fake_node(f"n{i}", "vc") for i in range(gpus)], now=10000.0)
        self.refused = {f"n{i}" for i in range(refuses)}
        self.sent: list[str] = []

    def _send(self, node: str) -> None:
        self.sent.append(node)
        if node in self.refused:
            raise ActionRefused("no")

    def hold_gpu(self, held: HeldGpu) -> str:
        self._send(held.node)
        return super().hold_gpu(held)

    def renew_held_gpu(self, job_id: str, limit_min: int | None, after: Sequence[str]) -> None:
        self._send(self.records[job_id].request.req_nodes)
        super().renew_held_gpu(job_id, limit_min, after)

    def cancel(self, job_id: str) -> None:
        self._send(self.records[job_id].request.req_nodes)
        super().cancel(job_id)


@settings(max_examples=8)
@given(st.integers(1, 40), st.integers(0, 12), st.booleans(), st.integers(0, 200), st.integers(0, 6))
def test_every_command_counts_and_none_ends_for_want_of_a_turn(
    gpus: int, refuses: int, running: bool, wanted_until: int, spent: int
) -> None:
    slurm = Refusing(gpus, 0)
    for i in range(gpus if running else 0):
        slurm.hold_gpu(HeldGpu(f"{NAME}n{i}:0", f"n{i}", "vc", "gres/gpu:1", int(LASTS_S / 60)))
    slurm.refused, slurm.sent = {f"n{i}" for i in range(min(refuses, gpus))}, []
    store: Any = SimpleNamespace(notes=dict)
    writer = JobWriter(slurm, store, slurm, SlurmSettings(writes_per_cycle=CAP), DaemonSettings(), 1)
    held = Placeholders(slurm, writer, LASTS_S)
    outs = {f"n{i}:0": GpuOut(f"n{i}", 0, 0.0, "Xid 79") for i in range(gpus)}
    for cycle in range(240):
        before = len(slurm.sent)
        writer.new_cycle({})
        writer.tell(*[lambda: None] * spent)  # what plans and mending wrote before
        jobs = tuple(job for job in slurm.records.values() if not job.ended)
        facts = Observation(jobs, tuple(slurm.nodes()), {}, {"vc": Mode.PACK}, slurm.now)
        held.others(jobs, slurm.now)
        held.settle(outs if cycle < wanted_until or not running else {}, facts)
        sent = len(slurm.sent) - before
        assert sent <= min(4, CAP - spent)
        assert writer.full(CAP - spent - sent + 1), "each counts as a write of the cycle"
        slurm.advance(CYCLE_S)
        ended = {job.request.req_nodes for job in slurm.records.values() if job.state == "COMPLETED"}
        assert ended <= slurm.refused, "one that Slurm would have renewed ended"
    assert slurm.sent


SMALL = {"population": 20, "generations": 10}
"""A search of Pollux's that falls over as easily as one of a hundred generations."""


def progress_of(draw: random.Random) -> Progress:
    times = tuple((draw.choice([1, 2, 4, 4096]), 10 ** draw.uniform(-6, 7)) for _ in range(draw.randint(0, 4)))
    losses = tuple((draw.uniform(0, 1e9), draw.uniform(-1e12, 1e12)) for _ in range(draw.choice([0, 3, 50])))
    model = (*(draw.choice([1e-8, 10 ** draw.uniform(-8, 5), 1e5]) for _ in range(6)), draw.uniform(1, 10))
    return Progress(
        draw.choice([0, 1e9, draw.uniform(0, 50)]),
        times,
        losses,
        draw.choice([0, 32, 10**12]),
        model if draw.random() < 0.7 else (),
        draw.choice([None, (0.0, 0.0), (2.0**53, 0.0), (0.0, 2.0**53), (1e-300, 1e-300), (1.0, 20.0)]),
    )


def limits_of(draw: random.Random) -> Elastic:
    low, epochs = draw.choice([1, 32, 1 << 40]), draw.choice([None, 30.0, 1e9, 1e-9])
    high = draw.choice([low, low * 8])
    least = draw.choice([1, min(8, high)])
    most = draw.choice([max(least, high), least])
    return Elastic(draw.choice([1, 8, 4096]), 1, low, low, high, least, most, epochs=epochs)


def running(draw: random.Random, number: int) -> Running:
    entry = runs(f"j{number}", f"n{number + 1}:0", 100.0, job={"elastic": limits_of(draw)})
    return replace(entry, progress=progress_of(draw), restart_s=draw.choice([None, 0.0, 3.0, 1e9]))


@pytest.mark.parametrize("name", ["pollux", "optimus-fitted", "optimus-drf", "elastic"])
@pytest.mark.parametrize("seed", range(12))
def test_no_report_brings_a_plan_down_or_makes_it_unsafe(name: str, seed: int) -> None:
    draw = random.Random(seed)
    waiting = replace(waits("w", 1, elastic=limits_of(draw)), progress=progress_of(draw))
    partition = part(nodes(5, 4), [waiting], [running(draw, number) for number in range(4)])
    chosen = policy(name, pollux=SMALL)
    plan = chosen.plan(snap(6000.0, partition)).partitions[VC]
    check_plan(partition, plan, chosen.rules)
