"""``lucidctl setup``: brings a running Slurm to a mode of Lucid, and with ``--undo`` takes all of it back."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import answer, say
from lucid.cli.jobs.queue import live_settings, live_store
from lucid.cli.site.doctor import diagnose, findings_words, leave_slurm
from lucid.errors import ConfigError, LucidError
from lucid.places import Mode
from lucid.setup.apply import apply_plan, resume_nodes
from lucid.setup.backup import Journal, Restore
from lucid.setup.conf_text import diff_of
from lucid.setup.host_actions import RELEASE, Machine, see_running
from lucid.setup.install import programs_here
from lucid.setup.neighbours import check_unnamed
from lucid.setup.nodes import host_list
from lucid.setup.plan import TOML, Options, Plan, make_plan
from lucid.setup.site import Site
from lucid.setup.site_scripts import CHOICES
from lucid.text import shown

_STATE = ("/var/lib/lucid", "/run/lucid", "/run/lucid-web", "/run/lucid-mps", "/run/lucid-turns", "/etc/lucid")


def undo_setup(
    root: Path,
    machine: Machine,
    journal: Journal,
    restores: Sequence[Restore],
    *,
    purge: bool,
    drain: bool,
    say: Callable[[str], None],
) -> None:
    """Undo the setup: Lucid's jobs first, then files, then users. May be killed and called again.

    Raises: ConfigError: a step failed; the message says which. What was undone stays undone. ClusterError: jobs are
    still held; no file was touched."""
    hosts = journal.has("node")
    machine.check_quiet(hosts, drain=drain)
    for partition in journal.has("partition"):
        machine.check_left(partition, drain=drain)
    if hosts:
        machine.quiet(journal, hosts, say)
    if journal.has("unit"):
        for unit in ("lucid-release.timer", "lucid-web", "lucid-sampler"):
            machine.tried("systemctl", "disable", "--now", unit)
        machine.run("systemctl", "disable", "--now", "lucidd")
        _release_jobs(root, machine, say)
        journal.struck("unit", "lucidd")
    for partition in journal.has("partition"):
        machine.leave(partition, say)
    journal.undo(restores)
    for restore in restores:
        say(f"{'removed' if restore.content is None else 'restored'} {restore.path}")
    _reconfigure(machine, journal)
    if root == Path("/"):
        machine.run("systemctl", "daemon-reload")
    for name, was in journal.made_of("slurm-user"):
        level = machine.slurm_rights()
        if level and was:
            machine.run("sacctmgr", "--immediate", "modify", "user", name, "set", f"adminlevel={was}")
        elif level:
            machine.run("sacctmgr", "--immediate", "delete", "user", name)
        journal.struck("slurm-user", name)
    if purge:
        for name in journal.has("link"):
            Path(name).unlink(missing_ok=True)
            journal.struck("link", name)
        for name in journal.has("user"):
            if machine.has_user():
                machine.run("userdel", name)
            journal.struck("user", name)
        for folder in _STATE:
            if Path(folder) != root / "etc/lucid":
                shutil.rmtree(root / folder.lstrip("/"), ignore_errors=True)
    journal.remove_folders()
    journal.forget(purge=purge)
    if purge:
        shutil.rmtree(root / "etc/lucid", ignore_errors=True)


def _reconfigure(machine: Machine, journal: Journal) -> None:
    wanted = dict(journal.made_of("config"))
    if not wanted and not journal.has("node"):
        _resume(machine, journal)
        return
    machine.run("scontrol", "reconfigure")
    left = machine.in_force(wanted, gone=next(iter(journal.has("partition")), ""))
    unfit = [] if left else machine.unfit_nodes(journal.has("node"))
    if left or unfit:
        says = ", ".join(f"{key} is not {value or '(null)'}" for key, value in left.items()) or ", ".join(unfit)
        raise ConfigError(
            f"Slurm does not run with its former files yet ({says}). Give every node its /etc/slurm back, restart "
            "slurmctld and slurmd, then run this again"
        )
    _resume(machine, journal)
    for kind in ("config", "node", "partition"):
        for name in journal.has(kind):
            journal.struck(kind, name)


def _resume(machine: Machine, journal: Journal) -> None:
    drained = resume_nodes(machine, journal)
    if drained:
        raise ConfigError(
            f"{host_list(drained)}: slurmctld does not resume them. See that it answers, then run this again"
        )


def _release_jobs(root: Path, machine: Machine, say: Callable[[str], None]) -> None:
    """Release every job that Lucid holds, with the proof of ``lucidctl uninstall``; else by lucid-release."""
    try:
        settings = live_settings(root / TOML)
        paused = live_store(settings).settings().get("paused")
        leave_slurm(root / TOML, 60.0, say)
        live_store(settings, write=True).set_setting("paused", paused)
    except LucidError as error:
        say(str(error))
        machine.run(str(RELEASE), "--all")


_ROOT = Path("/")


@click.command()
@click.option("--mode", type=click.Choice([mode.value for mode in Mode]), help="What Lucid is to do there.")
@click.option("--partitions", metavar="NAME,…", help="The partitions.  [default: for observe, all that have GPUs]")
@click.option("--profiling", default="", metavar="NAME", help="pack: a partition in which new jobs are measured.")
@click.option("--gpu-mem", "gpu_mem", multiple=True, metavar="MODEL=MIB", help="pack: memory of a GPU model.")
@click.option(
    "--past", "past_days", type=click.IntRange(min=0), metavar="DAYS",
    help="Days of jobs that lucidd reads from sacct at its first start, for its estimates.  [default: 7]",
)  # fmt: skip
@click.option(
    "--drain", is_flag=True, help="pack: let no job start on nodes whose GPUs change, and wait for those there."
)
@click.option(
    "--lending", type=click.Choice(["borrow", "off"]),
    help="pack: make the pool in which VCs lend each other idle GPUs, or take it away.",
)  # fmt: skip
@click.option(
    "--slots", type=click.IntRange(2, 8), metavar="N",
    help="pack: jobs that may share a GPU, 4 for groups of Muri.  [default: 2, or as it is]",
)  # fmt: skip
@click.option(
    "--site-script", "site_scripts", multiple=True, metavar="SCRIPT=WHEN",
    help="pack: when a Prolog or Epilog of yours runs: first-last (job of a GPU), not-guests or always.",
)  # fmt: skip
@click.option("--nodes-have-files", is_flag=True, help="pack: the nodes see this /etc/slurm, or have a copy of it.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@click.option("--dry-run", is_flag=True, help="Show the changes, and change nothing.")
@click.option("--undo", is_flag=True, help="Take back everything that setup has changed (see below).")
@click.option("--purge", is_flag=True, help="With --undo: also lucid.toml, the state and the user.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Never asks.")
def setup(
    mode: str | None,
    partitions: str | None,
    profiling: str,
    gpu_mem: tuple[str, ...],
    past_days: int | None,
    drain: bool,
    lending: str | None,
    slots: int | None,
    site_scripts: tuple[str, ...],
    nodes_have_files: bool,
    yes: bool,
    dry_run: bool,
    undo: bool,
    purge: bool,
    as_json: bool,
) -> None:
    """Bring Lucid onto this Slurm, or take it away again. Run it as root on slurmctld's host.

    Every change is shown as a diff before it is made. A second run changes nothing. What was changed is recorded in
    /etc/lucid/setup, with a copy of each file as it was.

    With --undo, all of it is taken back, and every job released. lucidctl pause only stops Lucid for a while, and
    lucidctl uninstall only releases the jobs."""
    asks = not (yes or dry_run or as_json) and sys.stdin.isatty() and sys.stdout.isatty()
    tell = _silent if as_json else say
    if purge and not undo:
        raise ConfigError("--purge belongs to --undo")
    journal = Journal.read(_ROOT)
    machine = Machine()
    if undo:
        _undo(journal, machine, purge=purge, drain=drain, yes=yes, dry_run=dry_run, asks=asks, as_json=as_json)
        return
    running = see_running()
    chosen, names = _what(running, mode, partitions, asks)
    if lending and chosen is not Mode.PACK:
        raise ConfigError(f"--lending {lending} belongs to --mode pack: only there does Lucid choose a job's nodes")
    if slots and chosen is not Mode.PACK:
        raise ConfigError(f"--slots {slots} belongs to --mode pack: only there do jobs share GPUs")
    scripts = dict(map(_choice, site_scripts))
    if scripts and chosen is not Mode.PACK:
        raise ConfigError("--site-script belongs to --mode pack: only there do jobs share GPUs")
    memory, made = dict(map(_memory, gpu_mem)), tuple(journal.has("partition"))
    options = Options(
        chosen, tuple(names), profiling, memory, past_days, lending or "", made, slots, journal.lost(), scripts
    )  # fmt: skip
    plan = make_plan(_ROOT, machine, running, options, programs_here(_ROOT))
    told = _plan_data(plan, journal, drain)
    for words in _plan_words(plan, running):
        tell(words)
    if plan.refused:
        _end(told, as_json, changed=False)
        raise SystemExit(1)
    if dry_run:
        tell("--dry-run: nothing was changed")
        _end(told, as_json, changed=False)
        return
    if not told["pending"]:
        tell(f"nothing to do: {', '.join(names)} {'is' if len(names) == 1 else 'are'} set up to {chosen.value}")
    else:
        _sure(yes, asks, "Make these changes?")
        if asks and chosen is Mode.PACK and not nodes_have_files:
            nodes_have_files = click.confirm("Do all nodes and submit hosts see this /etc/slurm (shared, or copied)?")

        def carry_out(plan: Plan, running: Site) -> bool:
            return apply_plan(
                _ROOT, machine, journal, plan, dict(running.config),
                drain=drain, nodes_have_files=nodes_have_files, say=tell,
            )  # fmt: skip

        try:
            with journal.locked():
                whole = carry_out(plan, running)
                if whole and plan.lending.again:
                    if drain:
                        machine.leave(plan.lending.partition, tell)
                    running = see_running()
                    plan = make_plan(_ROOT, machine, running, options, programs_here(_ROOT))
                    whole = _end_lending(plan, tell) or carry_out(plan, running)
        finally:
            for ran in machine.ran:
                tell(f"ran {ran}")
        if not whole:
            tell(
                "the files are written, and Slurm does not use them yet. Copy /etc/slurm to every node and submit "
                "host, then run the same again with --nodes-have-files"
            )
            _end({**told, "waits_for_nodes": True}, as_json, changed=True)
            return
    findings = diagnose(live_settings(_ROOT / TOML))
    _end({**told, "findings": [found.to_dict() for found in findings]}, as_json, changed=told["pending"])
    for words in findings_words(findings):
        tell(words)
    if any(found.level == "bad" for found in findings):
        raise SystemExit(1)


def _what(running: Site, mode: str | None, partitions: str | None, asks: bool) -> tuple[Mode, list[str]]:
    """The mode and the partitions, asked for where they are not given."""
    have = running.with_gpus
    if not have:
        raise ConfigError(
            "Slurm knows no GPU (Gres=gpu:… in slurm.conf, GresTypes=gpu), so that Lucid has nothing to do"
        )
    if asks and mode is None:
        for name, nodes in have.items():
            gpus = sum(len(node.gpu_types) for node in nodes)
            say(f"  {shown(name)}: {len(nodes)} nodes, {gpus} GPUs")
        mode = click.prompt("Mode", type=click.Choice([mode.value for mode in Mode]), default=Mode.OBSERVE.value)
    if mode is None:
        raise ConfigError("say --mode observe, order or pack; observe changes nothing of Slurm")
    if asks and partitions is None:
        partitions = click.prompt("Partitions", default=",".join(have))
    if partitions is not None:
        return Mode(mode), [name.strip() for name in partitions.split(",") if name.strip()]
    if mode != Mode.OBSERVE.value:
        raise ConfigError(f"--mode {mode} needs --partitions; with GPUs there are {', '.join(have)}")
    return Mode(mode), list(have)


def _plan_data(plan: Plan, journal: Journal, drain: bool) -> dict[str, Any]:
    return {
        "pending": not plan.empty or journal.state in ("applying", "undoing") or (plan.lending.again and drain),
        "node_files": [{"path": path, "mode": mode} for path, mode in plan.node_files],
        "mode": plan.mode.value,
        "partitions": list(plan.partitions),
        "files": [{"path": str(c.path), "new": c.before is None, "diff": diff_of([c])} for c in plan.changes],
        "steps": [words for _, words in plan.steps],
        "notes": plan.notes,
        "refused": [{"what": refusal.what, "remedy": refusal.remedy} for refusal in plan.refused],
    }


def _end_lending(plan: Plan, tell: Callable[[str], None]) -> bool:
    """Say what is planned once lucidd lends no more. Returns whether the pool's partition has to stay for now."""
    if plan.lending.gone:
        tell(diff_of(plan.changes))
    else:
        for note in plan.notes:
            tell(f"note: {note}")
    return not plan.lending.gone


def _plan_words(plan: Plan, running: Site) -> Iterator[str]:
    db = running.config.get("AccountingStorageType") or "no accounting"
    yield f"Slurm {running.version[0]}.{running.version[1]:02}, {running.conf}, {db}"
    for name, nodes in running.with_gpus.items():
        mark = f" -> {plan.mode.value}" if name in plan.partitions else ""
        yield f"  {shown(name)}: {len(nodes)} nodes with {sum(len(node.gpu_types) for node in nodes)} GPUs{mark}"
    for change in plan.changes:
        if change.shipped and change.before is None:
            yield f"new: {change.path}, as shipped"
    if diff := diff_of(c for c in plan.changes if c.before is not None or not c.shipped):
        yield diff.removesuffix("\n")
    yield from (f"note: {note}" for note in plan.notes)
    yield from (f"then: {words}" for _, words in plan.steps)
    yield from (f"refused: {refusal.what}\n      -> {refusal.remedy}" for refusal in plan.refused)


def _sure(yes: bool, asks: bool, question: str) -> None:
    if not yes and not (asks and click.confirm(question)):
        raise ConfigError("nothing was changed; say --yes to do it")


def _memory(text: str) -> tuple[str, int]:
    model, _, mib = text.partition("=")
    if not model or not mib.isdecimal():
        raise ConfigError(f"--gpu-mem {text!r}: write MODEL=MIB, for example a100=40960")
    return model, int(mib)


def _choice(text: str) -> tuple[str, str]:
    script, _, choice = text.rpartition("=")
    if not script.startswith("/") or choice not in CHOICES:
        raise ConfigError(f"--site-script {text!r}: write SCRIPT=WHEN, and one of {', '.join(CHOICES)} for WHEN")
    return script, choice


def _silent(_words: str) -> None:
    """Print nothing: with --json only JSON goes to stdout."""


def _undo(
    journal: Journal,
    machine: Machine,
    *,
    purge: bool,
    drain: bool,
    yes: bool,
    dry_run: bool,
    asks: bool,
    as_json: bool,
) -> None:
    if journal.state == "none" or (journal.state == "undone" and not purge):
        told: dict[str, Any] = {"pending": False, "undone": []}
        _end(told, as_json, changed=False, words="nothing to undo: setup has changed nothing here")
        return
    restores = journal.restores(purge=purge)
    check_unnamed(_ROOT, restores)
    lines = [f"{'remove ' if r.content is None else 'restore'}  {r.path}" for r in restores]
    told, tell = {"pending": True, "undone": lines}, _silent if as_json else say
    tell("\n".join(lines) or "no file is to be restored")
    if dry_run:
        _end(told, as_json, changed=False, words="--dry-run: nothing was changed")
        return
    _sure(yes, asks, "Undo all of it?")
    try:
        with journal.locked():
            undo_setup(_ROOT, machine, journal, restores, purge=purge, drain=drain, say=tell)
    finally:
        for ran in machine.ran:
            tell(f"ran {ran}")
    stays = "" if purge else "; lucid.toml and /var/lib/lucid stay (--undo --purge removes them)"
    _end(told, as_json, changed=True, words=f"undone{stays}")


def _end(told: dict[str, Any], as_json: bool, *, changed: bool, words: str = "") -> None:
    answer({**told, "changed": changed}, as_json, [words] if words else ())
