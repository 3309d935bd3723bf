"""``lucidctl explain``: why a job started when it did, beside whom, and what held it before."""

from __future__ import annotations

import csv
import json
import shutil
import textwrap
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import say
from lucid.cli.live import config_option, live_settings, seen_store
from lucid.cli.live_job import live_story, live_text
from lucid.cli.render import decision_text, duration, reason_text, when
from lucid.cli.render_prediction import prediction_data, prediction_lines
from lucid.core.prediction import Prediction
from lucid.core.reason import reason_to_dict
from lucid.errors import ConfigError, TraceError
from lucid.orchestrator.policy import import_policy
from lucid.shown import csv_text, shown
from lucid.simulator.cluster import PROFILING
from lucid.simulator.record import LoggedDecision, load_decisions, load_prediction

__all__ = ["WIDTH", "explain", "explanation", "story"]

WIDTH = 100
"""Columns of an explanation where no terminal says how many there are."""
_NARROWEST = 60


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--run", "run_dir", type=click.Path(path_type=Path), help="Folder of simulate; without: lucidd's.")
@click.option("--policy", default=None, help="Which policy's run. Default: lucid where it ran, else the only one.")
@click.option("--json", "as_json", is_flag=True, help="The decisions and their compared values as JSON.")
@config_option
def explain(job_id: str, run_dir: Path | None, policy: str | None, as_json: bool, config: Path) -> None:
    """Explain what lucidd (with --run: a simulated run) decided about JOB, from the comparisons it was decided by."""
    if run_dir is None:
        told = live_story(seen_store(live_settings(config)), job_id)
        say(json.dumps(told, indent=1) if as_json else live_text(told))
        return
    folder = _folder(run_dir, policy)
    if as_json:
        job, decisions, joined, prediction = _read(folder, job_id)
        data: dict[str, Any] = {
            "job": job,
            "policy": folder.name,
            "joined_by": joined,
            "decisions": [
                {
                    "at_s": d.at_s,
                    "partition": d.partition,
                    "verb": d.verb,
                    "placement": d.placement,
                    "beside": d.beside,
                    "reasons": [reason_to_dict(r) for r in d.reasons],
                }
                for d in decisions
            ],
        }
        if prediction is not None:
            data["prediction"] = prediction_data(prediction)
        say(json.dumps(data, indent=1))
        return
    say(story(run_dir, folder.name, job_id, shutil.get_terminal_size((WIDTH, 24)).columns))


def story(run_dir: Path, policy: str, job_id: str, width: int = WIDTH) -> str:
    """The whole story of one job of a run's folder, as text of at most ``width`` columns.

    Raises:
        TraceError: the folder's files cannot be read, or have no such job.
    """
    job, decisions, joined, prediction = _read(run_dir / policy, job_id)
    told = explanation(job, policy, decisions, joined, width)
    if prediction is not None:
        told = "\n".join([told, *prediction_lines(prediction, job["user"])])
    return told


def _read(
    folder: Path, job_id: str
) -> tuple[dict[str, str], list[LoggedDecision], list[tuple[str, float]], Prediction | None]:
    path = folder / "decisions.jsonl"
    import_policy(folder.name)  # a third party's policy may have reasons of its own
    outcome, decisions = _outcome(folder / "jobs.csv", job_id), load_decisions(path, job_id)
    return outcome, decisions, _joined(path, job_id), load_prediction(path, job_id)


def _folder(run_dir: Path, policy: str | None) -> Path:
    found = sorted(path.parent.name for path in run_dir.glob("*/decisions.jsonl"))
    if not found:
        raise ConfigError(f"{run_dir}: holds no run; give the folder of: lucidctl simulate TRACE --out FOLDER")
    name = policy or ("lucid" if "lucid" in found else found[0])
    if name not in found or (policy is None and name != "lucid" and len(found) > 1):
        raise ConfigError(f"{run_dir}: say which run with --policy (there are: {', '.join(found)})")
    return run_dir / name


def _outcome(path: Path, job_id: str) -> dict[str, str]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if csv_text(row["job_id"]) == job_id:
                    return {key: csv_text(value or "") for key, value in row.items() if key is not None}
    except (OSError, KeyError) as error:
        raise TraceError(f"{path}: cannot be read ({error}); simulate again") from None
    raise TraceError(f"{path}: no job {job_id!r}; job ids stand in the first column of this file")


def _joined(decisions: Path, job_id: str) -> list[tuple[str, float]]:
    """Jobs that came to stand beside this one, with the time, oldest first."""
    needle = f'"beside":{json.dumps(job_id)}'
    found: list[tuple[str, float]] = []
    with decisions.open(encoding="utf-8") as file:
        for line in file:
            if needle in line:
                data = json.loads(line)
                found += [(data["job"], d["at_s"]) for d in data["decisions"] if d.get("beside") == job_id]
    return sorted(found, key=lambda item: item[1])


def explanation(
    job: dict[str, str],
    policy: str,
    decisions: list[LoggedDecision],
    joined: list[tuple[str, float]],
    width: int = WIDTH,
) -> str:
    """The whole story of one job as text; longer lines go on under their own beginning."""
    job = {key: shown(value) for key, value in job.items()}
    who = f", user {job['user']}" if job["user"] else ""
    what = f" ({job['name']})" if job["name"] else ""
    gpus = int(job["gpus"])
    lines = [f"job {job['job_id']}{what}: {gpus} GPU{'s' if gpus != 1 else ''}, VC {job['vc']}{who}; policy {policy}"]
    lines.append(f"{when(float(job['submit_s']))}  submitted")
    events: list[tuple[float, list[str]]] = []
    for entry in decisions:
        text = [decision_text(entry, entry.partition == PROFILING)]
        text += [reason_text(reason) for reason in entry.reasons]
        events.append((entry.at_s, text))
    events += [(at_s, [f"job {shown(other)} starts beside it, on the same GPUs"]) for other, at_s in joined]
    if job["end_s"]:
        ended = " in profiling" if job["ended_in_profiling"] == "1" else ""
        events.append((float(job["end_s"]), [f"ends{ended}"]))
    for at_s, text in sorted(events, key=lambda item: item[0]):
        time = f"{when(at_s)}  "
        lines += _wrapped(time, text[0], width)
        for line in text[1:]:
            lines += _wrapped(" " * len(time) + "- ", line, width)
    if job["end_s"]:
        lines += _wrapped(
            "in all: ",
            f"JCT {duration(float(job['jct_s']))}, of which {duration(float(job['queue_s']))} queueing; "
            f"alone it takes {duration(float(job['duration_s']))}"
            + (f"; {duration(float(job['packed_s']))} beside a partner" if job["packed"] == "1" else ""),
            width,
        )
    else:
        lines.append("it never ran")
    return "\n".join(lines)


def _wrapped(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        max(width, _NARROWEST),
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
