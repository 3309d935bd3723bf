"""Which jobs of a replay may be preempted, by whom and at what cost: a file of rules, and the figures."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lucid.core.job import Job, Running, Yields
from lucid.core.node import Node
from lucid.errors import TraceError
from lucid.simulator.outages import named_nodes, slurm_seconds
from lucid.simulator.traces.record import Trace, TraceJob

__all__ = ["OWNERS_QOS", "Group", "PreemptFigures", "Preemption", "read_preemption"]

_COLUMNS = ("name", "jobs", "nodes", "mode", "tier", "exempt", "grace", "checkpoint")
_NEEDED = frozenset({"name", "mode"})
_MODES = {"REQUEUE": False, "CANCEL": True}
OWNERS_QOS = "normal"
"""The QOS of all jobs that are in no group, where jobs are preempted by QOS."""


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that may be preempted, by the jobs of groups of a higher ``tier`` and by all that are in no group.

    ``nodes``: names of the nodes on which they run beside those of their own VC, if it has any. ``ends``: they are
    cancelled, not requeued. ``exempt_s``: so long a run is not preempted (PreemptExemptTime). ``grace_s``: so long
    they take to leave (GraceTime). ``checkpoint_s``: how often they save their work; infinite for never.
    """

    nodes: tuple[str, ...] = ()
    ends: bool = False
    tier: int = 1
    exempt_s: float = 0.0
    grace_s: float = 0.0
    checkpoint_s: float = math.inf

    def cancels(self, job: Job) -> bool:
        """Is this job cancelled when it is preempted? Slurm requeues none that says that it must not be."""
        return self.ends or not job.requeueable


@dataclass(frozen=True, slots=True)
class Preemption:
    """``groups`` by name: of a VC, or with ``by_qos`` of a QOS (Slurm's preempt/partition_prio and preempt/qos).

    ``slurm_under``: the policies under which the victims are Slurm's own choice, as they are without Lucid.
    ``youngest_first``: Slurm's preempt_youngest_first.
    """

    groups: Mapping[str, Group]
    by_qos: bool = False
    youngest_first: bool = False
    slurm_under: frozenset[str] = frozenset({"backfill", "fifo"})

    def group_of(self, job: Job) -> Group | None:
        """The group of a job; ``None`` for an owner."""
        return self.groups.get(job.qos if self.by_qos else job.vc)

    def yields(self, entry: Running, to: tuple[str, ...] | None) -> Yields | None:
        """How a running job gives way, to jobs of these QOS only unless ``None``; ``None`` for an owner's."""
        group, job = self.group_of(entry.job), entry.job
        if group is None:
            return None
        ends = group.cancels(job)
        saves = job.elastic is not None and not ends
        return Yields(entry.start_s + group.exempt_s if group.exempt_s else 0.0, to, ends, saves)

    def qos_over(self, qos: str) -> tuple[str, ...]:
        """The QOS whose jobs may preempt those of this one."""
        tier = self.groups[qos].tier
        return tuple(sorted([OWNERS_QOS, *(name for name, other in self.groups.items() if other.tier > tier)]))

    def residents(self, trace: Trace) -> Trace:
        """The jobs for which a cluster has its nodes: all, without those that run on the nodes of others."""
        if self.by_qos:
            return trace
        return replace(trace, jobs=tuple(item for item in trace.jobs if item.job.vc not in self.groups))


@dataclass(slots=True)
class PreemptFigures:
    """What preemption did to a replay."""

    rules: Preemption
    preempted: int = 0
    """Runs that were preempted, those that were cancelled among them."""
    cancelled: int = 0
    """Runs that were cancelled. Their users submit them again at once."""
    lost_gpu_s: float = 0.0
    """GPU-seconds of these runs whose work was lost: since their start, or their last checkpoint."""
    jobs: set[str] = field(default_factory=set)
    """Ids of the jobs that were ever preempted."""


def read_preemption(
    path: Path, trace: Trace, layout_of: Callable[[Trace], Mapping[str, Sequence[Node]]]
) -> tuple[Preemption, Trace]:
    """The groups of a CSV file, and the trace with the jobs of each in the VC of that name, or in the QOS.

    Args:
        path: the file.
        trace: says which jobs there are.
        layout_of: the nodes by VC, given the owners' part of the trace.

    Raises:
        TraceError: naming file, line, column and value.
    """
    rows: dict[str, tuple[Group, Mapping[str, str], str]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for where, values in _rows(path, csv.DictReader(file, restkey="more")):
                name = values["name"]
                if not name or name in rows or name == OWNERS_QOS:
                    raise TraceError(
                        f"{where}: column name: {name!r} is empty, twice in the file, or the name that stands for "
                        "all other jobs"
                    )
                rows[name] = (_group(values, where), values, where)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}; give --preempt a CSV of {','.join(_COLUMNS)}") from None
    if not rows:
        raise TraceError(f"{path}: names no jobs; write a line for each group below the header {','.join(_COLUMNS)}")
    by_qos = _by_qos(rows)
    moved = _moved(trace, rows, by_qos)
    rules = Preemption({name: group for name, (group, _, _) in rows.items()}, by_qos)
    if all(rules.group_of(item.job) for item in moved.jobs):
        raise TraceError(f"{path}: every job of the trace may be preempted; leave out those whose nodes these are")
    if by_qos:
        return rules, moved
    layout = layout_of(rules.residents(moved))
    groups = {
        name: replace(group, nodes=tuple(named_nodes(values["nodes"], where, layout)))
        for name, (group, values, where) in rows.items()
    }
    return replace(rules, groups=groups), moved


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Each line as its place and its values by column."""
    names = reader.fieldnames or ()
    if not set(names) >= _NEEDED or not set(names) <= set(_COLUMNS):
        raise TraceError(
            f"{path}: line 1: its columns are {','.join(names) or 'none'}; write {','.join(_COLUMNS)} "
            "(all but name and mode may be left out)"
        )
    for row in reader:
        where = f"{path}: line {reader.line_num}"
        if "more" in row:
            raise TraceError(f'{where}: more values than columns; quote a list of nodes: "a-000,a-001"')
        yield where, {name: (row.get(name) or "").strip() for name in _COLUMNS}


def _group(values: Mapping[str, str], where: str) -> Group:
    mode, tier = values["mode"].upper(), values["tier"] or "1"
    if mode not in _MODES:
        why = "keeps the memory of its GPUs, so it cannot be replayed; " if mode in ("SUSPEND", "GANG") else ""
        raise TraceError(f"{where}: column mode: {values['mode']!r} {why or 'is unknown; '}write REQUEUE or CANCEL")
    if not (tier.isascii() and tier.isdigit()) or len(tier) > 5:
        raise TraceError(f"{where}: column tier: {tier!r} is not a PriorityTier, a whole number from 0 to 65533")
    found = {name: _seconds(values[name], name, where) for name in ("exempt", "grace", "checkpoint")}
    if values["checkpoint"] and not found["checkpoint"]:
        raise TraceError(f"{where}: column checkpoint: must be above 0; leave it empty where no work is saved")
    return Group((), _MODES[mode], int(tier), found["exempt"], found["grace"], found["checkpoint"] or math.inf)


def _seconds(text: str, column: str, where: str) -> float:
    found = slurm_seconds(text) if text else 0.0
    if found is None:
        raise TraceError(f"{where}: column {column}: {text!r} is no time; write seconds, or 0:10:00 for ten minutes")
    return found


def _by_qos(rows: Mapping[str, tuple[Group, Mapping[str, str], str]]) -> bool:
    """Are these QOS, and not partitions? Slurm knows one way at a time (PreemptType)."""
    without = [where for _, values, where in rows.values() if not values["nodes"]]
    if without and len(without) < len(rows):
        raise TraceError(
            f"{without[0]}: column nodes: is empty, and not in every line; name the nodes of each group (partitions "
            "of a lower tier), or of none (QOS)"
        )
    return bool(without)


def _moved(trace: Trace, rows: Mapping[str, tuple[Group, Mapping[str, str], str]], by_qos: bool) -> Trace:
    """The trace with the jobs of each group in its VC or QOS."""
    mine: dict[str, str] = {}
    for name, (_, values, where) in rows.items():
        for word in values["jobs"].replace(",", " ").split() or [name]:
            chosen = [item.job.id for item in trace.jobs if _is_meant(item, word)]
            if not chosen:
                raise TraceError(
                    f"{where}: column jobs: the trace has no job of {word!r}; write VCs, user=NAME or account=NAME "
                    f"with spaces between (VCs are {', '.join(trace.vcs)})"
                )
            twice = next((job_id for job_id in chosen if mine.setdefault(job_id, name) != name), None)
            if twice is not None:
                raise TraceError(f"{where}: column jobs: job {twice} is in group {mine[twice]!r} already")
    items = tuple(_in(item, mine.get(item.job.id), by_qos) for item in trace.jobs)
    for name, (_, _, where) in rows.items():
        if not by_qos and any(item.job.vc == name and item.job.id not in mine for item in items):
            raise TraceError(f"{where}: column name: VC {name!r} has other jobs, too; give the group another name")
    return replace(trace, jobs=items)


def _is_meant(item: TraceJob, word: str) -> bool:
    kind, _, name = word.rpartition("=")
    return name == {"": item.job.vc, "user": item.job.user, "account": item.job.account}.get(kind)


def _in(item: TraceJob, group: str | None, by_qos: bool) -> TraceJob:
    if by_qos:
        return replace(item, job=replace(item.job, qos=group or OWNERS_QOS))
    return item if group is None else replace(item, job=replace(item.job, vc=group))
