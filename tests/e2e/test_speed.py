"""What Lucid costs the one who types sbatch, and how much it asks of slurmctld; prints it (``-s``)."""

from __future__ import annotations

import re
import resource
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

BLOCKS, EACH, JOBS = 6, 40, 100


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


@pytest.mark.slow
def test_sbatch_takes_at_most_a_tenth_longer_than_on_plain_slurm(box: Box) -> None:
    """Blocks with and without the plugin, in turn (ABBA…); medians of the paired blocks are compared."""
    conf = box.root / "etc/slurm/lucid.slurm.conf"
    before = conf.read_text()
    times: dict[bool, list[float]] = {True: [], False: []}
    # Nothing is to start meanwhile, in either case: the partition takes jobs and keeps them.
    try:
        for block in range(BLOCKS):
            for plugin in (True, False) if block % 2 else (False, True):
                conf.write_text(before if plugin else before.replace("JobSubmitPlugins=lua\n", ""))
                box.run("scontrol", "reconfigure")
                box.run("scontrol", "update", "PartitionName=vc-a", "State=DOWN")
                box.beat()
                assert box.job(box.sbatch("--gres=gpu:1"))["waits"] == plugin
                for number in range(5 + EACH):
                    begin = time.perf_counter()
                    box.sbatch("--gres=gpu:1")
                    if number >= 5:
                        times[plugin].append(time.perf_counter() - begin)
                box.run("scancel", "--user=alice")
    finally:
        conf.write_text(before)
        box.run("scontrol", "reconfigure")
        box.run("scontrol", "update", "PartitionName=vc-a", "State=UP")
    with_plugin, plain = statistics.median(times[True]), statistics.median(times[False])
    shown = " against ".join(f"{1000 * seconds:.2f} ms" for seconds in (with_plugin, plain))
    print(f"sbatch, median of {BLOCKS * EACH} each, with the plugin against without: {shown}")
    assert with_plugin <= 1.10 * plain


@pytest.mark.slow
def test_what_the_filter_of_commands_costs_is_slurms_own_loading_of_it(box: Box) -> None:
    """CPU time of the command itself, with cli_filter.lua, and with a script that does nothing."""
    lua = box.root / "etc/slurm/cli_filter.lua"
    ours = lua.read_text()
    stages = ("setup_defaults", "pre_submit", "post_submit")
    nothing = "".join(f"function slurm_cli_{name}() return slurm.SUCCESS end\n" for name in stages)
    cpu_s: dict[str, list[float]] = {ours: [], nothing: []}
    try:
        box.run("scontrol", "update", "PartitionName=vc-a", "State=DOWN")
        for block in range(BLOCKS):
            for text in (ours, nothing) if block % 2 else (nothing, ours):
                lua.write_text(text)
                for _ in range(EACH // 2):
                    began = resource.getrusage(resource.RUSAGE_CHILDREN)
                    box.sbatch("--gres=gpu:1")
                    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
                    cpu_s[text].append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
            box.run("scancel", "--user=alice")
    finally:
        lua.write_text(ours)
        box.run("scontrol", "update", "PartitionName=vc-a", "State=UP")
    with_ours, without = statistics.median(cpu_s[ours]), statistics.median(cpu_s[nothing])
    print(f"CPU time of sbatch, median: {1000 * with_ours:.2f} ms, with an empty filter {1000 * without:.2f} ms")
    assert with_ours <= 1.10 * without


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
