"""``tune``, the whole of one tuning: search on the earlier part of a history, judge on the later one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import json

from lucid.errors import ConfigError
from lucid.simulator.scenario import Scenario
from lucid.tuner.evidence import compare_days
from lucid.tuner.proposal import Proposal, changed_values
from lucid.tuner.search import Journal, before, replay, search, split_time_s
from lucid.tuner.space import Dimension, value_at, with_values

FOUND_SHARE = 0.6
"""Share of the jobs that the search may see; the rest judges what it found."""


def _about(scenario: Scenario, dimensions: Sequence[Dimension], seed: int) -> dict[str, Any]:
    """The key of a search, as JSON, by which it differs from others."""
    trace = scenario.trace
    return {
        "trace": trace.name,
        "jobs": len(trace.jobs),
        "until_s": trace.jobs[-1].job.submit_s,
        "vcs": dict(scenario.vcs or {}),
        "seed": seed,
        "settings": json.decode(json.encode(scenario.settings, order="deterministic")),
        "space": [[d.key, d.low, d.high, d.log, list(d.choices)] for d in dimensions],
    }


def tune(
    scenario: Scenario,
    dimensions: Sequence[Dimension],
    folder: Path,
    trials: int,
    seed: int,
    workers: int,
    progress: Callable[[int, int], None] | None = None,
) -> Proposal:
    """Search, then compare the best found with the present settings on jobs submitted later, once. Only one candidate
    is tested on the later data, so that luck among many cannot pass for a gain.

    ``folder`` keeps the journal: called again with the same arguments, the search goes on where it stopped.

    Raises: ConfigError: the folder holds another search, or the history is too short to be divided."""
    trace, split_s = scenario.trace, split_time_s(scenario.trace, FOUND_SHARE)
    if split_s >= trace.jobs[-1].job.submit_s:
        raise ConfigError(f"{trace.name}: the history is too short to keep whole days for the judgement; give more")
    earlier = replace(scenario, trace=before(trace, split_s))
    journal = Journal(folder / "trials.jsonl", _about(scenario, dimensions, seed))
    best = search(earlier, dimensions, journal, trials, seed, workers, progress)
    present_s = journal.trials[0].score_s
    changes = changed_values(scenario.settings, best.values)
    present = {key: value_at(scenario.settings, key) for key in changes}
    evidence = None
    if changes:
        old = replay(scenario, scenario.settings).since(split_s)
        new = replay(scenario, with_values(scenario.settings, changes)).since(split_s)
        evidence = compare_days(old, new, seed)
    return Proposal(
        trace.name, changes, present, len(journal.trials), seed, split_s, best.score_s / present_s - 1.0, evidence
    )
