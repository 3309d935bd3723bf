"""``SlurmJob`` and ``SlurmNode``: a job and a node as Slurm shows them; also unreadable records.

A job whose record cannot be read may hold GPUs, which must not look free. Its state, nodes and GPUs are Slurm's own
words, which no user writes, so they are nearly always there: it then shows as somebody else's job where it runs.
Where they are missing, its nodes count as out, and where even those are unknown, every node that is not idle."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeVar

from lucid.accounting.values import ENDED
from lucid.core.node import Window
from lucid.core.placement import NodeGpus, Placement, placement_gpus
from lucid.slurm.records.fields import gpu_count, gpu_mask, hosts, lease_s, parse_mark
from lucid.slurm.records.json import number_of, states_of, words_of
from lucid.slurm.records.request import GPU_FIELDS, UNREAD, Request
from lucid.text import mapping_of, moment, text_of


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job, or one task of an array. Times in Unix seconds, 0 where there is none.

    ``id`` is how commands address it (``17`` or ``17_3``); ``number`` is Slurm's job number. ``held``: its priority
    is 0. ``simple``: nothing about it (features, excluded nodes, licenses, a reservation, an exclusive node, a
    request by socket, more than one component) would stop it from running on a node that somebody else chose; the
    user's own node list is in ``request``, and features apart."""

    id: str
    number: int
    state: str
    flags: frozenset[str]
    partition: str
    user: str
    account: str
    name: str
    admin_comment: str
    reason: str
    held: bool
    gpus: int
    min_nodes: int
    cpus: int
    mem_mib: int
    submit_s: float
    eligible_s: float
    start_s: float
    end_s: float
    time_limit_s: float | None
    restarts: int
    requeue: bool
    batch: bool
    request: Request
    features: str
    simple: bool
    dependent: bool
    placement: Placement
    hosts_used: tuple[tuple[str, int, int], ...] = ()
    """(node, CPUs, MiB) that the job holds now."""
    extra: str = ""
    excludes: str = ""
    """The nodes that the job's user excludes."""
    comment: str = ""
    qos: str = ""
    nice: int = 0
    reservation: str = ""
    dependency: str = ""
    """The rest of its dependency; empty once Slurm has ended it."""
    het: int = 0
    """Slurm's number of the heterogeneous job of which this is a part; 0 for none."""
    launch_failed: bool = False
    """Whether Slurm itself holds the job because a node did not take it, and nobody else does."""
    unread: str = ""
    """Why the record could not be read; the other fields are those that could be read all the same. Nothing is
    decided about such a job."""
    priority: int = 0
    """The job's priority as Slurm shows it; 0 while it is held, or where it is unknown."""
    lost: bool = False
    """Whether this unread job may hold GPUs of which nobody can tell which. ``hosts_used`` has its nodes, where they
    are known; an empty ``id`` is a job of which nothing is known."""
    most_switches: int = 0
    """``--switches``: the most switches above the job's nodes; 0 for any number."""
    switch_wait_s: float = 0.0
    """How long the job waits for such nodes at most, as its user said; 0 where its user did not say."""
    time_min_s: float = 0.0
    """``--time-min``: Slurm's backfill may shorten the time limit to no less, so that the job starts sooner; 0
    without it."""
    uid: int = -1
    """Number of the job's user on the cluster; -1 where it is unknown."""
    completing: bool = field(init=False, repr=False, compare=False)
    """Whether the job has stopped, and still holds what it had. This field and the next ones follow from state and
    flags, and are read several times of each job at each poll."""
    pending: bool = field(init=False, repr=False, compare=False)
    """Whether the job waits (and holds nothing)."""
    running: bool = field(init=False, repr=False, compare=False)
    """Whether the job holds resources."""
    tag: Mapping[str, str] | None = field(init=False, repr=False, compare=False)
    """What job_submit.lua noted about the job (``parse_mark``)."""
    tagged_begin_s: float = field(init=False, repr=False, compare=False)
    """The begin time that the job's user asked for, as job_submit.lua noted it."""
    leased: bool = field(init=False, repr=False, compare=False)
    """Whether the job still has the begin time with which job_submit.lua parked it."""

    def __post_init__(self) -> None:
        completing = "COMPLETING" in self.flags
        object.__setattr__(self, "completing", completing)
        object.__setattr__(self, "pending", self.state == "PENDING" and not completing)
        object.__setattr__(self, "running", completing or self.state in ("RUNNING", "SUSPENDED"))
        tag = parse_mark(self.admin_comment)
        object.__setattr__(self, "tag", tag)
        object.__setattr__(self, "tagged_begin_s", _time_s(tag, "begin"))
        leases = (_time_s(tag, "park"), lease_s(self.comment))
        object.__setattr__(self, "leased", self.eligible_s > 0 and self.eligible_s in leases)

    @property
    def asks(self) -> bool:
        """Whether the job gets GPUs. An exclusive job has those of its nodes, whether or not it asks for any."""
        return self.gpus > 0 or self.request.whole_nodes

    @property
    def shortened_s(self) -> float | None:
        """The time limit to which Slurm may shorten the job."""
        return min(self.time_min_s, self.time_limit_s or math.inf) if self.time_min_s else self.time_limit_s

    @property
    def never_runs(self) -> bool:
        """Whether Slurm itself holds the job, because no node can give what it asks for. Slurm says so also while
        nodes have yet to register (after slurmctld's failover), so it need not be for ever."""
        return self.held and self.reason == "BadConstraints"

    @property
    def configuring(self) -> bool:
        """Whether the job holds its nodes while they boot, or run their prolog."""
        return self.running and "CONFIGURING" in self.flags

    @property
    def ended(self) -> bool:
        """Whether the job has left."""
        return self.state in ENDED and not self.completing


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node. ``gpu_types``: the GRES type of each GPU by index; ``shard_types``: the types that have shards."""

    name: str
    gpu_types: tuple[str, ...]
    shard_types: frozenset[str]
    cpus: int
    mem_mib: int
    features: frozenset[str]
    partitions: frozenset[str]
    states: frozenset[str]
    reason: str = ""
    slots: frozenset[int] = frozenset()
    """How many shards each of the node's GPUs has; several numbers where they differ."""
    switches: tuple[str, ...] = ()
    """The switches or blocks above it, the lowest first."""
    available_features: frozenset[str] = frozenset()
    """Features that the node has now, and those that it could be booted for."""
    weight: int = 1
    """Of nodes that fit a job equally well, Slurm and Lucid take the one with the least weight."""
    spread_by_slurm: bool = False
    """Whether Slurm chooses the nodes of a job of several (``Network.slurms``)."""

    excused: frozenset[str] = frozenset()
    """States that keep nothing from starting here, since Slurm wakes the node for it (``power_saving``)."""
    shut: Window | None = None
    """The window in which nothing may start here, for a node on its way down."""
    boot_s: float = 0.0
    """How long a job that starts here waits for the boot; 0 for a node that is awake."""
    boots_since_s: float | None = None
    """Since when the node boots (Unix s)."""
    why_out: str = ""
    """More on why the node is out, in words."""

    @property
    def available(self) -> bool:
        """Whether new jobs may start here."""
        return self.shut is None and not self.states & _OUT - self.excused

    @property
    def out(self) -> str:
        """Why no new job may start here, in Slurm's words; empty where one may."""
        words = ", ".join(sorted(state.lower() for state in self.states & _OUT - self.excused))
        words = f"{words}: {self.why_out}" if words and self.why_out else words
        return words or ("" if self.shut is None else self.shut.why)

    @property
    def sleeps(self) -> bool:
        """Whether Slurm says that the node sleeps, boots or is on its way down."""
        return not self.states.isdisjoint(_POWER)

    @property
    def addressable(self) -> bool:
        """Whether each of the node's GPUs can be asked for by name, as a shard, so that two jobs can be put on the
        same one."""
        types = self.gpu_types
        return bool(types) and len(set(types)) == len(types) and set(types) <= self.shard_types

    @property
    def gpu_numbers(self) -> tuple[int, ...]:
        """The number of each GPU's device file, by index: ``g3`` is the address of /dev/nvidia3. Without addresses
        they count as 0, 1, 2 and so on."""
        return _numbers(self.gpu_types)

    def place_of(self, number: int) -> int | None:
        """The index of the GPU with this device number; ``None`` where the node has none."""
        numbers = self.gpu_numbers
        return numbers.index(number) if number in numbers else None


_ADDRESS = re.compile(r"g([0-9]{1,3})")


@lru_cache(maxsize=1024)  # asked for each node at each look, and nodes of a kind have the same types
def _numbers(types: tuple[str, ...]) -> tuple[int, ...]:
    found = [_ADDRESS.fullmatch(kind) for kind in types]
    numbers = tuple(int(one[1]) for one in found if one is not None)
    return numbers if len({*numbers}) == len(types) else tuple(range(len(types)))


def _time_s(tag: Mapping[str, str] | None, key: str) -> float:
    """A time that job_submit.lua wrote into the tag (Unix s); 0 where there is none."""
    text = tag.get(key, "") if tag else ""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 12 else 0.0


BASE_STATES = frozenset(["IDLE", "MIXED", "ALLOCATED", "DOWN", "ERROR", "FUTURE", "UNKNOWN"])
"""Base states: every node is in one of them, whatever its flags."""

_POWER = ("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DRAIN")
_OUT = frozenset(
    [
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "FAIL",
        "FAILING",
        "NOT_RESPONDING",
        "MAINTENANCE",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POWER_DRAIN",
        "REBOOT_ISSUED",
        "UNKNOWN",
        "INVALID",
        "INVALID_REG",
        "FUTURE",
        "RESERVED",
        "BLOCKED",
        "ERROR",
        "UNREAD",  # Lucid's own: a job on it holds GPUs that cannot be told
    ]
)


_T = TypeVar("_T")
_Used = tuple[tuple[str, int, int], ...]
_WAITING: Final = ("PENDING",)


def held_by(raw: Mapping[str, Any]) -> tuple[_Used, Placement]:
    """CPUs and memory (MiB) by node, and the GPUs, that a job holds. ``gres_detail`` has one entry a node, in the
    order of the node list. If a running job asked for GPUs or was given some, and none are there, its GPUs are
    unreadable, not none.

    Raises: TypeError, ValueError, AttributeError: what it holds cannot be read."""
    found = raw.get("job_resources")
    resources = mapping_of(found)
    used = []
    for part in mapping_of(resources.get("nodes")).get("allocation") or []:
        memory = part.get("memory") or {}
        cpus = part.get("cpus") or {}
        used.append(
            (text_of(part.get("name")), int(number_of(cpus.get("count"))), int(number_of(memory.get("allocated"))))
        )
    for part in resources.get("allocated_nodes") or []:  # as v0.0.40 has it
        cores = [core for socket in (part.get("sockets") or {}).values() for core in socket.get("cores") or {}]
        cpus_used = int(number_of(part.get("cpus_used"))) or len(cores)
        used.append((text_of(part.get("nodename")), cpus_used, int(number_of(part.get("memory_allocated")))))
    placement = _gpus_of(raw)
    if "job_resources" not in raw and holds(raw):
        raise ValueError("Slurm's answer lacks job_resources")
    if found and holds(raw) and not any(cpus for _, cpus, _ in used):
        raise ValueError("job_resources does not say which CPUs it holds")
    return tuple(used), placement


def holds(raw: Any) -> bool:
    """Whether Slurm reports what the job holds; it does not while the job completes."""
    if not isinstance(raw, Mapping):
        return False
    states = states_of(raw.get("job_state"))
    return states[:1] in (["RUNNING"], ["SUSPENDED"]) and "COMPLETING" not in states


def _gpus_of(raw: Mapping[str, Any]) -> Placement:
    detail = raw.get("gres_detail") or []
    if not isinstance(detail, list):
        raise TypeError(f"gres_detail is not a list: {text_of(detail)[:200]}")
    masks = [_mask(text_of(item)) for item in detail]
    names = hosts(text_of(raw.get("nodes")))
    if any(masks) and len(names) < len(masks):
        raise ValueError("it holds GPUs on more nodes than it names")
    found = tuple(NodeGpus(name, mask) for name, mask in zip(names, masks, strict=False) if mask)
    if holds(raw):
        given = text_of(raw.get("tres_alloc_str"))
        asked = any(gpu_count(text_of(raw.get(field))) for field in GPU_FIELDS)
        whole = re.search(r"\bgres/gpu=(\d+)", given)
        if not found and (asked or "gres/gpu" in given or "gres/shard" in given):
            raise ValueError("it was given GPUs, and gres_detail does not say which")
        if whole is not None and placement_gpus(found) < int(whole[1][:6]):
            raise ValueError("gres_detail names fewer GPUs than it was given")
    return found


def _mask(item: str) -> int:
    mask = gpu_mask(item)
    if not mask and "IDX:" in item and "IDX:N/A" not in item:
        raise ValueError("its GPUs cannot be read")
    return mask


def job_named(raw: Any) -> str:
    """A name of the job for an administrator, from what its record still says."""
    number = int(number_of(raw.get("job_id"))) if isinstance(raw, Mapping) else 0
    return f"job {number}" if number > 0 else "a job without a number"


def unread_job(raw: Any, why: str) -> SlurmJob:
    """The part of a job that can be read where its record as a whole cannot."""
    record = mapping_of(raw)
    number = max(int(number_of(record.get("job_id"))), 0)
    states = _read_or(lambda: states_of(record.get("job_state")), list[str]())
    state = states[0] if states else "UNKNOWN"
    flags = frozenset(states[1:]) | frozenset(_read_or(lambda: words_of(record.get("flags")), list[str]()))
    held = _read_or(lambda: held_by(record), None) if record else None
    nodes = _read_or(lambda: hosts(text_of(record.get("nodes"))), list[str]())
    active = (state not in ENDED and state not in _WAITING) or "COMPLETING" in flags
    used, placement = held or (tuple((name, 0, 0) for name in nodes), ())
    priority = number_of(record.get("priority"), -1.0)
    return SlurmJob(
        id=_id(record, number),
        number=number,
        state=state,
        flags=flags,
        partition=_text(record, "partition"),
        user=_text(record, "user_name"),
        account=_text(record, "account"),
        name=_text(record, "name"),
        admin_comment=_text(record, "admin_comment"),
        reason=_text(record, "state_reason"),
        held=record["hold"] is True if "hold" in record else priority == 0,
        gpus=placement_gpus(placement) or (1 if active or state in _WAITING else 0),
        min_nodes=max(len(placement), 1),
        cpus=0,
        mem_mib=0,
        submit_s=moment(number_of(record.get("submit_time"))),
        eligible_s=moment(number_of(record.get("eligible_time"))),
        start_s=moment(number_of(record.get("start_time"))),
        end_s=moment(number_of(record.get("end_time"))),
        time_limit_s=None,
        restarts=int(number_of(record.get("restart_cnt"))),
        requeue=False,
        batch=False,
        request=Request(others=(UNREAD,)),
        features="",
        simple=False,
        dependent=False,
        placement=placement if active else (),
        hosts_used=used if active else (),
        comment=_text(record, "comment"),
        unread=why or "no reason",
        lost=active and held is None,
    )


def _id(record: Mapping[str, Any], number: int) -> str:
    if not number:
        return ""
    array, task = int(number_of(record.get("array_job_id"))), number_of(record.get("array_task_id"), -1.0)
    return f"{array}_{int(task)}" if array > 0 and task >= 0 else str(number)


def _read_or(read: Callable[[], _T], otherwise: _T) -> _T:
    try:
        return read()
    except Exception:  # of a record that is known to be unreadable
        return otherwise


def _text(record: Mapping[str, Any], key: str) -> str:
    return _read_or(lambda: text_of(record.get(key)), "")


def tells_all(jobs: Iterable[SlurmJob]) -> bool:
    """Whether the poll names every job. If not, a job that it does not show may still be there."""
    return all(job.id for job in jobs)


def numbers_unread(jobs: Iterable[SlurmJob]) -> frozenset[str]:
    """Numbers of jobs and arrays whose records could not be read: the tasks of such an array cannot be told apart."""
    return frozenset(name for job in jobs if job.unread for name in (job.id.partition("_")[0], str(job.number)))


def without_unread(nodes: Sequence[SlurmNode], jobs: Iterable[SlurmJob]) -> Sequence[SlurmNode]:
    """The nodes, with those out on which an unreadable job holds unknown GPUs. If not even its nodes are known, that
    is every node that Slurm does not show idle."""
    lost = [job for job in jobs if job.lost]
    if not lost:
        return nodes
    named = {name for job in lost for name, _, _ in job.hosts_used}
    known = {node.name for node in nodes}
    anywhere = any(not job.hosts_used or any(name not in known for name, _, _ in job.hosts_used) for job in lost)
    return [
        replace(node, states=node.states | {"UNREAD"})
        if node.name in named or (anywhere and "IDLE" not in node.states)
        else node
        for node in nodes
    ]
