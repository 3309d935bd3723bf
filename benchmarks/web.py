"""How long a page takes and how much memory its process needs: 10,000 jobs waiting, 2,000 running, 1,000 nodes."""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.stored import stored

__all__ = ["figures"]

_PENDING, _RUNNING, _NODES = 10_000, 2_000, 1_000
_DECISIONS, _ENDED = 60_000, 10_000
_PAGES = ("/", "/queue", "/queue?text=name-7&sort=start", "/queue/changes", "/people", "/health", "/cluster.json",
          "/queue.json")  # fmt: skip
_MOST_MS, _MOST_MIB = 200.0, 150.0


def figures(runs: int) -> Iterator[Figure]:
    """Every page asked several times over loopback, slowest page last told; peak memory of the pages' process."""
    with tempfile.TemporaryDirectory(prefix="lucid-bench-web-") as name:
        folder = Path(name)
        waiting, sharing = stored(folder, _PENDING, _RUNNING, _NODES, decisions=_DECISIONS, ended=_ENDED)
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
