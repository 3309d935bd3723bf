"""What hostile users do to root's side of a node, on a real Slurm: nothing comes of it, and others' pairs go on."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from box import Box
from daemon_box import seal

STATE = "run/lucid-mps"
UIDS = {"alice": 2001, "bob": 2002}


def start(box: Box, user: str, gpus: tuple[int, ...], script: str, mem: int = 9000) -> str:
    """A job in slots of these GPUs of n1, as lucidd starts it."""
    box.beat()  # on a busy machine the last one may be old by now, and then the job is not held
    job = box.sbatch(f"--gres=gpu:{len(gpus)}", script=script, user=user)
    slots = ",".join(f"gres/shard:g{i}:1" for i in gpus)
    box.scontrol(
        "update", f"JobId={job}", f"TresPerNode={slots}", "ReqNodeList=n1", f"Extra={seal(box, job, gpus, mem)}"
    )
    box.scontrol("release", job)
    return job


def told(box: Box, job: str) -> str:
    path = box.root / STATE / "env" / job
    return path.read_text() if path.exists() else ""


def sets(box: Box) -> dict[str, list[str]]:
    """Clients of the GPU sets in use, by GPUs and uid."""
    found = {}
    for path in (box.root / STATE / "sets").glob("*"):
        with suppress(FileNotFoundError):  # it is just being removed
            name = f"{(path / 'gpus').read_text()} of {(path / 'uid').read_text()}"
            found[name] = sorted(client.name for client in (path / "clients").iterdir())
    return found


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of root's."""
    process = subprocess.Popen(["sleep", "900"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def pair(box: Box, mps: Path) -> Iterator[tuple[str, str]]:
    """Two jobs of bob's under MPS, which have to go on so whatever others do."""
    jobs = start(box, "bob", (1, 2), "sleep 900"), start(box, "bob", (1, 2), "sleep 900", 5000)
    box.wait("bob's pair under MPS", lambda: all("CUDA_MPS_PIPE" in told(box, job) for job in jobs))
    yield jobs
    for job, mem in zip(jobs, (9000, 5000), strict=True):
        assert box.state(job) == "RUNNING"
        assert f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={mem}M,1={mem}M" in told(box, job)
    assert sets(box)["GPU-aa1,GPU-aa2 of 2002"] == sorted(jobs)
    alive = [json.loads(path.read_text()) for path in mps.glob("daemon-*")]
    mine = [daemon for daemon in alive if daemon["gpus"] == ["GPU-aa1", "GPU-aa2"]]
    assert [daemon["uid"] for daemon in mine] == [2002]
    assert Path(f"/proc/{mine[0]['pid']}").exists()
    assert not (mps / "violations").exists()
    assert not [node for node in box.run("sinfo", "-h", "-o", "%t").stdout.split() if "drain" in node]
    box.run("scancel", *jobs)
    box.wait("the end of bob's daemon", lambda: not sets(box))


@pytest.fixture
def unrefused(box: Box) -> Iterator[None]:
    """job_submit.lua refuses users' lucid- items in Extra. Here it lets alice, so that the hooks stand alone."""
    with box.unrefused("alice"):
        yield


def test_no_extra_of_a_users_own_starts_mps(box: Box, mps: Path, pair: tuple[str, str], unrefused: None) -> None:
    before = sets(box)
    others = box.job(pair[0])["extra"]
    payload = others.partition(";lucid-seal=")[0]
    mine = seal(box, "77", (1, 2), user="alice")
    own = start(box, "alice", (0,), "true")
    box.wait_ended(own)
    older = box.job(own)["extra"]
    texts = [
        "lucid-gpus=0,1,2,3",
        "lucid-gpus=0,1,2,3;lucid-mem=9",
        others,
        mine,
        older,
        payload + ";lucid-seal=MUNGE:AAAA:",
    ]
    texts += ["lucid-seal=MUNGE:$(touch /tmp/pwned):", "lucid-seal=" + "M" * 900, "\x1b[2J;lucid-seal=\n;rm -rf /"]
    jobs = [box.sbatch("-w", "n1", f"--extra={text}", user="alice", script="sleep 1") for text in texts]
    whole = [
        box.sbatch("-w", "n1", "--gres=gpu:1", f"--extra={text}", user="alice") for text in (others, mine, older)
    ]
    for job in whole:
        box.scontrol("release", job)
    jobs += whole
    box.wait_ended(*jobs)
    box.wait("the epilogs", lambda: sets(box) == before)
    started = [line for line in (mps / "log").read_text().splitlines() if line.startswith("start ")]
    assert [line.split()[2] for line in started] == ["GPU-aa1,GPU-aa2", "GPU-aa0"], "bob's pair, and alice's own job"
    assert not (box.root / "tmp/pwned").exists()


def test_what_root_keeps_no_user_can_write(box: Box, mps: Path, pair: tuple[str, str]) -> None:
    """Files, folders, links and FIFOs at every place of root's that is there, by the pair's own user and another."""
    tries = (
        f"find /{STATE} -mindepth 0 2>/dev/null | while read -r p; do case $p in */pipe*|*/log*) continue ;; esac; "
        "rm -rf $p.x; mkdir $p.x; ln -s /etc/passwd $p.x; mkfifo $p.x; echo 1 > $p; mv $p $p.y; chmod 777 $p; "
        "rm -f $p; "
        "ln -s /etc $p/x; mkfifo $p/x; echo x > $p/1; done 2>/dev/null; true"
    )

    def shape() -> list[tuple[str, int, int]]:
        found = [(box.root / STATE), *sorted((box.root / STATE).rglob("*"))]
        kept = [path for path in found if not {"pipe", "log", "trash"} & set(path.parts)]
        return [(str(path), path.lstat().st_mode, path.lstat().st_uid) for path in kept]

    before = shape()
    assert {uid for _, _, uid in before} == {0}
    for user in ("bob", "alice"):
        box.run("sh", "-c", tries, user=user)
    assert shape() == before


ATTACKS = {
    "the pid file names a process of root's": (
        "kill $(cat $P/*.pid); sleep 0.5; echo {victim} > $P/nvidia-cuda-mps-control.pid"
    ),
    "answers name slurmd, broken": "printf 'echo {slurmd}\\necho FAULT\\n' > $P/answer",
    "answers without end": "echo 'yes {slurmd}' > $P/answer",
    "no answer": "echo 'sleep 1000' > $P/answer",
    "a daemon that is stopped": "kill -STOP $(cat $P/*.pid); echo 'sleep 1000' > $P/answer",
    "FIFOs": (
        "kill -9 $(cat $P/*.pid); rm -rf $P/* $L/*; "
        "for n in nvidia-cuda-mps-control.pid control log answer servers.json started; do mkfifo $P/$n $L/$n; done"
    ),
    "links": (
        "for n in a nvidia-cuda-mps-control.pid; do ln -sf /etc/shadow $P/$n; ln -sf / $L/$n; done; ln -s / $P/root"
    ),
    "names": "cd $P; for i in $(seq 300); do mkdir d$i; cd d$i; done 2>/dev/null; cd $P; seq 20000 | xargs touch",
}
QUICK = ("the pid file names a process of root's", "FIFOs")


def attack(box: Box, pair: tuple[str, str], victim: subprocess.Popen[bytes], what: str) -> None:
    slurmd = box.run("sh", "-c", "cat /run/slurm/slurmd.n1.pid").stdout.strip()
    passwd, shadow = ((box.root / "etc" / name).stat() for name in ("passwd", "shadow"))
    script = "P=$CUDA_MPS_PIPE_DIRECTORY L=$CUDA_MPS_LOG_DIRECTORY; " + ATTACKS[what].format(
        victim=victim.pid, slurmd=slurmd
    )
    job = start(box, "alice", (0,), f"{script}; echo done")
    box.wait_ended(job, limit_s=15)
    assert "done" in box.output(job), what
    began = time.monotonic()
    box.wait(f"{what}: the epilog", lambda: "GPU-aa0 of 2001" not in sets(box), limit_s=10)
    assert time.monotonic() - began < 40
    assert victim.poll() is None
    assert Path(f"/proc/{slurmd}").exists()
    for name, before in (("passwd", passwd), ("shadow", shadow)):
        after = (box.root / "etc" / name).stat()
        assert (after.st_uid, after.st_mode, after.st_mtime) == (before.st_uid, before.st_mode, before.st_mtime)
    again = start(box, "alice", (0,), "echo $CUDA_MPS_PIPE_DIRECTORY")
    box.wait_ended(again)
    assert STATE in box.output(again), f"{what}: the next job on these GPUs is under MPS again"


@pytest.mark.parametrize("what", QUICK)
def test_a_users_own_daemon_leads_root_nowhere(
    box: Box, pair: tuple[str, str], victim: subprocess.Popen[bytes], what: str
) -> None:
    attack(box, pair, victim, what)


@pytest.mark.slow
def test_more_of_what_a_user_can_do_with_a_daemon(
    box: Box, pair: tuple[str, str], victim: subprocess.Popen[bytes]
) -> None:
    for what in ATTACKS.keys() - set(QUICK):
        attack(box, pair, victim, what)
