"""What sharing a real GPU does: MPS against time-slicing, the memory fence, a killed and a faulty client.

Not run yet: no GPU was at hand.

    pip install 'lucid-scheduler[calibrate]'; python -m benchmarks.gpu_sharing
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lucid.adapters.gpu.nvml import NvmlMetrics
from lucid.calibrate.measure import Calibration, Rates, steps_between
from lucid.calibrate.mps import sharing_environment
from lucid.calibrate.suite import suite
from lucid.errors import ConfigError, MetricsError

__all__ = ["main"]

_PAIR = ("cnn-small", "rnn")
_ALLOCATE = "import torch; torch.empty(2 << 30, dtype=torch.uint8, device='cuda'); torch.cuda.synchronize()"
_FAULT = (
    "import torch; x = torch.zeros(4, device='cuda'); "
    "x[torch.tensor([99], device='cuda')] = 1; torch.cuda.synchronize()"
)


def main() -> int:
    """Measure and print; exit code 2 without a GPU."""
    metrics = NvmlMetrics()
    try:
        import torch

        card = metrics.cards()[0]
    except (ModuleNotFoundError, MetricsError, IndexError) as error:
        print(f"nothing to measure with: {error}", file=sys.stderr)
        return 2
    del torch
    found: dict[str, Any] = {"card": card.name, "driver": metrics.driver}
    for sharing in ("mps", "time-slicing"):
        try:
            with sharing_environment(sharing, card.uuid) as environment, tempfile.TemporaryDirectory() as folder:
                pair = [w for w in suite(quick=True) if w.model in _PAIR]
                run = Calibration(Path(folder), pair, metrics, card.uuid, Rates(8, 30), environment=environment)
                run.run(lambda text: print(text, file=sys.stderr))
                found[sharing] = [
                    {
                        "pair": f"{both.first.key} + {both.second.key}",
                        "speeds": [both.speed_first, both.speed_second],
                        "aggregate": both.speed_first + both.speed_second,
                    }
                    for both in run.together()
                ]
                if sharing == "mps":
                    found["fence of 1 GiB refuses 2 GiB"] = _fence(environment)
                    for name in ("killed", "faulty"):
                        found[f"partner of a {name} client"] = _partner_of(name, environment)
        except ConfigError as error:
            found[sharing] = f"not measured: {error}"
    print(json.dumps(found, indent=1))
    return 0


def _fence(environment: dict[str, str]) -> dict[str, Any]:
    limited = {**environment, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
    runs = {}
    for name, env in (("fenced", limited), ("unfenced", environment)):
        done = subprocess.run([sys.executable, "-c", _ALLOCATE], env=env, capture_output=True, text=True, check=False)
        runs[name] = {"exit": done.returncode, "says": done.stderr.strip().splitlines()[-1:]}
    return {**runs, "refused": runs["fenced"]["exit"] != 0 and runs["unfenced"]["exit"] == 0}


def _partner_of(how: str, environment: dict[str, str]) -> dict[str, Any]:
    """A worker trains; beside it another client is killed, or does an illegal access. What becomes of the first?"""
    worker = [sys.executable, "-m", "lucid.calibrate.worker", "--seconds", "60", "--workload", "rnn/tokens-64/32/0"]
    with tempfile.TemporaryDirectory() as folder:
        report, other = Path(folder) / "partner", Path(folder) / "other"
        with subprocess.Popen([*worker, "--report", str(report)], env=environment, stderr=subprocess.PIPE) as partner:
            _until_it_steps(report)
            if how == "killed":
                with subprocess.Popen([*worker, "--report", str(other)], env=environment) as victim:
                    _until_it_steps(other)
                    victim.send_signal(signal.SIGKILL)
            else:
                subprocess.run([sys.executable, "-c", _FAULT], env=environment, capture_output=True, check=False)
            at = time.monotonic()
            time.sleep(10)
            code = partner.poll()
            rate = steps_between(report.read_text(), at, at + 10)
            partner.kill()
            words = partner.stderr.read().decode(errors="replace") if partner.stderr else ""
        return {"partner ended with": code, "partner's steps/s after": rate, "says": words.strip().splitlines()[-1:]}


def _until_it_steps(report: Path) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if report.stat().st_size:
                return
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
