"""The same pairs under MPS and under time-slicing on a real GPU: speeds of both, and their sum.

pip install torch; python -m benchmarks.gpu_sharing [--only time-slicing]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.calibrate.measure import Calibration, Rates
from benchmarks.calibrate.mps import sharing_environment
from benchmarks.calibrate.suite import suite
from lucid.errors import ConfigError, MetricsError
from lucid.node.nvml import NvmlMetrics

__all__ = ["main"]

_MODELS = ("cnn-deep", "transformer", "rnn")
_RATES = Rates(3.0, 8.0)


def main() -> int:
    """Measure and print; exit code 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_sharing")
    parser.add_argument("--only", choices=("mps", "time-slicing"))
    given = parser.parse_args()
    metrics = NvmlMetrics()
    try:
        card = metrics.cards()[0]
    except (MetricsError, IndexError) as error:
        print(f"nothing to measure with: {error}", file=sys.stderr)
        return 2
    found: dict[str, Any] = {"card": card.name, "driver": metrics.driver}
    workloads = [w for w in suite(quick=True) if w.model in _MODELS]
    for sharing in ("mps", "time-slicing") if given.only is None else (given.only,):
        try:
            with sharing_environment(sharing, card.uuid) as environment, tempfile.TemporaryDirectory() as folder:
                run = Calibration(Path(folder), workloads, metrics, card.uuid, _RATES, environment=environment)
                run.run(lambda text: print(text, file=sys.stderr))
                found[sharing] = [
                    {
                        "pair": f"{both.first.key} + {both.second.key}",
                        "speeds": [round(both.speed_first, 3), round(both.speed_second, 3)],
                        "sum": round(both.speed_first + both.speed_second, 3),
                        "sm_active": both.sm_active,
                    }
                    for both in run.together()
                ]
                found[f"{sharing}: readings"] = run.readings
        except ConfigError as error:
            found[sharing] = f"not measured: {error}"
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
