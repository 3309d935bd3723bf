"""How one job ended, as ``sacct`` tells it of the job and its steps."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lucid.adapters.bounded import digits
from lucid.adapters.slurm.clients.commands import CommandClient
from lucid.adapters.slurm.clients.port import checked_id
from lucid.efficiency.ending import Ending
from lucid.slurmlog.states import ENDED, state_of
from lucid.slurmlog.value_formats import elapsed_s, limit_s, mem_mib, tres

__all__ = ["ending_from", "ending_of"]

_COLUMNS = ("JobID", "State", "ExitCode", "MaxRSS", "AllocTRES", "NNodes", "Elapsed", "Timelimit", "NodeList")
_CODE = re.compile(r"(\d{1,5}):(\d{1,5})")
_BY = re.compile(r"CANCELLED by (\w{1,64})")


def ending_of(commands: CommandClient, job_id: str) -> Ending | None:
    """One ``sacct``; ``None`` where accounting does not know the job, or it has not ended.

    Raises:
        ClusterError: accounting does not answer.
    """
    words = ["sacct", "--parsable2", "--noheader", "--jobs", checked_id(job_id), "--format", ",".join(_COLUMNS)]
    return ending_from(commands.say(words), job_id)


def ending_from(text: str, job_id: str) -> Ending | None:
    """Of its output; what cannot be read there counts as not told."""
    rows = [dict(zip(_COLUMNS, line.split("|"), strict=False)) for line in text.splitlines() if line.count("|") > 2]
    job = next((row for row in reversed(rows) if row["JobID"] == job_id), None)
    if job is None or state_of(job["State"]) not in ENDED:
        return None
    steps = [row for row in rows if row["JobID"].startswith(f"{job_id}.")]
    code, signal = _code([job, *steps])
    granted = tres(job.get("AllocTRES", "")) or {}
    nodes = digits(job.get("NNodes", "")) or 1
    by = _BY.match(job["State"])
    limit = limit_s(job.get("Timelimit", ""))
    return Ending(
        state_of(job["State"]),
        code,
        signal,
        tuple(state_of(row["State"]) for row in steps),
        mem_mib=_mib(granted.get("mem", "")) / nodes,
        peak_mib=max((_mib(row.get("MaxRSS", "")) for row in steps), default=0.0),
        limit_s=None if limit is None or limit == float("inf") else limit,
        ran_s=elapsed_s(job.get("Elapsed", "")) or 0.0,
        nodes=job.get("NodeList", "")[:200],
        by="" if by is None else f"user {by[1]}",
    )


def _code(rows: Sequence[dict[str, str]]) -> tuple[int, int]:
    """Exit code and signal of the first of these that failed."""
    found = [_CODE.fullmatch(row.get("ExitCode", "")) for row in rows]
    codes = [(int(one[1]), int(one[2])) for one in found if one is not None]
    return next((code for code in codes if code != (0, 0)), (0, 0))


def _mib(text: str) -> float:
    return float((mem_mib(text, 1, 1) or 0) if text else 0)
