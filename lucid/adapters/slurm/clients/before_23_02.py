"""Slurm before 23.02: ``scontrol``, ``sdiag`` and ``sshare`` print no JSON there, and ``squeue`` has other words.

What they print as text is turned into the documents that later versions print, so that one translation reads both.
All of it was seen on 22.05.8.
"""

from __future__ import annotations

import re
from typing import Any

from lucid.slurmlog.value_formats import limit_s

__all__ = ["FIRST_JSON", "clock_document", "nodes_document", "partitions_document", "shares_document"]

FIRST_JSON = (23, 2)
"""First release in which ``scontrol``, ``sdiag`` and ``sshare`` take ``--json``."""

_ALL = ("ALL", "N/A", "(null)", "NONE", "")


def nodes_document(document: Any) -> Any:
    """``sinfo --json`` of 22.05 as ``scontrol show nodes --json`` has it: states are in capitals, and in one list."""
    nodes = document.get("nodes") if isinstance(document, dict) else None
    for node in nodes if isinstance(nodes, list) else []:
        if isinstance(node, dict) and isinstance(node.get("state"), str):
            flags = node.get("state_flags")
            node["state"] = [node["state"].upper(), *(flags if isinstance(flags, list) else [])]
    return document


def partitions_document(text: str) -> dict[str, Any]:
    """``scontrol -o show partition``."""
    return {"partitions": [_partition(line) for line in text.splitlines() if line.startswith("PartitionName=")]}


def _partition(line: str) -> dict[str, Any]:
    given = dict(word.partition("=")[::2] for word in line.split())
    shares = given.get("OverSubscribe", "NO")
    jobs = 0 if shares == "EXCLUSIVE" else 1 if shares == "NO" else _count(shares.partition(":")[2], 4)
    longest_s = None if given.get("MaxTime") == "UNLIMITED" else limit_s(given.get("MaxTime", ""))
    rules = {
        key: {"allowed": _narrowed(given.get(f"Allow{word}")), "deny": _narrowed(given.get(f"Deny{word}"))}
        for key, word in (("groups", "Groups"), ("accounts", "Accounts"), ("qos", "Qos"))
    }
    return {
        **rules,
        "name": given["PartitionName"],
        "partition": {"state": [given.get("State", "UP")]},
        "maximums": {
            "oversubscribe": {"jobs": jobs},
            "time": {"set": longest_s is not None, "infinite": longest_s is None, "number": (longest_s or 0.0) / 60},
        },
        "defaults": {
            "partition_memory_per_node": _count(given.get("DefMemPerNode", ""), 0),
            "partition_memory_per_cpu": _count(given.get("DefMemPerCPU", ""), 0),
        },
        "flags": ["ROOT_ONLY"] if given.get("RootOnly") == "YES" else [],
        "qos": {**rules["qos"], "assigned": _narrowed(given.get("QoS"))},
    }


def clock_document(text: str) -> dict[str, Any]:
    """``sdiag``: the time in its first line."""
    found = re.search(r"^sdiag output at .*\(([0-9]{1,12})\)\s*$", text, re.M)
    return {"statistics": {"req_time": int(found[1])}} if found else {}


def shares_document(text: str) -> dict[str, Any]:
    """``sshare -a -P``: of its columns Account, User and FairShare."""
    lines = [line.split("|") for line in text.splitlines() if "|" in line]
    head = [word.strip() for word in lines[0]] if lines else []
    entries = []
    for line in lines[1:]:
        row = dict(zip(head, (word.strip() for word in line), strict=False))
        if row.get("User"):
            factor = _factor(row.get("FairShare", ""))
            entries.append(
                {
                    "type": ["USER"],
                    "parent": row.get("Account", ""),
                    "name": row["User"],
                    "fairshare": {"factor": {"set": factor is not None, "infinite": False, "number": factor}},
                }
            )
    return {"shares": {"shares": entries}} if head else {}


def _factor(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,18})?", text) else None


def _count(text: str, otherwise: int) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else otherwise


def _narrowed(text: str | None) -> str:
    return "" if text is None or text in _ALL else text
