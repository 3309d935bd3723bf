"""lucid_torch's statistics are those of the published agent, for one process and for two with gloo.

What needs PyTorch runs in an environment of its own: `make test-adaptdl`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_lucid_run import RUN, environ

import lucid_torch
from lucid.orchestrator.policies.rounds.goodput import GradParams
from lucid.slurm.elastic.reports import said_in
from pollux_agent import GradientMean, gradient_statistics
from pollux_agent import learning_rate_factor as published
from scenes.jobs import HOME

PYTHON = os.environ.get("LUCID_ADAPTDL_PYTHON", "")
WHY = "LUCID_ADAPTDL_PYTHON names no Python with PyTorch: make test-adaptdl"
NEEDS_TORCH = pytest.mark.skipif(not PYTHON, reason=WHY)

TRAIN = '''
"""Writes the gradient of each pass, and what lucid_torch makes of them. Arguments: PASSES STEPS OUT RULE."""
import json
import os
import sys
import time

sys.path.insert(0, os.environ["LUCID_FILES"])
import lucid_torch
import torch

passes, steps, out, rule = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
twin = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if world > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
training = lucid_torch.Training(model, optimizer, batch=8, largest=64, atomic=(4, 16), rule=rule)
torch.manual_seed(10 + rank)
told = []
for step in range(steps):
    rows = []
    if step == 2:
        training.load_state_dict(json.loads(json.dumps(training.state_dict())))
    before = [one.detach().clone() for one in model.parameters()]
    for number in range(passes):
        x, last = torch.randn(8, 4), number == passes - 1
        y = x.sum(dim=1, keepdim=True)
        twin.load_state_dict(getattr(model, "module", model).state_dict())
        alone = torch.autograd.grad(torch.nn.functional.mse_loss(twin(x), y), list(twin.parameters()))
        torch.autograd.grad(getattr(model, "module", model)(x).sum(), list(model.parameters()))  # of no pass
        rows.append(torch.cat([one.flatten() for one in alone]).double().tolist())
        with training.one_pass(8, last):
            torch.nn.functional.mse_loss(model(x), y).backward()
    training.step()
    after = [one.detach().clone() for one in model.parameters()]
    moved = torch.cat([(a - b).flatten() for a, b in zip(after, before)]).double().tolist()
    told.append(dict(rows=rows, moved=moved, factor=training.factor, value=training.statistics.value()))
    if step % 3 == 2:
        training.epoch((step + 1) / 3, 0.5)
assert optimizer.param_groups[0]["lr"] == 0.1
with open(out + "." + str(rank), "w") as file:
    json.dump(told, file)
if world > 1:
    torch.distributed.barrier()  # as lucid_elastic leaves, or gloo's threads may abort the process
    torch.distributed.destroy_process_group()
    time.sleep(0.5)
'''


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
def test_means_and_factors_are_the_published_ones(scale: float) -> None:
    random = np.random.default_rng(3)
    mine, theirs = lucid_torch.Statistics(), GradientMean()
    assert mine.value() is None
    for _ in range(20):
        rows = random.normal(0.3, 1.0, (4, 6))
        local, total = float((rows**2).sum(axis=1).mean()), float((rows.mean(axis=0) ** 2).sum())
        mine.add(4, local, total, scale)
        theirs = theirs.add(gradient_statistics(rows, scale), scale)
        assert mine.value() == pytest.approx(list(theirs.value()))
    mine.add(4, float("inf"), 1.0, scale)
    assert mine.value() == pytest.approx(list(theirs.value())), "a step that overflowed is left out"
    for rule in lucid_torch.RULES:
        factor = published(rule, 8, 8 * scale, GradParams(*mine.value()))
        assert lucid_torch.learning_rate_factor(rule, scale, mine.value()) == pytest.approx(factor)


@pytest.mark.parametrize(("module", "visible"), [("lucid_elastic", "5"), ("lucid_torch", "4,5")])
def test_a_plain_loop_sees_its_own_gpu_and_libraries_that_choose_see_all(module: str, visible: str) -> None:
    """Lightning and transformers take the GPU of their LOCAL_RANK: what they import leaves them all in sight."""
    program = f"import os, {module}; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    rank = {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    told = environ(CUDA_VISIBLE_DEVICES="4,5", PYTHONPATH=str(RUN.parent), **rank)
    done = subprocess.run([sys.executable, "-S", "-c", program], env=told, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == visible
    if module == "lucid_torch":
        for name in ("lightning", "transformers"):
            assert "import lucid_elastic" not in (RUN.parent / f"lucid_{name}.py").read_text()


CASES = [(1, 1, "sqrt"), (1, 3, "adascale"), (2, 1, "adascale"), (2, 2, "linear")]


@NEEDS_TORCH
@pytest.mark.slow
@pytest.mark.parametrize(("gpus", "passes", "rule"), CASES)
def test_statistics_of_real_gradients(tmp_path: Path, gpus: int, passes: int, rule: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = [PYTHON, str(tmp_path / "train.py"), str(passes), "6", str(tmp_path / "told"), rule]
    done = subprocess.run(
        [sys.executable, str(RUN), *words],
        env=environ(SLURM_GPUS_ON_NODE=str(gpus), LUCID_REPORTS=str(tmp_path), LUCID_FILES=str(RUN.parent)),
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: list[Any] = [json.loads((tmp_path / f"told.{rank}").read_text()) for rank in range(gpus)]
    mean, before = GradientMean(), None
    for step, ranks in enumerate(zip(*told, strict=True)):
        rows = np.array([row for one in ranks for row in one["rows"]])
        scale = gpus * passes * 8 / 8
        if len(rows) == 1:
            rows, before = (rows if before is None else np.vstack([before, rows])), rows
            mean = mean if len(rows) == 1 else mean.add(gradient_statistics(rows, 2 * scale), 2 * scale)
        else:
            mean = mean.add(gradient_statistics(rows, scale), scale)
        for one in ranks:
            if mean.weight:
                assert one["value"] == pytest.approx(list(mean.value()), rel=1e-4), step
                factor = published(rule, 8, 8 * scale, mean.value())
                assert one["factor"] == pytest.approx(factor, rel=1e-4)
            applied = -0.1 * one["factor"] * (rows[-1:] if passes * gpus == 1 else rows).mean(axis=0)
            np.testing.assert_allclose(one["moved"], applied, atol=1e-6)
    report = json.loads((tmp_path / HOME / "7.json").read_text())
    progress = said_in((tmp_path / HOME / "7.json").read_bytes()).progress
    assert (progress.epochs, progress.batch, [gpu for gpu, _ in progress.epoch_s]) == (2.0, gpus * passes * 8, [gpus])
    assert progress.gradient == pytest.approx(mean.value(), rel=1e-4)
    assert (report["batch_range"], report["atomic_range"], report["accumulation"]) == ([8, 64], [4, 16], True)
    ((nodes, world, atomic, accumulation_s, step_s),) = report["profile"]
    assert (nodes, world, atomic) == (1, gpus, 8)
    assert 0 < accumulation_s < 1
    assert 0 < step_s < 1
