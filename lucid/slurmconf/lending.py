"""What a site's slurm.conf and slurmdbd need so that its VCs lend GPUs to each other: the partition in which jobs
borrow, as ``lucidctl setup`` writes it, and lines and commands for whoever types them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lucid.slurmconf.conf_text import Edit, Statement, Texts, edited, written
from lucid.slurmconf.nodes import host_list
from lucid.slurmconf.render import SLOTS

__all__ = ["differing", "lending_text", "pool_line", "rules_of", "without_pool"]

_MADE = "# Lucid: VCs lend idle GPUs (lucidctl setup --lending off takes this line away)"
_OWN = frozenset(["partitionname", "nodes", "default", "state", "alternate"])
_WHO = {"allowaccounts": "AllowAccounts", "allowgroups": "AllowGroups", "allowqos": "AllowQos"}


def rules_of(texts: Texts) -> dict[str, dict[str, str]]:
    """By partition: all that its line says, with the lines of PartitionName=DEFAULT before it. Keys in small
    letters."""
    default, found = dict[str, str](), dict[str, dict[str, str]]()
    for statement in texts.of("PartitionName"):
        name = statement.pairs["partitionname"]
        if name.upper() == "DEFAULT":
            default |= statement.pairs
        else:
            found[name] = {**default, **statement.pairs}
    return found


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The keys in which the rules of two partitions differ, but for nodes, and for who may use them."""
    keys = (one.keys() | other.keys()) - _OWN - _WHO.keys()
    return sorted(key for key in keys if one.get(key) != other.get(key))


def pool_line(name: str, nodes: Sequence[str], vcs: Sequence[str], texts: Texts) -> list[str]:
    """Lines for the end of slurm.conf: a partition over the nodes of these VCs, whose rules do not differ. Whoever
    may use one of the VCs may be moved there."""
    rules = [rules for vc, rules in rules_of(texts).items() if vc in vcs]
    spelled = dict[str, str]()
    for statement in texts.of("PartitionName"):
        for key in re.findall(r"([\w.]+)\s*[-+*/]?=", statement.text):
            spelled.setdefault(key.lower(), key)
    words = [f"PartitionName={name}", f"Nodes={host_list(nodes)}"]
    words += [
        f"{spelled.get(key, key)}={written(value)}"
        for key, value in rules[0].items()
        if key not in _OWN | _WHO.keys()
    ]
    for key, spelling in _WHO.items():
        lists = [one.get(key, "ALL") for one in rules]
        if any(key in one for one in rules):
            everybody = any(one.upper() == "ALL" for one in lists)
            may = ["ALL"] if everybody else sorted({who for one in lists for who in one.split(",") if who})
            words.append(f"{spelling}={','.join(may)}")
    return [_MADE, " ".join(words)]


def without_pool(texts: Texts, name: str) -> dict[Path, str]:
    """The files without the lines that ``pool_line`` gave; none where somebody else wrote the partition's line."""
    for statement in texts.of("PartitionName"):
        text = texts.files[statement.path]
        if statement.pairs["partitionname"] == name and _above(statement, text) == _MADE:
            return {statement.path: edited(text, [Edit(statement.first - 1, statement.after, ())])}
    return {}


def _above(statement: Statement, text: str) -> str:
    return text.split("\n")[statement.first - 1].rstrip("\r") if statement.first else ""


def lending_text(
    partition: str,
    quotas: Mapping[str, int],
    nodes: Mapping[str, Sequence[str]],
    bounded: frozenset[str],
    gpus: int,
    by_account: bool = False,
    slots: int = SLOTS,
) -> str:
    """The lines and commands, each with a word on what it is for.

    Args:
        partition: the pool's, over all nodes.
        quotas: GPUs of each VC.
        nodes: names of the nodes of each VC's partition.
        bounded: VCs whose partition has more GPUs than their quota.
        gpus: those of all nodes.
        by_account: accounts keep these to their quotas, and not a QOS of their partition.
        slots: jobs that may share a GPU.
    """
    everywhere = sorted({name for names in nodes.values() for name in names})
    room = f"PartitionName={partition} Nodes={','.join(everywhere)} MaxTime=UNLIMITED State=UP"
    lines, commands = ["# slurm.conf: only lucidd starts jobs there (job_submit.lua refuses users)."], list[str]()
    limited = [vc for vc in quotas if vc in bounded]
    if limited and by_account:
        room += " QOS=lucid-borrow"
        commands += ["# Goes before the limits of accounts: all GPUs, or fewer to bound what is lent."]
        commands += [f"sacctmgr -i add qos lucid-borrow set {_limit(gpus, slots)}"]
        commands += ["# The quotas: name the account of each VC."]
        commands += [f"sacctmgr -i modify account ACCOUNT_OF_{vc} set {_limit(quotas[vc], slots)}" for vc in limited]
    lines.append(room)
    if limited and not by_account:
        lines += ["# Add this to the line of each VC, whose nodes are also those of others."]
        lines += [f"PartitionName={vc} … QOS={vc}-quota" for vc in limited]
        commands += ["# The quotas: before slurm.conf names them."]
        commands += [f"sacctmgr -i add qos {vc}-quota set {_limit(quotas[vc], slots)}" for vc in limited]
    if limited:
        lines += ["AccountingStorageEnforce=associations,limits,qos", "AccountingStorageTRES=gres/gpu,gres/shard"]
    else:
        lines += ["# Each VC has as many GPUs of its own as its quota: no limit is needed."]
    return "\n".join([*commands, *lines]) + "\n"


def _limit(gpus: int, slots: int) -> str:
    """Slurm counts a job in slots against gres/shard only."""
    return f"GrpTRES=gres/gpu={gpus},gres/shard={slots * gpus}"
