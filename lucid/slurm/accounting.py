"""Ended jobs from Slurm's accounting (sacct): many at once for history, or one job with its exit code and steps.

slurmctld forgets ended jobs (MinJobAge), and a daemon that was down saw none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lucid.accounting.endings import Ending
from lucid.accounting.values import ENDED, elapsed_s, gres_count, limit_s, mem_mib, state_of, tres
from lucid.core.job import Ended, Job
from lucid.left_out import LeftOut
from lucid.slurm.client import checked_id
from lucid.slurm.commands import CommandClient
from lucid.slurm.records.job import job_named
from lucid.slurm.records.json import checked_list, number_of, time_limit_s
from lucid.text import MOST_GPUS, digits, mapping_of, moment, text_of


class Accounted(NamedTuple):
    """One ended job's last run, with its partition as its VC, and with the GPUs that it asked for (as slots where it
    ran in slots); ``tag`` is its AdminComment where accounting keeps that."""

    ended: Ended
    tag: str


class SacctClient:
    """Asks ``sacct``, once a call. Give it ``commands`` with a breaker of their own: slurmdbd's troubles are not
    slurmctld's."""

    def __init__(self, commands: CommandClient) -> None:
        self._commands = commands

    def ended(self, past_s: float, partitions: Sequence[str]) -> list[Accounted]:
        """Jobs of these partitions that ended within the last ``past_s`` seconds after having run, by end: the last
        run of each, by one request over all users.

        Raises: ClusterUnavailable: accounting does not answer at present. ActionRefused: there is no accounting.
        ClusterError: its answer cannot be read."""
        words = ["sacct", "--json", "-X", "-a", "-S", f"now-{max(round(past_s), 1)}seconds"]
        asked = self._commands.ask([*words, "-r", ",".join(partitions)])
        found = accounted_from(asked, self._commands.left_out)
        return [job for job in found if job.ended.job.vc in partitions]


def accounted_from(document: Any, left_out: LeftOut | None = None) -> list[Accounted]:
    """The jobs of one answer that ended after having run.

    Raises: ClusterError: the document is no answer, or says that it failed."""
    raws = checked_list(document, "jobs", "sacct", of_slurmctld=False)
    with (left_out or LeftOut()).reading("accounting") as look:
        made = look.each(raws, _accounted, job_named)
    return sorted((job for job in made if job is not None), key=lambda job: job.ended.end_s)


def _accounted(raw: Mapping[str, Any]) -> Accounted | None:
    times, state = mapping_of(raw.get("time")), mapping_of(raw.get("state")).get("current")
    states = [state] if isinstance(state, str) else [text_of(word) for word in state or ()]
    start_s, end_s = moment(number_of(times.get("start"))), moment(number_of(times.get("end")))
    if not states or states[0] not in ENDED or not 0 < start_s <= end_s:
        return None  # it goes on, or never ran: its start is then 0, or a number that means none
    number, array = int(number_of(raw.get("job_id"))), mapping_of(raw.get("array"))
    task = number_of(array.get("task_id"), -1.0)
    tres = _tres(mapping_of(raw.get("tres")).get("requested") or ())
    gpus = gres_count(tres, "gpu") or gres_count(tres, "shard")
    if number <= 0 or not 0 <= gpus <= MOST_GPUS:
        raise ValueError(f"job {number} with {gpus} GPUs")
    job = Job(
        id=f"{int(number_of(array.get('job_id')))}_{int(task)}" if task >= 0 else str(number),
        vc=text_of(raw.get("partition")),
        gpus=gpus,
        submit_s=moment(number_of(times.get("submission"))),
        rank=number,
        user=text_of(raw.get("user") or mapping_of(raw.get("association")).get("user")),
        account=text_of(mapping_of(raw.get("association")).get("account") or raw.get("account")),
        name=text_of(raw.get("name")),
        cpus=tres.get("cpu", 0),
        mem_mib=tres.get("mem", 0),
        time_limit_s=time_limit_s(times.get("limit")),
    )
    tag = text_of(mapping_of(raw.get("comment")).get("administrator"))
    return Accounted(Ended(job, end_s, end_s - start_s, states[0]), tag)


def _tres(items: Sequence[Any]) -> Counter[str]:
    """Counts by the name that a TRES has in a text: ``cpu``, ``gres/gpu``, ``gres/gpu:a100``."""
    counts: Counter[str] = Counter()
    for item in items:
        kind, name = mapping_of(item).get("type"), mapping_of(item).get("name")
        counts[f"{kind}/{name}" if name else str(kind)] += int(number_of(mapping_of(item).get("count")))
    return counts


_COLUMNS = ("JobID", "State", "ExitCode", "MaxRSS", "AllocTRES", "NNodes", "Elapsed", "Timelimit", "NodeList")
_CODE = re.compile(r"(\d{1,5}):(\d{1,5})")
_BY = re.compile(r"CANCELLED by (\w{1,64})")


def ending_of(commands: CommandClient, job_id: str) -> Ending | None:
    """How a job ended, by one ``sacct``; ``None`` where accounting does not know the job, or it has not ended.

    Raises: ClusterError: accounting does not answer."""
    words = ["sacct", "--parsable2", "--noheader", "--jobs", checked_id(job_id), "--format", ",".join(_COLUMNS)]
    return ending_from(commands.say(words), job_id)


def ending_from(text: str, job_id: str) -> Ending | None:
    """How a job ended, from ``sacct``'s output; a value that cannot be read counts as missing."""
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
    """Exit code and signal of the first row that failed."""
    found = [_CODE.fullmatch(row.get("ExitCode", "")) for row in rows]
    codes = [(int(one[1]), int(one[2])) for one in found if one is not None]
    return next((code for code in codes if code != (0, 0)), (0, 0))


def _mib(text: str) -> float:
    return float((mem_mib(text, 1, 1) or 0) if text else 0)
