"""The state that lucidd leaves for those who ask: its store, over a cluster of any size."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from benchmarks.busy import busy_snapshot
from lucid.config.load import Settings, load_settings
from lucid.core.decision import DecisionRow
from lucid.core.job import Ended, Job, Running
from lucid.core.placement import NodeGpus
from lucid.core.ports import Capability
from lucid.core.snapshot import Partition, Snapshot
from lucid.daemon.policies import PolicyMemory, live_models, live_policy, live_predictor
from lucid.daemon.start_log import StartLog
from lucid.left_out import LeftOut
from lucid.models.packing.pair_memory import PairMemoryFile
from lucid.places import Mode
from lucid.store.recorder import StoreRecorder
from lucid.store.sqlite import SqliteStore

__all__ = ["stored"]

_GPUS, _CPUS, _MEM_MIB, _SLOTS = 8, 96, 1 << 20, 4
_USERS = 300
_DAYS = 7.0


def stored(
    folder: Path, pending: int, running: int, nodes: int, *, decisions: int = 0, ended: int = 0
) -> tuple[str, str]:
    """Write ``lucid.toml`` and the state of a lucidd under policy lucid into *folder*; it is alive for another hour.
    At most so many jobs run; there are at least so many rows of *decisions*. Returns a job that waits, and one that
    shares."""
    now_s, rng = time.time(), random.Random(7)
    config = folder / "lucid.toml"
    config.write_text(
        f'[daemon]\nstate_dir = "{folder}"\nheartbeat = "{folder}/heartbeat"\n[daemon.partitions]\nvc = "pack"\n'
        '[web]\nanonymous = "everything"\n'
    )
    settings = load_settings(config)
    models = live_models(settings, config, _memory(settings), settings.policy.profiling.t_prof_s)
    predictor = live_predictor(settings, models, LeftOut())
    live = live_policy(settings, frozenset({Capability.SHARE}))
    snapshot = _snapshot(busy_snapshot("lucid", pending, nodes * _GPUS), running, nodes, now_s, rng)
    plan = live.make(predictor).plan(snapshot)
    store = SqliteStore(folder / "lucid.db")
    lease = store.take_lease("bench:1:1", now_s, 3600.0)
    assert lease is not None
    StoreRecorder(store, lease.token, lambda: {"vc": Mode.PACK}, policy=live.to_dict()).record(snapshot, plan, ())
    PolicyMemory(store, live.name).keep(plan.memory, now=True)
    StartLog(store, live.make(predictor), predictor.pair_speed).observe(snapshot, plan)
    store.put_view("status", {"at_s": now_s, "modes": {"vc": "pack"}, "private_data": []})
    part = snapshot.partitions["vc"]
    rows = []
    for entry in part.running:
        place = " ".join(f"{p.node}:{','.join(map(str, p.gpus))}" for p in entry.placement)
        rows.append(DecisionRow(entry.start_s, entry.job.id, "vc", "start", (), place, entry.partner, "pack"))
    known = store.decisions(limit=pending)
    while len(known) + len(rows) < decisions:
        rows.append(structs.replace(rng.choice(known), at_s=now_s - rng.random() * 86400.0))
    rows.sort(key=lambda row: row.at_s)
    store.put_decisions(rows, lease.token)
    store.put_ended([_ended(at, now_s, rng) for at in range(ended)], lease.token)
    store.close()
    sharing = next(entry.job.id for entry in part.running if entry.partner)
    return part.pending[0].job.id, sharing


def _memory(settings: Settings) -> PairMemoryFile:
    return PairMemoryFile(Path(settings.daemon.state_dir) / "pairs.json")


def _ended(at: int, now_s: float, rng: random.Random) -> Ended:
    began_s = now_s - _DAYS * 86400.0 * rng.random()
    job = Job(f"9{at:06d}", "vc", 1, began_s, user=f"user-{at % _USERS}", name=f"name-{at % 50}")
    return Ended(job, job.submit_s + 3600.0, 3000.0)


def _snapshot(made: Snapshot, running: int, nodes: int, now_s: float, rng: random.Random) -> Snapshot:
    """As the bench of plan() makes it, with as many running jobs as asked for, names, CPUs, memory, and Unix time."""
    part = made.partitions["vc"]
    large_from = nodes - nodes // 20

    def named(job: Job, gpus: int) -> Job:
        number = int(job.id)
        return replace(
            job, user=f"user-{number % _USERS}", account=f"lab-{number % 20}", name=f"name-{number % 50}",
            submit_s=now_s + job.submit_s, gpus=gpus, cpus=4 * gpus, mem_mib=gpus << 15,
        )  # fmt: skip

    kept: dict[str, Running] = {}
    node = gpu = 0
    entries = list(part.running)
    for first, second in zip(entries[::2], entries[1::2], strict=False):
        if len(kept) >= running:
            break
        gpus = 4 if node < large_from else 8
        if gpu + gpus > _GPUS:
            node, gpu = node + 1, 0
        if node == nodes:
            break
        mask = ((1 << gpus) - 1) << gpu
        gpu += gpus
        here = (NodeGpus(part.nodes[node].name, mask),)
        for entry, other in ((first, second), (second, first)):
            job = named(entry.job, gpus)
            began_s = now_s - 80_000.0 * rng.random()
            kept[job.id] = replace(entry, job=job, placement=here, partner=other.job.id, start_s=began_s)
    pending = tuple(replace(e, job=named(e.job, e.job.gpus), since_s=now_s + e.since_s) for e in part.pending)
    machines = tuple(replace(n, cpus=_CPUS, mem_mib=_MEM_MIB, slots=_SLOTS) for n in part.nodes)
    order = sorted(kept.values(), key=lambda entry: entry.start_s)
    whole = Partition("vc", machines, pending, tuple(order))
    return Snapshot(now_s, {"vc": whole}, predictions=dict(made.predictions))
