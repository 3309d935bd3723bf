"""Pollux: jobs change GPUs and batch sizes together, to make the most progress a second."""

from lucid.systems.pollux.fit import FitObjective, FitResult, Observations, fit_perf_params
from lucid.systems.pollux.goodput import BatchChoice, BatchLimits, GoodputModel, GradParams, PerfParams
from lucid.systems.pollux.search import Objective, SearchOptions, SearchResult, carry_over, search
from lucid.systems.pollux.speedup import Goodputs, PolluxJob, SpeedupTable, growth_cap, restart_factors

__all__ = [
    "BatchChoice",
    "BatchLimits",
    "FitObjective",
    "FitResult",
    "GoodputModel",
    "Goodputs",
    "GradParams",
    "Objective",
    "Observations",
    "PerfParams",
    "PolluxJob",
    "SearchOptions",
    "SearchResult",
    "SpeedupTable",
    "carry_over",
    "fit_perf_params",
    "growth_cap",
    "restart_factors",
    "search",
]
