"""``lucidctl tune``: propose settings from the cluster's own past, apply them, take them back."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from lucid.cli.console import stdout_console
from lucid.cli.progress import progress
from lucid.cli.render import duration
from lucid.cli.scenario import read_scenario
from lucid.errors import LucidError
from lucid.tuner.page import verdict, write_page
from lucid.tuner.proposal import Proposal, apply_proposal, load_proposal, rollback, save_proposal, toml_diff
from lucid.tuner.search import Journal
from lucid.tuner.space import choose
from lucid.tuner.tune import tune as run_tuning

__all__ = ["tune"]


class _DefaultGroup(click.Group):
    """``tune --history …`` runs the search; ``tune apply`` and ``tune rollback`` are commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["search", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DefaultGroup)
def tune() -> None:
    """Replay the past under other settings and propose a change where the gain survives on later data.

    lucidctl tune --history TRACE --out DIR   search (the same command again goes on where it stopped);
    lucidctl tune apply DIR --config FILE     write the proposal into a configuration;
    lucidctl tune rollback --config FILE      take the last one back.
    """


@tune.command()
@click.option(
    "--history", required=True, type=click.Path(path_type=Path), help="Trace of the past, e.g. sacct lines."
)
@click.option("--format", "fmt", metavar="NAME", help="Format of the trace, where its first lines do not tell.")
@click.option("--vcs", type=click.Path(path_type=Path), help="CSV of 'VC,nodes'; else VCs are sized to the trace.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes in all, shared out by the VCs' GPU-hours.")
@click.option("--gpus-per-node", type=click.IntRange(1, 64), default=8, show_default=True)
@click.option("--gpu-mem-mib", type=click.IntRange(min=1), default=24576, show_default=True)
@click.option("--pairs", type=click.Path(path_type=Path), help="CSV of measured pairs: the true interference.")
@click.option("--estimates", type=click.Path(path_type=Path), help="CSV of estimated durations; else history means.")
@click.option("--workloads", type=click.Choice(["trace", "synthetic"]), default="trace", show_default=True)
@click.option("--config", type=click.Path(path_type=Path), help="Present settings. Default: Lucid's defaults.")
@click.option("--only", multiple=True, metavar="KEY", help="Setting (or table of settings) to search; repeat.")
@click.option("--trials", type=click.IntRange(min=2), default=60, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=None, help="Processes. Default: all cores.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--skip-bad", is_flag=True, help="Leave bad rows of the trace out.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the journal and the proposal."
)
@click.option("--json", "as_json", is_flag=True)
def search(
    history: Path,
    fmt: str | None,
    vcs: Path | None,
    nodes: int | None,
    gpus_per_node: int,
    gpu_mem_mib: int,
    pairs: Path | None,
    estimates: Path | None,
    workloads: str,
    config: Path | None,
    only: tuple[str, ...],
    trials: int,
    workers: int | None,
    seed: int,
    skip_bad: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Search settings on the earlier 60 % of the jobs, judge the best on the rest."""
    dimensions = choose(only)
    scenario, _ = read_scenario(
        history,
        fmt,
        vcs,
        nodes,
        gpus_per_node,
        gpu_mem_mib,
        cpus_per_node=0,
        mem_mib_per_node=0,
        profiling_nodes=None,
        estimate_specs=(str(estimates),) if estimates else (),
        predictor="history",
        pairs=pairs,
        profiles=None,
        workloads=workloads,
        seed=seed,
        config=config,
        semantics=None,
        skip_bad=skip_bad,
        muris_own=False,
    )
    with progress("trying settings") as report:
        proposal = run_tuning(scenario, dimensions, out, trials, seed, workers or os.cpu_count() or 1, report)
    try:
        save_proposal(out / "proposal.json", proposal)
        (out / "proposal.toml").write_text(toml_diff(proposal), encoding="utf-8")
        write_page(out / "proposal.html", proposal, Journal.read(out / "trials.jsonl"))
    except OSError as error:
        raise LucidError(f"{out}: cannot be written ({error.strerror}); give --out another folder") from None
    if as_json:
        data = {"worth_it": proposal.worth_it, "verdict": verdict(proposal), **asdict(proposal)}
        click.echo(json.dumps(data, indent=1))
    else:
        _print(proposal, out)


def _print(proposal: Proposal, out: Path) -> None:
    console = stdout_console()
    console.print(verdict(proposal), highlight=False)
    if proposal.changes:
        console.print("\n" + toml_diff(proposal), highlight=False, markup=False)
    if proposal.evidence is not None:
        table = Table(title="On later data")
        for column in ("", "now", "with the change", "change", "95 % of resampled days"):
            table.add_column(column, justify="right" if column else "left")
        for c in proposal.evidence.changes:
            table.add_row(
                c.name,
                duration(c.before_s),
                duration(c.after_s),
                f"{c.relative:+.1%}",
                f"{c.low:+.1%} to {c.high:+.1%}",
            )
        console.print(table)
        for user in proposal.evidence.losers[:3]:
            console.print(
                f"loses most: {user.user or '(unnamed)'}, {user.jobs} jobs, average JCT {duration(user.before_s)} -> "
                f"{duration(user.after_s)}",
                highlight=False,
            )
    console.print(f"written: {out / 'proposal.html'}", highlight=False)
    if proposal.worth_it:
        console.print(f"to use it: lucidctl tune apply {out} --config lucid.toml", highlight=False)


@tune.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--config", required=True, type=click.Path(path_type=Path), help="The configuration to change.")
@click.option("--even-so", is_flag=True, help="Apply a proposal whose gain did not survive on later data.")
def apply(folder: Path, config: Path, even_so: bool) -> None:
    """Write the proposal of FOLDER into a configuration; the old file is kept beside it."""
    proposal = load_proposal(folder / "proposal.json")
    if not proposal.worth_it and not even_so:
        raise LucidError(f"{folder}: {verdict(proposal)} Give --even-so to apply it all the same")
    kept = apply_proposal(proposal, config)
    click.echo(f"{config}: {len(proposal.changes)} settings changed" + (f"; before: {kept}" if kept else ""))


@tune.command(name="rollback")
@click.option("--config", required=True, type=click.Path(path_type=Path), help="The configuration to restore.")
def roll_back(config: Path) -> None:
    """Put back the configuration of before the last apply."""
    click.echo(f"{config}: restored from {rollback(config)}")
