"""Prolog, epilog and task prolog on real nodes: they call what is configured, and never harm a job."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import seal

from lucid.slurm.act.prolog_extra import Items
from nvml_emulator import smi as nvidia_smi


@pytest.fixture
def hooked(box: Box) -> Iterator[Box]:
    """Commands that note their arguments; the sampler's then hangs, and MPS' fails."""
    folder = box.root / "opt/hooks/mps"
    folder.mkdir(parents=True, exist_ok=True)
    note = '#!/bin/sh\necho "${0##*/} $*" >> /tmp/hooks.log\n'
    for path, then in (
        (folder.parent / "sampler", "sleep 60\n"),
        (folder / "start", "exit 3\n"),
        (folder / "stop", "exit 3\n"),
    ):
        path.write_text(note + then)
        path.chmod(0o755)
    smi = box.root / "usr/bin/nvidia-smi"
    smi.write_text(nvidia_smi({f"GPU-aa{minor}": minor for minor in (2, 3, 0, 1)}))
    smi.chmod(0o755)
    (box.root / "tmp/hooks.log").unlink(missing_ok=True)
    conf = box.root / "etc/slurm/lucid/node.conf"
    conf.write_text("# a comment\nsampler /opt/hooks/sampler\nmps /opt/hooks/mps\nlimit 3\nbad $(touch /tmp/pwned)\n")
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


def test_what_a_user_writes_into_extra_counts_for_nothing(hooked: Box) -> None:
    forged = hooked.run("munge", "-u", "root", "-s", Items("n1", (0, 1)).payload(1, 0), user="alice").stdout.strip()
    texts = ["lucid-gpus=$(id)", "lucid-gpus=1,3\nlucid-gpus=2", "lucid-gpus=1", f"lucid-seal={forged}"]
    # as root, whom job_submit.lua lets: users are refused such items before the hooks ever see them
    jobs = [hooked.sbatch("--gres=gpu:1", f"--extra={text}", user="root") for text in texts]
    hooked.wait_ended(*jobs)
    hooked.wait("every epilog", lambda: sum("sampler stop" in line for line in log(hooked)) == len(jobs))
    passed = {line.split(" --gpus ")[1] for line in log(hooked) if line.startswith("sampler start")}
    assert passed == {" --nodes 1"}
    assert not [line for line in log(hooked) if line.startswith("start")]


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


def test_the_task_prolog_tells_mps_clients_and_narrows_uuids_by_task(box: Box) -> None:
    box.beat()
    job = box.sbatch(
        "--gpus-per-task=1", "--ntasks=2", script="srun sh -c 'echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES'; env"
    )
    box.scontrol(
        "update", f"JobId={job}", "TresPerNode=gres/shard:g1:1,gres/shard:g3:1", "TresPerTask=", "ReqNodeList=n1"
    )
    env = box.root / "run/lucid-mps/env"
    env.mkdir(parents=True, exist_ok=True)
    (env / job).write_text("export CUDA_VISIBLE_DEVICES=GPU-a,GPU-b\nexport CUDA_MPS_PIPE_DIRECTORY=/run/x/pipe\n")
    box.scontrol("release", job)
    box.wait_ended(job)
    lines = box.output(job).splitlines()
    assert {"0 GPU-a", "1 GPU-b", "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b", "SLURM_JOB_GPUS=1,3"} <= set(lines)
    assert "CUDA_MPS_PIPE_DIRECTORY=/run/x/pipe" in lines
    (env / job).unlink()
