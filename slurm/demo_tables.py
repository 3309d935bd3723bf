"""What ``make demo-slurm`` prints of its two runs."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from demo_realism import Realism, RealTimes
from demo_stream import GPUS_PER_NODE, NODES, Piece
from lucid.explain.formatting import duration

__all__ = ["Played", "as_data", "commands", "described", "figures", "show"]


@dataclass(frozen=True)
class Played:
    """One run of the stream. ``ids``: number in the stream by Slurm's number; ``real``: by number in the stream,
    seconds since the stream began; ``requeued``: how often, by Slurm's number."""

    ids: dict[str, str]
    real: dict[str, RealTimes]
    requeued: dict[str, int]

    def jct_s(self, pieces: list[Piece], n: str) -> float:
        """From its time in the stream to its end."""
        return self.real[n].end_s - pieces[int(n) - 1].at_s


def described(pieces: list[Piece]) -> str:
    """What the stream asks of the cluster."""
    gpus = NODES * GPUS_PER_NODE
    work = sum(piece.work_s * piece.program.gpus for piece in pieces)
    return (
        f"{len(pieces)} jobs of three users, who submit nine programs again and again: {work / gpus:.0f} s of work "
        f"for all {gpus} emulated GPUs, submitted within {pieces[-1].at_s:.0f} s; a job takes "
        f"{statistics.mean(piece.work_s for piece in pieces):.0f} s by itself"
    )


def figures(pieces: list[Piece], played: Played) -> dict[str, float]:
    """Times in seconds."""
    jct = {n: played.jct_s(pieces, n) for n in played.real}
    users = sorted({piece.user for piece in pieces})
    return {
        "avg JCT": statistics.mean(jct.values()),
        "median JCT": statistics.median(jct.values()),
        "p90 JCT": sorted(jct.values())[int(0.9 * len(jct))],
        "makespan": max(times.end_s for times in played.real.values()),
        **{
            f"avg JCT of {user}": statistics.mean(jct[n] for n in jct if pieces[int(n) - 1].user == user)
            for user in users
        },
    }


def as_data(
    pieces: list[Piece], plain: Played, packed: Played, beside: dict[str, str], compared: list[Realism]
) -> dict[str, Any]:
    """All figures for ``--json``."""
    return {
        "plain": figures(pieces, plain),
        "lucid": figures(pieces, packed),
        "guests": len(beside),
        "requeued": sum(count > 0 for count in packed.requeued.values()),
        "predictions": {one.policy: one.figures for one in compared},
    }


def show(console: Console, pieces: list[Piece], plain: Played, packed: Played, beside: dict[str, str]) -> None:
    """The two runs beside each other."""
    before, after = figures(pieces, plain), figures(pieces, packed)
    table = Table(title="the same stream, s")
    for column in ("", "plain Slurm", "Lucid (pack)", "Lucid / plain"):
        table.add_column(column, justify="left" if not column else "right")
    for name, value in before.items():
        table.add_row(name, f"{value:.0f}", f"{after[name]:.0f}", f"{after[name] / value:.2f}")
    console.print(table)
    jobs = Table(title="how it went, a job in six")
    for column in ("job", "user", "name", "GPUs", "alone", "plain: JCT", "Lucid: JCT", "started beside"):
        jobs.add_column(column)
    for number, n in sorted(packed.ids.items(), key=lambda item: int(item[1]))[::6]:
        piece = pieces[int(n) - 1]
        spans = [duration(piece.work_s), *(duration(run.jct_s(pieces, n)) for run in (plain, packed))]
        jobs.add_row(number, piece.user, piece.program.name, str(piece.program.gpus), *spans, beside.get(number, ""))
    console.print(jobs)
    requeued = sum(count > 0 for count in packed.requeued.values())
    console.print(
        f"{len(beside)} jobs started beside another; {requeued} were requeued after a profiling run; the others "
        "ended in it, carried on there, were too large for it, or were known from an earlier run",
        highlight=False,
    )


def commands(out: Path, told: str) -> str:
    """What to type to look on."""
    replay = (
        f"lucidctl simulate {out}/trace.csv --vcs {out}/vcs.csv --gpus-per-node {GPUS_PER_NODE} --profiling-nodes 1 "
        f"--config {out}/replay.toml --policy backfill --policy lucid --as-live"
    )
    look = f"lucidctl explain {told or 1} --config {out}/lucid.toml      # and: lucidctl history"
    return f"look on:\n  {replay}\n  {look}"
