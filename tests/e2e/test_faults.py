"""What may break, broken on real daemons: no job is lost, none runs twice, none stays held past the bound."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from breakage import RUNS, Breakage, ReleaseTimer, ran_once
from daemon_box import REPO, Lucidd

pytestmark = pytest.mark.slow
BOUND_S = 8


@pytest.fixture
def broken(box: Box) -> Breakage:
    return Breakage(box)


def pair(box: Box, seconds: int) -> list[str]:
    """Two jobs of the same user, running on the same GPU."""
    ids = [box.sbatch("--gres=gpu:1", "-p", "vc-a", "-J", f"p{n}", script=RUNS.format(seconds)) for n in range(2)]
    box.wait("a pair", lambda: paired(box, ids), 60)
    return ids


def paired(box: Box, ids: list[str]) -> bool:
    jobs = [box.job(n) for n in ids]
    shards = {job["tres_per_node"] for job in jobs}
    return {job["job_state"][0] for job in jobs} == {"RUNNING"} and len(shards) == 1 and "shard" in shards.pop()


def held(box: Box, ids: list[str]) -> list[str]:
    return [n for n in ids if box.job(n)["waits"]]


def test_accounting_may_be_down_for_a_while(box: Box, tmp_path: Path, broken: Breakage) -> None:
    """As lucidd starts, too."""
    daemon = Lucidd(box, tmp_path / "state")
    try:
        with broken.without_accounting():
            daemon.start()
            ids = pair(box, 20)
            said = daemon.ctl("doctor")
            assert "accounting does not answer (" in said
            assert "Slurm does not answer" not in said
            box.wait_ended(*ids, limit_s=90)
            ran_once(box, *ids)
        assert all(daemon.story(number)["decisions"] for number in ids)
    finally:
        daemon.close()

    def told() -> bool:
        said = box.run("sacct", "-n", "-P", "-X", "-j", ",".join(ids), "-o", "JobID,State", check=False).stdout
        return said.count("|COMPLETED") == len(ids)

    box.wait("accounting has heard of all of them", told, 90)


@pytest.mark.parametrize("where", ["alone", "pair", "profiling"])
def test_a_node_is_lost_with_jobs_on_it(box: Box, lucidd: Lucidd, broken: Breakage, where: str) -> None:
    if where == "pair":
        ids = pair(box, 25)
    elif where == "alone":  # it asks for GPUs in a step of its own, so it runs with its request unchanged
        script = "srun --gres=gpu:1 true; " + RUNS.format(25)
        ids = [box.sbatch("--gres=gpu:1", "-p", "vc-a", "-J", "alone", script=script)]
        box.wait("it has left profiling", lambda: box.job(ids[0])["restart_cnt"] == 1, 30)
        box.wait("it runs", lambda: box.state(ids[0]) == "RUNNING", 30)
    else:
        ids = [box.sbatch("--gres=gpu:1", "-p", "vc-a", "-J", "new", script=RUNS.format(15))]
        box.wait("it is profiled", lambda: box.state(ids[0]) == "RUNNING", 30)
    lost = str(box.job(ids[0])["nodes"])
    assert (lost == "n4") is (where == "profiling")
    with box.configured(SlurmdTimeout=10):
        broken.lose_node(lost)
        box.wait("slurmctld has given it up", lambda: broken.node_state(lost).startswith("down"), 90)
        box.wait_ended(*ids, limit_s=200)
        assert not any(box.job(n)["nodes"] == lost for n in ids)
        broken.start_node(lost)
    ran_once(box, *ids)


def heartbeat_s(box: Box) -> float:
    return float((box.root / "run/lucid/heartbeat").read_text().split()[1])


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_the_daemons_clock_jumps(box: Box, tmp_path: Path, jump_s: int) -> None:
    """Only lucidd's own clock moves (its Clock port): Slurm's goes on, so that they are an hour apart."""
    jump = tmp_path / "jump"
    program = [str(REPO / "tests/e2e/jumping_lucidd.py")]
    environ = {"JUMP_FILE": str(jump), "PYTHONPATH": str(REPO)}
    daemon = Lucidd(box, tmp_path / "state", program=program, environ=environ)
    daemon.start()
    timer = ReleaseTimer(box, BOUND_S)
    try:
        ids = pair(box, 30)
        ids += [box.sbatch("--gres=gpu:4", "-p", "vc-b", "-J", f"w{n}", script=RUNS.format(8)) for n in range(3)]
        box.wait("one is profiled", lambda: "RUNNING" in {box.state(n) for n in ids[2:]}, 30)
        jump.write_text(str(jump_s))
        later = box.sbatch("--gres=gpu:1", "-p", "vc-a", "-J", "later", script=RUNS.format(2))
        ids.append(later)
        box.wait("nothing is held", lambda: not held(box, ids), BOUND_S + 120)
        box.wait_ended(*ids, limit_s=200)
        ran_once(box, *ids)
        jump.unlink()
        box.wait("a heartbeat of now", lambda: abs(heartbeat_s(box) - time.time()) < 5, 60)
        again = box.sbatch("--gres=gpu:1", "-p", "vc-a", "-J", "again", script=RUNS.format(2))
        box.wait_ended(again, limit_s=60)
        ran_once(box, again)
        assert daemon.story(again)["decisions"], "back on time, it decides again"
    finally:
        timer.close()
        daemon.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_disk_of_the_store_is_full(box: Box, tmp_path: Path, small_disk: Path) -> None:
    daemon = Lucidd(box, tmp_path / "state", state=small_disk)
    daemon.start()
    timer = ReleaseTimer(box, BOUND_S)
    try:
        ids = pair(box, 40)
        fill = ["dd", "if=/dev/zero", f"of={small_disk}/filler", "bs=4096"]
        assert "No space left" in subprocess.run(fill, capture_output=True, text=True, check=False).stderr
        later = [box.sbatch("--gres=gpu:1", "-p", "vc-a", "-J", f"h{n}", script=RUNS.format(3)) for n in range(3)]
        ids += later
        # SQLite goes on as long as its journal has room within: it is full when it says so
        box.wait("the daemon notices", lambda: "cannot be written" in daemon.log(), 60)
        box.wait("doctor says why", lambda: "and decides nothing" in daemon.ctl("doctor"), 60)
        assert "lucidd is down" not in daemon.ctl("doctor")
        box.wait("nothing is held", lambda: not held(box, later), BOUND_S + 60)
        box.wait_ended(*later, limit_s=60)
        assert daemon.process is not None
        assert daemon.process.poll() is None, "the daemon lives on"
        (small_disk / "filler").unlink()
        box.wait("it beats again", lambda: abs(heartbeat_s(box) - time.time()) < 5, 60)
        after = box.sbatch("--gres=gpu:1", "-p", "vc-a", "-J", "after", script=RUNS.format(6))
        ids.append(after)
        box.wait_ended(*ids, limit_s=120)
        ran_once(box, *ids)
        assert daemon.story(after)["decisions"]
    finally:
        timer.close()
        daemon.close()


def test_slurmctld_killed_under_a_pair(box: Box, lucidd: Lucidd, broken: Breakage) -> None:
    """With no time to save its state. It saves every few seconds, and what it did after the last time it forgets: a
    job that started then may start twice, with Lucid or without; so nothing starts here in those seconds."""
    ids = pair(box, 40)
    waits = box.sbatch("--gres=gpu:4", "-N2", "-p", "vc-a", "-J", "waits", script=RUNS.format(1))
    time.sleep(10)
    assert held(box, [waits]) == [waits], "a node of its two is taken"
    ids.append(waits)
    broken.kill("slurmctld")
    time.sleep(6)
    broken.start_slurmctld()
    box.wait_ended(*ids, limit_s=200)
    ran_once(box, *ids)


def test_the_daemon_dies_and_nobody_starts_it_again(box: Box, lucidd: Lucidd) -> None:
    ids = pair(box, 15)
    ids += [box.sbatch("--gres=gpu:4", "-p", "vc-b", "-J", f"d{n}", script=RUNS.format(4)) for n in range(4)]
    box.wait("some are held", lambda: bool(held(box, ids)), 20)
    lucidd.kill()
    timer = ReleaseTimer(box, BOUND_S)
    try:
        began = time.monotonic()
        box.wait("nothing is held", lambda: not held(box, ids), BOUND_S + 30)
        print(f"let go {time.monotonic() - began:.0f} s after the daemon died (bound {BOUND_S} s)")
        box.wait_ended(*ids, limit_s=120)
        ran_once(box, *ids)
    finally:
        timer.close()
