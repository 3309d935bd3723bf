"""AdminComment overwritten, jobs requeued by Slurm and by Lucid, lucidd restarted, killed between two writes, its
store or its list lost, by lot: with lucidd alive nothing stays outside its queue, and after lucid-release nothing is
held."""

from __future__ import annotations

import random
import tempfile
from contextlib import suppress
from pathlib import Path

from examples import tried
from fake_slurm import AHEAD_S
from lucid.core.decision import Requeue
from lucid.slurm.records.request import Request
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore
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
        gpus = rng.choice([1, 2])
        asked = f"gres/gpu:{gpus}"
        s.jobs(
            f"{n}", gpus, light=rng.random() < 0.7, request=Request(tres_per_node=asked),
            mark=f"lucid:vc=vc;held=1;node={asked};v=2",
        )  # fmt: skip
    s.mend()
    for _ in range(rng.randint(4, 24)):
        jobs = list(s.slurm.records.values())
        job = rng.choice(jobs)
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
