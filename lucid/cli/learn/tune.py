"""``lucidctl tune``: propose settings from the cluster's own past, apply them, take them back."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lucid.adapters.slurm.clients.job_array import array_left, submit_array
from lucid.atomic import write_atomic
from lucid.cli.console import Table, say, stdout_console
from lucid.cli.learn.past_jobs import scenario_of_log, scenario_of_store
from lucid.cli.live.status import told_live
from lucid.cli.options import Group, config_option
from lucid.cli.progress import progress
from lucid.cli.replay.replay_options import cluster_options
from lucid.errors import ConfigError, LucidError
from lucid.explain.quantities import duration
from lucid.live.learning.tuner_reports import latest_report
from lucid.simulator.scenario import Scenario
from lucid.tuner.page import verdict, write_page
from lucid.tuner.proposal import Proposal, apply_proposal, load_proposal, rollback, save_proposal, toml_diff
from lucid.tuner.search import Journal
from lucid.tuner.space import Dimension, choose
from lucid.tuner.spread import Spread, gather, load_spread, run_element, save_spread, short_elements
from lucid.tuner.tune import tune as run_tuning

__all__ = ["tune", "write_proposal"]


class _DefaultGroup(Group):
    """``tune --history …`` runs the search; ``tune apply`` and ``tune rollback`` are commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["search", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DefaultGroup)
def tune() -> None:
    """Search for better settings by replaying the past, and propose a change.

    A change is proposed only if its gain survives on later data. The same search command again continues where
    the search stopped.
    """


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
@click.option(
    "--slurm",
    "elements",
    type=click.IntRange(1, 1000),
    help="Share the search out as a job array of so many.",
)
@click.option("--sbatch", "sbatch", default="", metavar="OPTIONS", help="With --slurm: more options for sbatch.")
@click.option("--on-node", metavar="COMMAND", help="With --slurm: what runs lucidctl there. Default: this Python.")
@click.option("--wait", is_flag=True, help="With --slurm: stay until the array is done, then judge.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the journal and the proposal."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_options
def search(
    history: str,
    only: tuple[str, ...],
    trials: int,
    workers: int | None,
    elements: int | None,
    sbatch: str,
    on_node: str | None,
    wait: bool,
    out: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Search settings on the earlier 60 % of the jobs, and judge the best on the rest.

    With --slurm, the same command again shows how far the job array is, submits lost trials again, and judges when
    all trials are there. This machine and the nodes must share the folder --out.
    """
    dimensions = choose(only)
    if elements is None:
        scenario = _scenario(history, options)
    else:
        asked = {"history": history, "only": list(only), **{k: str(v) for k, v in options.items()}}
        wanted = (elements, trials, options["seed"])
        spread = _spread(out, asked, wanted, dimensions, lambda: _scenario(history, options))
        if not _run_array(out, spread, shlex.split(sbatch), _on_node(on_node), wait):
            return
        scenario, trials = spread.scenario, spread.trials
    with progress("trying settings") as report:
        count = workers or os.cpu_count() or 1
        proposal = run_tuning(scenario, dimensions, out, trials, options["seed"], count, report)
    write_proposal(out, proposal)
    if as_json:
        say(_as_json(proposal))
    else:
        _print(proposal, out)


def _scenario(history: str, options: dict[str, Any]) -> Scenario:
    days = re.fullmatch(r"(\d+(?:\.\d+)?)d", history)
    if days is not None and not Path(history).exists():
        return scenario_of_store(float(days[1]), options)[0]
    return scenario_of_log(Path(history), options)[0]


def write_proposal(out: Path, proposal: Proposal) -> None:
    """Write the proposal into its folder: JSON, TOML and a page.

    Raises:
        LucidError: it cannot be written.
    """
    try:
        save_proposal(out / "proposal.json", proposal)
        (out / "proposal.toml").write_text(toml_diff(proposal), encoding="utf-8")
        write_page(out / "proposal.html", proposal, Journal.read(out / "trials.jsonl"))
        summary = {"worth_it": proposal.worth_it, "verdict": verdict(proposal)}
        (out / "summary.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")  # last: all is there then
    except OSError as error:
        raise LucidError(f"{out}: cannot be written ({error.strerror}); give --out another folder") from None


def _spread(
    out: Path,
    asked: dict[str, Any],
    wanted: tuple[int, int, int],
    dimensions: tuple[Dimension, ...],
    scenario: Callable[[], Scenario],
) -> Spread:
    """The search in the folder, made if there is none: the past of a store goes on while an array runs."""
    found, (elements, trials, seed) = load_spread(out), wanted
    if found is None:
        found = Spread(scenario(), dimensions, trials, elements, seed, asked)
        save_spread(out, found)
    elif (found.asked, found.elements, found.trials, found.seed) != (asked, elements, trials, seed):
        raise ConfigError(
            f"{out} holds another search ({found.trials} trials in {found.elements} elements of "
            f"{found.asked['history']}); give the same options, or --out a new folder"
        )
    return found


def _on_node(given: str | None) -> list[str]:
    return shlex.split(given) if given else [sys.executable, "-m", "lucid.cli.main"]


@tune.command(hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("number", type=click.IntRange(min=0))
def element(folder: Path, number: int) -> None:
    """Run the trials of one element of a search with --slurm. The job array runs this command."""
    workers = int(os.environ.get("SLURM_CPUS_PER_TASK") or 1)
    say(f"element {number}: {run_element(folder, number, workers)} trials")


def _as_json(proposal: Proposal) -> str:
    return json.dumps({"worth_it": proposal.worth_it, "verdict": verdict(proposal), **asdict(proposal)}, indent=1)


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
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(folder: Path | None, config: Path, as_json: bool) -> None:
    """Show the proposal in FOLDER. Without FOLDER: lucidd's latest report (tuner.every_h)."""
    if folder is None:
        report = latest_report(told_live(config))
        if report is None:
            raise ConfigError("lucidd has no report of the tuner yet; tuner.every_h says how often it makes one")
        folder = report[0]
    proposal = load_proposal(folder / "proposal.json")
    if as_json:
        say(_as_json(proposal))
    else:
        _print(proposal, folder)


@tune.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--config", required=True, type=click.Path(path_type=Path), help="The configuration to change.")
@click.option("--even-so", is_flag=True, help="Apply a proposal whose gain did not survive on later data.")
def apply(folder: Path, config: Path, even_so: bool) -> None:
    """Write the proposal in FOLDER into a configuration. The old file is kept beside it."""
    proposal = load_proposal(folder / "proposal.json")
    if not proposal.worth_it and not even_so:
        raise LucidError(f"{folder}: {verdict(proposal)} Give --even-so to apply it all the same")
    kept = apply_proposal(proposal, config)
    say(f"{config}: {len(proposal.changes)} settings changed" + (f"; before: {kept}" if kept else ""))


@tune.command(name="rollback")
@click.option("--config", required=True, type=click.Path(path_type=Path), help="The configuration to restore.")
def roll_back(config: Path) -> None:
    """Restore the configuration as it was before the last apply."""
    say(f"{config}: restored from {rollback(config)}")


# ``lucidctl tune --slurm``: a search as a job array, looked after over several calls of the same command.


_LOOK_S = 5.0
_JOB = "array.json"


def _run_array(folder: Path, spread: Spread, options: Sequence[str], on_node: Sequence[str], wait: bool) -> bool:
    """See to it that all trials get done. True once they are there, and gathered for the judgement.

    Raises:
        ClusterError: sbatch or squeue does not answer, or refuses.
        LucidError: an array that was waited for ended without all of its trials.
    """
    prefix = spread.scenario.settings.slurm.prefix
    left = short_elements(folder, spread)
    job_id = _known(folder)
    if left and not (job_id and array_left(prefix, job_id)):
        command = [*on_node, "tune", "element", str(folder.resolve())]
        job_id = submit_array(prefix, sorted(left), command, options, str(folder.resolve() / "element-%a.log"))
        write_atomic(folder / _JOB, json.dumps({"job_id": job_id}).encode())
        say(f"job array {job_id}: {len(left)} elements for {sum(left.values())} trials", err=True)
    if left and wait:
        with progress("waiting for the array") as report:
            while array_left(prefix, job_id):
                report(spread.trials - sum(short_elements(folder, spread).values()), spread.trials)
                time.sleep(_LOOK_S)
        left = short_elements(folder, spread)
        if left:
            lost = ", ".join(map(str, left))
            raise LucidError(
                f"job array {job_id} is over, and {sum(left.values())} trials of elements {lost} are missing; look "
                f"at {folder / 'element-*.log'}, then give the same command again"
            )
    if left:
        done = spread.trials - sum(left.values())
        say(f"{done} of {spread.trials} trials done; the same command again judges once all are", err=True)
        return False
    gather(folder, spread)
    return True


def _known(folder: Path) -> str:
    path = folder / _JOB
    return str(json.loads(path.read_text())["job_id"]) if path.exists() else ""
