"""One cell of the suite, a policy on a trace: replayed in its own process, kept in a file, not replayed again."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lucid.atomic import write_atomic
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.policy import make_policy
from lucid.simulator.compare import applicable
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import simulate
from lucid.simulator.suite.traces import Entry, traces_at_hand

__all__ = ["Cell", "cell_path", "run_cells"]

_FIGURES = ("jobs", "avg_jct_s", "p999_jct_s", "avg_queue_s", "makespan_s", "gpu_use", "cpu_s")


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of one replay: ``figures``, or ``reason``, why there is none."""

    trace: str
    policy: str
    figures: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def cell_path(folder: Path, trace: str, policy: str) -> Path:
    """Where it is kept."""
    return folder / "cells" / f"{trace}--{policy}.json"


def run_cells(
    entries: Sequence[Entry],
    data: Path | None,
    policies: Sequence[str],
    out: Path,
    workers: int,
    report: Callable[[Cell | None, int, int], None] | None = None,
) -> list[Cell]:
    """Replay every policy on every trace, and keep each result in ``out`` as it comes.

    A result of the same version of Lucid and the same files is taken as it is. ``data``: where ``entries`` came from.

    Args:
        entries: the traces.
        data: the folder that they were found in.
        policies: names.
        out: folder of the results.
        workers: processes at a time.
        report: told of each cell, how many are done, and how many there are; of ``None`` at the beginning.

    Raises:
        OSError: ``out`` cannot be written.
    """
    digests = {entry.name: entry.digest() for entry in entries}
    wanted = [(entry.name, policy) for entry in entries for policy in policies]
    done = {key: cell for key in wanted if (cell := _kept(out, *key, digests[key[0]])) is not None}
    todo = [key for key in wanted if key not in done]
    if report is not None:
        report(None, len(done), len(wanted))

    def keep(cell: Cell) -> None:
        path = cell_path(out, cell.trace, cell.policy)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(
            {"version": version("lucid-scheduler"), "digest": digests[cell.trace], **asdict(cell)}, indent=1
        )
        write_atomic(path, text.encode())
        done[cell.trace, cell.policy] = cell
        if report is not None:
            report(cell, len(done), len(wanted))

    if workers == 1 or len(todo) <= 1:
        for name, policy in todo:
            keep(_replay(data, name, policy))
    else:
        # spawned, not forked: the caller may have threads
        with ProcessPoolExecutor(min(workers, len(todo)), multiprocessing.get_context("spawn")) as pool:
            running = [pool.submit(_replay, data, name, policy) for name, policy in todo]
            try:
                for found in as_completed(running):
                    keep(found.result())
            finally:
                pool.shutdown(cancel_futures=True)
    return [done[key] for key in wanted]


def _kept(out: Path, trace: str, policy: str, digest: str) -> Cell | None:
    try:
        found: dict[str, Any] = json.loads(cell_path(out, trace, policy).read_text(encoding="utf-8"))
        if (found["version"], found["digest"]) != (version("lucid-scheduler"), digest):
            return None
        return Cell(trace, policy, dict(found["figures"]), str(found["reason"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _replay(data: Path | None, name: str, policy: str) -> Cell:
    entry = next(item for item in traces_at_hand(data) if item.name == name)
    scenario = entry.make()
    made = make_policy(policy, scenario.settings.policy, HistoryPredictor())
    reason = applicable(scenario, made)
    if reason is not None:
        return Cell(name, policy, reason=reason)
    began_s = time.process_time()
    try:
        found = run_metrics(simulate(scenario, policy))
    except ConfigError as error:
        return Cell(name, policy, reason=str(error))
    found["cpu_s"] = time.process_time() - began_s
    return Cell(name, policy, {key: float(found[key]) for key in _FIGURES if found.get(key) is not None})
