"""The tuner's search as a job array on a real Slurm, an element lost on the way included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box

from lucid.simulator.traces import write_trace
from lucid.simulator.traces.synth import preset, synthesise

REPO = Path(__file__).resolve().parents[2]
CLI = (sys.executable, "-m", "lucid.cli.main")
AGENT = """#!/bin/sh
echo "$@" > /tmp/new.$SLURM_ARRAY_TASK_ID
rm -f /tmp/answer.$SLURM_ARRAY_TASK_ID
mv /tmp/new.$SLURM_ARRAY_TASK_ID /tmp/ask.$SLURM_ARRAY_TASK_ID
while [ ! -s /tmp/answer.$SLURM_ARRAY_TASK_ID ]; do sleep 0.2; done
exit $(cat /tmp/answer.$SLURM_ARRAY_TASK_ID)
"""
"""The testbed's nodes have no Python of ours: a job hands its words out of the chroot and waits for the status."""


@contextmanager
def nodes_with_python(box: Box, lost: set[str]) -> Iterator[list[str]]:
    """Runs what jobs hand out; yields which elements did. Those in ``lost`` fail once, before anything is done."""
    ran: list[str] = []
    tmp, stop = box.root / "tmp", threading.Event()
    (tmp / "lucidctl").write_text(AGENT)
    (tmp / "lucidctl").chmod(0o755)

    def serve() -> None:
        while not stop.wait(0.2):
            for ask in tmp.glob("ask.*"):
                words, number = ask.read_text().split(), ask.name.partition(".")[2]
                ask.unlink()
                code = 1
                if number not in lost:
                    ran.append(number)
                    code = subprocess.run([*CLI, *words], check=False, cwd=REPO).returncode
                lost.discard(number)
                (tmp / f"answer.{number}").write_text(f"{code}\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield ran
    finally:
        stop.set()
        thread.join(60)
        for path in (*tmp.glob("ask.*"), *tmp.glob("answer.*"), tmp / "lucidctl"):
            path.unlink()


def tune(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ["tune", "--history", folder / "log.csv", "--nodes", 26, "--only", "gss", "--only", "t_prof_s"]
    words += ["--trials", 6, "--config", folder / "lucid.toml", "--out", folder / "out", "--slurm", 3]
    words += ["--on-node", "/tmp/lucidctl", "--sbatch", "--output=/tmp/%A_%a.out --chdir=/tmp --time=10", *more]
    return subprocess.run(
        [*CLI, *map(str, words)], capture_output=True, text=True, check=False, cwd=REPO, timeout=300,
        env={**os.environ, "COLUMNS": "160"},
    )  # fmt: skip


@pytest.mark.slow
def test_a_search_goes_out_as_a_job_array_and_comes_back(box: Box, tmp_path: Path) -> None:
    write_trace(synthesise(preset("month-small").resized(900, None), seed=1), tmp_path / "log.csv")
    (tmp_path / "lucid.toml").write_text(f'[slurm]\nprefix = ["chroot", "{box.root}"]\n')
    with nodes_with_python(box, lost={"2"}) as ran:
        first = tune(tmp_path)
        assert first.returncode == 0, first.stderr
        assert "3 elements for 6 trials" in first.stderr
        missing = tune(tmp_path, "--wait")
        assert missing.returncode == 1, missing.stderr
        assert "2 trials of elements 2 are missing" in missing.stderr
        done = tune(tmp_path, "--wait", "--json")
        assert done.returncode == 0, done.stderr
    assert sorted(ran) == ["0", "1", "2"]
    assert json.loads(done.stdout)["trials"] == 6
    for k in range(3):
        rows = (tmp_path / "out" / f"trials-{k}.jsonl").read_text().splitlines()
        assert json.loads(rows[0])["element"] == k
        assert len(rows) == 3
