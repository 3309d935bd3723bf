"""Carries out the plan of ``lucidctl setup``; each step is recorded before it is taken, to be undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lucid.errors import ConfigError
from lucid.places import Mode
from lucid.setup.backup import Journal
from lucid.setup.host_actions import LINK, USER, Machine, program_link
from lucid.setup.nodes import host_list
from lucid.setup.plan import PROFILES, Plan


def apply_plan(
    root: Path,
    machine: Machine,
    journal: Journal,
    plan: Plan,
    before: dict[str, str],
    *,
    drain: bool,
    nodes_have_files: bool,
    say: Callable[[str], None],
) -> bool:
    """Take all steps. A run that was killed is continued by the next one: what is done already is not planned again.

    Args:
        drain: Jobs on nodes whose GPUs change are waited for.
        nodes_have_files: Slurm may be told to read its files: the nodes have them, too.

    Returns:
        Whether all steps were taken; otherwise only files were written, and the nodes need them.

    Raises:
        ConfigError: a step failed; the message says which."""
    if plan.lending.gone:
        machine.leave(plan.lending.gone, say)
    kinds = {kind for kind, _ in plan.steps}
    hosts = plan.hosts if nodes_have_files else []
    machine.check_quiet(hosts, drain=drain)
    journal.begin(plan.mode.value)
    if hosts:
        machine.quiet(journal, hosts, say)
    if "user" in kinds:
        journal.note("user", USER)
        machine.run("useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", USER)
    if "slurm-user" in kinds:
        was = machine.slurm_rights()
        journal.note("slurm-user", USER, was or "")
        words = ["modify", "user", USER, "set"] if was else ["add", "user", USER, "account=root"]
        machine.run("sacctmgr", "--immediate", *words, "adminlevel=Operator")
    if plan.lending.partition:
        journal.note("partition", plan.lending.partition)
    journal.apply(plan.changes)
    for change in plan.changes:
        say(f"wrote {change.path}")
    link = program_link() if "link" in kinds else None
    if link is not None:
        journal.note("link", str(LINK))
        LINK.symlink_to(link)
    if "reconfigure" in kinds or (plan.mode is Mode.PACK and journal.has("drained")):
        for host in plan.hosts:
            journal.note("node", host)
        for key, value in plan.wanted.items():
            if before.get(key) != value:  # else a tool has written it, which takes it back, too
                journal.note("config", key, before.get(key, ""))
        if not nodes_have_files:
            return False
        _reconfigure(machine, journal, plan, say)
    if "daemon" in kinds:
        machine.run("systemctl", "daemon-reload")
        journal.note("unit", "lucidd")
        machine.run("systemctl", "enable", "lucidd")
        machine.run("systemctl", "restart", "lucidd")
    if "folder" in kinds:
        machine.run("install", "--directory", f"--owner={USER}", f"--group={USER}", str(root / PROFILES))
    journal.done()
    return True


def _reconfigure(machine: Machine, journal: Journal, plan: Plan, say: Callable[[str], None]) -> None:
    """Let slurmctld read the written files. If it cannot use them, it gets back its earlier ones: 24.11 ends over a
    plugin that it does not find, and ``scontrol reconfigure`` says nothing."""
    done = machine.tried("scontrol", "reconfigure")
    machine.ran.append("scontrol reconfigure")
    pool = plan.lending
    left = dict(plan.wanted) if done.returncode else machine.in_force(plan.wanted, pool.partition, pool.gone)
    if left:
        why = f": {done.stderr.strip()}" if done.stderr.strip() else ""
        if plan.changes:
            journal.revert(plan.changes)
        else:
            try:
                restores = journal.restores()
            except ConfigError as error:
                raise ConfigError(
                    f"slurmctld could not use the new files, and its log says why{why}. They stay as they are: mend "
                    f"them and start slurmctld, or undo. As to that, {error}"
                ) from None
            journal.undo(restores)
        words = ("scontrol", "reconfigure") if machine.answers() else ("systemctl", "restart", "slurmctld")
        machine.tried(*words)
        machine.ran.append(" ".join(words))
        runs = not machine.in_force({})
        drained = resume_nodes(machine, journal)
        raise ConfigError(
            f"slurmctld could not use the new files, and its log says why{why}. Every file is as it was before"
            + (", and slurmctld runs with them" if runs else "; slurmctld does not run: start it")
            + (f". {host_list(drained)} stay drained until 'lucidctl setup --undo'" if drained else "")
        )
    unfit = machine.unfit_nodes(journal.has("node"))
    if unfit:
        raise ConfigError(
            f"{', '.join(unfit[:5])}: not registered with the new GPUs. Copy /etc/slurm to the node, restart slurmd "
            "there, then run this again; what setup drained stays drained"
        )
    resume_nodes(machine, journal)
    if plan.lending.gone:
        journal.struck("partition", plan.lending.gone)
    say("slurmctld has all of it in force")


def resume_nodes(machine: Machine, journal: Journal) -> list[str]:
    """Resume the nodes that setup drained, and no others. Returns those that stay drained; the journal keeps them."""
    for host in journal.has("drained"):
        if not machine.tried("scontrol", "update", f"NodeName={host}", "State=RESUME").returncode:
            journal.struck("drained", host)
    return journal.has("drained")
