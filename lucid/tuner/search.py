"""The search for better settings, and the space of it: optuna asks, worker processes replay the past, and a journal
keeps the trials."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid.config.load import Settings, settings_from
from lucid.core.times import DAY_S
from lucid.errors import ConfigError, TraceError, did_you_mean
from lucid.files import write_atomic
from lucid.simulator.metrics import LARGE_GPUS
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import Trace

Value = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Dimension:
    """One setting, by its dotted key in ``lucid.toml``: either ``choices``, or from ``low`` to ``high``."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Value, ...] = ()


SPACE: tuple[Dimension, ...] = (
    Dimension("policy.packing.gss", choices=(0, 1, 2)),
    Dimension("policy.packing.least_pair_speed", 0.5, 0.95),
    Dimension("policy.packing.least_partner_remaining_s", 0.0, 1800.0),
    Dimension("policy.profiling.t_prof_s", 30.0, 600.0, log=True),
    Dimension("policy.profiling.n_prof", choices=(1, 2, 4, 8)),
    Dimension("policy.profiling.max_wait_s", 600.0, 28800.0, log=True),
    Dimension("policy.profiling.carry_on_share", 0.0, 1.0),
    Dimension("policy.packing.when_calm", choices=(False, True)),
    Dimension("policy.profiling.time_aware", choices=(False, True)),
)
"""The settings that are searched by default. Whether large jobs get reservations at all is not among them: without
them they starve, and an average hides that."""


def choose(keys: Sequence[str]) -> tuple[Dimension, ...]:
    """The dimensions under these keys, or under the tables that they name; all of them where none are given.

    Raises:
        ConfigError: a key that is not in the space; the message lists those that are."""
    if not keys:
        return SPACE
    chosen: list[Dimension] = []
    for key in keys:
        found = [d for d in SPACE if f".{d.key}.".find(f".{key}.") >= 0]
        if not found:
            known = [d.key for d in SPACE]
            hint = did_you_mean(key, known)
            raise ConfigError(f"--only {key}: not a setting that can be tuned{hint}; known: {', '.join(known)}")
        chosen.extend(d for d in found if d not in chosen)
    return tuple(chosen)


def value_at(settings: Settings, key: str) -> Any:
    """The value of the settings under a dotted key."""
    found: Any = settings
    for part in key.split("."):
        found = getattr(found, part)
    return found


def with_values(settings: Settings, values: Mapping[str, Value]) -> Settings:
    """The settings with other values under some dotted keys.

    Raises:
        ConfigError: a key that does not exist, or a value out of its bounds."""
    data: dict[str, Any] = {}
    for key, value in values.items():
        *path, last = key.split(".")
        inner = data
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    checked = settings_from(data, "tuned settings")
    return settings.changed({key: value_at(checked, key) for key in values})


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JobTimes:
    """The times of jobs in one replay, in order of arrival (shape (n,) each): submission, JCT and queueing delay in
    seconds, GPUs, and who submitted each. Two replays of one trace have their jobs at the same places."""

    submit_s: Floats
    jct_s: Floats
    queue_s: Floats
    gpus: NDArray[np.int64]
    user: tuple[str, ...]

    def since(self, from_s: float) -> JobTimes:
        """The times of jobs submitted from a time on."""
        keep = self.submit_s >= from_s
        columns = (self.submit_s[keep], self.jct_s[keep], self.queue_s[keep], self.gpus[keep])
        return JobTimes(*columns, tuple(self.user[i] for i in np.flatnonzero(keep)))


def replay(scenario: Scenario, settings: Settings, policy: str = "lucid") -> JobTimes:
    """Replay the scenario's trace under these settings.

    Raises:
        ConfigError: the cluster cannot honour them."""
    run = simulate(replace(scenario, settings=settings), policy)
    done = [o for o in run.outcomes if o.end_s >= 0]
    return JobTimes(
        np.array([o.job.submit_s for o in done]),
        np.array([o.jct_s for o in done]),
        np.array([o.queue_s for o in done]),
        np.array([o.job.gpus for o in done], dtype=np.int64),
        tuple(o.job.user for o in done),
    )


def before(trace: Trace, until_s: float) -> Trace:
    """The jobs of a trace submitted before a time.

    Raises:
        TraceError: none were."""
    jobs = tuple(item for item in trace.jobs if item.job.submit_s < until_s)
    if not jobs:
        raise TraceError(f"{trace.name}: no job was submitted before {until_s:g} s; give a longer history")
    return replace(trace, jobs=jobs)


def split_time_s(trace: Trace, share: float) -> float:
    """The first midnight (trace time) by which ``share`` of the jobs had been submitted."""
    at = trace.jobs[min(int(share * len(trace.jobs)), len(trace.jobs) - 1)].job.submit_s
    return float(np.ceil(at / DAY_S) * DAY_S)


_LARGE_WEIGHT = 0.1


def score(times: JobTimes) -> float:
    """The figure that the search makes small, in seconds: the average JCT, plus a tenth of the average queueing delay
    of jobs above 8 GPUs, so that a setting which starves the few large jobs does not look good."""
    large = times.gpus > LARGE_GPUS
    average = float(times.jct_s.mean())
    if not large.any():
        return average
    return average + _LARGE_WEIGHT * float(times.queue_s[large].mean())


_BATCH = 4
"""Trials asked for at once; fixed, so that the same seed tries the same settings whatever the number of cores."""
_NO_MATTER = 0.001


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting that was tried, by dotted key, and its score in seconds."""

    values: Mapping[str, Value]
    score_s: float


class Journal:
    """The trials so far, a JSON line each; a line cut short by a crash is left out and its trial done again.

    The first line says what was searched: a journal of another search is refused."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self._path = path
        self.trials: list[Trial] = []
        rows = _rows(path)
        if rows and rows[0] != dict(about):
            raise ConfigError(
                f"{path} holds the trials of another search (other trace, cluster, space or seed); "
                "give --out a new folder, or remove that file"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        # written anew: a torn last line would swallow the next one
        body = "".join(json.dumps(row) + "\n" for row in (rows or [dict(about)]))
        write_atomic(path, body.encode())
        self.trials.extend(Trial(row["values"], row["score_s"]) for row in rows[1:])

    @staticmethod
    def read(path: Path) -> list[Trial]:
        """The trials of a journal, whatever it searched."""
        return [Trial(row["values"], row["score_s"]) for row in _rows(path)[1:]]

    def add(self, trial: Trial) -> None:
        """Write a trial to disk before anything else happens."""
        self.trials.append(trial)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"values": dict(trial.values), "score_s": trial.score_s}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(_parsed, lines) if row is not None]


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def search(
    scenario: Scenario,
    dimensions: Sequence[Dimension],
    journal: Journal,
    trials: int,
    seed: int,
    workers: int,
    progress: Callable[[int, int], None] | None = None,
) -> Trial:
    """Try settings until the journal holds ``trials`` of them, the present ones first; returns the best of all.

    Changes without which the best is as good are taken back.

    The search is the Tree-structured Parzen estimator (Bergstra et al. 2011) of optuna. Of equal scores the earlier
    one counts, so that the present settings stay where nothing is better.

    Raises: ConfigError: optuna is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("the tuner needs optuna: pip install 'lucid-scheduler[tuner]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {d.key: _distribution(optuna, d) for d in dimensions}
    present = {d.key: value_at(scenario.settings, d.key) for d in dimensions}
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=seed + len(journal.trials), multivariate=True)
    )
    for known in journal.trials:
        study.add_trial(_frozen(optuna, known, distributions))
    with _workers(scenario, workers) as tell:
        if not journal.trials:
            journal.add(Trial(present, next(iter(tell([present])))))
            study.add_trial(_frozen(optuna, journal.trials[0], distributions))
        while len(journal.trials) < trials:
            if progress is not None:
                progress(len(journal.trials), trials)
            asked = [study.ask(distributions) for _ in range(min(_BATCH, trials - len(journal.trials)))]
            for trial, found in zip(asked, tell([dict(t.params) for t in asked]), strict=True):
                study.tell(trial, found)
                journal.add(Trial(dict(trial.params), found))
        best = min(journal.trials, key=lambda t: t.score_s)
        return _simplified(best, present, lambda values: next(iter(tell([values]))))


def _simplified(best: Trial, present: Mapping[str, Value], score: Callable[[dict[str, Value]], float]) -> Trial:
    """The best trial without the changes that it does not need: one after the other is taken back if the score is as
    good to within a tenth of a percent. What is left is where the gain comes from, and what an administrator has to
    understand."""
    bound_s = best.score_s * (1.0 + _NO_MATTER)
    for key, value in best.values.items():
        if value == present[key]:
            continue
        values = {**best.values, key: present[key]}
        found = score(values)
        if found <= bound_s:
            best = Trial(values, found)
    return best


def _distribution(optuna: Any, dimension: Dimension) -> Any:
    if dimension.choices:
        return optuna.distributions.CategoricalDistribution(dimension.choices)
    return optuna.distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _frozen(optuna: Any, known: Trial, distributions: Mapping[str, Any]) -> Any:
    """A finished trial for optuna. The present settings may lie outside the space: they are then moved to its edge
    for the sampler, while the journal keeps them as they are."""
    params: dict[str, Value] = {}
    for key, distribution in distributions.items():
        value = known.values[key]
        if hasattr(distribution, "choices"):
            if value not in distribution.choices:
                value = distribution.choices[-1]
        else:
            value = min(max(float(value), distribution.low), distribution.high)
        params[key] = value
    return optuna.trial.create_trial(params=params, distributions=dict(distributions), value=known.score_s)


_scenario: Scenario | None = None
"""What each worker process replays."""


def _begin(scenario: Scenario) -> None:
    global _scenario
    _scenario = scenario


def _evaluate(values: Mapping[str, Value]) -> float:
    """The score of these values."""
    assert _scenario is not None
    return score(replay(_scenario, with_values(_scenario.settings, values)))


@contextmanager
def _workers(scenario: Scenario, workers: int) -> Iterator[Callable[[list[dict[str, Value]]], Iterator[float]]]:
    """A function that replays a batch of settings, in this process or in several."""
    if workers <= 1:
        _begin(scenario)
        yield lambda batch: map(_evaluate, batch)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_begin, initargs=(scenario,)) as pool:
        yield lambda batch: pool.map(_evaluate, batch)
