"""README's table: a fresh installation of Lucid beside plain Slurm (``backfill``), on synthetic months that nothing
was chosen on, between partitions and in one pool, and on P1 of the Philly log. ``python -m benchmarks.yardstick``
prints it, and with ``--write`` puts it into README.md. For one month by hand: ``lucidctl trace synth month-small
--seed 21 --out month.csv --vcs-out vcs.csv``, then ``lucidctl simulate month.csv --vcs vcs.csv --as-live``, and again
with ``--pool``. ``--preset`` and ``--seed`` print the table of other months.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from benchmarks.figure import Absent
from benchmarks.packs import in_pool, pack
from benchmarks.timeaware import synthetic
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.metrics import run_metrics, times_baseline
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import PRESETS

__all__ = ["README", "SEEDS", "Beside", "measured", "table", "written"]

README: Final = Path(__file__).resolve().parents[1] / "README.md"
SEEDS: Final = (21, 22, 31, 32, 33, 34)
_PRESET: Final = "month-small"
_PLACE: Final = re.compile(r"(<!-- table of: python -m benchmarks.yardstick -->\n).*?(<!-- end -->)", re.DOTALL)
_HEADER: Final = "| plain Slurm's figures = 1 | average JCT | jobs > 8 GPUs | longest waits |\n|---|---|---|---|\n"


@dataclass(frozen=True, slots=True)
class Beside:
    """Lucid's figures of one trace as multiples of plain Slurm's: average JCT, JCT of jobs above 8 GPUs, and p99.9 of
    waiting."""

    average: float
    large: float
    tail: float


def measured(scenario: Scenario) -> Beside:
    """Replay a trace under plain Slurm, and under Lucid as lucidd runs where no setting says otherwise."""
    fresh = replace(scenario, semantics=Semantics.AS_LIVE)
    metrics = {policy: run_metrics(simulate(fresh, policy)) for policy in ("backfill", "lucid")}
    ratios = times_baseline(metrics)["by_policy"]["lucid"]
    return Beside(ratios["avg_jct"], ratios["avg_jct_large"], ratios["p999_queue"])


def months(preset: str, seeds: Sequence[int]) -> dict[str, list[Beside]]:
    """The rows of synthetic months, by title."""
    made = [synthetic(preset, seed) for seed in seeds]
    return {
        f"{len(seeds)} synthetic months, between partitions": [measured(one) for one in made],
        f"{len(seeds)} synthetic months, in one pool": [measured(in_pool(one)) for one in made],
    }


def table(rows: Mapping[str, Sequence[Beside]]) -> str:
    """The table: the median of each row, and in brackets the least and the most."""
    lines = [
        f"| {title} | {' | '.join(_cell([getattr(one, key) for one in found]) for key in Beside.__slots__)} |\n"
        for title, found in rows.items()
    ]
    return f"{_HEADER}{''.join(lines)}"


def _cell(ratios: Sequence[float]) -> str:
    middle = f"{statistics.median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"


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
    rows = months(preset, seeds or SEEDS)
    try:
        rows["a public log (Philly), between partitions"] = [measured(pack("P1"))]
    except Absent as error:
        if write:
            raise click.ClickException(str(error)) from None
    made = table(rows)
    print(made, end="")
    if write:
        README.write_text(written(README.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
