"""A small training job that adapts: SGD on noisy points in plain Python (3.9 or later), with ``lucid_report``.

The gradients, their noise and the losses are real. The time is not: a pass over m samples on one emulated GPU takes
``pass_s + sample_s * m`` seconds, and GPUs that synchronise take ``sync_s`` more, twice as long across nodes.

Progress counts steps at the initial batch size. A step with a batch S times as large is worth
(var + sqr) / (var / S + sqr) of them, and its learning rate is as many times larger (AdaScale). With ``--how adapts``
the job chooses the batch of which it expects the most progress a second, from the times and the gradients that it
has measured. Other values of ``--how``: ``fixed`` keeps the batch, ``lies`` reports absurd models, ``silent`` stops
reporting after two epochs, ``dies`` ends with an error after its first restart.
"""

from __future__ import annotations

import argparse
import atexit
import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path

import lucid_report

FEATURES, PARTS, CANDIDATES, MEMORY = 6, 4, 16, 0.98
WARM = 6
"""Steps after a start before the batch is chosen: by then the times on these GPUs are measured."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps of an epoch at the initial batch size")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--most", type=int, default=512)
    parser.add_argument("--pass-s", type=float, default=0.01)
    parser.add_argument("--sample-s", type=float, default=0.002)
    parser.add_argument("--sync-s", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--how", default="adapts")
    return parser.parse_args()


def number(*names: str) -> int:
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 1)


class Data:
    """Points on a plane with noise. The same seed gives the same points."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.true = [draw.uniform(-2, 2) for _ in range(FEATURES)]
        self.train = [self._point(draw) for _ in range(2048)]
        self.test = [self._point(draw) for _ in range(512)]

    def _point(self, draw: random.Random) -> tuple[list[float], float]:
        x = [draw.gauss(0, 1) for _ in range(FEATURES)]
        return x, sum(a * b for a, b in zip(self.true, x)) + draw.gauss(0, 1)  # noqa: B905 - Python 3.9

    def loss(self, w: list[float]) -> float:
        """Mean squared error on points that are not trained on; 1 is the noise."""
        return sum((sum(a * b for a, b in zip(w, x)) - y) ** 2 for x, y in self.test) / len(self.test)  # noqa: B905


class Job:
    def __init__(self, said: argparse.Namespace) -> None:
        self.said = said
        self.job = os.environ["SLURM_JOB_ID"]
        self.nodes = number("LUCID_NODES", "SLURM_JOB_NUM_NODES")
        self.gpus = number("LUCID_GPUS")
        self.base = Path("/tmp/elastic") / self.job
        self.data = Data(said.seed)
        self.state = {
            "step": 0, "progress": 0.0, "w": [0.0] * FEATURES, "stats": [0.0, 0.0, 0.0], "drawn": 0, "rows": {},
        }  # fmt: skip
        saved = self.base.with_suffix(".ckpt")
        if saved.exists():
            self.state = json.loads(saved.read_text())
        self.local, self.passes = max(said.batch // self.gpus, 1), 1
        self.stop = False
        self.begun = 0

    # -- what training is ------------------------------------------------------------------------------------

    def gradient(self, count: int) -> list[float]:
        """Mean gradient over so many points."""
        w, train, at = self.state["w"], self.data.train, self.state["drawn"]
        total = [0.0] * FEATURES
        for i in range(at, at + count):
            x, y = train[i * 1103 % 2048]
            error = -y
            for k in range(FEATURES):
                error += w[k] * x[k]
            for k in range(FEATURES):
                total[k] += error * x[k]
        self.state["drawn"] = at + count
        return [value / count for value in total]

    def statistics(self) -> tuple[float, float]:
        """Squared norm and variance of the gradient at the initial batch size, as estimated so far."""
        sqr, var, weight = self.state["stats"]
        return (max(sqr / weight, 0.0), max(var / weight, 1e-6)) if weight else (1.0, 0.0)

    def gain(self, batch: float) -> float:
        sqr, var = self.statistics()
        below = var * self.said.batch / batch + sqr
        return (var + sqr) / below if below > 0 else 1.0

    def step(self) -> None:
        said, state = self.said, self.state
        began, batch = time.time(), self.local * self.passes * self.gpus
        share = max(batch // PARTS, 1)
        parts = [self.gradient(share) for _ in range(PARTS)]
        mean = [sum(part[k] for part in parts) / PARTS for k in range(FEATURES)]
        local = sum(value * value for part in parts for value in part) / PARTS
        total = sum(value * value for value in mean)
        scale = batch / said.batch
        keep = MEMORY**scale
        seen = (PARTS * total - local) / (PARTS - 1), (local - total) * scale / (PARTS - 1), 1.0
        state["stats"] = [keep * old + (1 - keep) * new for old, new in zip(state["stats"], seen)]  # noqa: B905
        gain = self.gain(batch)
        state["w"] = [w - 0.02 * gain * g for w, g in zip(state["w"], mean)]  # noqa: B905
        pass_s = said.pass_s + said.sample_s * self.local
        sync_s = 0.0
        if self.gpus > 1:
            sync_s = said.sync_s * (2 if self.nodes > 1 else 1) * (1 + 0.1 * (self.gpus - 2))
        middle = began + pass_s * self.passes
        time.sleep(max(middle - time.time(), 0.0))
        computed = time.time()
        time.sleep(sync_s)
        ended = time.time()
        state["step"] += 1
        state["progress"] += gain
        one = (computed - began) / self.passes
        self.note(one, one + ended - computed)

    def note(self, pass_s: float, step_s: float) -> None:
        """Mean times of this configuration: nodes, GPUs, samples a GPU a pass."""
        key = f"{self.nodes} {self.gpus} {self.local}"
        count, a, b = self.state["rows"].pop(key, (0, 0.0, 0.0))
        count = min(count, 50)
        self.state["rows"][key] = (
            count + 1,
            a + (pass_s - a) / (count + 1),
            b + (step_s - b) / (count + 1),
        )
        while len(self.state["rows"]) > 64:
            del self.state["rows"][next(iter(self.state["rows"]))]

    # -- the agent -------------------------------------------------------------------------------------------

    def choose(self) -> None:
        """The batch with the most progress a second, by what was measured."""
        rows = [(*map(int, key.split()), *value[1:]) for key, value in self.state["rows"].items()]
        here = [row for row in rows if row[:2] == (self.nodes, self.gpus)]
        if not here:
            return
        sync_s = sum(row[4] - row[3] for row in here) / len(here)
        fixed_s, sample_s = line([(row[2], row[3]) for row in rows])
        best = 0.0
        for i in range(CANDIDATES):
            low = max(self.said.batch, self.gpus)
            batch = low * (self.said.most / low) ** (i / (CANDIDATES - 1))
            passes = 2 if self.gpus == 1 and batch > self.said.batch else 1
            local = math.ceil(batch / self.gpus / passes - 1e-9)
            total = local * self.gpus * passes
            worth = self.gain(total) / (passes * (fixed_s + sample_s * local) + sync_s)
            if worth > best:
                best, self.local, self.passes = worth, local, passes

    # -- what is told ----------------------------------------------------------------------------------------

    def report(self, epoch_s: float | None = None) -> None:
        """``epoch_s``: what the last epoch took on these GPUs."""
        said, state = self.said, self.state
        if said.how == "silent" and state["progress"] > 2 * said.steps:
            return
        lies = said.how == "lies"
        lucid_report.report(
            0.001 if lies else state["progress"] / said.steps,
            epoch_s,
            self.gpus,
            self.data.loss(state["w"]),
            self.local * self.passes * self.gpus,
            gradient=[0, 1e12] if lies else list(self.statistics()),
            profile=[[*map(int, key.split()), *value[1:]] for key, value in state["rows"].items()],
            batch_range=[said.batch, said.most if said.how == "adapts" else said.batch],
            atomic_range=[1, said.most],
            step_model=[1e-8, 1e-8, 0, 0, 0, 0, 1] if lies else None,
        )

    def checkpoint(self) -> None:
        put(self.base.with_suffix(".ckpt"), self.state)

    def run(self) -> None:
        said, state = self.said, self.state
        log = self.base.with_suffix(".steps").open("a", buffering=1)
        print("RUN", self.gpus, "at step", state["step"], "from", number("SLURM_RESTART_COUNT"), flush=True)
        began, since = time.time(), state["progress"]
        goal = said.epochs * said.steps
        while state["progress"] < goal:
            self.step()
            log.write(f"{state['step']}\n")
            self.begun += 1
            if said.how == "dies" and os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
                sys.exit(3)
            if self.stop:
                self.checkpoint()
                sys.exit(143)
            if said.how in ("adapts", "lies", "silent") and self.begun >= WARM and self.begun % WARM == 0:
                self.choose()
            done = state["progress"]
            if int(done / said.steps) > int(since / said.steps) or self.begun == 2 * WARM:
                if self.begun >= 2 * WARM:
                    self.report((time.time() - began) / (done - since) * said.steps)
                began, since = time.time(), done
        self.checkpoint()
        self.report()
        print(f"DONE loss={self.data.loss(state['w']):.4f}")


def put(path: Path, data: object) -> None:
    """As a whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data))
    new.replace(path)


def line(points: list[tuple[int, float]]) -> tuple[float, float]:
    """Seconds of a pass, and of each sample, by least squares; half of the time each where one size was seen."""
    n = len(points)
    x, y = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    spread = sum((p[0] - x) ** 2 for p in points)
    if spread <= 0:
        return y / 2, y / 2 / x
    slope = max(sum((p[0] - x) * (p[1] - y) for p in points) / spread, 0.0)
    return max(y - slope * x, 0.0), slope


def main() -> None:
    job = Job(arguments())
    runs = job.base.with_suffix(".runs").open("a", buffering=1)
    runs.write(f"{job.gpus} {time.time():.3f}")
    atexit.register(lambda: runs.write(f" {time.time():.3f}\n"))

    def told(*_: object) -> None:
        job.stop = True

    signal.signal(signal.SIGTERM, told)
    job.run()


if __name__ == "__main__":
    main()
