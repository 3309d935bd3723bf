"""``Site``: Slurm as it answers now, for doctor and setup; ``Look``: what doctor reads of it; ``Check``: for what."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from lucid.config.live import DaemonSettings, PoolSettings
from lucid.config.load import Settings
from lucid.errors import ClusterError, Finding
from lucid.places import Mode
from lucid.slurm.client import served
from lucid.slurm.commands import CommandClient
from lucid.slurm.records.configuration import GroupLimit, Limits, Partition
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.records.preemption import Preemption
from lucid.slurm.records.request import JobDefaults
from lucid.slurm.view.power_saving import Power, PowerRules

_T = TypeVar("_T")
_S = TypeVar("_S")


@dataclass(frozen=True, slots=True)
class Site:
    """Slurm's answers; ``None`` where one is missing. ``now_s`` is this machine's clock when ``clock_s`` was asked
    for."""

    version: tuple[int, int]
    config: Mapping[str, str]
    nodes: Sequence[SlurmNode]
    partitions: Sequence[Partition]
    jobs: Sequence[SlurmJob]
    clock_s: float | None = None
    rights: tuple[str, str] | None = None
    now_s: float = 0.0
    accounting: str = ""
    """Slurm's words where slurmdbd is silent."""
    defaults: Mapping[str, JobDefaults] = field(default_factory=dict)
    gpu_limits: Limits = field(default_factory=Limits)
    group_limits: Mapping[str, GroupLimit] | None = field(default_factory=dict)
    """GrpTRES of QOS and accounts."""
    preemption: Preemption | None = None
    """Which jobs may preempt which."""
    unsealed: str = ""
    """Why munge makes no seal for the prologs; empty: it does."""
    partition_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Settings as Slurm words them, by partition."""
    lucidd: str | None = ""
    """lucidd's user, where that is not the one who asks; ``None``: it is unknown whose rights count."""

    @property
    def conf(self) -> Path:
        """slurm.conf, as slurmctld calls it."""
        return Path(self.config.get("SLURM_CONF") or "/etc/slurm/slurm.conf")

    @property
    def names(self) -> tuple[str, ...]:
        """The partitions' names."""
        return tuple(partition.name for partition in self.partitions)

    @property
    def with_gpus(self) -> dict[str, list[SlurmNode]]:
        """The partitions that have GPUs, with their nodes that have some."""
        found = {name: [n for n in self.nodes if name in n.partitions and n.gpu_types] for name in self.names}
        return {name: nodes for name, nodes in found.items() if nodes}


def see_site(client: CommandClient, now_s: Callable[[], float], lucidd: str | None = "") -> Site:
    """Ask Slurm for all of it, once. ``lucidd``: as in ``Site``.

    Raises: ClusterError: Slurm does not answer, or not as it should, or is too old."""
    version = served(client.version())
    asked_s, clock_s = now_s(), client.clock_s()
    asked_s = (asked_s + now_s()) / 2
    unsealed = ""
    # slurmdbd is down, or there is none: doctor says what it can
    rights = None if lucidd is None else _asked_or(lambda: client.rights(lucidd), None)
    limits, group_limits = limits_of(client)
    preemption = _asked_or(client.preemption, None)
    try:
        client.seal("lucid doctor")
    except ClusterError as error:
        unsealed = str(error)
    return Site(
        version, client.config(), client.nodes(), client.partitions(), client.jobs(), clock_s, rights, asked_s,
        client.accounting, client.job_defaults(), limits, group_limits, preemption, unsealed,
        client.partition_settings(), lucidd,
    )  # fmt: skip


def limits_of(client: CommandClient) -> tuple[Limits, Mapping[str, GroupLimit] | None]:
    """Limits on GPUs, and GrpTRES; no limits and ``None`` where slurmdbd is silent, or there is none."""
    none: tuple[Limits, Mapping[str, GroupLimit] | None] = Limits(), None
    return _asked_or(lambda: client.gpu_limits(), none)


def _asked_or(question: Callable[[], _T], otherwise: _T) -> _T:
    with suppress(ClusterError):
        return question()
    return otherwise


@dataclass(frozen=True)
class Look:
    """What doctor's checks read of a site. ``modes`` by partition, as they are now. ``look["Key"]`` is a setting of
    slurmctld's in force, empty where there is none."""

    settings: Settings
    modes: Mapping[str, Mode]
    site: Site

    def __getitem__(self, key: str) -> str:
        return self.site.config.get(key, "")

    def words(self, key: str) -> list[str]:
        """The words of a setting that is a list."""
        return [word.strip() for word in self[key].split(",") if word.strip()]

    def number(self, key: str) -> int:
        """The whole number at the start of a setting (``300 sec``); 0 where there is none."""
        found = re.match(r"\d+", self[key])
        return int(found[0]) if found else 0

    @property
    def daemon(self) -> DaemonSettings:
        """lucidd's settings."""
        return self.settings.daemon

    @property
    def lends(self) -> bool:
        """Whether VCs lend."""
        return self.settings.policy.lending.mode != "off"

    @property
    def pool(self) -> PoolSettings:
        """The pool, also where none lends."""
        return self.daemon.pool

    @property
    def room(self) -> str:
        """The profiling partition."""
        return self.daemon.profiling_partition

    @cached_property
    def used(self) -> set[Mode]:
        """The modes of the partitions."""
        return {*self.modes.values()}

    @cached_property
    def packed(self) -> list[str]:
        """The partitions in pack mode."""
        return [name for name, mode in self.modes.items() if mode is Mode.PACK]

    @cached_property
    def known(self) -> dict[str, Partition]:
        """Slurm's partitions by name."""
        return {partition.name: partition for partition in self.site.partitions}

    @property
    def limited(self) -> bool:
        """Whether Slurm enforces limits."""
        words = {word.strip().lower() for word in self["AccountingStorageEnforce"].split(",")}
        return not words.isdisjoint({"limits", "safe", "all"})

    @cached_property
    def power(self) -> PowerRules:
        """How nodes sleep and wake."""
        return PowerRules.from_config(self.site.config, any(p.suspends for p in self.site.partitions))

    @cached_property
    def nodes(self) -> Sequence[SlurmNode]:
        """The nodes as lucidd sees them: those that Slurm wakes are available."""
        power = Power()
        power.rules = self.power
        return power.with_states(self.site.nodes, self.site.now_s)


@dataclass(frozen=True)
class Check(Generic[_S]):
    """``test`` of a subject is false where all is well, else what fills the braces of ``what`` and ``remedy``: each
    of a tuple, or the value itself; of a list each makes a finding. ``{s.name}`` there is of the subject."""

    level: str
    test: Callable[[_S], Any]
    what: str
    remedy: str = ""
    setup_mends: bool = False

    def __call__(self, subject: _S) -> Iterator[Finding]:
        """What is found."""
        said = self.test(subject)
        for one in said if isinstance(said, list) else [said] if said else ():
            values = one if isinstance(one, tuple) else (one,)
            what, remedy = (text.format(*values, s=subject) for text in (self.what, self.remedy))
            yield Finding(self.level, what, remedy, self.setup_mends)


Table = Sequence[Callable[[_S], Iterator[Finding]]]
"""Checks of one kind of subject, in the order in which their findings are told. A function stands where several
findings come of the same work."""


def run(table: Table[_S], subject: _S) -> Iterator[Finding]:
    """The findings of all checks of a table, in its order."""
    return (found for check in table for found in check(subject))
