"""How long a page takes and how much memory its process needs: 10,000 jobs waiting, 2,000 running, 1,000 nodes."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.figure import Figure
from lucid.adapters.store.snapshot_json import plan_to_dict, snapshot_to_dict
from lucid.adapters.store.sqlite import SqliteStore
from lucid.config import PolicySettings
from lucid.core.decision import DecisionRow, row_of
from lucid.core.job import Ended, Job, Running
from lucid.core.placement import NodeGpus
from lucid.core.snapshot import Partition, Snapshot
from lucid.live.policies import LivePolicy
from lucid.models.history import HistoryPredictor
from lucid.simulator.bench import busy_snapshot

__all__ = ["figures"]

_PENDING, _RUNNING, _NODES, _GPUS = 10_000, 2_000, 1_000, 8
_DECISIONS, _ENDED, _USERS = 60_000, 10_000, 300
_PAGES = ("/", "/queue", "/queue?text=name-7&sort=start", "/queue/changes", "/people", "/health", "/cluster.json",
          "/queue.json")  # fmt: skip
_MOST_MS, _MOST_MIB = 200.0, 150.0


def figures(runs: int) -> Iterator[Figure]:
    """Every page asked several times over loopback, slowest page last told; peak memory of the pages' process."""
    with tempfile.TemporaryDirectory(prefix="lucid-bench-web-") as name:
        folder = Path(name)
        waiting, sharing = _write(folder)
        port = _free_port()
        child = subprocess.Popen([sys.executable, "-m", "lucid.web", "--config", str(folder / "lucid.toml"),
                                  "--port", str(port)], stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            began = time.perf_counter()
            _wait_for(port)
            ready_s = time.perf_counter() - began
            for address in (*_PAGES, f"/job/{waiting}", f"/job/{sharing}", "/people/user-7"):
                yield _page(child.pid, port, address, max(5 * runs, 10), _MOST_MS)
            yield Figure("memory of the pages' process, peak", _memory_mib(child.pid), "MiB", at_most=_MOST_MIB)
            yield _page(child.pid, port, "/metrics", 2, _MOST_MS)
            yield Figure("the same, once /metrics was asked", _memory_mib(child.pid), "MiB", at_most=_MOST_MIB)
            planners = [_memory_mib(pid) for pid in _children(child.pid)]
            yield Figure("memory of the process that plans, while somebody looks", sum(planners), "MiB")
            yield Figure("ready after", ready_s, "s")
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(20)


def _page(pid: int, port: int, address: str, times: int, at_most: float | None) -> Figure:
    """Both: what the process spent, which other work on the machine does not change, and what passed."""
    _ask(port, address)
    before = _cpu_s(pid)
    took = [_ask(port, address) for _ in range(times)]
    cpu_ms = 1000.0 * (_cpu_s(pid) - before) / times
    note = f"on this machine's clock {statistics.median(took):.0f} ms, worst {max(took):.0f}"
    return Figure(f"CPU time of {address}", cpu_ms, "ms", times, at_most=at_most, note=note)


def _cpu_s(pid: int) -> float:
    """Of one process, its threads, and not its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write(folder: Path) -> tuple[str, str]:
    """The store; a job that waits and one that shares."""
    now_s = time.time()
    rng = random.Random(7)
    (folder / "lucid.toml").write_text(
        f'[daemon]\nstate_dir = "{folder}"\nheartbeat = "{folder}/heartbeat"\n[daemon.partitions]\nvc = "pack"\n'
        '[web]\nanonymous = "everything"\n'
    )
    snapshot = _snapshot(busy_snapshot("lucid", _PENDING, _NODES * _GPUS), now_s, rng)
    live = LivePolicy("lucid", PolicySettings())
    plan = live.make(HistoryPredictor()).plan(snapshot)
    store = SqliteStore(folder / "lucid.db")
    lease = store.take_lease("bench:1:1", now_s, 3600.0)
    assert lease is not None
    picture = {**snapshot_to_dict(snapshot), "plan": plan_to_dict(plan), "wake_s": plan.wake_s}
    store.put_view("snapshot", {**picture, "policy": live.to_dict()})
    store.put_view("status", {"at_s": now_s, "modes": {"vc": "pack"}, "private_data": []})
    part = snapshot.partitions["vc"]
    held = plan.partitions["vc"].decisions
    rows = [row_of(now_s - rng.random() * 86400.0, job_id, "vc", made, "pack") for job_id, made in held.items()]
    for entry in part.running:
        place = " ".join(f"{p.node}:{','.join(map(str, p.gpus))}" for p in entry.placement)
        rows.append(DecisionRow(entry.start_s, entry.job.id, "vc", "start", (), place, entry.partner, "pack"))
    while len(rows) < _DECISIONS:
        rows.append(replace(rng.choice(rows[:_PENDING]), at_s=now_s - rng.random() * 86400.0))
    rows.sort(key=lambda row: row.at_s)
    store.put_decisions(rows, lease.token)
    ended = []
    for at in range(_ENDED):
        began_s = now_s - 7 * 86400.0 * rng.random()
        job = Job(f"9{at:06d}", "vc", 1, began_s, user=f"user-{at % _USERS}", name=f"name-{at % 50}")
        ended.append(Ended(job, job.submit_s + 3600.0, 3000.0))
    store.put_ended(ended, lease.token)
    store.close()
    sharing = next(entry.job.id for entry in part.running if entry.partner)
    return part.pending[0].job.id, sharing


def _snapshot(made: Snapshot, now_s: float, rng: random.Random) -> Snapshot:
    """As the bench of plan() makes it, with as many running jobs as asked for, names, and Unix time."""
    part = made.partitions["vc"]

    def named(job: Job) -> Job:
        number = int(job.id)
        return replace(job, user=f"user-{number % _USERS}", account=f"lab-{number % 20}", name=f"name-{number % 50}",
                       submit_s=now_s + job.submit_s)  # fmt: skip

    kept: dict[str, Running] = {}
    node = gpu = 0
    entries = list(part.running)
    for first, second in zip(entries[::2], entries[1::2], strict=False):
        if len(kept) >= _RUNNING:
            break
        gpus = 4 if node < 950 else 8
        if gpu + gpus > _GPUS:
            node, gpu = node + 1, 0
        mask = ((1 << gpus) - 1) << gpu
        gpu += gpus
        here = (NodeGpus(part.nodes[node].name, mask),)
        for entry, other in ((first, second), (second, first)):
            job = replace(named(entry.job), gpus=gpus)
            began_s = now_s - 80_000.0 * rng.random()
            kept[job.id] = replace(entry, job=job, placement=here, partner=other.job.id, start_s=began_s)
    pending = tuple(replace(e, job=named(e.job), since_s=now_s + e.since_s) for e in part.pending)
    whole = Partition("vc", part.nodes, pending, tuple(kept.values()))
    known = {job_id: said for job_id, said in made.predictions.items()}  # noqa: C416 - a copy
    return Snapshot(now_s, {"vc": whole}, predictions=known)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _ask(port: int, address: str) -> float:
    """Milliseconds until the whole page is here."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{address}") as answer:
        answer.read()
    return 1000.0 * (time.perf_counter() - began)


def _wait_for(port: int) -> None:
    """Until the pages show the cluster and when jobs start."""
    until = time.monotonic() + 300.0
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/queue.json") as answer:
                if json.load(answer)["starts_at_s"] is not None:
                    return
        except OSError:
            pass
        time.sleep(0.5)
    raise RuntimeError("lucid-web is not ready after five minutes")


def _memory_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024.0
    return 0.0


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    own = found.read_text().split() if found.exists() else []
    of_threads = [
        child for thread in Path(f"/proc/{pid}/task").iterdir() for child in (thread / "children").read_text().split()
    ]
    return [int(child) for child in {*own, *of_threads}]
