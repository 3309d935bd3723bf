"""How well throughput is forecast on later data.

``python -m lucid.models.evaluate_throughput bins.csv --train-until 2020-09-01 --newest-bin 1 --json``:
trains on the bins before the date and prints the mean absolute errors over all later bins: ``mae_jobs``,
``mae_gpus``. The newest bin's age is how many bins before the predicted one the newest known bin lies.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from lucid.errors import ModelError
from lucid.models.throughput import Bins, fit_throughput, read_bins

__all__ = ["evaluate", "main"]


def evaluate(bins: Bins, train_until: datetime, age: int, *, parallel: int = 2) -> dict[str, Any]:
    """Train before the date, forecast every bin from it on, report errors and the time training took.

    Raises:
        ModelError: no bin before or none after the date, or too few to train.
    """
    past = bins.upto(train_until)
    first = len(past.start)
    if first == len(bins.start):
        raise ModelError(f"no bin starts at or after {train_until}; choose an earlier date")
    began = time.perf_counter()
    model = fit_throughput(past, age, parallel=parallel)
    seconds = time.perf_counter() - began
    forecast = model.predict(bins)[first - age : len(bins.start) - age]
    truth = np.stack([bins.jobs, bins.gpus], axis=1)[first:]
    mae = np.abs(forecast - truth).mean(axis=0)
    return {
        "mae_jobs": round(float(mae[0]), 4),
        "mae_gpus": round(float(mae[1]), 4),
        "newest_bin": age,
        "trained_bins": first,
        "tested_bins": len(truth),
        "train_s": round(seconds, 2),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="lucid.models.evaluate_throughput", description=__doc__)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--train-until", type=datetime.fromisoformat, required=True)
    parser.add_argument("--newest-bin", type=int, default=1, help="age in bins of the newest known bin")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        figures = evaluate(read_bins(given.csv), given.train_until, given.newest_bin)
    except ModelError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(figures) if given.json else "\n".join(f"{k}: {v}" for k, v in figures.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
