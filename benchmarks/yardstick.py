"""README's table: Lucid beside plain Slurm (``backfill``) on synthetic months that nothing was chosen on, between the
walls of their VCs and in one pool. ``python -m benchmarks.yardstick`` prints it, and with ``--write`` puts it into
README.md. For one month by hand: ``lucidctl trace synth month-small --seed 21 --out month.csv --vcs-out vcs.csv``,
then ``lucidctl simulate month.csv --vcs vcs.csv``, and again with ``--pool``. ``--preset`` and ``--seed`` print the
table of other months.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from benchmarks.packs import in_pool
from benchmarks.timeaware import synthetic
from lucid.simulator.metrics import run_metrics, times_baseline
from lucid.simulator.scenario import simulate
from lucid.simulator.traces.presets import PRESETS

__all__ = ["README", "SEEDS", "Beside", "cells", "measured", "written"]

README: Final = Path(__file__).resolve().parents[1] / "README.md"
SEEDS: Final = (21, 22, 31, 32, 33, 34)
_PRESET: Final = "month-small"
_PLACE: Final = re.compile(r"(<!-- table of: python -m benchmarks.yardstick -->\n).*?(<!-- end -->)", re.DOTALL)
_HEADER: Final = (
    "| seed | between walls: plain Slurm | Lucid | jobs > 8 GPUs | p99.9 of waiting | in a pool: plain Slurm | Lucid "
    "| jobs > 8 GPUs | p99.9 of waiting |\n|---|---|---|---|---|---|---|---|---|\n"
)


@dataclass(frozen=True, slots=True)
class Beside:
    """One month under both: average JCT in hours. Lucid's as multiples of plain Slurm's: of average JCT, JCT of jobs
    above 8 GPUs, and p99.9 of waiting."""

    plain_h: float
    lucid_h: float
    average: float
    large: float
    tail: float


def measured(seed: int, *, pool: bool, preset: str = _PRESET) -> Beside:
    """Replay a month under plain Slurm and Lucid, as it is by default, with walls or without."""
    scenario = synthetic(preset, seed)
    scenario = in_pool(scenario) if pool else replace(scenario, lends=True)  # as the commands do
    metrics = {policy: run_metrics(simulate(scenario, policy)) for policy in ("backfill", "lucid")}
    ratios = times_baseline(metrics)["by_policy"]["lucid"]
    hours = [found["avg_jct_s"] / 3600 for found in metrics.values()]
    return Beside(hours[0], hours[1], ratios["avg_jct"], ratios["avg_jct_large"], ratios["p999_queue"])


def cells(found: Beside) -> str:
    """Four cells of the table."""
    return (
        f"{found.plain_h:.1f} h | {found.lucid_h:.1f} h ({found.average:.2f}) | {found.large:.2f} | {found.tail:.2f}"
    )


def table(walls: Sequence[Beside], pool: Sequence[Beside], seeds: Sequence[int] = SEEDS) -> str:
    """The table, and what it says of large jobs, of the tail and of walls."""
    rows = zip(seeds, walls, pool, strict=True)
    lines = [f"| {seed} | {cells(walled)} | {cells(free)} |\n" for seed, walled, free in rows]
    pooling = sum(free.plain_h < walled.lucid_h for walled, free in zip(walls, pool, strict=True))
    said = (
        f"- **Average JCT** of Lucid: {_range([one.average for one in walls])} of plain Slurm's between walls, "
        f"{_range([one.average for one in pool])} in a pool. In {pooling} of the {len(seeds)} months plain Slurm in "
        "a pool has a shorter average JCT than Lucid between walls.\n"
        f"- **Jobs above 8 GPUs** take {_range([one.large for one in walls])} of what they take under plain Slurm "
        f"between walls (longer in {_longer([one.large for one in walls])}), and "
        f"{_range([one.large for one in pool])} in a pool (longer in {_longer([one.large for one in pool])}).\n"
        f"- **The longest waits** (p99.9) are {_range([one.tail for one in walls])} of plain Slurm's between walls "
        f"(longer in {_longer([one.tail for one in walls])}), and {_range([one.tail for one in pool])} in a pool "
        f"(longer in {_longer([one.tail for one in pool])}).\n"
    )
    return f"{_HEADER}{''.join(lines)}\n{said}"


def _range(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _longer(ratios: Sequence[float]) -> str:
    return f"{sum(round(ratio, 2) > 1 for ratio in ratios)} of {len(ratios)} months"


def written(text: str, made: str) -> str:
    """README with the table made anew."""
    return _PLACE.sub(lambda found: found[1] + made + found[2], text)


@click.command(help=__doc__)
@click.option("--preset", type=click.Choice(sorted(PRESETS)), default=_PRESET, show_default=True)
@click.option("--seed", "seeds", type=int, multiple=True, help="Repeat it for several months. Default: README's.")
@click.option("--write", is_flag=True, help="Put the table into README.md.")
def main(preset: str, seeds: tuple[int, ...], write: bool) -> None:
    if write and (seeds or preset != _PRESET):
        raise click.UsageError("--write is for README's own months: leave --preset and --seed out")
    months = seeds or SEEDS
    made = table(*([measured(seed, pool=pool, preset=preset) for seed in months] for pool in (False, True)), months)
    print(made, end="")
    if write:
        README.write_text(written(README.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
