"""``Preemption``: which running jobs Slurm would preempt for which others, by its configuration. Pure.

Served are REQUEUE and CANCEL, by partition tier (preempt/partition_prio) and by QOS (preempt/qos). A job that Slurm
would suspend keeps its GPUs' memory: nothing is claimed from it (docs/site.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lucid.accounting.values import elapsed_s
from lucid.core.job import Yields
from lucid.slurm.elastic.opt_in import elastic_request
from lucid.slurm.records.fields import partition_settings_from
from lucid.slurm.records.job import SlurmJob
from lucid.text import digits

QOS_PREEMPTION = ("name", "preempt", "preemptmode", "preemptexempttime", "gracetime")
"""Fields of ``sacctmgr show qos``."""
_SERVED = ("REQUEUE", "CANCEL")


@dataclass(frozen=True, slots=True)
class Qos:
    """The preemption settings of a QOS. ``preempts`` names the QOS whose jobs its own may preempt; ``mode`` and
    ``exempt_s`` are empty and ``None`` where the cluster's hold; ``grace_s`` is its GraceTime."""

    preempts: frozenset[str] = frozenset()
    mode: str = ""
    exempt_s: float | None = None
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Preemption:
    """Which jobs may preempt which. ``by``: ``partition``, ``qos``, or empty for no preemption. ``mode``: the
    cluster's PreemptMode, with GANG where it has it. ``exempt_s``: how long a job runs undisturbed. ``tiers``,
    ``modes`` and ``grace_s`` are PriorityTier, PreemptMode and GraceTime of each partition."""

    by: str = ""
    mode: str = "OFF"
    exempt_s: float = 0.0
    tiers: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    grace_s: Mapping[str, float] = field(default_factory=dict)
    qos: Mapping[str, Qos] = field(default_factory=dict)
    kill_wait_s: float = 30.0
    """How long a job may go on after Slurm has signalled it to stop."""
    again_s: float = 40.0
    """Once Slurm has preempted jobs for another, it preempts no more for it for so long: KillWait and
    MessageTimeout."""

    def yields(self, job: SlurmJob, vcs: Collection[str]) -> Yields | None:
        """How a running job gives way to jobs of these partitions; ``None`` if it does not, or Slurm would do it in a
        way that is not served."""
        mode = self._mode(job)
        if not self.by or mode not in _SERVED:
            return None
        to: tuple[str, ...] | None = None
        exempt_s = self.exempt_s
        if self.by == "qos":
            to = tuple(sorted(name for name, qos in self.qos.items() if job.qos in qos.preempts and name != job.qos))
            if not to:
                return None
            own = self.qos.get(job.qos, Qos())
            exempt_s = self.exempt_s if own.exempt_s is None else own.exempt_s
        elif (
            not vcs
            or job.partition not in self.tiers
            or (
                min(self.tiers.get(vc, -1) for vc in vcs)
                <= self.tiers[job.partition]  # it must preempt for all of them
            )
        ):
            return None  # as a job of these partitions themselves
        ends = mode == "CANCEL" or not (job.requeue and job.batch)
        saves = not ends and elastic_request(job.comment).limits is not None
        return Yields(job.start_s + exempt_s if exempt_s else 0.0, to, ends, saves)

    def grace_of(self, job: SlurmJob) -> float:
        """How long Slurm lets the job go on after it has signalled it to stop."""
        if self.by == "qos":
            return self.qos.get(job.qos, Qos()).grace_s
        return self.grace_s.get(job.partition, 0.0)

    def lets_lucid(self, job: SlurmJob, vcs: Collection[str]) -> bool:
        """Whether Lucid's requeue does the same as Slurm's preemption of a job that gives way to these partitions.
        Not where Slurm would cancel it, or give it longer than KillWait."""
        yields = self.yields(job, vcs)
        return yields is not None and not yields.ends and self.grace_of(job) <= self.kill_wait_s

    def in_slots(self, job: SlurmJob, beside: Collection[str]) -> bool:
        """Whether the job may hold slots. Of jobs in slots Slurm preempts the wrong ones, so a job that may be
        preempted shares GPUs only where Lucid can requeue it itself. ``beside``: the other partitions that have its
        nodes."""
        above = tuple(name for name in beside if self.over(name, job.partition))
        return self.yields(job, above) is None or self.lets_lucid(job, above)

    def _mode(self, job: SlurmJob) -> str:
        if self.by == "qos":
            return self.qos.get(job.qos, Qos()).mode or self.mode
        return self.modes.get(job.partition, self.mode)

    def over(self, upper: str, lower: str) -> bool:
        """Whether jobs of partition ``upper`` may preempt those of ``lower``, in a way that is served."""
        known = self.by == "partition" and {upper, lower} <= self.tiers.keys()
        return known and self.tiers[upper] > self.tiers[lower] and self.modes.get(lower, self.mode) in _SERVED

    def layers(self, names: Sequence[str]) -> tuple[str, ...]:
        """The partitions that plan a node which stands in several of them: the first of the highest tier, and those
        whose jobs give way to all before them. The others do not plan it."""
        found: list[str] = []
        for name in sorted(names, key=lambda name: -self.tiers.get(name, 0)):
            if all(self.over(upper, name) for upper in found):
                found.append(name)
        return tuple(found)


NO_PREEMPTION = Preemption()


def preemption_from(config: Mapping[str, str], partitions: str = "", qos: str = "") -> Preemption:
    """The rules from the configuration, ``scontrol -o show partition`` and ``sacctmgr -nP show qos`` with the fields
    above."""
    kind = config.get("PreemptType", "").rpartition("/")[2]
    by = {"partition_prio": "partition", "qos": "qos"}.get(kind, "")
    if not by:
        return NO_PREEMPTION
    shown = partition_settings_from(partitions)
    tiers = {name: digits(said.get("PriorityTier", "")) or 0 for name, said in shown.items()}
    modes = {name: _mode(said.get("PreemptMode", "")) for name, said in shown.items()}
    grace_s = {name: float(digits(said.get("GraceTime", "")) or 0) for name, said in shown.items()}
    rows = [line.split("|") for line in qos.splitlines() if line.count("|") >= len(QOS_PREEMPTION) - 1]
    found = {
        name: Qos(
            frozenset(other for other in preempts.split(",") if other),
            "" if mode.lower() in ("", "cluster") else _mode(mode),
            elapsed_s(exempt),
            elapsed_s(grace) or 0.0,
        )
        for name, preempts, mode, exempt, grace, *_ in rows
    }
    exempt_s = elapsed_s(config.get("PreemptExemptTime", "")) or 0.0
    kill_s, message_s = (
        float(digits(config.get(key, "").partition(" ")[0]) or usual)
        for key, usual in (("KillWait", 30), ("MessageTimeout", 10))
    )
    return Preemption(
        by, _mode(config.get("PreemptMode", "")), exempt_s, tiers, modes, grace_s, found, kill_s, kill_s + message_s
    )


def _mode(text: str) -> str:
    """A PreemptMode without GANG and WITHIN, which say nothing of how a job is preempted; SUSPEND always comes with
    GANG."""
    words = [word for word in text.upper().split(",") if word not in ("GANG", "WITHIN", "")]
    return words[0] if words else "OFF"
