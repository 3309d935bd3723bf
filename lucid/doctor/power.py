"""Slurm's power saving, for what Lucid is to do with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lucid.adapters.slurm.records.configuration import Partition
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmNode
from lucid.adapters.slurm.snapshot.power_saving import ASLEEP, FAILED, Power, PowerRules
from lucid.config import Mode, Settings
from lucid.live.reporting.doctor_finding import Finding, warn

__all__ = ["as_lucidd_sees", "look_over_power", "power_note"]


def as_lucidd_sees(
    nodes: Sequence[SlurmNode], config: Mapping[str, str], partitions: Sequence[Partition], now_s: float
) -> Sequence[SlurmNode]:
    """The nodes, those available that Slurm wakes."""
    power = Power()
    power.rules = PowerRules.of(config, any(p.suspends for p in partitions))
    return power.told(nodes, now_s)


def look_over_power(
    settings: Settings,
    modes: Mapping[str, Mode],
    nodes: Sequence[SlurmNode],
    config: Mapping[str, str],
    partitions: Sequence[Partition],
) -> Iterator[Finding]:
    """*nodes*: as lucidd sees them."""
    rules = PowerRules.of(config, any(p.suspends for p in partitions))
    room = settings.daemon.profiling_partition
    mine = [node for node in nodes if not node.partitions.isdisjoint({*modes, room})]
    asleep = [node.name for node in mine if ASLEEP in node.states]
    if rules.wakes:
        yield Finding("ok", f"{power_note(config, True)}; {len(asleep)} of {len(mine)} nodes sleep now")
    elif asleep:
        yield warn(
            f"{', '.join(asleep[:5])}: asleep, and {rules.why_not}",
            "SuspendProgram, ResumeProgram and SuspendTime in slurm.conf, or scontrol update … state=resume",
        )
    failed = [node.name for node in mine if node.reason.startswith(FAILED) and "DOWN" in node.states]
    if failed:
        yield warn(
            f"{', '.join(failed[:5])}: did not come up within ResumeTimeout ({rules.resume_s:g} s): "
            "nothing starts there",
            "what ResumeProgram does with it, a longer ResumeTimeout, then scontrol update nodename=… state=resume",
        )
    profiling = [node for node in mine if room in node.partitions and node.available]
    wakes = settings.policy.profiling.wake_nodes
    if Mode.PACK in modes.values() and profiling and not wakes and all(ASLEEP in node.states for node in profiling):
        yield warn(
            f"all nodes of {room} sleep: new jobs are not profiled until one is awake",
            "SuspendExcParts or SuspendExcNodes in slurm.conf, or policy.profiling.wake_nodes = true",
        )


def power_note(config: Mapping[str, str], in_partition: bool = False) -> str:
    """What Lucid does where nodes sleep; empty where Slurm puts none to sleep."""
    rules = PowerRules.of(config, in_partition)
    if not rules.wakes:
        return ""
    return (
        "power saving is on: Lucid takes nodes that are awake first, and lets Slurm wake the node that a job needs; "
        f"until it has seen boots it takes ResumeTimeout ({rules.resume_s:g} s) for one; profiling wakes none unless "
        "policy.profiling.wake_nodes says so"
    )
