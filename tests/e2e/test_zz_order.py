"""No user jumps the queue: every known way past it ends behind the jobs that were held before, on real daemons.

One cluster for all: all GPUs of vc-a are taken, bob's two jobs wait, alice tries each way, the takers end, and the
order of starts is read from Slurm.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

GPU = "--gres=gpu:1"
OPTIONS = ["-p", "vc-a"]


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    # Nobody shares, and the order is that of the queue alone. Lucid's own policy puts short programs first, and by
    # what other tests ran here before, Alice's are shorter than Bob's.
    one = Lucidd(box, tmp_path / "lucidd")
    settings = one.folder / "lucid.toml"
    settings.write_text(settings.read_text().replace("[policy.packing]\n", "[policy.packing]\ngss = 0\n"))
    yield one
    one.close()
    box.stop_beating()


def scontrol(box: Box, *words: str, user: str = "alice") -> bool:
    return box.run("scontrol", *words, user=user, check=False).returncode == 0


def sbatch(box: Box, *options: str, user: str = "alice") -> str:
    return box.sbatch(*OPTIONS, *options, script="sleep 3", user=user)


# -- ways: each gets the box and a job that has ended, and gives alice's job -------------------------------------


def off(box: Box, ended: str) -> str:
    return sbatch(box, GPU, "--comment=lucid:off")


def off_later(box: Box, ended: str) -> str:
    job = sbatch(box, GPU)
    assert scontrol(box, "update", f"JobId={job}", "Comment=lucid:off")
    return job


def partitions(box: Box, ended: str) -> str:
    return box.sbatch("-p", "vc-b,vc-a", GPU, "--nodelist=n1,n2", script="sleep 3")


def hold(box: Box, ended: str) -> str:
    job = sbatch(box, GPU, "--hold")
    assert scontrol(box, "release", job)
    return job


def hold_later(box: Box, ended: str) -> str:
    job = sbatch(box, GPU)
    assert scontrol(box, "hold", job)
    assert scontrol(box, "release", job)
    assert not scontrol(box, "release", job), "a plain release is refused"
    return job


def depends(box: Box, ended: str) -> str:
    return sbatch(box, GPU, f"--dependency=afterok:{ended}")


def singleton(box: Box, ended: str) -> str:
    return sbatch(box, GPU, "--dependency=singleton", "--job-name=only-one")


def depends_later(box: Box, ended: str) -> str:
    job = sbatch(box, GPU)
    scontrol(box, "update", f"JobId={job}", "Dependency=singleton")
    return job


def begins(box: Box, ended: str) -> str:
    return sbatch(box, GPU, "--begin=now+3")


def begins_in_a_while(box: Box, ended: str) -> str:
    return sbatch(box, GPU, "--begin=now+63")


def begins_later(box: Box, ended: str) -> str:
    job = sbatch(box, GPU)
    assert scontrol(box, "update", f"JobId={job}", "StartTime=now+70")
    assert scontrol(box, "update", f"JobId={job}", "StartTime=now")
    return job


def array(box: Box, ended: str) -> str:
    return sbatch(box, GPU, "--array=0-1000%1")


def socket(box: Box, ended: str) -> str:
    return sbatch(box, "--gpus-per-socket=1", "--sockets-per-node=1")


def tasks(box: Box, ended: str) -> str:
    return sbatch(box, "--gpus=1", "--ntasks-per-gpu=1")


def heterogeneous(box: Box, ended: str) -> str:
    return box.run(
        "sbatch", "--parsable", "-D", "/tmp", *OPTIONS, GPU, "--wrap=sleep 3", ":", *OPTIONS, "-n1", user="alice"
    ).stdout.strip()


def moved(box: Box, ended: str) -> str:
    """Into the profiling partition, and elsewhere and back."""
    job = sbatch(box, GPU)
    assert not scontrol(box, "update", f"JobId={job}", "Partition=prof")
    assert scontrol(box, "update", f"JobId={job}", "Partition=vc-b")
    assert scontrol(box, "update", f"JobId={job}", "Partition=vc-a")
    return job


def changed(box: Box, ended: str) -> str:
    """A job without GPUs that asks for one later."""
    job = sbatch(box, "--begin=now+2")
    assert not scontrol(box, "update", f"JobId={job}", "Gres=gpu:1")
    box.run("scancel", job, user="alice")
    return sbatch(box, GPU)


def exclusive(box: Box, ended: str) -> str:
    """All GPUs of a node, without a word of GPUs."""
    return sbatch(box, "--exclusive", "-N1")


def plain(box: Box, ended: str) -> str:
    """No way at all, to compare with."""
    return sbatch(box, GPU)


WAYS: list[Callable[[Box, str], str]] = [
    plain,
    off, off_later, partitions, hold, hold_later, depends, singleton, depends_later, begins, begins_in_a_while,
    begins_later, array, socket, tasks, heterogeneous, moved, changed, exclusive,
]  # fmt: skip

REFUSED = ("--gres=shard:1", "--gres=shard:g0:1", "--gres=gpu:g2:1", "--gpus=g0:1")


def start_of(box: Box, job: str) -> float:
    """When it, or the first of its tasks, started; 0 while it has not."""
    found = [
        float(one["start_time"]["number"])
        for one in box.jobs().values()
        if str(one["job_id"]) == job or str(one["array_job_id"]["number"]) == job
        if one["job_state"][0] != "PENDING"
    ]
    return min(found, default=0.0)


@pytest.mark.slow
def test_every_way_past_the_queue_ends_behind_it(box: Box, lucidd: Lucidd) -> None:
    old = [box.sbatch(*OPTIONS, GPU, script="sleep 40", user="bob") for _ in range(3)]
    old += [box.sbatch(*OPTIONS, GPU, script="sleep 1", user="alice") for _ in range(5)]
    box.wait_ended(*old)
    ended = sbatch(box, GPU, user="root")  # before Lucid is there; one that alice can depend on
    box.wait_ended(ended)
    takers = [box.sbatch(*OPTIONS, GPU, script="sleep 600", user="root") for _ in range(8)]
    takers.append(box.sbatch("-p", "prof", "--gres=gpu:4", script="sleep 600", user="root"))
    box.wait("a full VC", lambda: all(box.state(job) == "RUNNING" for job in takers))
    lucidd.start()
    held = [sbatch(box, GPU, user="bob") for _ in range(2)]
    tricks = {way.__name__: way(box, ended) for way in WAYS}
    interactive = subprocess.Popen(
        ["chroot", "--userspec=alice", str(box.root), "srun", "-D", "/tmp", *OPTIONS, GPU, "-J", "inter",
         "sleep", "3"],
        cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    box.wait("the srun", lambda: any(job["name"] == "inter" for job in box.jobs().values()))
    tricks["interactive"] = next(i for i, job in box.jobs().items() if job["name"] == "inter")
    for option in (*REFUSED, "-p prof --gres=gpu:4"):
        assert box.run("sbatch", *OPTIONS, *option.split(), "--wrap=true", user="alice", check=False).returncode
    box.wait("a look", lambda: "behind" in lucidd.ctl("status") or len(lucidd.ctl("queue", "--json")) > 2)
    time.sleep(4)  # a few looks: nobody goes
    assert not [name for name, job in tricks.items() if start_of(box, job)]
    box.run("scancel", *takers[:2])
    box.wait("bob's two", lambda: all(start_of(box, job) for job in held))
    last = max(start_of(box, job) for job in held)
    box.run("scancel", *takers[2:])
    try:
        box.wait("all of alice's", lambda: all(start_of(box, job) for job in tricks.values()), 120)
        before = {name: start_of(box, job) - last for name, job in tricks.items() if start_of(box, job) < last}
        assert not before, "each behind"
    finally:
        interactive.terminate()
        interactive.wait(30)
        late = {name: box.job(job)["state_reason"] for name, job in tricks.items() if not start_of(box, job)}
        print("not started:", late)
