"""How much Lucid asks of slurmctld, and what wakes it. What sbatch costs: ``python -m benchmarks --only sbatch``."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

JOBS = 100


@contextmanager
def as_installed(box: Box, folder: Path, **settings: float) -> Iterator[Lucidd]:
    """With lucidd's own defaults of profiling and polling, but for what is given."""
    one = Lucidd(box, folder, restarts="", t_prof_s=80.0)
    path = folder / "lucid.toml"
    text = path.read_text().replace("poll_idle_s = 6\n", "").replace("start_grace_s = 10\n", "")
    path.write_text(text.replace("nodes_every_s = 5\n", "".join(f"{k} = {v}\n" for k, v in settings.items())))
    with one:
        yield one
    box.stop_beating()


def first_line_s(box: Box, number: int) -> float:
    """Seconds from sbatch to the job's first line."""
    began_s = time.time()
    job = box.sbatch("-p", "vc-a", "--gres=gpu:1", "-J", f"first-{number}", script="date +%s.%N")
    box.wait_ended(job)
    return float(box.output(job)) - began_s


def test_a_submission_wakes_lucidd(box: Box, tmp_path: Path) -> None:
    """It looks once in five minutes here, unless job_submit.lua tells it to."""
    with as_installed(box, tmp_path / "lucidd", poll_idle_s=300):
        for number in range(2):
            assert first_line_s(box, number) < 200


def asked_by_lucid(box: Box) -> int:
    """Requests that slurmctld itself has counted of the daemon's user."""
    found = re.search(r"^\s*lucid\s+\(\s*\d+\)\s+count:(\d+)", box.run("sdiag").stdout, re.MULTILINE)
    return int(found.group(1)) if found else 0


@pytest.mark.slow
def test_a_command_of_lucids_is_a_few_requests_to_slurmctld(box: Box, tmp_path: Path) -> None:
    """squeue --json asks for jobs, partitions, nodes and the time besides."""
    with Lucidd(box, tmp_path / "state") as lucidd:
        before = asked_by_lucid(box)
        first = lucidd.json("status")["calls"]
        for _ in range(JOBS):
            box.sbatch("--gres=gpu:1", "-p", "vc-a", script="sleep 600")
        time.sleep(10)
        counted = asked_by_lucid(box) - before
        time.sleep(3)  # until all of it is in what lucidd stores
        last = lucidd.json("status")["calls"]
    commands = sum(last[kind] - first[kind] for kind in ("reads", "writes"))
    print(f"{commands} commands, {counted} requests; slowest answer {last['slowest_s']:.2f} s")
    assert commands
    assert counted <= 8 * commands + 20
