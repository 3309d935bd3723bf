"""What Slurm's preemption means for the partitions that Lucid packs: what is served, and what is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lucid.adapters.slurm.records.jobs_and_nodes import SlurmNode
from lucid.adapters.slurm.records.preemption import Preemption
from lucid.config import Mode
from lucid.live.reporting.doctor_finding import Finding, bad, warn

__all__ = ["look_over_preemption", "without_layers"]


def look_over_preemption(
    modes: Mapping[str, Mode], nodes: Sequence[SlurmNode], preemption: Preemption | None
) -> Iterator[Finding]:
    """*preemption* is ``None`` where it cannot be told."""
    packed = [name for name, mode in modes.items() if mode is Mode.PACK]
    if not packed or preemption is None or not preemption.by:
        return
    if preemption.by == "qos":
        yield Finding("ok", "PreemptType=preempt/qos: jobs claim GPUs of jobs that their QOS may preempt")
        suspends = sorted(name for name, qos in preemption.qos.items() if (qos.mode or preemption.mode) == "SUSPEND")
        if suspends:
            yield bad(
                f"jobs of QOS {', '.join(suspends)} are suspended, and keep their GPUs' memory: Lucid claims nothing "
                "from them, and Slurm puts others on GPUs that Lucid did not pair",
                "PreemptMode=REQUEUE in slurm.conf, or of these QOS",
            )
        return
    for name in packed:
        here = [node.partitions for node in nodes if node.gpu_types and name in node.partitions]
        for other in sorted(frozenset[str]().union(*here) - {name}):
            yield from _between(name, other, preemption)


def without_layers(
    names: Sequence[str], nodes: Sequence[SlurmNode], preemption: Preemption
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Nodes that stand in several of these partitions, of which not each gives way to those before it, with the
    partitions: Lucid plans such a node for one of them only."""
    for node in nodes:
        here = tuple(name for name in names if name in node.partitions)
        if node.gpu_types and set(here) > set(preemption.layers(here)):
            yield node.name, here


def _between(vc: str, other: str, preemption: Preemption) -> Iterator[Finding]:
    """A packed partition, and one that has some of its nodes."""
    tiers = preemption.tiers
    if vc not in tiers or other not in tiers or tiers[vc] == tiers[other]:
        return
    upper, lower = (vc, other) if tiers[vc] > tiers[other] else (other, vc)
    mode = preemption.modes.get(lower, preemption.mode)
    if mode == "SUSPEND":
        yield bad(
            f"jobs of {lower} are suspended for jobs of {upper} (PreemptMode), and keep their GPUs' memory: Lucid "
            "claims nothing from them, and Slurm puts others on GPUs that Lucid did not pair",
            f"PreemptMode=REQUEUE in the line of {lower}",
        )
    elif mode == "OFF" and lower == other:
        yield warn(
            f"jobs of {lower} are not preempted (PreemptMode=OFF): they keep GPUs of {vc} as long as they like",
            f"PreemptMode=REQUEUE in the line of {lower}, or its nodes out of {vc}",
        )
    elif mode != "OFF" and lower == other:
        then = "are cancelled" if mode == "CANCEL" else "are requeued"
        yield Finding("ok", f"jobs of {vc} claim GPUs of {lower} where none are free: those that lose least {then}")
    elif mode != "OFF":
        yield Finding("ok", f"jobs of {lower} give way to those of {upper} by PreemptMode={mode}")
