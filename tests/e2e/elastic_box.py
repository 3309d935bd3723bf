"""Elastic jobs for a testbed: small training in plain Python, and a lucidd that resizes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from box import OVER, Box
from daemon_box import REPO, Lucidd

REPORTS = "run/lucid-reports"

TRAIN = r'''
"""SGD on a line of noisy points; a step takes STEP_S on one GPU, less on more. Arguments: EPOCHS STEPS STEP_S HOW."""
import atexit, json, os, signal, sys, time
sys.path.insert(0, "/opt/elastic")
import lucid_report

epochs, steps, step_s, how = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
job, gpus = os.environ["SLURM_JOB_ID"], lucid_report.gpus_here() or 1
base = "/tmp/elastic/" + job
state = {"step": 0, "w": 0.0, "b": 0.0}
if os.path.exists(base + ".ckpt"):
    with open(base + ".ckpt") as file:
        state = json.load(file)
log = open(base + ".steps", "a", buffering=1)
runs = open(base + ".runs", "a", buffering=1)
runs.write("%d %.3f" % (gpus, time.time()))
atexit.register(lambda: runs.write(" %.3f\n" % time.time()))
stop = []


def checkpoint():
    with open(base + ".new", "w") as file:
        json.dump(state, file)
    os.replace(base + ".new", base + ".ckpt")


def told(*_):
    stop.append(1)


signal.signal(signal.SIGTERM, signal.SIG_IGN if how == "deaf" else told)
print("RUN", gpus, "at step", state["step"], "from", os.environ.get("SLURM_RESTART_COUNT", 0),
      "stale", os.environ.get("SLURM_GPUS"), flush=True)
loss = 0.0
began, since = time.time(), state["step"]
while state["step"] < epochs * steps:
    x = state["step"] * 0.618034 % 1.0
    error = state["w"] * x + state["b"] - (3 * x + 1)
    state["w"] -= 0.2 * error * x
    state["b"] -= 0.2 * error
    loss = 0.9 * loss + 0.1 * error * error
    time.sleep(step_s / (1 + 0.9 * (gpus - 1)))
    state["step"] += 1
    log.write("%d\n" % state["step"])
    if how == "deaf" and state["step"] % 5 == 0:
        checkpoint()
    if how == "dies" and os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
        sys.exit(3)
    if stop:
        checkpoint()
        if how == "slow":
            time.sleep(3)
        sys.exit(1 if how == "cross" else 143)
    if state["step"] % steps == 0:
        took = time.time() - began
        lucid_report.report(state["step"] / steps, took if state["step"] - since >= steps else None, gpus, loss, 32)
        began, since = time.time(), state["step"]
checkpoint()
print("DONE w=%.3f b=%.3f" % (state["w"], state["b"]), flush=True)
'''


class Elastics:
    """Jobs of one testbed."""

    def __init__(self, box: Box) -> None:
        self.box = box
        for name in ("tmp/elastic", REPORTS):
            box.open_folder(name)
        programs = box.root / "opt/elastic"
        programs.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / "slurm/lucid_report.py", programs)
        shutil.copytree(REPO / "slurm/lucid_job", programs / "lucid_job", dirs_exist_ok=True)
        shutil.copy(REPO / "benchmarks/adaptive_sgd.py", programs)
        (programs / "train.py").write_text(TRAIN)

    def submit(
        self, *options: str, epochs: int = 5, steps: int = 20, step_s: float = 0.1, how: str = "plain",
        size: str = "1-4", gpus: int = 1, wrap: str = "exec {}",
    ) -> str:  # fmt: skip
        """``wrap``: how the script calls the program."""
        call = f"python3 /opt/elastic/train.py {epochs} {steps} {step_s} {how}"
        comment = [f"--comment=lucid:elastic={size},epochs={epochs}"] if size else []
        return self.box.sbatch(
            f"--gres=gpu:{gpus}", "--open-mode=append", "--requeue", *comment, *options,
            script=f"export LUCID_REPORTS=/{REPORTS}; {wrap.format(call)}",
        )  # fmt: skip

    def submit_adaptive(self, *options: str, program: str, how: str, gpus: int, epochs: int, size: str = "1-8",
                        batch: str = "", start: int = 0) -> str:  # fmt: skip
        """A job that may choose its batch (``adaptive_sgd``). ``program``: its options; ``batch`` and ``start``: as
        the comment has them."""
        words = [f"lucid:elastic={size}", *([f"batch={batch}"] if batch else []), f"epochs={epochs}"]
        comment = ",".join([*words, *([f"start={start}"] if start else [])])
        return self.box.sbatch(
            f"--gres=gpu:{gpus}", "--open-mode=append", "--requeue", f"--comment={comment}", *options,
            script=f"export LUCID_REPORTS=/{REPORTS}; "
            f"exec python3 /opt/elastic/adaptive_sgd.py --how {how} {program}",
        )  # fmt: skip

    def steps(self, number: str) -> list[int]:
        """Those that the job did, in order."""
        path = self.box.root / f"tmp/elastic/{number}.steps"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def lost(self, number: str) -> int:
        """Steps that were done twice."""
        done = self.steps(number)
        return len(done) - len(set(done))

    def sizes(self, number: str) -> list[int]:
        """GPUs of each run so far."""
        if not (self.box.root / "tmp" / f"{number}_4294967294.out").exists():
            return []
        return [int(line.split()[1]) for line in self.box.output(number).splitlines() if line.startswith("RUN ")]

    def gpu_s(self, number: str) -> float:
        """GPU-seconds by the clock of the job's own program; a run that was killed has no end."""
        lines = (self.box.root / f"tmp/elastic/{number}.runs").read_text().splitlines()
        runs = [[float(word) for word in line.split()] for line in lines]
        return sum(run[0] * (run[2] - run[1]) for run in runs if len(run) == 3)


def elastic_lucidd(
    box: Box,
    folder: Path,
    policy: str = "elastic",
    every_s: float = 3.0,
    silent_s: float = 900.0,
    round_s: float = 0.0,
) -> Lucidd:
    """One that reads the testbed's reports. ``round_s``: between rounds, where the policy decides in such."""
    section = policy.partition("-")[0]
    rounds = [f"[policy.{section}]", f"interval_s = {round_s}"] if round_s else []
    more: Sequence[str] = (
        "lease_s = 6",
        f'policy = "{policy}"',
        "[daemon.elastic]",
        f'reports_dir = "{box.root}/{REPORTS}"',
        f"resize_every_s = {every_s}",
        f"silent_s = {silent_s}",
        "restart_s = 5.0",
        *rounds,
    )
    return Lucidd(box, folder, restarts="", more="\n".join(more))


def lucidd_fixture(policy: str = "elastic", **given: float) -> Any:
    """A module's fixture ``lucidd``: an ``elastic_lucidd`` that runs while a test does."""

    @pytest.fixture(name="lucidd")
    def running(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
        with elastic_lucidd(box, tmp_path / "state", policy, **given) as daemon:
            yield daemon

    return running


def in_between(box: Box, number: str) -> bool:
    """It was told to stop for a resize, and has not started again."""
    job = box.job(number)
    return bool(job["restart_cnt"]) and (job["job_state"][0] == "PENDING" or "COMPLETING" in job["job_state"])


def a_resize(box: Box, jobs: Elastics, how: str = "slow") -> str:
    """A job that was told to stop because it is to grow, and has not started again. It takes 3 s to stop."""
    number = jobs.submit("-p", "vc-a", epochs=20, how=how, size="1-4")
    box.wait("it was told to stop", lambda: in_between(box, number) or box.state(number) in OVER, 60)
    assert in_between(box, number)
    return number


def well(box: Box, jobs: Elastics, number: str, steps: int) -> None:
    """It has ended as it should, each step done once and in order, one record for each start."""
    assert box.state(number) == "COMPLETED", box.output(number)
    assert jobs.steps(number) == list(range(1, steps + 1))
    starts = box.job(number)["restart_cnt"] + 1
    assert len(jobs.sizes(number)) == starts
    box.wait("accounting has each start", lambda: _runs_by_accounting(box, number) == starts, 30)


def _runs_by_accounting(box: Box, number: str) -> int:
    said = box.run("sacct", "-D", "-X", "-n", "-P", "-j", number, "-o", "Start").stdout.split()
    return sum(start[:4].isdigit() for start in said)
