"""A training made elastic by lucid_elastic does on several GPUs, stopped in mid-epoch, what it does on one.

What needs PyTorch runs in an environment of its own: `make test-examples`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_lucid_run import RUN, environ

from lucid.slurm.elastic.reports import said_in
from scenes.jobs import HOME

PYTHON = os.environ.get("LUCID_EXAMPLES_PYTHON", "")
WHY = "LUCID_EXAMPLES_PYTHON names no Python with PyTorch, Lightning and transformers: make test-examples"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason=WHY)]
TRAIN = '''
"""Tells which samples it takes, and at last its parameters. Arguments: EPOCHS SHUFFLE LARGEST STEP_S HOW [GROW]."""
import json, sys, time
import lucid_elastic
import torch
from torch.utils.data import DataLoader, TensorDataset

epochs, shuffle, largest, step_s, how = sys.argv[1:6]
grow = int(sys.argv[6]) if sys.argv[6:] else None
torch.manual_seed(1)
x = torch.randn(90, 3)
data = TensorDataset(torch.arange(90), x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=12, shuffle=shuffle == "yes")
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
job = lucid_elastic.Job(model, optimizer, loader, keep=[scheduler], largest=int(largest) or None, grow=grow)
for epoch in job.epochs(int(epochs)):
    for samples, x, y in job.loader:
        time.sleep(float(step_s))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(job.model(x), y).backward()
        print(json.dumps([epoch, samples.tolist()]), flush=True)
        if how != "forgets":
            optimizer.step()  # told to stop, it does not come back
    scheduler.step()
if job.first:
    print(json.dumps({"weights": model.weight.tolist()[0], "rate": scheduler.get_last_lr()}), flush=True)
'''


class Trained:
    """What its runs printed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.samples, self.end = folder, [], {}
        (folder / "train.py").write_text(TRAIN)

    def run(self, gpus: int, *words: object, stop_after: int = 0, **rest: str) -> tuple[int, str]:
        """Its status and stderr; stopped once so many passes were printed."""
        made = environ(
            SLURM_GPUS_ON_NODE=str(gpus), LUCID_REPORTS=str(self.folder / "reports"), OMP_NUM_THREADS="1", **rest
        )
        command = [sys.executable, str(RUN), "--checkpoints", str(self.folder / "checkpoints"), PYTHON]
        with subprocess.Popen(
            [*command, str(self.folder / "train.py"), *map(str, words)],
            env=made, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stderr is not None
            for number, line in enumerate(process.stdout, 1):
                said = json.loads(line)
                if isinstance(said, dict):
                    self.end = said
                else:
                    self.samples.append((said[0], tuple(said[1])))
                if number == stop_after:
                    process.send_signal(signal.SIGTERM)
            error = process.stderr.read()
        return process.returncode, error


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    for name in ("reports", "checkpoints"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o1777)
    return Trained(tmp_path)


def weights_of_plain_training(epochs: int) -> list[float]:
    """The same training in order, without lucid_elastic."""
    program = (
        TRAIN.replace("import lucid_elastic\n", "").replace("job.model", "model").replace("job.loader", "loader")
    )
    program = program.replace("job.epochs(int(epochs))", "range(int(epochs))").replace("if job.first", "if True")
    program = "\n".join(line for line in program.splitlines() if not line.startswith("job ="))
    done = subprocess.run(
        [PYTHON, "-c", program, str(epochs), "no", "0", "0", "plain"], capture_output=True, text=True, check=True
    )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])["weights"]
    return found


@pytest.mark.parametrize(("gpus", "largest"), [(1, 0), (2, 0), (3, 2)])
def test_on_any_number_of_gpus_it_learns_the_same(trained: Trained, gpus: int, largest: int) -> None:
    status, error = trained.run(gpus, 4, "no", largest, 0, "plain")
    assert status == 0, error
    assert trained.end["weights"] == pytest.approx(weights_of_plain_training(4), abs=1e-5)
    for epoch in range(4):
        assert sorted(one for at, own in trained.samples if at == epoch for one in own) == list(range(90))
    progress = said_in((trained.folder / "reports" / HOME / "7.json").read_bytes()).progress
    assert (progress.epochs, [size for size, _ in progress.epoch_s]) == (4.0, [gpus])


@pytest.mark.parametrize(("chosen", "passes", "size"), [("2:5x3", 18, 5), ("3:5x3", 16, 6), ("2:9x9", 16, 6)])
def test_the_batch_that_was_chosen_for_so_many_gpus_is_taken(
    trained: Trained, chosen: str, passes: int, size: int
) -> None:
    """Nothing is taken of a choice for other GPUs, or past what the program allows."""
    (trained.folder / "scontrol").write_text(f"#!/bin/sh\necho JobId=7 Extra=lucid-batch={chosen} Power=\n")
    (trained.folder / "scontrol").chmod(0o755)
    path = f"{trained.folder}{os.pathsep}{os.environ['PATH']}"
    status, error = trained.run(2, 1, "no", 0, 0, "plain", 48, PATH=path, LUCID_ELASTIC="1")
    assert status == 0, error
    assert sorted(one for _, own in trained.samples for one in own) == list(range(90))
    assert (len(trained.samples), max(len(own) for _, own in trained.samples)) == (passes, size)


def test_stopped_in_mid_epoch_it_goes_on_with_the_samples_that_are_left(trained: Trained) -> None:
    status, error = trained.run(2, 3, "yes", 0, 0.1, "plain", stop_after=22)
    assert status == 143, error
    assert 22 <= len(trained.samples) < 30, "it was stopped in the second epoch"
    status, error = trained.run(3, 3, "yes", 0, 0, "plain")
    assert status == 0, error
    for epoch in range(3):
        assert sorted(one for at, own in trained.samples if at == epoch for one in own) == list(range(90)), epoch
    orders = [[one for at, own in trained.samples if at == epoch for one in own] for epoch in (0, 1)]
    assert orders[0] != orders[1], "each epoch has an order of its own"
    assert trained.end["rate"] == [pytest.approx(0.1 * 0.9**3)], "the schedule went on, too"


def test_a_batch_without_a_step_is_told(trained: Trained) -> None:
    status, error = trained.run(1, 1, "no", 0, 0, "forgets")
    assert status == 1
    assert "needs one optimizer.step()" in error
