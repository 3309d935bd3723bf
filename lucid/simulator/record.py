"""Files of a run: jobs.csv and the decisions on each job, written and read again."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lucid.core.codec import from_json
from lucid.core.decision import DecisionRow, Hold, PartitionPlan, Plan, row_of
from lucid.core.placement import show_placement
from lucid.core.ports import Applied
from lucid.core.prediction import Prediction, prediction_to_dict
from lucid.core.reason import reason_to_dict
from lucid.core.snapshot import Snapshot
from lucid.errors import TraceError
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.engine import Run
from lucid.text import csv_cell

_MOST_HOLDS = 40
"""Most changes of reason kept for one job: the first half and the last; those between are counted."""


class DecisionLog:
    """A ``Recorder`` that keeps every decision on every job, but holds only when their reasons change."""

    def __init__(self) -> None:
        self._entries: dict[str, list[DecisionRow]] = {}
        self._last: dict[str, tuple[tuple[object, ...], int]] = {}
        self._seen: dict[str, PartitionPlan] = {}
        self._signatures: dict[int, tuple[Hold, tuple[object, ...]]] = {}
        self._predictions: dict[str, Prediction] = {}

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:  # noqa: ARG002
        """Take in one cycle; partitions whose plan was merely handed out again are passed over."""
        for name, part in plan.partitions.items():
            if self._seen.get(name) is part:
                continue
            self._seen[name] = part
            self._signatures.clear()
            for job_id, decision in part.decisions.items():
                if isinstance(decision, Hold):
                    if not self._hold(job_id, plan.now_s, name, decision):
                        continue
                else:
                    self._last.pop(job_id, None)
                    self._entries.setdefault(job_id, []).append(row_of(plan.now_s, job_id, name, decision))
                found = snapshot.predictions.get(job_id)
                if found is not None and found.duration_terms is not None:
                    self._predictions[job_id] = found

    def _hold(self, job_id: str, now_s: float, partition: str, hold: Hold) -> bool:
        """Note a wait if its reasons are new; returns whether they were."""
        known = self._signatures.get(id(hold))
        if known is None:
            known = self._signatures[id(hold)] = (hold, tuple(r.kind for r in hold.reasons))
        signature = (partition, *known[1])
        last = self._last.get(job_id)
        if last is not None and last[0] == signature:
            return False
        entries = self._entries.setdefault(job_id, [])
        count = 1 if last is None else last[1] + 1
        self._last[job_id] = (signature, count)
        if count > _MOST_HOLDS:
            del entries[-_MOST_HOLDS // 2]
        entries.append(DecisionRow(now_s, job_id, partition, "hold", hold.reasons))
        return True

    def decisions_of(self, job_id: str) -> list[DecisionRow]:
        """The decisions on one job, oldest first."""
        return self._entries.get(job_id, [])

    def prediction(self, job_id: str) -> Prediction | None:
        """The prediction for the job at its latest decision, where the predictor gave its terms."""
        return self._predictions.get(job_id)

    @property
    def jobs(self) -> list[str]:
        """Ids of all jobs with a decision."""
        return list(self._entries)


def write_decisions(path: Path, log: DecisionLog) -> None:
    """Write the decisions, one line of JSON a job."""
    with path.open("w", encoding="utf-8") as file:
        for job_id in log.jobs:
            line: dict[str, Any] = {
                "job": job_id,
                "decisions": [
                    {
                        "at_s": entry.at_s,
                        "partition": entry.partition,
                        "verb": entry.verb,
                        **({"placement": entry.placement} if entry.placement else {}),
                        **({"beside": entry.beside} if entry.beside else {}),
                        "reasons": [reason_to_dict(reason) for reason in entry.reasons],
                    }
                    for entry in log.decisions_of(job_id)
                ],
            }
            prediction = log.prediction(job_id)
            if prediction is not None:
                line["prediction"] = prediction_to_dict(prediction)
            file.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")


def load_decisions(path: Path, job_id: str) -> tuple[list[DecisionRow], Prediction | None]:
    """The decisions on one job from a file that ``write_decisions`` wrote, and the prediction behind them, where the
    predictor gave its terms.

    Raises:
        TraceError: the file cannot be read, or has no such job."""
    needle = json.dumps(job_id, ensure_ascii=False)
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.startswith(f'{{"job":{needle},'):
                    data = json.loads(line)
                    rows = [from_json(DecisionRow, {**item, "job_id": job_id}) for item in data["decisions"]]
                    return rows, from_json(Prediction, data["prediction"]) if "prediction" in data else None
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read ({error.strerror}); give --run the folder that simulate --out wrote"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path}: damaged at job {job_id}: {error}; simulate again") from None
    raise TraceError(
        f"{path}: no job {job_id!r}; the job ids are in the first column of jobs.csv in the same directory"
    )


_JOB_COLUMNS = (
    "job_id", "user", "vc", "name", "gpus", "submit_s", "start_s", "end_s", "duration_s", "jct_s", "queue_s",
    "profiled_s", "ended_in_profiling", "packed", "packed_s", "preemptions", "resizes", "placement",
)  # fmt: skip


def write_jobs(path: Path, run: Run) -> None:
    """Write the outcome of each job, one a row; times in seconds of the trace, empty where a job never ran. People
    open it with spreadsheets, so a text that begins like a formula has an apostrophe before it (``csv_text`` takes it
    away)."""
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file)
        writer.writerow(_JOB_COLUMNS)
        for o in run.outcomes:
            names, figures = _row(o)
            writer.writerow([*map(csv_cell, names), *figures])


def job_row(outcome: JobOutcome) -> dict[str, str]:
    """The outcome as a row of jobs.csv is read."""
    names, figures = _row(outcome)
    return dict(zip(_JOB_COLUMNS, [*names, *map(str, figures)], strict=True))


def _row(o: JobOutcome) -> tuple[tuple[str, ...], list[str | int]]:
    ran = o.end_s >= 0
    return (o.job.id, o.job.user, o.job.vc, o.job.name), [
        o.job.gpus, _s(o.job.submit_s), _s(o.start_s) if o.start_s >= 0 else "", _s(o.end_s) if ran else "",
        _s(o.duration_s), _s(o.jct_s) if ran else "", _s(o.queue_s), _s(o.profiled_s), int(o.ended_in_profiling),
        int(o.packed), _s(o.packed_s), o.preemptions, o.resizes, show_placement(o.placement),
    ]  # fmt: skip


def _s(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
