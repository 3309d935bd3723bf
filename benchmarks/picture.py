"""README's picture, ``python -m benchmarks.picture``: seven jobs on one node, by Slurm alone and under Lucid."""

from __future__ import annotations

import csv
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from lucid.cli.main import lucidctl

_ROOT = Path(__file__).parents[1]
_LAB = _ROOT / "docs" / "tutorials"
PICTURE = _ROOT / "docs" / "pictures" / "sharing.svg"
_GPUS = 4
_HOURS = 4
_LEFT, _TOP, _HOUR, _LANE, _PANEL = 74, 44, 158, 38, 236
_TITLES = {"backfill": "Slurm alone", "lucid": "Slurm with Lucid"}
_COLOURS = {
    "A": "#2f6db5",
    "B": "#b0532f",
    "C": "#24805c",
    "D": "#7d55b0",
    "E": "#96700b",
    "F": "#1f7f94",
    "G": "#a8427a",
}
_STYLE = """\
  text { font: 19px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
  .title { font-size: 21px; font-weight: 600 }
  .job { font-weight: 600; fill: #ffffff; text-anchor: middle }
  .hour { text-anchor: middle }
  .lane { fill: #8c959f; fill-opacity: 0.18 }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }"""


@dataclass(frozen=True)
class Row:
    """One job as the replay ended it; times in hours."""

    job: str
    gpus: tuple[int, ...]
    start_h: float
    end_h: float


def _replayed(folder: Path) -> dict[str, float]:
    """The average JCT in hours by policy; ``folder`` is given the replays."""
    words = [
        "simulate",
        str(_LAB / "jobs.csv"),
        "--vcs",
        str(_LAB / "vcs.csv"),
        "--config",
        str(_LAB / "one-node.toml"),
    ]
    words += ["--gpus-per-node", str(_GPUS), "--predictor", "oracle", "--as-live", "--json", "--out", str(folder)]
    done = CliRunner().invoke(lucidctl, [*words, "--policy", "backfill", "--policy", "lucid"], catch_exceptions=False)
    results = json.loads(done.stdout)["results"]
    return {policy: results[policy]["avg_jct_s"] / 3600 for policy in _TITLES}


def _rows(folder: Path, policy: str) -> list[Row]:
    with (folder / policy / "jobs.csv").open(newline="", encoding="utf-8") as file:
        return [
            Row(row["job_id"], _gpus(row["placement"]), float(row["start_s"]) / 3600, float(row["end_s"]) / 3600)
            for row in csv.DictReader(file)
        ]


def _gpus(placement: str) -> tuple[int, ...]:
    """The GPUs of ``lab-000:0-1``."""
    first, _, last = placement.rpartition(":")[2].partition("-")
    return tuple(range(int(first), int(last or first) + 1))


def _panel(rows: list[Row], title: str, avg_h: float, top: int) -> list[str]:
    said = [f'<text class="title" x="4" y="{top + 24}">{title}: jobs end after {avg_h:.1f} h on average</text>']
    for gpu in range(_GPUS):
        y = top + _TOP + gpu * _LANE
        said.append(f'<text x="4" y="{y + 22}">GPU {gpu}</text>')
        said.append(f'<rect class="lane" x="{_LEFT}" y="{y}" width="{_HOURS * _HOUR}" height="{_LANE - 4}"/>')
    for row in rows:
        said += _bars(row, rows, top)
    y = top + _TOP + _GPUS * _LANE + 16
    said += [f'<text class="hour" x="{_LEFT + h * _HOUR}" y="{y}">{h} h</text>' for h in range(_HOURS)]
    return said


def _bars(row: Row, rows: list[Row], top: int) -> list[str]:
    """A job's bar on each of its GPUs; half as high for the time that another job is there."""
    others = [o for o in rows if o is not row and set(o.gpus) & set(row.gpus)]
    partner = next((o for o in others if o.start_h < row.end_h - 1e-9 and row.start_h < o.end_h - 1e-9), None)
    half = (_LANE - 4) / 2
    said = []
    for gpu in row.gpus:
        y = top + _TOP + gpu * _LANE
        if partner is None:
            said.append(_bar(row, row.start_h, row.end_h, y, _LANE - 4))
        elif row.start_h < partner.start_h:  # was there first: above, and whole again once the other has gone
            said.append(_bar(row, row.start_h, partner.start_h, y, _LANE - 4, named=False))
            said.append(_bar(row, partner.start_h, partner.end_h, y, half, named=False))
            said.append(_bar(row, partner.end_h, row.end_h, y, _LANE - 4))
        else:
            said.append(_bar(row, row.start_h, row.end_h, y + half, half))
    return said


def _bar(row: Row, start_h: float, end_h: float, y: float, height: float, named: bool = True) -> str:
    x, width, size = _LEFT + start_h * _HOUR, (end_h - start_h) * _HOUR, min(19.0, height)
    bar = f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{_COLOURS[row.job]}"/>'
    middle = f'x="{x + width / 2:.1f}" y="{y + height / 2 + size * 0.36:.1f}"'
    return bar + (f'<text class="job" {middle} style="font-size:{size:g}px">{row.job}</text>' if named else "")


def drawn() -> str:
    """The picture as SVG; the same bytes each time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        averages = _replayed(folder)
        panels = [
            line
            for at, (policy, title) in enumerate(_TITLES.items())
            for line in _panel(_rows(folder, policy), title, averages[policy], at * (_PANEL + 12))
        ]
    width, height = _LEFT + _HOURS * _HOUR + 14, 2 * _PANEL + 12
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title">'
    )
    told = "The same seven jobs on four GPUs, by Slurm alone and with Lucid, where jobs A and C share two GPUs"
    return (
        "\n".join([head, f'<title id="title">{told}</title>', f"<style>\n{_STYLE}\n</style>", *panels, "</svg>"])
        + "\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
