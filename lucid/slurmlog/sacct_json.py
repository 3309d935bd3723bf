"""``sacct --json`` as the lines of ``sacct --parsable2``: one job, one line; one file may hold several answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lucid.errors import TraceError
from lucid.slurmlog.rows import Source

__all__ = ["as_lines"]

_COLUMNS = (
    *("JobID", "User", "Account", "Partition", "QOS", "Submit", "Start", "End", "ElapsedRaw", "State", "NNodes"),
    *("Cluster", "ReqTRES", "AllocTRES", "TimelimitRaw", "JobName"),
)


def as_lines(source: Source) -> Source:
    """JSON with a line for each job; the line of job N (from 1) in its list is N + 1. Any other file as it is.

    Raises:
        TraceError: it is JSON, but not sacct's.
    """
    if source.text.lstrip().startswith("["):
        philly = " (Philly's own: job_log of msr-fiddle/philly-traces)" if '"attempts"' in source.text else ""
        raise TraceError(
            f"{source.path}: is a JSON list{philly}, which is not read; write CSV with a line for each job and the "
            "header timestamp,duration,num_gpus,cluster: when it was submitted, for how many seconds it ran in all "
            "its attempts, its GPUs, and its virtual cluster"
        )
    if not source.text.lstrip().startswith("{"):
        return source
    try:
        lines = ["|".join(_COLUMNS)]
        for answer in _answers(source.text):
            lines += map(_line, answer["jobs"])
    except (ValueError, RecursionError) as error:  # no JSON, or JSON that no Python number or stack holds
        where = f", line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise TraceError(
            f"{source.path}{where}: is not JSON that can be read ({str(error)[:80]}); write it anew with sacct "
            "--json, or give the output of sacct --parsable2"
        ) from None
    except (KeyError, TypeError, AttributeError):
        raise TraceError(
            f"{source.path}: is JSON, but not that of sacct --json, which has a list of jobs, each with its state "
            "and its times; give the output of sacct --json, or of sacct --parsable2"
        ) from None
    return Source(source.path, "\n".join(lines), source.sound)


def _answers(text: str) -> Iterator[Any]:
    decoder, end = json.JSONDecoder(), 0
    while (at := end + len(text[end:]) - len(text[end:].lstrip())) < len(text):
        answer, end = decoder.raw_decode(text, at)
        yield answer


def _line(job: Mapping[str, Any]) -> str:
    time, array = job["time"], _map(job.get("array"))
    state = _map(job["state"]).get("current")
    task = _number(array.get("task_id"))
    number = job["job_id"] if task is None else f"{_number(array.get('job_id'))}_{task}"
    tres = _map(job.get("tres"))
    limit = _number(time.get("limit"))
    cells = (
        number,
        job.get("user") or _map(job.get("association")).get("user"),
        job.get("account"),
        job.get("partition"),
        job.get("qos"),
        _number(time["submission"]),
        _number(time["start"]) or "Unknown",
        _number(time["end"]) or "Unknown",
        _number(time["elapsed"]),
        state[0] if isinstance(state, list) and state else state,
        _number(job.get("allocation_nodes")),
        job.get("cluster"),
        ",".join(_things(tres.get("requested"))),
        ",".join(_things(tres.get("allocated"))),
        "UNLIMITED" if limit is None else limit,
        job.get("name"),
    )
    return "|".join(" ".join(str("" if cell is None else cell).split("\n")) for cell in cells)


def _things(listed: Any) -> Iterator[str]:
    for one in listed or ():
        name = f"{one['type']}/{one['name']}" if one.get("name") else one["type"]
        # sacct prints memory with its unit; in JSON it is in MiB
        yield f"{name}={_number(one.get('count'))}{'M' if name == 'mem' else ''}"


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> Any:
    """A number in either of Slurm's wrappers; ``None`` where it is not set or infinite."""
    if isinstance(value, Mapping):
        return value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return value
