"""What a look hands on from the look before is what it would make anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import LIGHT, at
from lucid.core.snapshot import Snapshot
from lucid.places import Mode
from lucid.slurm.records.request import JobDefaults, Request
from lucid.store.port import JobNote
from scenes.slurm import MINE, Scene


def test_whatever_changes_is_seen_in_the_jobs_that_did_not_change() -> None:
    """Each change alters what is shown, and a lucidd that begins then shows the same."""
    stage = Scene()
    slurm, big = stage.slurm, frozenset({"big"})
    for name in ("n1", "n2"):
        slurm.node(name, features=big)
    tasks = Request(tres_per_node="gres/gpu:1", tasks=2)
    stage.jobs("1 2", mark=MINE, qos="high", features="big", time_limit_s=9000.0)
    stage.jobs("3", mark=MINE, request=tasks, time_limit_s=9000.0, time_min_s=60.0)
    stage.jobs("4", gpus=2, mark=MINE, state="RUNNING", held=False, placement=at("n1:0,1"), start_s=1.0)
    slurm._schedule = lambda backfill=False: None  # type: ignore[method-assign] # only what this test changes

    def put(**noted: Any) -> None:
        stage.cluster._writer.put(JobNote("1", submit_s=0.0, **noted))

    def change_job(name: str, **changes: Any) -> None:
        slurm.records[name] = replace(slurm.records[name], **changes)

    changes = {
        "nothing": lambda: None,
        "its user's limit": lambda: change_job("1", time_limit_s=7000.0),
        "the priority of its QOS": lambda: slurm.qos.update(high=5),
        "what its partition gives to a GPU": lambda: slurm.defaults.update(vc=JobDefaults(cpus=2)),
        "the features of a node": lambda: slurm.node("n1", features=frozenset()),
        "a note": lambda: put(alone=True),
        "another note": lambda: put(refusal="no", retry_s=slurm.now + 1000.0),
        "its profile": lambda: stage.cluster.known.set("4", LIGHT),
        "where it runs": lambda: change_job("4", placement=at("n2:0,1")),
        "the mode": lambda: stage.modes.update(vc=Mode.OBSERVE),
    }
    before: Any = None
    for what, change in changes.items():
        change()
        slurm.now += 700.0
        found = _told(stage.cluster.observe())
        assert found != before, what
        kept = stage.cluster
        anew = stage.restart()
        anew.known._own.update(kept.known._own)
        assert _told(anew.observe()) == found, what
        stage.cluster, before = kept, found


def _told(snapshot: Snapshot) -> list[tuple[Any, ...]]:
    return [(p.name, p.nodes, p.pending, p.running, p.acting, {**p.fitting}) for p in snapshot.partitions.values()]
