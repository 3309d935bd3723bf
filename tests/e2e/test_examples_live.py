"""The programs of examples/, on a real Slurm: those that are elastic grow under it and lose nothing.

LUCID_EXAMPLES_PYTHON names a Python that has PyTorch, Lightning and transformers (`make test-examples` makes one).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import REPO, Lucidd
from elastic_box import REPORTS, elastic_lucidd
from testbeds import MountedPython, copy, python_in

PYTHON = os.environ.get("LUCID_EXAMPLES_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="LUCID_EXAMPLES_PYTHON names no Python: make test-examples"),
]
HOME, LUCID, CHECKPOINTS = "opt/examples-python", "etc/slurm/lucid", "tmp/lucid-checkpoints"
EXAMPLES = REPO / "examples"


@pytest.fixture
def python(box: Box) -> Iterator[MountedPython]:
    """A Python with PyTorch; what Lucid ships for jobs lies where it is installed."""
    for folder in (CHECKPOINTS, REPORTS):
        box.open_folder(folder)
    (box.root / LUCID).mkdir(parents=True, exist_ok=True)
    for path in (REPO / "slurm/lucid_job", *(REPO / "slurm").glob("lucid_*.py")):
        copy(path, box.root / LUCID)
    for folder in ("elastic", "turns", "sweep"):
        copy(EXAMPLES / folder, box.root / "opt")
    with python_in(box, PYTHON, HOME) as mounted:
        yield mounted


def script_of(example: str, python: MountedPython, **changes: str) -> str:
    """The example's own batch script, with the testbed's folders and Python. ``changes``: other words in it."""
    path = EXAMPLES / example
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    text = (
        "\n".join(lines)
        .replace("exec python3 ", f"exec {python.program} ")
        .replace(" python3 ", f" {python.program} ")
    )
    text = text.replace("PYTHONPATH=/etc", "PYTHONPATH=$PYTHONPATH:/etc")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    where = f"cd /opt/{path.parent.name}; export OMP_NUM_THREADS=1 LUCID_REPORTS=/{REPORTS} {python.environment}"
    return f"{where} LUCID_CHECKPOINT_ROOT=/{CHECKPOINTS}\n{text}"


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    daemon = elastic_lucidd(box, tmp_path / "state", "elastic", every_s=5.0)
    with box.configured(KillWait=30):
        daemon.start()
        yield daemon
        daemon.close()


@pytest.mark.parametrize("program", ["train_elastic", "train_lightning", "train_transformers"])
def test_an_elastic_example_grows_and_goes_on(box: Box, lucidd: Lucidd, python: MountedPython, program: str) -> None:
    number = box.sbatch(
        "-p", "vc-a", "--gres=gpu:1", "--requeue", "--open-mode=append", "--comment=lucid:elastic=1-2,epochs=100000",
        script=script_of("elastic/job.sh", python, train_elastic=program, **{" 30": " 100000"}),
    )  # fmt: skip

    def report() -> dict[str, list[list[float]]]:
        found = [path.read_text() for path in (box.root / REPORTS).glob(f"u*/{number}.json")]
        return {"epoch_s": []} | json.loads(found[0]) if found else {"epoch_s": []}

    box.wait("it has told of epochs", lambda: report()["epoch_s"], 120)
    before = report()
    box.wait("it has grown", lambda: {size for size, _ in report()["epoch_s"]} == {1, 2}, 180)
    after, restarts = report(), box.job(number)["restart_cnt"]
    print(before, after, restarts, lucidd.ctl("explain", number))
    box.run("scancel", number)
    box.wait_ended(number)
    assert restarts >= 1
    assert after["epochs"] > before["epochs"], "it went on where it was"


def test_turns_and_the_sweep_come_to_their_ends(box: Box, lucidd: Lucidd, python: MountedPython) -> None:
    turns = box.sbatch("-p", "vc-a", "--gres=gpu:1", script=script_of("turns/job.sh", python, **{" 10000": " 200"}))
    sweep = box.sbatch("-p", "vc-a", "--gres=gpu:1", "--array=0-1", script=script_of("sweep/job.sh", python))
    outputs = [box.root / "tmp" / f"{name}.out" for name in (f"{turns}_4294967294", f"{sweep}_0", f"{sweep}_1")]
    box.wait("all have printed", lambda: all(path.exists() and "loss" in path.read_text() for path in outputs), 240)
    box.wait_ended(turns)
    assert box.state(turns) == "COMPLETED"
