"""Prolog and epilog on real nodes: which GPUs they hand on, and that no user's job leads root's side anywhere while
others' pairs under MPS go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from box import Box
from daemon_box import seal

from nvml_emulator import smi as nvidia_smi

STATE = "run/lucid-mps"


@pytest.fixture
def hooked(box: Box) -> Iterator[Box]:
    """Commands that note their arguments; MPS' fail."""
    folder = box.root / "opt/hooks/mps"
    folder.mkdir(parents=True, exist_ok=True)
    for path, code in ((folder.parent / "sampler", 0), (folder / "start", 3), (folder / "stop", 3)):
        path.write_text(f'#!/bin/sh\necho "${{0##*/}} $*" >> /tmp/hooks.log\nexit {code}\n')
        path.chmod(0o755)
    smi = box.root / "usr/bin/nvidia-smi"
    smi.write_text(nvidia_smi({f"GPU-aa{minor}": minor for minor in (2, 3, 0, 1)}))
    smi.chmod(0o755)
    (box.root / "tmp/hooks.log").unlink(missing_ok=True)
    conf = box.root / "etc/slurm/lucid/node.conf"
    conf.write_text("# a comment\nsampler /opt/hooks/sampler\nmps /opt/hooks/mps\nlimit 3\n")
    yield box
    conf.unlink()
    smi.unlink()


def log(box: Box) -> list[str]:
    path = box.root / "tmp/hooks.log"
    return path.read_text().splitlines() if path.exists() else []


def test_whole_gpus_need_no_mps_and_jobs_without_gpus_no_sampler(hooked: Box) -> None:
    whole, none = hooked.sbatch("--gres=gpu:2"), hooked.sbatch()
    hooked.wait_ended(whole, none)
    hooked.wait("both epilogs", lambda: sum("stop" in line for line in log(hooked)) == 4)
    assert [line for line in log(hooked) if "start" in line] == [
        f"sampler start --job {whole} --slurm-id {whole} --gpus  --nodes 1"
    ]


@pytest.fixture
def holed(hooked: Box) -> Iterator[Box]:
    """No node has /dev/nvidia2: the GPU of /dev/nvidia3 is the third of Slurm's."""
    etc = hooked.root / "etc/slurm"
    before = {path: path.read_text() for path in (etc / "gres.conf", etc / "lucid.slurm.conf")}

    def have(texts: dict[Path, str], shown: str) -> None:
        for path, text in texts.items():
            path.write_text(text)
        hooked.run("scontrol", "reconfigure")
        hooked.wait("the GPUs", lambda: shown in hooked.run("sinfo", "-h", "-n", "n1", "-o", "%G").stdout)
        hooked.wait("idle nodes", lambda: {*hooked.run("sinfo", "-h", "-o", "%t").stdout.split()} == {"idle"})

    lacks = {
        path: re.sub(r"(gpu|shard):g2:\d+,?|^.*Type=g2 .*\n", "", text, flags=re.M) for path, text in before.items()
    }
    have({path: re.sub(r",(?=\s)", "", text) for path, text in lacks.items()}, "gpu:g1:1,gpu:g3:1")
    yield hooked
    have(before, "gpu:g2:1")


@pytest.mark.slow
def test_behind_a_hole_slurm_counts_places_and_the_job_gets_the_gpu_of_the_device_file(holed: Box) -> None:
    holed.beat()
    job = holed.sbatch("--gres=gpu:2", script="env")
    sealed = seal(holed, job, (1, 2), 9000, numbers=(1, 3))
    holed.scontrol(
        "update", f"JobId={job}", "TresPerNode=gres/shard:g1:1,gres/shard:g3:1", "ReqNodeList=n1", f"Extra={sealed}"
    )
    holed.scontrol("release", job)
    holed.wait_ended(job)
    uid = holed.run("id", "-u", "alice").stdout.strip()
    assert [line for line in log(holed) if "start" in line] == [
        f"sampler start --job {job} --slurm-id {job} --gpus 1,3 --nodes 1",
        f"start --job {job} --uid {uid} --gpus GPU-aa1,GPU-aa3 --mem-limit 9000 --within 1",
    ]
    assert "SLURM_JOB_GPUS=1,2" in holed.output(job).splitlines()


# -- hostile users ---------------------------------------------------------------------------------------------------


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


def test_no_extra_of_a_users_own_starts_mps(box: Box, mps: Path, pair: tuple[str, str]) -> None:
    """job_submit.lua refuses users' lucid- items in Extra. Here it lets alice, so that the hooks stand alone."""
    before = sets(box)
    others = box.job(pair[0])["extra"]
    mine = seal(box, "77", (1, 2), user="alice")
    own = start(box, "alice", (0,), "true")
    box.wait_ended(own)
    older = box.job(own)["extra"]
    texts = [
        "lucid-gpus=0,1,2,3;lucid-mem=9", others, mine, older, others.partition("MUNGE:")[0] + "MUNGE:AAAA:",
        "lucid-seal=MUNGE:$(touch /tmp/pwned):", "lucid-seal=" + "M" * 900, "\x1b[2J;lucid-seal=\n;rm -rf /",
    ]  # fmt: skip
    with box.unrefused("alice"):
        jobs = [box.sbatch("-w", "n1", f"--extra={text}", script="sleep 1") for text in texts]
        whole = [box.sbatch("-w", "n1", "--gres=gpu:1", f"--extra={text}") for text in (others, mine, older)]
        for job in whole:
            box.scontrol("release", job)
        box.wait_ended(*jobs, *whole)
    box.wait("the epilogs", lambda: sets(box) == before)
    started = [line for line in (mps / "log").read_text().splitlines() if line.startswith("start ")]
    assert [line.split()[2] for line in started] == ["GPU-aa1,GPU-aa2", "GPU-aa0"], "bob's pair, and alice's own job"
    assert not (box.root / "tmp/pwned").exists()
