"""What a site types so that its VCs lend GPUs to each other: lines of slurm.conf, and commands for sacctmgr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["lending_text"]

_SLOTS = 2


def lending_text(
    partition: str,
    quotas: Mapping[str, int],
    nodes: Mapping[str, Sequence[str]],
    bounded: frozenset[str],
    gpus: int,
    by_account: bool = False,
) -> str:
    """The lines and commands, each with a word on what it is for.

    Args:
        partition: the pool's, over all nodes.
        quotas: GPUs of each VC.
        nodes: names of the nodes of each VC's partition.
        bounded: VCs whose partition has more GPUs than their quota.
        gpus: those of all nodes.
        by_account: accounts keep these to their quotas, and not a QOS of their partition.
    """
    everywhere = sorted({name for names in nodes.values() for name in names})
    room = f"PartitionName={partition} Nodes={','.join(everywhere)} MaxTime=UNLIMITED State=UP"
    lines, commands = ["# slurm.conf: only lucidd starts jobs there (job_submit.lua refuses users)."], list[str]()
    limited = [vc for vc in quotas if vc in bounded]
    if limited and by_account:
        room += " QOS=lucid-borrow"
        commands += ["# Goes before the limits of accounts: all GPUs, or fewer to bound what is lent."]
        commands += [f"sacctmgr -i add qos lucid-borrow set {_limit(gpus)}"]
        commands += ["# The quotas: name the account of each VC."]
        commands += [f"sacctmgr -i modify account ACCOUNT_OF_{vc} set {_limit(quotas[vc])}" for vc in limited]
    lines.append(room)
    if limited and not by_account:
        lines += ["# Add this to the line of each VC, whose nodes are also those of others."]
        lines += [f"PartitionName={vc} … QOS={vc}-quota" for vc in limited]
        commands += ["# The quotas: before slurm.conf names them."]
        commands += [f"sacctmgr -i add qos {vc}-quota set {_limit(quotas[vc])}" for vc in limited]
    if limited:
        lines += ["AccountingStorageEnforce=associations,limits,qos", "AccountingStorageTRES=gres/gpu,gres/shard"]
    else:
        lines += ["# Each VC has as many GPUs of its own as its quota: no limit is needed."]
    return "\n".join([*commands, *lines]) + "\n"


def _limit(gpus: int) -> str:
    """Slurm counts a job in slots against gres/shard only."""
    return f"GrpTRES=gres/gpu={gpus},gres/shard={_SLOTS * gpus}"
