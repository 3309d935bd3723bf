"""Taking back what ``lucidctl setup`` did: Lucid's jobs first, then files, then users."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from lucid.cli.install.doctor import leave_slurm
from lucid.cli.install.manual_release import RELEASE
from lucid.cli.install.setup_apply import resume_nodes
from lucid.cli.install.setup_machine import Machine
from lucid.cli.install.setup_plan import TOML
from lucid.cli.live.status import live_settings, live_store
from lucid.errors import ConfigError, LucidError
from lucid.slurmconf.journal import Journal, Restore
from lucid.slurmconf.nodes import host_list

__all__ = ["undo_setup"]

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
    """Undo all of it. May be killed and called again.

    Raises:
        ConfigError: a step failed; the message says which. What was undone stays undone.
        ClusterError: jobs are still held; no file was touched.
    """
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
        _let_go(root, machine, say)
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
    """Slurm reads its own files again."""
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


def _let_go(root: Path, machine: Machine, say: Callable[[str], None]) -> None:
    """Every job that Lucid holds, with the proof of ``lucidctl uninstall``; else by lucid-release."""
    try:
        settings = live_settings(root / TOML)
        paused = live_store(settings).settings().get("paused")
        leave_slurm(root / TOML, 60.0, say)
        live_store(settings, write=True).set_setting("paused", paused)
    except LucidError as error:
        say(str(error))
        machine.run(str(RELEASE), "--all")
