"""Lending between VCs: what lucidd's settings must say for it, and what is lent, for ``lucidctl status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lucid.config.load import Settings
from lucid.core.snapshot import Partition
from lucid.errors import ConfigError, did_you_mean

POOL_EXAMPLE = '[daemon.pool]\npartition = "overflow"\nquotas = { vc-a = 8, vc-b = 4 }'


def check_lending(settings: Settings, where: str) -> None:
    """Check the settings of lending. ``where``: the file that they are from.

    Raises: ConfigError: VCs are to lend, and it is not said which, or no job could be moved where it borrows."""
    lending, pool, daemon = settings.policy.lending, settings.daemon.pool, settings.daemon
    if not (pool.partition or pool.quotas) and lending.mode == "off":
        return
    if not (pool.partition and pool.quotas):
        raise ConfigError(
            f"{where}: policy.lending needs both daemon.pool.partition (over all nodes of the VCs that lend) and "
            f"daemon.pool.quotas (GPUs of each VC), as in\n{POOL_EXAMPLE}"
        )
    if pool.partition in daemon.partitions or pool.partition == daemon.profiling_partition:
        raise ConfigError(
            f"{where}: daemon.pool.partition = {pool.partition!r} is a VC or the profiling partition, too: name a "
            "partition of its own, over all nodes of the VCs that lend (lucidctl slurm lending prints its line)"
        )
    for vc in pool.quotas:
        if vc not in daemon.partitions:
            known = ", ".join(daemon.partitions)
            hint = did_you_mean(vc, daemon.partitions)
            raise ConfigError(f"{where}: daemon.pool.quotas.{vc}: not in daemon.partitions{hint} (there: {known})")
    from lucid.models.history import HistoryPredictor  # imported here: `status` asks for no policy
    from lucid.orchestrator.policy import rules_of
    from lucid.orchestrator.registry import known_policies, make_policy

    if lending.mode == "off" or settings.daemon.policy not in known_policies():
        return
    made = make_policy(settings.daemon.policy, settings.policy, HistoryPredictor())
    if not rules_of(made).quotas:
        raise ConfigError(
            f"{where}: daemon.policy = {settings.daemon.policy!r} knows no quotas, so it cannot run with "
            f"policy.lending.mode = {lending.mode!r}; use lucid, or mode off"
        )


def lending_of(part: Partition) -> Mapping[str, Mapping[str, int]]:
    """By VC of a pool: its quota, what it holds and what it has borrowed, in GPUs, and how many jobs wait. A pair
    holds its GPUs once, for the VC of the job that was there first."""
    from lucid.orchestrator.order.quotas import holders  # loads numpy, which few commands need

    waiting = Counter(entry.job.vc for entry in part.pending)
    held = dict.fromkeys(part.quotas, 0)
    for entry in holders(part.running).values():
        if entry.job.vc in held:
            held[entry.job.vc] += entry.gpus
    return {
        vc: {"quota": quota, "held": held[vc], "borrowed": max(held[vc] - quota, 0), "pending": waiting[vc]}
        for vc, quota in part.quotas.items()
    }
