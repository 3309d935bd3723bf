"""The story of a job of a replay, from the files of its run or while the run is still in memory."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lucid.core.decision import DecisionRow
from lucid.errors import TraceError
from lucid.explain.formatting import duration, gpus
from lucid.explain.predictions import prediction_data, prediction_lines
from lucid.explain.story import UNBROKEN, Story, row_to_dict
from lucid.orchestrator.registry import import_policy
from lucid.simulator.cluster.jobs import PROFILING
from lucid.simulator.cluster.state import JobOutcome
from lucid.simulator.engine import Run
from lucid.simulator.record import DecisionLog, job_row, load_decisions
from lucid.simulator.report.tables import TellStory
from lucid.text import csv_text


def run_story(folder: Path, job_id: str) -> tuple[Story, dict[str, Any]]:
    """The story of one job from a policy's folder of a run, and its JSON form.

    Raises: TraceError: the folder's files cannot be read, or have no such job."""
    import_policy(folder.name)  # a third party's policy may have reasons of its own
    decisions = folder / "decisions.jsonl"
    job, (rows, prediction) = _outcome(folder / "jobs.csv", job_id), load_decisions(decisions, job_id)
    joined = _joined(decisions, job_id)
    data: dict[str, Any] = {
        "job": job,
        "policy": folder.name,
        "joined_by": joined,
        "decisions": [row_to_dict(row) for row in rows],
    }
    estimate: list[str] = []
    if prediction is not None:
        data["prediction"] = prediction_data(prediction)
        estimate = prediction_lines(prediction, job["user"])
    return replayed(job, folder.name, rows, joined, estimate), data


def story_teller(logs: Mapping[str, DecisionLog]) -> TellStory:
    """A function that makes the stories of a run that is still in memory, lines not wrapped. ``logs``: decisions by
    policy."""
    joined: dict[str, dict[str, list[tuple[str, float]]]] = {}

    def tell(run: Run, outcome: JobOutcome) -> str:
        log = logs[run.policy]
        if run.policy not in joined:
            found: dict[str, list[tuple[str, float]]] = {}
            for job_id in log.jobs:
                for row in log.decisions_of(job_id):
                    if row.beside:
                        found.setdefault(row.beside, []).append((job_id, row.at_s))
            joined[run.policy] = found
        beside = sorted(joined[run.policy].get(outcome.job.id, ()), key=lambda item: item[1])
        prediction = log.prediction(outcome.job.id)
        estimate = prediction_lines(prediction, outcome.job.user) if prediction is not None else []
        return replayed(job_row(outcome), run.policy, log.decisions_of(outcome.job.id), beside, estimate).text(
            UNBROKEN
        )

    return tell


def _outcome(path: Path, job_id: str) -> dict[str, str]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if csv_text(row["job_id"]) == job_id:
                    return {key: csv_text(value or "") for key, value in row.items() if key is not None}
    except (OSError, KeyError) as error:
        raise TraceError(f"{path}: cannot be read ({error}); simulate again") from None
    raise TraceError(f"{path}: no job {job_id!r}; the first column of this file has the job ids")


def _joined(decisions: Path, job_id: str) -> list[tuple[str, float]]:
    """Jobs that came to share this one's GPUs, with the time, oldest first."""
    needle = f'"beside":{json.dumps(job_id)}'
    found: list[tuple[str, float]] = []
    with decisions.open(encoding="utf-8") as file:
        for line in file:
            if needle in line:
                data = json.loads(line)
                found += [(data["job"], d["at_s"]) for d in data["decisions"] if d.get("beside") == job_id]
    return sorted(found, key=lambda item: item[1])


def replayed(
    job: dict[str, str],
    policy: str,
    rows: Sequence[DecisionRow],
    joined: Sequence[tuple[str, float]] = (),
    estimate: Sequence[str] = (),
) -> Story:
    """The story of a job of a run. ``job``: its row of jobs.csv."""
    who = f", user {job['user']}" if job["user"] else ""
    what = f" ({job['name']})" if job["name"] else ""
    head = f"job {job['job_id']}{what}: {gpus(int(job['gpus']))}, VC {job['vc']}{who}; policy {policy}"
    events: list[tuple[float, str]] = []
    outcome = "it never ran"
    if job["end_s"]:
        events = [(float(job["end_s"]), "ends in profiling" if job["ended_in_profiling"] == "1" else "ends")]
        outcome = (
            f"JCT {duration(float(job['jct_s']))}, of which {duration(float(job['queue_s']))} queueing; "
            f"alone it takes {duration(float(job['duration_s']))}"
            + (f"; {duration(float(job['packed_s']))} with a partner on its GPUs" if job["packed"] == "1" else "")
        )
    return Story(head, rows, joined, events, float(job["submit_s"]), outcome, estimate, PROFILING)
