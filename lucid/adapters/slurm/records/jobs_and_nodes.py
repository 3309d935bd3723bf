"""A job and a node as Slurm shows them, in our own words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from lucid.adapters.slurm.records.field_parsers import lease_s, parse_mark
from lucid.adapters.slurm.records.request import Request
from lucid.core.node import Window
from lucid.core.placement import Placement
from lucid.slurmlog.states import ENDED

__all__ = ["BASE_STATES", "SlurmJob", "SlurmNode"]


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job, or one task of an array. Times in Unix seconds, 0 where there is none.

    ``id`` is how commands address it (``17`` or ``17_3``); ``number`` is Slurm's job number. ``held``: its
    priority is 0. ``simple``: nothing about it (features, excluded nodes, licenses, a reservation, an
    exclusive node, a request by socket, more than one component) would stop it from running on a node that somebody
    else chose; the user's own node list is in ``request``, and features apart.
    """

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
    """(node, CPUs, MiB) that it holds now."""
    extra: str = ""
    excludes: str = ""
    """The nodes that its user does not want."""
    comment: str = ""
    qos: str = ""
    nice: int = 0
    reservation: str = ""
    dependency: str = ""
    """What is left of it; empty once Slurm has ended it."""
    het: int = 0
    """Slurm's number of the heterogeneous job that it is part of; 0 for none."""
    launch_failed: bool = False
    """Slurm itself holds it, because a node did not take it: nobody else does."""
    unread: str = ""
    """Why its record could not be read: the rest is what could be told of it all the same. Nothing is decided about
    such a job."""
    priority: int = 0
    """As Slurm shows it; 0 while it is held, or where it is not told."""
    lost: bool = False
    """Of an unread one: it may hold GPUs, and nobody can tell which. ``hosts_used`` has its nodes, where they are
    known; an empty ``id`` is a job of which nothing is known."""
    most_switches: int = 0
    """``--switches``: below how many of them its nodes are to stand; 0 for any."""
    switch_wait_s: float = 0.0
    """How long it waits for that at the most, as its user said; 0 where nothing was said."""
    time_min_s: float = 0.0
    """``--time-min``: Slurm's backfill may shorten its time limit to no less, so that it starts sooner; 0 where its
    user did not say so."""
    uid: int = -1
    """Number of its user on the cluster; -1 where it is not told."""
    completing: bool = field(init=False, repr=False, compare=False)
    """Has it stopped, and still holds what it had? Like the next ones it follows from state and flags; each look asks
    it several times of each job."""
    pending: bool = field(init=False, repr=False, compare=False)
    """Does it wait (and hold nothing)?"""
    running: bool = field(init=False, repr=False, compare=False)
    """Does it hold resources?"""
    tag: Mapping[str, str] | None = field(init=False, repr=False, compare=False)
    """What job_submit.lua noted of it (``parse_mark``)."""
    tagged_begin_s: float = field(init=False, repr=False, compare=False)
    """The begin time that its user asked for, as job_submit.lua noted it."""
    leased: bool = field(init=False, repr=False, compare=False)
    """Does the begin time stand that job_submit.lua parked it with?"""

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
        """Does it get GPUs? An exclusive job has those of its nodes, whether or not it asks for any."""
        return self.gpus > 0 or self.request.whole_nodes

    @property
    def shortened_s(self) -> float | None:
        """The time limit to which Slurm may shorten it."""
        return min(self.time_min_s, self.time_limit_s or math.inf) if self.time_min_s else self.time_limit_s

    @property
    def never_runs(self) -> bool:
        """Does Slurm itself hold it, because no node can give what it asks for? It says so also while nodes have yet
        to register (after slurmctld's failover), so it need not be for ever."""
        return self.held and self.reason == "BadConstraints"

    @property
    def configuring(self) -> bool:
        """Does it hold its nodes while they boot, or run their prolog?"""
        return self.running and "CONFIGURING" in self.flags

    @property
    def ended(self) -> bool:
        """Has it left?"""
        return self.state in ENDED and not self.completing


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node. ``gpu_types``: the GRES type of each GPU by index; ``shard_types``: those that have shards."""

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
    """How many shards its GPUs have, each; several numbers where they differ."""
    switches: tuple[str, ...] = ()
    """The switches or blocks above it, the lowest first."""
    available_features: frozenset[str] = frozenset()
    """Those that it has now, and those that it could be booted for."""
    weight: int = 1
    """Of nodes that fit a job equally well Slurm, and Lucid, take the one with the least."""
    spread_by_slurm: bool = False
    """Does Slurm choose the nodes of a job of several (``network_topology``)?"""

    excused: frozenset[str] = frozenset()
    """States that keep nothing from starting here, since Slurm wakes the node for it (``power_saving``)."""
    shut: Window | None = None
    """The time in which nothing may start here, where it is on its way down."""
    boot_s: float = 0.0
    """How long a job that starts here waits for the boot; 0 for a node that is awake."""
    boots_since_s: float | None = None
    """Since when it boots (Unix s)."""
    why_out: str = ""
    """More on why it is out, in words."""

    @property
    def available(self) -> bool:
        """May something new start here?"""
        return self.shut is None and not self.states & _OUT - self.excused

    @property
    def out(self) -> str:
        """Why nothing new may start here, in Slurm's words; empty where it may."""
        words = ", ".join(sorted(state.lower() for state in self.states & _OUT - self.excused))
        words = f"{words}: {self.why_out}" if words and self.why_out else words
        return words or ("" if self.shut is None else self.shut.why)

    @property
    def sleeps(self) -> bool:
        """Does Slurm say that it sleeps, boots or is on its way down?"""
        return not self.states.isdisjoint(_POWER)

    @property
    def addressable(self) -> bool:
        """Can each of its GPUs be asked for by name, as a shard? Then two jobs can be put on the same one."""
        types = self.gpu_types
        return bool(types) and len(set(types)) == len(types) and set(types) <= self.shard_types

    @property
    def gpu_numbers(self) -> tuple[int, ...]:
        """The number of each GPU's device file, by index: ``g3`` is the address of /dev/nvidia3. Without addresses
        they are taken to be 0, 1, 2 and so on."""
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
    """A time that job_submit.lua put into the tag (Unix s); 0 where there is none."""
    text = tag.get(key, "") if tag else ""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 12 else 0.0


BASE_STATES = frozenset(["IDLE", "MIXED", "ALLOCATED", "DOWN", "ERROR", "FUTURE", "UNKNOWN"])
"""Every node is in one of them, whatever else is said of it."""

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
