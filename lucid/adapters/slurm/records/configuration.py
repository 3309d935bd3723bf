"""How Slurm is set up, in our words: partitions and the configuration in force. For ``lucidctl doctor``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lucid.adapters.bounded import digits, moment
from lucid.adapters.left_out import LeftOut
from lucid.adapters.slurm.records.json_values import checked_list, number_of

__all__ = [
    "ASSOC_LIMITS",
    "QOS_LIMITS",
    "GroupLimit",
    "Limits",
    "Partition",
    "clock_from",
    "config_from_text",
    "gpu_limits_from",
    "group_limits_from",
    "partition_settings_from",
    "partitions_from",
]

_OF_BOTH = ("grptres", "grptresmins", "grptresrunmins", "maxtres", "maxtrespernode", "maxtresmins")
QOS_LIMITS = ("name", *_OF_BOTH, "maxtrespu", "maxtrespa", "mintres")
ASSOC_LIMITS = ("account", "user", *_OF_BOTH)
"""Fields of ``sacctmgr show qos`` and ``… assoc`` with limits on TRES; their names come first."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition. ``allowed``: what its jobs may be of, where that is narrowed, as ("groups", "ml,root").
    Memory in MiB; ``max_time_s`` is ``None`` where there is no limit."""

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
    """Has it a SuspendTime of its own?"""


@dataclass(frozen=True, slots=True)
class GroupLimit:
    """What all jobs of a QOS or an account may have together (GrpTRES): GPUs, and slots of GPUs; ``None`` without
    limit."""

    gpus: int | None = None
    shards: int | None = None


def partitions_from(document: Any, left_out: LeftOut | None = None) -> list[Partition]:
    """Partitions of one answer, of ``scontrol show partitions --json``.

    Raises:
        ClusterError: the answer is none, or says that it failed.
    """
    raws = checked_list(document, "partitions", "partitions")
    with (left_out or LeftOut()).look("partitions") as look:
        return look.each(raws, _partition, lambda raw: f"partition {raw['name']}")


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
    """Those with no limit on slots beside them."""
    by_model: tuple[str, ...] = ()
    least: tuple[str, ...] = ()
    """QOS whose jobs must have a GPU."""


def gpu_limits_from(qos: str, assocs: str) -> Limits:
    """Limits on GPUs, of what ``sacctmgr -nP show`` prints with the fields above."""
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
    """GrpTRES of each QOS (``QOS a``) and of each account as a whole (``account a``) that has one, of the same."""
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


def partition_settings_from(text: str) -> dict[str, dict[str, str]]:
    """``scontrol -o show partition`` by partition and key: its JSON leaves most of it out on 24.11."""
    rows = ({key: value for key, eq, value in (word.partition("=") for word in line.split()) if eq}
            for line in text.splitlines())  # fmt: skip
    return {row["PartitionName"]: row for row in rows if "PartitionName" in row}


def config_from_text(text: str) -> dict[str, str]:
    """``scontrol show config`` by key. What is not set is empty; lists (``Prolog[0]``) are joined by commas."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, eq, value = line.partition("=")
        if eq:
            _add(found, re.sub(r"\[\d+\]$", "", key.strip()), value.strip())
    return found


def _add(found: dict[str, str], key: str, value: str) -> None:
    bare = "" if value in ("(null)", "none", "UNLIMITED", "N/A") else value
    found[key] = f"{found[key]},{bare}" if found.get(key) else bare


def clock_from(document: Any) -> float | None:
    """slurmctld's clock, of ``sdiag``'s answer; ``None`` where it does not say."""
    statistics = document.get("statistics") if isinstance(document, Mapping) else None
    at_s = moment(number_of(statistics.get("req_time"))) if isinstance(statistics, Mapping) else 0.0
    return at_s or None
