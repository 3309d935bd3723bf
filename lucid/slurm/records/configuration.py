"""How Slurm is set up, read from its answers: partitions, limits, QOS priorities, fair shares, topology, clock,
reservations.

No version of Slurm gives its topology as JSON: the switches, or blocks, above each node are read from the text of
``scontrol show topology``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from lucid.core.placement import hosts_in
from lucid.errors import ClusterError, ClusterUnavailable, ConfigError
from lucid.left_out import LeftOut
from lucid.slurm.records.job import SlurmNode
from lucid.slurm.records.json import checked_list, number_of, words_of
from lucid.text import MOST_S, digits, moment, text_of

_T = TypeVar("_T")
_OF_BOTH = ("grptres", "grptresmins", "grptresrunmins", "maxtres", "maxtrespernode", "maxtresmins")
QOS_LIMITS = ("name", *_OF_BOTH, "maxtrespu", "maxtrespa", "mintres")
ASSOC_LIMITS = ("account", "user", *_OF_BOTH)
"""Fields of ``sacctmgr show qos`` and ``… assoc`` with limits on TRES, after the fields with their names."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition. ``allowed``: the groups, accounts or QOS to which its jobs are limited, as ("groups",
    "ml,root"). Memory in MiB; ``max_time_s`` is ``None`` where there is no limit."""

    name: str
    state: str
    exclusive: bool
    oversubscribe: bool
    allowed: tuple[tuple[str, str], ...]
    def_mem_mib: int
    max_time_s: float | None
    root_only: bool
    qos: str = ""
    """The QOS whose limits hold for all its jobs; empty where it has none."""
    suspends: bool = False
    """Whether the partition has a SuspendTime of its own."""


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """The most that all jobs of a QOS or an account may have together (GrpTRES): GPUs, and slots of GPUs; ``None``
    without limit."""

    gpus: int | None = None
    shards: int | None = None


def partitions_from(document: Any, left_out: LeftOut | None = None) -> list[Partition]:
    """The partitions in an answer of ``scontrol show partitions --json``.

    Raises: ClusterError: the document is no answer, or says that it failed."""
    return _each(document, "partitions", _partition, left_out)


def _each(document: Any, what: str, read: Callable[[Mapping[str, Any]], _T], left_out: LeftOut | None) -> list[_T]:
    """Each of the records under the key ``what``, as ``read`` makes it; those that it cannot read are left out."""
    raws = checked_list(document, what, what)
    with (left_out or LeftOut()).reading(what) as look:
        return look.each(raws, read, lambda raw: f"{what.removesuffix('s')} {raw['name']}")


def _partition(raw: Mapping[str, Any]) -> Partition:
    about = raw.get("partition") or {}
    most = raw.get("maximums") or {}
    if "exclusive" in about:  # 26.05's v0.0.45
        exclusive = about["exclusive"] not in ("", "NO")
        oversubscribe = str(about.get("oversubscribe") or "NO").partition(":")[0] not in ("NO", "EXCLUSIVE")
    else:
        shares = (most.get("oversubscribe") or {}).get("jobs", 1)
        exclusive, oversubscribe = shares == 0, shares > 1
    allowed = []
    for key in ("groups", "accounts", "qos"):
        rules = raw.get(key) or {}
        for verb in ("allowed", "deny"):
            if rules.get(verb):
                allowed.append((key if verb == "allowed" else f"no {key}", str(rules[verb])))
    defaults = raw.get("defaults") or {}
    memory = [defaults.get("partition_memory_per_node"), defaults.get("partition_memory_per_cpu")]
    limit = most.get("time") or {}
    return Partition(
        name=str(raw.get("name") or ""),
        state=str(next(iter(about.get("state") or []), "UP")),
        exclusive=exclusive,
        oversubscribe=oversubscribe,
        allowed=tuple(allowed),
        def_mem_mib=max(int(number_of(item)) for item in memory),
        max_time_s=number_of(limit) * 60 if limit.get("set") and not limit.get("infinite") else None,
        root_only="ROOT_ONLY" in (raw.get("flags") or []),
        qos=str((raw.get("qos") or {}).get("assigned") or ""),
        suspends=number_of(raw.get("suspend_time")) > 0,
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on GPUs, in words. Slurm counts a job in slots against gres/shard only."""

    uncounted: tuple[str, ...] = ()
    """Limits that have no limit on slots beside them."""
    by_model: tuple[str, ...] = ()
    least: tuple[str, ...] = ()
    """QOS whose jobs must have a GPU."""


def gpu_limits_from(qos: str, assocs: str) -> Limits:
    """Limits on GPUs, from the output of ``sacctmgr -nP show`` with the fields above."""
    rows = [(f"QOS {name}", limits[:-1]) for name, *limits in _rows(qos, QOS_LIMITS)]
    for account, user, *limits in _rows(assocs, ASSOC_LIMITS):
        rows.append((f"account {account}" + (f" for {user}" if user else ""), limits))
    uncounted, by_model = list[str](), list[str]()
    for who, limits in rows:
        plain = [item for limit in limits if "gres/shard=" not in limit for item in _gpus(limit) if ":" not in item]
        models = [item for limit in limits for item in _gpus(limit) if ":" in item]
        uncounted += [f"{who} ({', '.join(plain)})"] if plain else []
        by_model += [f"{who} ({', '.join(models)})"] if models else []
    least = [(name, _gpus(limits[-1])) for name, *limits in _rows(qos, QOS_LIMITS)]
    return Limits(
        tuple(uncounted), tuple(by_model), tuple(f"QOS {name} ({', '.join(gpus)})" for name, gpus in least if gpus)
    )


def _gpus(limit: str) -> list[str]:
    return [item for item in limit.split(",") if re.match(r"gres/gpu[=:]", item) and not item.endswith("=0")]


def group_limits_from(qos: str, assocs: str) -> dict[str, GroupLimit]:
    """GrpTRES of each QOS (``QOS a``) and of each account as a whole (``account a``) that has one, from the same
    output."""
    found = {f"QOS {name}": _group_limit(limit) for name, limit, *_ in _rows(qos, QOS_LIMITS)}
    for account, user, limit, *_ in _rows(assocs, ASSOC_LIMITS):
        if not user:
            found[f"account {account}"] = _group_limit(limit)
    return {name: limit for name, limit in found.items() if limit != GroupLimit()}


def _group_limit(tres: str) -> GroupLimit:
    counts = dict(item.partition("=")[::2] for item in tres.split(","))
    gpus, shards = (digits(counts.get(f"gres/{kind}", "")) for kind in ("gpu", "shard"))
    return GroupLimit(gpus, shards)


def _rows(text: str, fields: Sequence[str]) -> list[list[str]]:
    rows = (line.split("|") for line in text.splitlines())
    return [row for row in rows if len(row) == len(fields)]


_NOTHING = ("(null)", "none", "UNLIMITED", "N/A")


def config_from_text(text: str) -> dict[str, str]:
    """``scontrol show config`` by key. A value that is not set is empty; lists (``Prolog[0]``) are joined by
    commas."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, eq, value = map(str.strip, line.partition("="))
        if eq:
            key, bare = re.sub(r"\[\d+\]$", "", name), "" if value in _NOTHING else value
            found[key] = f"{found[key]},{bare}" if found.get(key) else bare
    return found


def clock_from(document: Any) -> float | None:
    """slurmctld's clock, from ``sdiag``'s answer; ``None`` where it is missing."""
    statistics = document.get("statistics") if isinstance(document, Mapping) else None
    at_s = moment(number_of(statistics.get("req_time"))) if isinstance(statistics, Mapping) else 0.0
    return at_s or None


QOS_FIELDS = "name,priority"
_EVERY_S = 600.0
"""Seconds between reads of what an administrator changes by hand: priorities, the topology."""


def tiers_from(rows: str, config: Mapping[str, str]) -> dict[str, int]:
    """Priorities other than 0 by QOS, from ``sacctmgr -nP show qos`` with these fields; none where Slurm itself gives
    no weight to them (PriorityWeightQOS)."""
    if not digits(config.get("PriorityWeightQOS", "")):
        return {}
    found = {}
    for row in rows.splitlines():
        name, _, priority = row.rpartition("|")
        if name and (number := digits(priority)):
            found[name] = number
    return found


class Kept(Generic[_T]):
    """Something of Slurm's configuration that is asked for now and then; ``known`` until it has been read. If it
    cannot be read, what was read before stays."""

    def __init__(self, ask: Callable[[], _T], known: _T) -> None:
        self._ask = ask
        self._known = known
        self._at_s = float("-inf")

    def __call__(self, now_s: float) -> _T:
        """What is known by now.

        Raises: ClusterUnavailable: Slurm does not answer at present."""
        if not 0 <= now_s - self._at_s < _EVERY_S:
            self._at_s = now_s
            try:
                self._known = self._ask()
            except ClusterUnavailable:
                raise
            except ClusterError:
                return self._known
        return self._known


def fair_shares_from(document: Any, left_out: LeftOut | None = None) -> dict[tuple[str, str], float]:
    """The factors (0 to 1) of all users of all accounts, from ``sshare -a --json``. Entries without a factor are left
    out.

    Raises: ClusterError: the document is another one."""
    try:
        entries = document["shares"]["shares"]
        if not isinstance(entries, list):
            raise TypeError("it is not a list")
    except (KeyError, TypeError, IndexError) as error:
        raise ClusterError(f"Slurm's list of shares is not as expected ({type(error).__name__}: {error})") from None
    with (left_out or LeftOut()).reading("shares") as look:
        read = look.each(entries, _factor, lambda item: f"{item['parent']}/{item['name']}")
    return {item[0]: item[1] for item in read if item is not None}


def _factor(item: Mapping[str, Any]) -> tuple[tuple[str, str], float] | None:
    factor = item["fairshare"]["factor"]
    if "USER" not in item["type"]:
        return None
    if isinstance(factor, int | float):  # v0.0.40, of Slurm 23.11
        share = float(factor)
    elif not factor["set"]:
        return None
    else:
        share = number_of(factor, -1.0)
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a factor of {share:g}")
    return (text_of(item["parent"]), text_of(item["name"])), share


class FairShares:
    """Factors as they were at most ``every_s`` ago. A Slurm without them (no accounting, no priority plugin) is asked
    again after that time, and meanwhile there are none."""

    def __init__(self, ask: Callable[[], Mapping[tuple[str, str], float]], every_s: float) -> None:
        self._ask = ask
        self._every_s = every_s
        self._due_s = float("-inf")
        self._shown: Mapping[tuple[str, str], float] = {}
        self.why_none = ""
        """Slurm's words where it does not give the factors."""

    def __call__(self, now_s: float) -> Mapping[tuple[str, str], float]:
        """The factors by account and user; the same object until they change.

        Raises: ClusterUnavailable: Slurm does not answer at present."""
        if not self._due_s - self._every_s <= now_s < self._due_s:  # or the clock was set back
            try:
                fresh, self.why_none = self._ask(), ""
            except ClusterUnavailable:
                raise
            except ClusterError as error:
                fresh, self.why_none = {}, str(error)
            self._due_s = now_s + self._every_s
            if fresh != self._shown:
                self._shown = fresh
        return self._shown


_MAX_WAIT_S = 300.0
"""Slurm's own max_switch_wait."""
_LINE = re.compile(r"(SwitchName|BlockName|AggregatedBlock)=(\S+)(.*)")


@dataclass(frozen=True, slots=True)
class Network:
    """The network above the nodes. ``above``: by node, its switches or blocks, the lowest first. ``slurms``: whether
    Slurm chooses the nodes of a job of several. It does where Lucid cannot read what Slurm knows of the network, and
    among blocks, for the segments that a job asks for (``--segment``) are not reported. ``max_wait_s``: how long a
    job waits at most for the switches that it asks for (max_switch_wait)."""

    above: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    slurms: bool = False
    max_wait_s: float = _MAX_WAIT_S


NO_NETWORK = Network()
"""The network of a Slurm without a topology."""


def network_from(text: str, config: Mapping[str, str] | None = None) -> Network:
    """The network in the output of ``scontrol show topology``; empty where Slurm has no topology. ``config``:
    Slurm's, for its longest wait for switches."""
    wait = re.search(r"(?:^|,)max_switch_wait=(\d+)", (config or {}).get("SchedulerParameters", ""))
    wait_s = float(digits(wait[1]) or 0) if wait else _MAX_WAIT_S
    plugin = (config or {}).get("TopologyPlugin", "").rpartition("/")[2]
    levels: dict[str, list[tuple[int, str]]] = {}
    blocks = False
    for line in text.splitlines():
        found = _LINE.search(line)
        if found is None:
            continue
        kind, name, rest = found.groups()
        blocks = blocks or kind != "SwitchName"
        words = dict(word.split("=", 1) for word in rest.split() if "=" in word)
        try:
            nodes = hosts_in(words["Nodes"])
        except (KeyError, ConfigError):
            return Network({}, True, wait_s)
        level = digits(words.get("Level", "")) if kind == "SwitchName" else len(nodes)
        for node in nodes:
            levels.setdefault(node, []).append((level or 0, name))
    if not levels:
        return Network({}, plugin not in ("", "default", "flat"), wait_s)
    above = {node: tuple(name for _, name in sorted(found)) for node, found in levels.items()}
    return Network(above, blocks, wait_s)


def with_network(nodes: Iterable[SlurmNode], network: Network) -> Sequence[SlurmNode]:
    """The nodes, each with the switches above it."""
    return [
        node
        if (node.switches, node.spread_by_slurm) == (network.above.get(node.name, ()), network.slurms)
        else replace(node, switches=network.above.get(node.name, ()), spread_by_slurm=network.slurms)
        for node in nodes
    ]


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation. Times in Unix seconds, as Slurm last showed them; those of a floating one move on.

    ``users``, ``accounts``: who may use it, as Slurm has it (``-bob``: all but bob). ``cores``: how many cores of
    each node it has, where it does not have whole nodes."""

    name: str
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
    flags: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    cores: tuple[tuple[str, int], ...] = ()
    node_list: str = ""
    """The nodes as Slurm writes them."""

    def admits(self, user: str, account: str) -> bool:
        """Whether jobs of this user and account may run in it. Where it names both, either suffices."""
        named = ((self.users, user), (self.accounts, account))
        if any(f"-{name}" in listed for listed, name in named):
            return False
        wanted = [name in listed for listed, name in named if any(not item.startswith("-") for item in listed)]
        return any(wanted) if wanted else bool(self.users or self.accounts)


def reservations_from(document: Any, left_out: LeftOut | None = None) -> list[Reservation]:
    """The reservations in an answer of ``scontrol show reservation --json``.

    Raises: ClusterError: the document is no answer, or says that it failed."""
    return _each(document, "reservations", _reservation, left_out)


def _reservation(raw: Mapping[str, Any]) -> Reservation:
    name, node_list = text_of(raw["name"]), text_of(raw["node_list"])
    start_s, end_s = (moment(number_of(raw[key])) for key in ("start_time", "end_time"))
    if not (name and 0 < start_s < end_s < MOST_S):
        raise ValueError("no name, or no time that can be read")
    gres = "gres/" in text_of(raw.get("tres"))  # Slurm then names all cores that the job may choose from
    return Reservation(
        name=name,
        nodes=tuple(hosts_in(node_list)) if node_list else (),
        start_s=start_s,
        end_s=end_s,
        flags=frozenset(word.partition("=")[0] for word in words_of(raw["flags"])),
        users=_names(raw.get("users")),
        accounts=_names(raw.get("accounts")),
        cores=() if gres else tuple(_cores(raw.get("core_specializations") or [])),
        node_list=node_list,
    )


def _names(value: Any) -> tuple[str, ...]:
    return tuple(name for name in text_of(value).split(",") if name)


def _cores(parts: list[Any]) -> list[tuple[str, int]]:
    """How many cores of each node the reservation has, where it does not have whole nodes."""
    return [(text_of(part["node"]), counted(text_of(part["core"]))) for part in parts]


def counted(ranges: str) -> int:
    """How many numbers ``0-3,7`` names."""
    count = 0
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        low, high = digits(first), digits(last or first)
        if low is None or high is None or high < low:
            raise ValueError(f"its cores cannot be read: {ranges[:60]!r}")
        count += high - low + 1
    return count
