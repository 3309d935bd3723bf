"""One training job of the suite, as a process of its own: ``python -m benchmarks.calibrate.worker``.

It trains on random data for as long as it is told, and appends the number of steps done and the time to a file once
a quarter of a second, for its speed to be read off. Needs torch ; ``--device cpu`` is for
trying the mechanism, its speeds say nothing about GPUs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.calibrate.suite import Workload, workload_of

__all__ = ["main", "train_step"]

_REPORT_S: Final = 0.25
_VOCABULARY: Final = 8192


def _conv(torch: Any, width: int, blocks: int, classes: int = 100) -> Any:
    nn = torch.nn
    layers: list[Any] = [nn.Conv2d(3, width, 3, 2, 1), nn.ReLU()]
    for i in range(blocks):
        stride = 2 if i % 3 == 2 else 1
        layers += [nn.Conv2d(width, width, 3, stride, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def _language(torch: Any, width: int, layers: int) -> Any:
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(_VOCABULARY, width), body, nn.Linear(width, _VOCABULARY))


def _recurrent(torch: Any) -> Any:
    class Recurrent(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(_VOCABULARY, 512)
            self.body = torch.nn.LSTM(512, 1024, 2, batch_first=True)
            self.head = torch.nn.Linear(1024, _VOCABULARY)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.body(self.embed(tokens))[0])

    return Recurrent()


def train_step(workload: Workload, torch: Any, device: str) -> Callable[[], None]:
    """A function that does one training step of this workload, its model and data on ``device``."""
    model, data, target = _made(workload, torch, device)
    model = model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler(device, enabled=workload.amp and device == "cuda")
    low = torch.float16 if device == "cuda" else torch.bfloat16
    acting = workload.model == "rl"

    def step() -> None:
        if acting:  # an environment on the CPU decides the rhythm, as it does in reinforcement learning
            until = time.perf_counter() + 0.02
            while time.perf_counter() < until:
                sum(range(1000))
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=low, enabled=workload.amp):
            out = model(data)
            loss = torch.nn.functional.cross_entropy(out.flatten(0, -2), target.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        if device == "cuda":
            torch.cuda.synchronize()

    return step


def _made(workload: Workload, torch: Any, device: str) -> tuple[Any, Any, Any]:
    size = workload.batchsize
    kind, _, length = workload.dataset.partition("-")
    if kind == "images":
        side = int(length)
        model = {
            "cnn-wide": lambda: _conv(torch, 192, 6),
            "cnn-deep": lambda: _conv(torch, 96, 24),
            "cnn-small": lambda: _conv(torch, 64, 6),
        }[workload.model]()
        data = torch.randn(size, 3, side, side, device=device)
        return model, data, torch.randint(0, 100, (size,), device=device)
    if kind == "tokens":
        model = {
            "transformer": lambda: _language(torch, 768, 12),
            "transformer-small": lambda: _language(torch, 256, 4),
            "rnn": lambda: _recurrent(torch),
        }[workload.model]()
        data = torch.randint(0, _VOCABULARY, (size, int(length)), device=device)
        return model, data, torch.randint(0, _VOCABULARY, (size, int(length)), device=device)
    if kind == "clicks":
        bag = torch.nn.EmbeddingBag(2_000_000, 64, mode="sum")
        head = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 2)]
        data = torch.randint(0, 2_000_000, (size, 32), device=device)
        return torch.nn.Sequential(bag, *head), data, torch.randint(0, 2, (size,), device=device)
    head = [torch.nn.Linear(128, 512), torch.nn.ReLU(), torch.nn.Linear(512, 18)]
    data = torch.randn(size, 128, device=device)
    return torch.nn.Sequential(*head), data, torch.randint(0, 18, (size,), device=device)


def _stand_in(workload: Workload) -> Callable[[], None]:
    """A step of plain arithmetic that uses no GPU, to try the mechanism where torch is not installed."""
    import numpy as np

    matrix = np.ones((64 + workload.batchsize % 64, 64))

    def step() -> None:
        (matrix @ matrix.T).sum()
        time.sleep(0.001)

    return step


def main(arguments: Sequence[str] | None = None) -> int:
    """Train until the time is up."""
    parser = argparse.ArgumentParser(prog="benchmarks.calibrate.worker", description="One training job of the suite.")
    parser.add_argument("--workload", required=True, help="model/data/batch/amp")
    parser.add_argument("--device", choices=("cuda", "cpu", "none"), default="cuda", help="none: no torch, no GPU")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--report", type=Path, required=True, help="file to append 'time steps' to")
    given = parser.parse_args(arguments)
    workload = workload_of(given.workload)
    if given.device == "none":
        step = _stand_in(workload)
    else:
        import torch

        if given.device == "cpu":
            torch.set_num_threads(1)
        step = train_step(workload, torch, given.device)
    until = time.monotonic() + given.seconds
    steps, told = 0, 0.0
    with given.report.open("a", encoding="ascii", buffering=1) as report:
        while time.monotonic() < until:
            step()
            steps += 1
            now = time.monotonic()
            if now - told >= _REPORT_S:
                report.write(f"{now:.6f} {steps}\n")
                told = now
    return 0


if __name__ == "__main__":
    sys.exit(main())
