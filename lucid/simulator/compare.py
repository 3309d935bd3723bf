"""Compares every policy that can run on a trace, replayed side by side in several processes."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from lucid.core.ports import Capability
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.policies.rounds.data_sharing import ElasticPolicy
from lucid.orchestrator.policy import Policy
from lucid.orchestrator.registry import BUILT_IN, PolicyRequirements, known_policies, make_policy, requirements_of
from lucid.simulator.engine import Run
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate, with_promise

ABLATIONS = frozenset(name for name in BUILT_IN if name.startswith("muri-") and name not in ("muri-s", "muri-l"))
"""Policies with a part taken out; compared on demand only."""

Report = Callable[[str, int, int], None]
"""Called with a policy, the number of its jobs that have ended, and the number of all its jobs."""

_LACKING = {
    Capability.INTERLEAVE: "needs the time that jobs spend on each resource, which the trace does not have",
    Capability.RESIZE: "needs elastic jobs, and the trace has none",
    Capability.ORACLE: "needs the epochs and epoch times of elastic jobs, and the trace has none",
    Capability.ADAPT: "needs data on how jobs train, which the trace does not have",
}
_POLL_S = 0.2
"""How often the processes' progress is read."""


@dataclass(slots=True)
class Comparison:
    """The results by policy, in the order asked for. ``not_applicable``: why a policy cannot run on the trace."""

    runs: dict[str, Run] = field(default_factory=dict)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    assumptions: dict[str, PolicyRequirements] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)


def default_policies(ablations: bool = False) -> list[str]:
    """All known policies, those of other packages last; ablations only if asked for."""
    names = [*BUILT_IN, *(name for name in known_policies() if name not in BUILT_IN)]
    return [name for name in names if ablations or name not in ABLATIONS]


def applicable(scenario: Scenario, policy: Policy) -> str | None:
    """Why a policy cannot run on the scenario's trace; ``None`` if it can."""
    lacking = policy.needs - scenario.capabilities()
    if isinstance(policy, ElasticPolicy) and Capability.RESIZE not in scenario.capabilities():
        lacking = lacking | {Capability.RESIZE}
    return "; ".join(_LACKING.get(item, f"needs {item}") for item in sorted(lacking)) or None


def compare_policies(
    scenario: Scenario,
    policies: Sequence[str],
    workers: int | None = None,
    report: Report | None = None,
    promise: bool = False,
) -> Comparison:
    """Replay the scenario under each policy.

    Args:
        policies: names; one that cannot run on the trace is noted with the reason, and left out.
        workers: processes at a time; ``None`` takes as many as there are cores, 1 runs in this process.
        promise: measure what lending costs, at the price of another replay of each policy that lends.

    Raises:
        ConfigError: no policy of that name."""
    found = Comparison()
    todo: list[str] = []
    for name in dict.fromkeys(policies):
        policy = make_policy(name, scenario.settings.policy, HistoryPredictor())
        found.assumptions[name] = requirements_of(policy)
        reason = applicable(scenario, policy)
        if reason is None:
            todo.append(name)
        else:
            found.not_applicable[name] = reason
    count = min(workers or os.cpu_count() or 1, len(todo))
    if count > 1:
        results = _in_processes(scenario, promise, todo, count, report)
    else:
        results = {name: _one(scenario, promise, name, report) for name in todo}
    for name in todo:
        result = results[name]
        if isinstance(result, ConfigError):
            found.not_applicable[name] = str(result)
        else:
            found.runs[name] = result
            found.metrics[name] = run_metrics(result)
    return found


_Result = Run | ConfigError


def _one(scenario: Scenario, promise: bool, policy: str, report: Report | None) -> _Result:
    """A run; or why there can be none, where the policy alone could not show that."""
    progress = None if report is None else lambda done, total: report(policy, done, total)
    try:
        found = simulate(scenario, policy, None, progress)
        return with_promise(scenario, found) if promise else found
    except ConfigError as error:
        return error


def _in_processes(
    scenario: Scenario, promise: bool, policies: Sequence[str], count: int, report: Report | None
) -> dict[str, _Result]:
    # spawned, not forked: the caller may have threads
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        news: Any = manager.Queue()
        pool = ProcessPoolExecutor(count, context, _begin, (scenario, promise, news))
        try:
            jobs: dict[Future[_Result], str] = {pool.submit(_work, name): name for name in policies}
            left = set(jobs)
            while left:
                _, left = wait(left, _POLL_S, FIRST_COMPLETED)
                _pass_on(news, report)
            return {name: job.result() for job, name in jobs.items()}
        finally:
            pool.shutdown(cancel_futures=True)


def _pass_on(news: Any, report: Report | None) -> None:
    while True:
        try:
            item = news.get_nowait()
        except queue.Empty:
            return
        if report is not None:
            report(*item)


_given: tuple[Scenario, bool, Any] | None = None
"""What a worker process was given when it began: the queue for its progress is the last."""


def _begin(*given: Any) -> None:
    global _given
    _given = given


def _work(policy: str) -> _Result:
    assert _given is not None
    scenario, promise, news = _given
    return _one(scenario, promise, policy, lambda *progress: news.put(progress))
