"""Equal jobs on one real GPU under MPS, one to eight of them: what 0061 supposes of a sweep's tasks, measured.

    pip install 'lucid-scheduler[calibrate]'; python -m benchmarks.gpu_sweeps [--out FOLDER]

Prints for each workload and number of sharers the mean speed relative to alone, the slowest sharer's, the sum, and
what the formula of sweeps says from the speed of two. Results are kept in FOLDER, as those of ``lucidctl calibrate``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lucid.adapters.gpu.nvml import NvmlMetrics
from lucid.calibrate.measure import Calibration, Rates, Task
from lucid.calibrate.mps import sharing_environment
from lucid.calibrate.suite import suite
from lucid.errors import ConfigError, MetricsError

__all__ = ["main"]

_MODELS = ("cnn-small", "rnn", "cnn-deep", "embedding", "rl")
_SHARERS = (1, 2, 3, 4, 6, 8)
_RATES = Rates(2.0, 6.0)


class _Sweeps(Calibration):
    """Copies of one workload in place of pairs."""

    @property
    def tasks(self) -> list[Task]:
        return [Task((workload,) * k) for workload in self._workloads for k in _SHARERS]

    def rows(self) -> list[dict[str, Any]]:
        """A row for each workload and number of sharers that was measured."""
        found = []
        for workload in self._workloads:
            kept = {k: self._results.get(Task((workload,) * k).key, {}) for k in _SHARERS}
            if "speeds" not in kept[1]:
                continue
            alone = float(kept[1]["speeds"][0])
            means = {k: sum(r["speeds"]) / k / alone for k, r in kept.items() if "speeds" in r}
            for k, mean in means.items():
                readings = kept[k]["readings"]
                slowed = (k - 1) * (1 / means[2] - 1) if 2 in means else None
                found.append(
                    {
                        "workload": workload.key,
                        "sharers": k,
                        "mean_speed": round(mean, 3),
                        "slowest": round(min(kept[k]["speeds"]) / alone, 3),
                        "sum": round(k * mean, 2),
                        "formula": None if slowed is None else round(1 / (1 + slowed), 3),
                        "sm_active": readings["sm_active"],
                        "dram_active": readings["dram_active"],
                        "mem_mib": readings["mem_mib"],
                    }
                )
        return found


def main() -> int:
    """Measure and print; exit code 2 without a GPU or MPS."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_sweeps")
    parser.add_argument("--out", type=Path, help="folder to keep results in; the same command continues there")
    given = parser.parse_args()
    metrics = NvmlMetrics()
    try:
        card = metrics.cards()[0]
    except (MetricsError, IndexError) as error:
        print(f"nothing to measure with: {error}", file=sys.stderr)
        return 2
    workloads = [w for w in suite(quick=True) if w.model in _MODELS]
    with tempfile.TemporaryDirectory() as folder:
        try:
            with sharing_environment("mps", card.uuid) as environment:
                run = _Sweeps(
                    given.out or Path(folder), workloads, metrics, card.uuid, _RATES, environment=environment
                )
                run.run(lambda text: print(text, file=sys.stderr))
        except ConfigError as error:
            print(error, file=sys.stderr)
            return 2
        print(json.dumps({"card": card.name, "driver": metrics.driver, "rows": run.rows()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
