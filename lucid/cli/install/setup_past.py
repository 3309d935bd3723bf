"""What lending would have brought on a cluster's own past: ``lucidctl setup`` asks sacct, and replays what ended."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import Any

from lucid.cli.install.setup_machine import Machine
from lucid.cli.install.setup_pool import Pool
from lucid.config import Settings
from lucid.errors import LucidError
from lucid.explain.quantities import duration
from lucid.simulator.engine import Progress
from lucid.simulator.layout import NodeShape
from lucid.simulator.scenario import Scenario, simulate, with_promise
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace
from lucid.slurmlog.sacct import HEADERLESS

__all__ = ["DAYS", "Past", "past_of"]

DAYS = 30
_MOST_JOBS = 10_000
"""The newest so many are replayed, which takes a minute at the most."""
_WORSE = 1.01
_NOTHING = f"Slurm's accounting has no GPU job of {{}} that ended in the last {DAYS} days"


@dataclass(frozen=True, slots=True)
class Past:
    """A replay of the jobs that ended, under Lucid, with lending and without. Times in s, ``by_vc`` (with lending,
    without). ``longer_s``: of jobs that came while their VC stood within its quota, how much longer one in a
    thousand waited, and the last. ``why``: why nothing is known; empty where something is."""

    jobs: int = 0
    days: float = 0.0
    lends_s: float = 0.0
    walls_s: float = 0.0
    by_vc: dict[str, tuple[float, float]] | None = None
    longer_s: tuple[float, float] = (0.0, 0.0)
    why: str = ""

    @property
    def gain(self) -> float:
        """By what share of it the average JCT is shorter with lending."""
        return 1.0 - self.lends_s / self.walls_s if self.walls_s else 0.0

    @property
    def worse(self) -> list[str]:
        """VCs whose average JCT is more than 1 % longer with lending."""
        return [vc for vc, (lends_s, walls_s) in (self.by_vc or {}).items() if lends_s > _WORSE * walls_s]

    @property
    def speaks_for_it(self) -> bool:
        """Is the average shorter, and no VC worse?"""
        return not self.why and self.gain > 0 and not self.worse

    def words(self) -> str:
        """What it brings, in two sentences."""
        if self.why:
            return f"what lending would have brought here cannot be said: {self.why}"
        change = (
            f"{abs(self.gain):.0%} {'shorter' if self.gain > 0 else 'longer'}"
            if abs(self.gain) >= 0.005
            else "the same"
        )
        worse = "; ".join(f"{vc} {self._of(vc) - 1:.0%} worse" for vc in self.worse)
        late, last = map(duration, self.longer_s)
        return (
            f"the {self.jobs} GPU jobs of the last {self.days:.0f} days, replayed under Lucid: average job "
            f"completion time {duration(self.lends_s)} with lending, {duration(self.walls_s)} without ({change}), "
            f"{worse or 'no VC worse'}. What it costs: of jobs within their VC's quota one in a thousand waits "
            f"{late} longer, at worst {last}"
        )

    def _of(self, vc: str) -> float:
        lends_s, walls_s = (self.by_vc or {})[vc]
        return lends_s / walls_s

    def told(self) -> dict[str, Any]:
        """For ``--json``."""
        vcs = (self.by_vc or {}).items()
        return {
            "jobs": self.jobs,
            "days": self.days,
            "avg_jct_s": self.lends_s,
            "walls_avg_jct_s": self.walls_s,
            "gain": self.gain,
            "worse": self.worse,
            "by_vc": {vc: {"avg_jct_s": lends_s, "walls_avg_jct_s": walls_s} for vc, (lends_s, walls_s) in vcs},
            "p999_s": self.longer_s[0],
            "worst_s": self.longer_s[1],
            "why": self.why,
            "words": self.words(),
        }


def past_of(pool: Pool, settings: Settings, machine: Machine, progress: Progress | None = None) -> Past:
    """Ask accounting for the last 30 days of these VCs, and replay them twice."""
    columns, vcs = ",".join(HEADERLESS[0]), ",".join(pool.quotas)
    words = ("-a", "-X", "-P", "-S", f"now-{DAYS}days", "-r", vcs, f"--format={columns}")
    try:
        text = machine.asked("sacct", *words)
        if text.count("\n") < 2:
            return Past(why=_NOTHING.format(vcs.replace(",", ", ")))
        return _replayed(pool, settings, _trace(text), progress)
    except LucidError as error:
        return Past(why=str(error))


def _trace(text: str) -> Trace:
    with tempfile.NamedTemporaryFile("w", suffix=".sacct", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        return read_trace(file.name, "sacct", skip_bad=True)


def _replayed(pool: Pool, settings: Settings, trace: Trace, progress: Progress | None) -> Past:
    fit = [item for item in trace.jobs if item.job.gpus <= pool.quotas.get(item.job.vc, 0)][-_MOST_JOBS:]
    if not fit:
        return Past(why=_NOTHING.format(", ".join(pool.quotas)))
    first_s = fit[0].job.submit_s
    jobs = (replace(item.job, submit_s=item.job.submit_s - first_s, rank=rank) for rank, item in enumerate(fit))
    moved = [replace(item, job=job) for item, job in zip(fit, jobs, strict=True)]
    policy = settings.policy.model_copy(
        update={"lending": settings.policy.lending.model_copy(update={"mode": "borrow"})}
    )
    scenario = Scenario(
        replace(trace, jobs=tuple(moved), epoch_s=(trace.epoch_s or 0.0) + first_s),
        dict(pool.nodes),
        NodeShape(pool.gpus, settings.daemon.gpu_mem_mib, pool.cpus, pool.mem_mib),
        settings=settings.model_copy(update={"policy": policy}),
    )
    run = with_promise(scenario, simulate(scenario, "lucid", progress=progress), progress)
    both, lends = run.promise, dict[str, list[float]]()
    for outcome in run.outcomes:
        if outcome.end_s >= 0:
            for vc in ("", outcome.job.vc):
                lends.setdefault(vc, []).append(outcome.jct_s)
    mean_s = {vc: sum(times) / len(times) for vc, times in lends.items()}
    everybody = both[""]
    return Past(
        len(lends[""]),
        (moved[-1].job.submit_s - moved[0].job.submit_s) / 86400.0,
        mean_s[""],
        everybody.walls_avg_jct_s,
        {vc: (mean_s[vc], one.walls_avg_jct_s) for vc, one in both.items() if vc},
        (everybody.p999_s or 0.0, everybody.worst_s or 0.0),
    )
