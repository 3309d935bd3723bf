"""``python -m benchmarks.papers``: the rows of the papers, or those of ``--only``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from benchmarks.figure import Absent
from benchmarks.page import machine
from benchmarks.papers import lucid_parts, lucid_schedules, muri, packing, peers, pollux, throughput
from benchmarks.papers.page import keep, recorded
from benchmarks.papers.pictures import draw
from benchmarks.papers.row import Row, as_dict, table

__all__ = ["PARTS", "main"]

Part = Callable[[], Iterator[Row]]

PARTS: dict[str, tuple[Part, str]] = {
    "lucid-packs": (lucid_schedules.packs, "Lucid's published simulator on its packs P0 and P1, policy by policy"),
    "lucid-tiresias": (lucid_schedules.over_tiresias, "Lucid over Tiresias, claimed to be up to 1.3"),
    "lucid-p0": (lucid_schedules.why_p0, "why Lucid loses to Tiresias on P0"),
    "lucid-packing": (packing.pairs, "pairs free of interference, and chances found: claimed to be 98.1 and 87.0 %"),
    "lucid-share": (packing.share, "the share score's tree, and pairs that were left out of training"),
    "lucid-throughput": (throughput.table7, "the throughput model beside LightGBM, XGBoost, a forest and a network"),
    "lucid-parts": (lucid_parts.minus, "Lucid minus each of its modules, on P0, P1 and months 1 to 5"),
    "lucid-calm": (lucid_parts.shifted_months, "time-aware profiling, and pairs in the calm, where VCs lend"),
    "lucid-few-nodes": (
        muri.lucid_beside_fifo,
        "Lucid beside fifo on eight nodes: what a profiling node costs there",
    ),
    "muri": (muri.traces, "Muri's traces under its policies and its baselines"),
    "muri-ratios": (muri.ratios, "how many times as long as under Muri jobs take under each baseline"),
    "muri-kinds": (muri.kinds, "jobs of one to four kinds"),
    "muri-ablations": (muri.ablations, "Muri without its matching, its ordering, with smaller groups"),
    "pollux-loads": (pollux.loads, "Pollux, Optimus and Tiresias at loads of 0.5 to 2.0 (20 minutes of CPU)"),
    "pollux-intervals": (pollux.intervals, "Pollux planning every 30 s to 8 min (10 minutes of CPU)"),
    "pollux-interference": (
        pollux.interference,
        "jobs on several nodes that slow each other down (10 minutes of CPU)",
    ),
    "optimus": (peers.optimus, "Optimus' headline and its parts"),
    "elastic": (peers.elastic, "the elastic platform beside FCFS and EF"),
    "elastic-parts": (peers.elastic_parts, "the elastic platform without its parts"),
}


def _listed() -> str:
    return "\n\n".join(["Rows:", *(f"\b\n{name:20s}{text}" for name, (_, text) in PARTS.items())])


@click.command(epilog=_listed())
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), metavar="ROWS", help="Repeat it for more.")
@click.option(
    "--keep", "kept", is_flag=True, help="Keep the rows, and write docs/papers.md and docs/papers-peers.md."
)
@click.option("--recorded", "only_recorded", is_flag=True, help="Print the tables that are kept, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Rows as JSON on stdout instead of tables.")
@click.option(
    "--pictures",
    type=click.Path(path_type=Path, file_okay=False),
    help="Draw Lucid's models there (.png), as published.",
)
def main(only: tuple[str, ...], kept: bool, only_recorded: bool, as_json: bool, pictures: Path | None) -> None:
    """Published figures beside ours, row by row. The data of the papers is not shipped: LUCID_SHARED names the folder
    that has it (default ../shared), LUCID_MURI_TRACES and LUCID_POLLUX_WORKLOADS those of the authors' other traces.
    Rows whose data is not there are skipped, and say so. All of them take about an hour of CPU time."""
    if only_recorded:
        print(recorded(only or tuple(PARTS)))
        return
    found: dict[str, list[Row]] = {}
    skipped: dict[str, str] = {}
    names = only or (() if pictures is not None else tuple(PARTS))
    for number, name in enumerate(names, 1):
        part, text = PARTS[name]
        print(f"{number}/{len(names)} {name}: {text}", file=sys.stderr, flush=True)
        began_s = time.perf_counter()
        try:
            found[name] = []
            for row in part():
                found[name].append(row)
                print(f"  {row.what} ({time.perf_counter() - began_s:.0f} s)", file=sys.stderr, flush=True)
        except Absent as error:
            del found[name]
            skipped[name] = str(error)
        if kept and name in found:
            keep(name, found[name])
        if not as_json:
            body = f"skipped: {skipped[name]}\n" if name in skipped else table(found[name])
            print(f"### {name}: {text}\n\n{body}", flush=True)
    if pictures is not None:
        try:
            for path in draw(pictures):
                print(f"written: {path}", file=sys.stderr)
        except Absent as error:
            skipped["pictures"] = str(error)
            print(f"pictures: skipped: {error}", file=sys.stderr)
    if as_json:
        rows = {name: [as_dict(row) for row in group] for name, group in found.items()}
        print(json.dumps({"machine": machine(), "rows": rows, "skipped": skipped}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
