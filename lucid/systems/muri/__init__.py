"""Muri: jobs take turns on storage, CPU, GPU and network, grouped by maximum-weight matching."""

from lucid.systems.muri.free import MOST_CONFLICT, conflict
from lucid.systems.muri.grouping import (
    Group,
    GroupingOptions,
    choose_candidates,
    group_jobs,
    group_period,
    unpack,
)
from lucid.systems.muri.interleave import (
    IN_TURNS,
    NO_OVERHEAD,
    PUBLISHED,
    PUBLISHED_UNMATCHED,
    START_OVERHEAD_S,
    Ordering,
    Overhead,
    best_ordering,
    efficiencies,
    periods,
    start_overhead_s,
)
from lucid.systems.muri.matching import match_by_kind, max_weight_matching
from lucid.systems.muri.stages import RESOURCES, MuriJob, check_stages
from lucid.systems.muri.weights import GammaTable

__all__ = [
    "IN_TURNS",
    "MOST_CONFLICT",
    "NO_OVERHEAD",
    "PUBLISHED",
    "PUBLISHED_UNMATCHED",
    "RESOURCES",
    "START_OVERHEAD_S",
    "GammaTable",
    "Group",
    "GroupingOptions",
    "MuriJob",
    "Ordering",
    "Overhead",
    "best_ordering",
    "check_stages",
    "choose_candidates",
    "conflict",
    "efficiencies",
    "group_jobs",
    "group_period",
    "match_by_kind",
    "max_weight_matching",
    "periods",
    "start_overhead_s",
    "unpack",
]
