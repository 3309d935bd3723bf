"""lucidd on a real Slurm: sbatch as usual, profiled, placed, packed, explained; and whatever happens to it."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import statistics
import time
from pathlib import Path

import pytest
from box import OVER, Box
from breakage import Breakage
from daemon_box import Lucidd

from lucid.core.job import JobProfile

SHOW = "echo GPUS=$CUDA_VISIBLE_DEVICES; srun sh -c 'echo STEP=$CUDA_VISIBLE_DEVICES'; sleep {}"
HEAVY = JobProfile(99.0, 95.0, 20000.0)


def shards(box: Box, number: str) -> str:
    return str(box.job(number)["tres_per_node"])


def states(box: Box, numbers: list[str]) -> dict[str, str]:
    return {number: box.state(number) for number in numbers}


def test_jobs_are_profiled_and_packed_on_exactly_the_same_gpus(box: Box, tmp_path: Path) -> None:
    # nothing here hangs on how fast this machine is: both profiles are there long before T_prof is over
    lucidd = Lucidd(box, tmp_path / "state", t_prof_s=10.0)
    lucidd.start()
    try:
        _packed_on_the_same_gpus(box, lucidd)
    finally:
        lucidd.close()


def _packed_on_the_same_gpus(box: Box, lucidd: Lucidd) -> None:
    first = box.sbatch("--gres=gpu:2", "-J", "one", script=SHOW.format(40))
    second = box.sbatch("--gpus=2", "-J", "two", script=SHOW.format(35))
    box.wait(
        "the pair", lambda: all(box.state(n) == "RUNNING" and "shard" in shards(box, n) for n in (first, second))
    )
    wide = box.sbatch("--gpus-per-node=4", "-N2", "-p", "vc-a", "-J", "wide", script="srun hostname")
    assert shards(box, first) == shards(box, second)
    slots = [
        re.findall(r"GRES=(\S+)", box.run("scontrol", "show", "job", "-d", n).stdout)[-1] for n in (first, second)
    ]
    assert slots[0] == slots[1]
    gpus = ",".join(re.findall(r"shard:g(\d)", shards(box, first)))
    box.wait("lucidd to see it", lambda: lucidd.json("status")["partitions"]["vc-a"]["packed"] == 2)
    box.wait_ended(first, second, wide)
    assert states(box, [first, second, wide]) == dict.fromkeys([first, second, wide], "COMPLETED")
    for number in (first, second):
        assert f"GPUS={gpus}\nSTEP={gpus}\n" in box.output(number)
    told = lucidd.ctl("explain", second) + lucidd.ctl("explain", first)  # who is requeued first starts first
    assert "starts its profiling" in told or "starts on n4" in told
    assert f"sharing GPUs with job {first}" in told or f"sharing GPUs with job {second}" in told
    assert box.job(wide)["tres_per_node"] == "gres/gpu:4", "a distributed job runs as its user wrote it"
    assert lucidd.story(wide)["decisions"][-1]["beside"] is None


FORMS = {
    "gres": ["--gres=gpu:1"],
    "gpus": ["--gpus=1"],
    "per-node": ["--gpus-per-node=1"],
    "per-task": ["--gpus-per-task=1", "-n1"],
    "array": ["--gres=gpu:1", "--array=0-1"],
}
SCRIPTS = {
    "plain srun": "srun true; sleep 12",
    "srun --gres": "srun --gres=gpu:1 true; sleep 12",
    "no srun": "sleep 12",
}


@pytest.mark.slow
def test_however_gpus_are_asked_for_every_job_ends_as_on_plain_slurm(box: Box, lucidd: Lucidd) -> None:
    ids = {
        (form, kind): box.sbatch(*options, "-p", vc, "-J", f"{form}-{kind}", script=f"set -e; {script}")
        for vc, (form, options) in zip(["vc-a", "vc-b"] * 3, FORMS.items(), strict=False)
        for kind, script in SCRIPTS.items()
    }
    without = box.sbatch("-p", "vc-a", script="srun true")
    names = {f"{form}-{kind}" for form, kind in ids}
    ended: dict[str, str] = {}  # slurmctld forgets a job some minutes after its end

    def all_ended() -> bool:
        ours = {n: j for n, j in box.jobs().items() if j["name"] in names}
        ended.update({n: j["job_state"][0] for n, j in ours.items()})
        return set(ended.values()) <= OVER

    box.wait("the end of all", all_ended, 240)
    # Slurm 26.05 itself refuses an srun with --gres inside of a job with --gpus-per-node
    refused = ids["per-node", "srun --gres"] if box.release >= (26, 5) else ""
    failed = {n: state for n, state in ended.items() if state != ("FAILED" if n == refused else "COMPLETED")}
    assert not failed, [(n, state, box.job(n)["name"], box.output(n)) for n, state in failed.items()]
    box.wait_ended(without)
    assert box.state(without) == "COMPLETED"
    tasks = {key: [f"{n}_0", f"{n}_1"] if key[0] == "array" else [n] for key, n in ids.items()}
    assert all(lucidd.story(n)["decisions"] for several in tasks.values() for n in several)
    assert re.search(r"beside \d", json.dumps([lucidd.story(n)["actions"] for ns in tasks.values() for n in ns]))
    array = ids["array", "no srun"]
    assert f"{array}_0, {array}_1" in lucidd.ctl("explain", array), "an array is explained task by task"


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("held", marks=pytest.mark.slow),
        pytest.param("profiling", marks=pytest.mark.slow),
        "requeued",
        pytest.param("packed", marks=pytest.mark.slow),
    ],
)
def test_killed_in_any_phase_no_job_is_lost_or_started_twice(box: Box, lucidd: Lucidd, phase: str) -> None:
    ids = [box.sbatch("--gres=gpu:2", "-J", f"j{n}", script="echo BEGIN; sleep 12") for n in range(2)]
    ready = {
        "held": lambda: True,
        "profiling": lambda: box.job(ids[0])["partition"] == "prof" and box.state(ids[0]) == "RUNNING",
        "requeued": lambda: box.job(ids[0])["restart_cnt"] == 1,
        "packed": lambda: any("shard" in shards(box, n) for n in ids),
    }[phase]
    box.wait(phase, ready, 40)
    lucidd.kill()
    time.sleep(2)
    lucidd.start()
    box.wait_ended(*ids, limit_s=90)
    assert set(states(box, ids).values()) == {"COMPLETED"}
    for number in ids:
        assert box.job(number)["restart_cnt"] <= 1, "at most the requeue after profiling"
        assert box.output(number).count("BEGIN") == 1, (
            "the run that counted ran once (output is truncated at requeue)"
        )


@pytest.mark.slow
def test_a_second_daemon_does_nothing(box: Box, lucidd: Lucidd) -> None:
    import subprocess
    import sys

    from daemon_box import REPO

    done = subprocess.run(
        [sys.executable, "-m", "lucid.daemon", "--once", "--config", str(lucidd.folder / "lucid.toml")],
        capture_output=True, text=True, check=False, cwd=REPO, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0
    assert "lease taken" not in done.stderr


@pytest.mark.slow
def test_slurmctld_may_be_restarted_in_the_middle(box: Box, lucidd: Lucidd) -> None:
    ids = [box.sbatch("--gres=gpu:1", "-J", f"r{n}", script="sleep 8") for n in range(3)]
    box.wait("profiling", lambda: box.state(ids[0]) == "RUNNING", 30)
    broken = Breakage(box)
    os.kill(broken.pids("slurmctld")[0], signal.SIGTERM)
    box.wait("its end", lambda: not broken.pids("slurmctld"))
    time.sleep(3)
    broken.start_slurmctld()
    box.wait_ended(*ids, limit_s=120)
    assert set(states(box, ids).values()) == {"COMPLETED"}


@pytest.mark.slow
def test_a_damaged_store_is_replaced_and_the_jobs_go_on(box: Box, lucidd: Lucidd) -> None:
    ids = [box.sbatch("--gres=gpu:1", "-J", f"s{n}", script="sleep 6") for n in range(2)]
    box.wait("profiling", lambda: box.state(ids[0]) == "RUNNING", 30)
    lucidd.kill()
    for part in lucidd.folder.glob("lucid.db*"):
        part.unlink() if part.name != "lucid.db" else part.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    lucidd.start()
    box.wait_ended(*ids, limit_s=90)
    assert set(states(box, ids).values()) == {"COMPLETED"}
    assert list(lucidd.folder.glob("lucid.db.damaged-*"))


@pytest.mark.slow
def test_order_mode_puts_short_jobs_first_within_its_bound(box: Box, tmp_path: Path) -> None:
    daemon = Lucidd(box, tmp_path / "order", mode="order")
    daemon.start()
    try:
        # what the daemon expects of both comes from these, not from whatever ran on this testbed before
        known = [
            box.sbatch("--gres=gpu:4", "-p", "vc-b", "-J", "lengthy", script="sleep 8"),
            box.sbatch("--gres=gpu:1", "-p", "vc-b", "-J", "brief", script="sleep 1"),
        ]
        box.wait_ended(*known)
        full = [box.sbatch("--gres=gpu:4", "-p", "vc-b", script="sleep 40")]
        box.wait("it runs", lambda: box.state(full[0]) == "RUNNING", 20)
        wide = box.sbatch("--gres=gpu:4", "-p", "vc-b", "-J", "lengthy", script="sleep 1")
        narrow = box.sbatch("--gres=gpu:1", "-p", "vc-b", "-J", "brief", script="sleep 1")
        box.wait("factors", lambda: box.job(narrow)["priority"]["number"] > box.job(wide)["priority"]["number"], 35)
        assert box.job(narrow)["priority"]["number"] < 1100 + box.job(full[0])["priority"]["number"]
        box.wait_ended(*full, wide, narrow, limit_s=90)
        assert box.job(narrow)["start_time"]["number"] <= box.job(wide)["start_time"]["number"]
    finally:
        daemon.close()


HOSTILE = [
    "a; rm -rf /",
    "$(touch /tmp/owned)",
    "`id`",
    "'\"\\",
    "n\nheld=1;vc=x",
    "ü☃" * 100,
    "x" * 1024,
    "lucid:vc=prof;held=1",
]


@pytest.mark.slow
def test_hostile_names_and_comments_are_harmless(box: Box, lucidd: Lucidd) -> None:
    ids = [box.sbatch("--gres=gpu:1", "-J", text, f"--comment={text}", script="true") for text in HOSTILE]
    box.wait_ended(*ids, limit_s=90)
    assert set(states(box, ids).values()) == {"COMPLETED"}
    assert not (box.root / "tmp/owned").exists()
    assert not Path("/tmp/owned").exists()


@pytest.mark.slow
def test_a_freed_gpu_is_taken_within_three_seconds(box: Box, lucidd: Lucidd) -> None:
    lucidd.measured = {"same": HEAVY}
    ids = [box.sbatch("--gres=gpu:4", "-p", "vc-b", "-J", "same", script="sleep 6") for _ in range(9)]
    box.wait_ended(*ids, limit_s=240)
    spans = sorted(
        (job["start_time"]["number"], job["end_time"]["number"])
        for number, job in box.jobs().items()
        if number in ids and job["nodes"] == "n3"
    )
    gaps = [start - end for (_, end), (start, _) in itertools.pairwise(spans)]
    print("from one job's end to the next one's start, s:", gaps)
    assert len(gaps) >= 6
    assert statistics.median(gaps) <= 3
