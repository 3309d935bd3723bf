"""Jobs that ended, from Slurm's accounting: slurmctld forgets them (MinJobAge), a daemon that was down saw none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lucid.adapters.bounded import MOST_GPUS, moment, text_of
from lucid.adapters.left_out import LeftOut
from lucid.adapters.slurm.clients.commands import CommandClient
from lucid.adapters.slurm.records.json_values import checked_list, number_of, time_limit_s
from lucid.adapters.slurm.records.unreadable import job_named
from lucid.slurmlog.states import ENDED
from lucid.slurmlog.value_formats import gres_count

__all__ = ["Accounted", "Accounting", "SacctClient", "accounted_from"]


@dataclass(frozen=True, slots=True)
class Accounted:
    """One job that ended, its last run: ``id`` as commands address it, times in Unix seconds, ``gpus`` those it
    asked for (as slots where it ran in those), ``tag`` its AdminComment where accounting keeps it."""

    id: str
    number: int
    partition: str
    user: str
    account: str
    name: str
    tag: str
    gpus: int
    cpus: int
    mem_mib: int
    time_limit_s: float | None
    submit_s: float
    start_s: float
    end_s: float
    state: str


class Accounting(Protocol):
    """Where ended jobs are known from."""

    def ended(self, past_s: float, partitions: Sequence[str]) -> Sequence[Accounted]:
        """Jobs of these partitions that ended within the last ``past_s`` seconds after having run, by end.

        Raises:
            ClusterUnavailable: it does not answer at present.
            ActionRefused: there is no accounting.
            ClusterError: its answer cannot be read.
        """
        ...


class SacctClient:
    """``sacct``, once a call. Give it ``commands`` with a breaker of their own: slurmdbd's troubles are not
    slurmctld's."""

    def __init__(self, commands: CommandClient) -> None:
        self._commands = commands

    def ended(self, past_s: float, partitions: Sequence[str]) -> list[Accounted]:
        """One request over all users; the last run of each job."""
        words = ["sacct", "--json", "-X", "-a", "-S", f"now-{max(round(past_s), 1)}seconds"]
        asked = self._commands.ask([*words, "-r", ",".join(partitions)])
        found = accounted_from(asked, self._commands.left_out)
        return [job for job in found if job.partition in partitions]


def accounted_from(document: Any, left_out: LeftOut | None = None) -> list[Accounted]:
    """Of one answer those that ended after having run.

    Raises:
        ClusterError: the answer is none, or says that it failed.
    """
    raws = checked_list(document, "jobs", "sacct", of_slurmctld=False)
    with (left_out or LeftOut()).look("accounting") as look:
        made = look.each(raws, _accounted, job_named)
    return sorted((job for job in made if job is not None), key=lambda job: job.end_s)


def _accounted(raw: Mapping[str, Any]) -> Accounted | None:
    times, state = _map(raw.get("time")), _map(raw.get("state")).get("current")
    states = [state] if isinstance(state, str) else [text_of(word) for word in state or ()]
    start_s, end_s = moment(number_of(times.get("start"))), moment(number_of(times.get("end")))
    if not states or states[0] not in ENDED or not 0 < start_s <= end_s:
        return None  # it goes on, or never ran: its start is then 0, or a number that means none
    number, array = int(number_of(raw.get("job_id"))), _map(raw.get("array"))
    task = number_of(array.get("task_id"), -1.0)
    tres = _tres(_map(raw.get("tres")).get("requested") or ())
    gpus = gres_count(tres, "gpu") or gres_count(tres, "shard")
    if number <= 0 or not 0 <= gpus <= MOST_GPUS:
        raise ValueError(f"job {number} with {gpus} GPUs")
    return Accounted(
        id=f"{int(number_of(array.get('job_id')))}_{int(task)}" if task >= 0 else str(number),
        number=number,
        partition=text_of(raw.get("partition")),
        user=text_of(raw.get("user") or _map(raw.get("association")).get("user")),
        account=text_of(_map(raw.get("association")).get("account") or raw.get("account")),
        name=text_of(raw.get("name")),
        tag=text_of(_map(raw.get("comment")).get("administrator")),
        gpus=gpus,
        cpus=tres.get("cpu", 0),
        mem_mib=tres.get("mem", 0),
        time_limit_s=time_limit_s(times.get("limit")),
        submit_s=moment(number_of(times.get("submission"))),
        start_s=start_s,
        end_s=end_s,
        state=states[0],
    )


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _tres(items: Sequence[Any]) -> Counter[str]:
    """Counts by the name that a TRES has in a text: ``cpu``, ``gres/gpu``, ``gres/gpu:a100``."""
    counts: Counter[str] = Counter()
    for item in items:
        kind, name = _map(item).get("type"), _map(item).get("name")
        counts[f"{kind}/{name}" if name else str(kind)] += int(number_of(_map(item).get("count")))
    return counts
