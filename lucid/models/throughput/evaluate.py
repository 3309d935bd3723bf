"""How well throughput is forecast on later data.

Trains on the bins before a date and takes the mean absolute errors over all later bins. The newest bin's age
is how many bins before the predicted one the newest known bin lies.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import numpy as np

from lucid.errors import ModelError
from lucid.models.throughput.bins import Bins, utc
from lucid.models.throughput.fit import fit_throughput

__all__ = ["evaluate"]


def evaluate(bins: Bins, train_until: datetime, age: int, *, parallel: int = 2) -> dict[str, Any]:
    """Train before the date, forecast every bin from it on, report errors and the time training took.

    Raises:
        ModelError: no bin before or none after the date, or too few to train.
    """
    past = bins.upto(utc(train_until))
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
