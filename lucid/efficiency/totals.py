"""Sums of accounts: by user, by account, by VC."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from lucid.core.frozen import dataclass
from lucid.efficiency.judge import JobAccount
from lucid.efficiency.kinds import HELD, WasteKind

__all__ = ["Total", "total_of", "totals"]


@dataclass(frozen=True, slots=True)
class Total:
    """GPU-hours of several jobs. ``asked_gpu_h``: of those with a time limit; ``no_limit_jobs`` have none.
    ``worked_gpu_h`` and ``wasted_gpu_h`` (by kind) are of measured jobs, ``not_measured_gpu_h`` of the others."""

    name: str
    jobs: int
    asked_gpu_h: float
    held_gpu_h: float
    worked_gpu_h: float
    wasted_gpu_h: Mapping[WasteKind, float]
    not_measured_jobs: int
    not_measured_gpu_h: float
    no_limit_jobs: int = 0
    energy_kwh: float | None = None
    """Of the jobs whose cards counted it; ``None``: there are none."""
    host_asked_gib: float = 0.0
    host_peak_gib: float = 0.0
    """Memory of nodes, asked for and held at most, summed over the jobs of one node of which both are known."""

    @property
    def all_wasted_gpu_h(self) -> float:
        """Of all kinds whose hours were held."""
        return sum(self.wasted_gpu_h.get(kind, 0.0) for kind in HELD)

    @property
    def wasted_share(self) -> float | None:
        """Of what was held and measured; ``None`` where nothing was measured."""
        measured = self.held_gpu_h - self.not_measured_gpu_h
        return self.all_wasted_gpu_h / measured if measured > 0 else None


def totals(accounts: Iterable[JobAccount], key: Callable[[JobAccount], str]) -> list[Total]:
    """One sum for each value of ``key``, most wasted first."""
    groups: defaultdict[str, list[JobAccount]] = defaultdict(list)
    for account in accounts:
        groups[key(account)].append(account)
    found = [total_of(name, members) for name, members in groups.items()]
    return sorted(found, key=lambda one: (-one.all_wasted_gpu_h, -one.held_gpu_h, one.name))


def total_of(name: str, accounts: Iterable[JobAccount]) -> Total:
    """The sum of these."""
    members = list(accounts)
    wasted: defaultdict[WasteKind, float] = defaultdict(float)
    for account in members:
        for one in account.waste:
            wasted[one.kind] += one.gpu_h
    unknown = [account for account in members if not account.measured]
    kwh = [one.job.energy_kwh for one in members if one.job.energy_kwh is not None]
    hosts = [
        (one.job.asked_host_mib / 1024.0, one.job.host_peak_mib / 1024.0)
        for one in members
        if one.job.nodes == 1 and one.job.asked_host_mib and one.job.host_peak_mib is not None
    ]
    return Total(
        name,
        len(members),
        sum(account.asked_gpu_h or 0.0 for account in members),
        sum(account.held_gpu_h for account in members),
        sum(account.worked_gpu_h or 0.0 for account in members),
        {kind: wasted[kind] for kind in WasteKind if kind in wasted},
        len(unknown),
        sum(account.held_gpu_h for account in unknown),
        sum(account.asked_gpu_h is None for account in members),
        sum(kwh) if kwh else None,
        sum(asked for asked, _ in hosts),
        sum(peak for _, peak in hosts),
    )
