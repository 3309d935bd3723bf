"""A thousand jobs at once: each is decided, sbatch does not notice, and Slurm is asked no more than is configured."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

from lucid.config.load import load_settings
from lucid.store.sqlite import SqliteStore
from testbed import cli
from testbed.settings import layout_from

JOBS = 1000

pytestmark = pytest.mark.slow


@pytest.fixture
def plain() -> Iterator[Box]:
    """A second testbed without the plugin: plain Slurm, on the same machine at the same time."""
    name = f"{os.environ.get('LUCID_TESTBED_NAME', 'pytest')[:20]}-plain"
    layout = layout_from({**os.environ, "LUCID_TESTBED_NAME": name, "LUCID_TESTBED_PLUGIN": "0"})
    cli.down(layout)
    cli.up(layout, print)
    yield Box(layout.root)
    cli.down(layout)


def submit(box: Box) -> float:
    began = time.perf_counter()
    box.sbatch("--gres=gpu:1", "-p", "vc-a", script="sleep 600")
    return time.perf_counter() - began


def asked_by_lucid(box: Box) -> int:
    """Requests that slurmctld itself has counted of the daemon's user."""
    said = box.run("sdiag").stdout
    found = re.search(r"^\s*lucid\s+\(\s*\d+\)\s+count:(\d+)", said, re.MULTILINE)
    return int(found.group(1)) if found else 0


@pytest.fixture
def unfiltered(box: Box) -> Iterator[None]:
    """sbatch as where no GPU models are asked for. What Slurm takes to load any cli_filter script is another matter,
    which ``test_latency.py`` measures."""
    conf = box.root / "etc/slurm/lucid.slurm.conf"
    before = conf.read_text()
    conf.write_text(before.replace("CliFilterPlugins=lua\n", ""))
    yield
    conf.write_text(before)


@pytest.mark.usefixtures("unfiltered")
def test_a_thousand_jobs_in_a_burst(box: Box, plain: Box, tmp_path: Path) -> None:
    lucidd = Lucidd(box, tmp_path / "state")
    lucidd.start()
    try:
        before, began = asked_by_lucid(box), time.monotonic()
        times: dict[bool, list[float]] = {True: [], False: []}
        for n in range(JOBS):  # in pairs, each in turn first: whatever else the machine does befalls both alike
            for ours in (True, False) if n % 2 else (False, True):
                times[ours].append(submit(box if ours else plain))
        submitted_s = time.monotonic() - began
        store = SqliteStore(lucidd.folder / "lucid.db", read_only=True)
        waiting = {n for n, job in box.jobs().items() if job["user_name"] == "alice" and job["name"] == "wrap"}

        def decided() -> set[str]:
            return {row.job_id for row in store.decisions(limit=200_000) if row.reasons}

        box.wait("a decision on every job", lambda: waiting <= decided(), 120)
        decided_s = time.monotonic() - began
        time.sleep(3)  # the last cycle's requests are in the daemon's picture, too
        span_s = time.monotonic() - began
        counted = asked_by_lucid(box) - before
        calls = lucidd.json("status")["calls"]
        slurm = load_settings(lucidd.folder / "lucid.toml").slurm
    finally:
        lucidd.close()
    assert len(waiting) >= JOBS
    with_lucid, without = (statistics.median(times[ours]) for ours in (True, False))
    differences = [a - b for a, b in zip(times[True], times[False], strict=True)]
    print(
        f"\n{JOBS} jobs in {submitted_s:.0f} s (and as many to a plain Slurm beside), all decided "
        f"{decided_s - submitted_s:.0f} s after the last\n"
        f"sbatch, median: {1000 * with_lucid:.1f} ms with Lucid, {1000 * without:.1f} ms on plain Slurm; median of "
        f"the paired differences {1000 * statistics.median(differences):+.1f} ms\n"
        f"lucidd's own count in {span_s:.0f} s: {calls['reads']} reads, {calls['writes']} writes; "
        f"slurmctld counted {counted} requests of its user; slowest answer {calls['slowest_s']:.2f} s"
    )
    assert with_lucid <= 1.10 * without
    # A look at the jobs every poll_busy_s at the most, one at the nodes besides; and what the cycles' cap allows.
    cycles = span_s / slurm.poll_busy_s + 2
    # Above 1,000 jobs a look is a listing and a reading of what changed.
    assert calls["reads"] <= 2 * cycles + span_s / slurm.nodes_every_s + 4
    assert calls["writes"] <= cycles * slurm.writes_per_cycle
    # A command is a few requests: squeue --json asks for jobs, partitions, nodes and the time besides.
    assert counted <= 8 * (calls["reads"] + calls["writes"]) + 20
