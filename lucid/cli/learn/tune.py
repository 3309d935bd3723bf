"""``lucidctl tune``: proposes settings from the cluster's own past, applies them, and takes them back."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

from lucid.cli.console import Table, answer, progress, say, table
from lucid.cli.jobs.queue import live_settings, live_store
from lucid.cli.options import DEFAULT_CONFIG, PATH, Group
from lucid.cli.replay.replay_options import cluster_options, read_scenario
from lucid.core.codec import to_json
from lucid.errors import LucidError
from lucid.explain.formatting import duration
from lucid.simulator.scenario import ReplayOptions, Scenario
from lucid.tuner.page import verdict, write_page
from lucid.tuner.past import floorplan, stored_trace
from lucid.tuner.proposal import Proposal, apply_proposal, load_proposal, rollback, save_proposal, toml_diff
from lucid.tuner.proposal import tune as run_tuning
from lucid.tuner.search import Journal, choose


def scenario_of_store(days: float, asked: ReplayOptions) -> tuple[Scenario, list[str]]:
    """The jobs that ended in the last ``days``, on the nodes that lucidd last saw, unless --vcs or --nodes say
    otherwise, under lucidd's settings.

    Raises:
        ConfigError: the configuration cannot be read, or names no partition.
        StoreError: there is no store.
        TraceError: nothing ended in that time."""
    config = asked.config or Path(os.environ.get("LUCID_CONFIG", DEFAULT_CONFIG))
    store = live_store(live_settings(config))
    trace = stored_trace(store, time.time() - days * 86400.0)
    scenario, notes = read_scenario(trace, replace(asked, config=config), muris_own=False)
    if asked.vcs is not None or asked.nodes is not None:
        return scenario, notes
    view = store.last_view()
    plan = floorplan([] if view is None else list(view.snapshot().partitions.values()))
    lacking = sorted(set(trace.vcs) - set(plan.vcs)) if plan is not None else []
    if plan is None or lacking:
        return scenario, notes
    notes = [note for note in notes if not note.startswith("no --vcs or --nodes")]
    if not plan.alike:
        notes.append(f"nodes differ; all are replayed as the most common: {plan.shape.gpus} GPUs each")
    own = scenario.profiling_nodes
    return replace(
        scenario, vcs=plan.vcs, shape=plan.shape, profiling_nodes=plan.profiling_nodes if own is None else own
    ), notes


class _DefaultGroup(Group):
    """``tune --history …`` runs the search; ``tune apply`` and ``tune rollback`` are commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["search", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DefaultGroup)
def tune() -> None:
    """Search for better settings by replaying the past.

    A change is proposed only if its gain survives on later data. The same search command again continues where
    the search stopped."""


@tune.command()
@click.option(
    "--history",
    required=True,
    metavar="TRACE|30d",
    help="Trace of the past, as sacct lines; or days of lucidd's store.",
)
@click.option("--only", multiple=True, metavar="KEY", help="Setting (or table of settings) to search; repeat.")
@click.option("--trials", type=click.IntRange(min=2), default=60, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), default=None, help="Processes. Default: all cores.")
@click.option("--out", required=True, type=PATH, help="Folder for the journal and the proposal.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def search(
    history: str,
    only: tuple[str, ...],
    trials: int,
    workers: int | None,
    out: Path,
    as_json: bool,
    asked: ReplayOptions,
) -> None:
    """Search settings on the earlier 60 % of the jobs, and judge the best on the rest."""
    dimensions = choose(only)
    scenario = _scenario(history, asked)
    with progress("trying settings") as report:
        count = workers or os.cpu_count() or 1
        proposal = run_tuning(scenario, dimensions, out, trials, asked.seed, count, report)
    write_proposal(out, proposal)
    _tell(proposal, out, as_json)


def _scenario(history: str, asked: ReplayOptions) -> Scenario:
    days = re.fullmatch(r"(\d+(?:\.\d+)?)d", history)
    if days is not None and not Path(history).exists():
        return scenario_of_store(float(days[1]), asked)[0]
    return read_scenario(Path(history), asked, muris_own=False)[0]


def write_proposal(out: Path, proposal: Proposal) -> None:
    """Write the proposal into its folder: JSON, TOML and a page.

    Raises:
        LucidError: it cannot be written."""
    try:
        save_proposal(out / "proposal.json", proposal)
        (out / "proposal.toml").write_text(toml_diff(proposal), encoding="utf-8")
        write_page(out / "proposal.html", proposal, Journal.read(out / "trials.jsonl"))
    except OSError as error:
        raise LucidError(f"{out}: cannot be written ({error.strerror}); give --out another folder") from None


def _tell(proposal: Proposal, out: Path, as_json: bool) -> None:
    data = {"worth_it": proposal.worth_it, "verdict": verdict(proposal), **to_json(proposal)}
    answer(data, as_json, _words(proposal, out), wraps=True)


_COLUMNS = ("", ">now", ">with the change", ">change", ">95 % of resampled days")


def _words(proposal: Proposal, out: Path) -> Iterator[str | Table]:
    yield verdict(proposal)
    if proposal.changes:
        yield f"\n{toml_diff(proposal)}"
    if proposal.evidence is not None:
        rows = (
            (
                c.name,
                duration(c.before_s),
                duration(c.after_s),
                f"{c.relative:+.1%}",
                f"{c.low:+.1%} to {c.high:+.1%}",
            )
            for c in proposal.evidence.changes
        )
        yield table(_COLUMNS, rows, title="On later data")
        for user in proposal.evidence.losers[:3]:
            yield (
                f"loses most: {user.user or '(unnamed)'}, {user.jobs} jobs, average JCT {duration(user.before_s)} -> "
                f"{duration(user.after_s)}"
            )
    yield f"written: {out / 'proposal.html'}"
    if proposal.worth_it:
        yield f"to use it: lucidctl tune apply {out} --config lucid.toml"


@tune.command()
@click.argument("folder", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(folder: Path, as_json: bool) -> None:
    """Show the proposal in FOLDER."""
    proposal = load_proposal(folder / "proposal.json")
    _tell(proposal, folder, as_json)


@tune.command()
@click.argument("folder", type=PATH)
@click.option("--config", required=True, type=PATH, help="The configuration to change.")
@click.option("--even-so", is_flag=True, help="Apply a proposal whose gain did not survive on later data.")
def apply(folder: Path, config: Path, even_so: bool) -> None:
    """Write the proposal in FOLDER into a configuration. The old file is kept beside it."""
    proposal = load_proposal(folder / "proposal.json")
    if not proposal.worth_it and not even_so:
        raise LucidError(f"{folder}: {verdict(proposal)} Give --even-so to apply it all the same")
    kept = apply_proposal(proposal, config)
    say(f"{config}: {len(proposal.changes)} settings changed" + (f"; before: {kept}" if kept else ""))


@tune.command(name="rollback")
@click.option("--config", required=True, type=PATH, help="The configuration to restore.")
def roll_back(config: Path) -> None:
    """Restore the configuration as it was before the last apply."""
    say(f"{config}: restored from {rollback(config)}")
