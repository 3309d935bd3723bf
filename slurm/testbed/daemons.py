"""Starts the testbed's daemons in order, and waits until each answers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed import controllers, host, power
from testbed.settings import USERS, Layout, TestbedError

__all__ = [
    "inside",
    "missing",
    "start",
    "start_missing",
    "start_slurmctld",
    "start_slurmd",
    "start_slurmdbd",
    "wait_for",
]

_ACCOUNTS = {"research": ("alice", "bob"), "teaching": ("carol",)}
_QOS = {
    "one-job": ("MaxJobsPerUser=1",),
    "four-gpus": ("GrpTRES=gres/gpu=4,gres/shard=8",),
    "few-queued": ("MaxSubmitJobsPerUser=2",),
}
"""Beside ``normal``, which limits nobody and is everybody's default. What is enforced: docs/testbed.md."""
_CAPPED = "capped"
"""An account that alice and bob may name; all its jobs together get two GPUs."""


def inside(layout: Layout, *command: str, user: str | None = None, check: bool = True) -> str:
    """Run a command in the testbed, without a shell; returns what it printed.

    Raises:
        TestbedError: it failed (unless not ``check``); with its output.
    """
    done = subprocess.run(
        [*_prefix(layout, user), *command],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env=_environment(user),
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    if check and done.returncode != 0:
        raise TestbedError(f"{' '.join(command)}: {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def start(layout: Layout, say: Callable[[str], None]) -> None:
    """Start everything. The testbed's root must be mounted, and its configuration written."""
    _start_munged(layout)
    if layout.accounting:
        _start_mariadbd(layout)
        start_slurmdbd(layout)
        _manage(layout, "add", "cluster", "testbed")
    start_slurmctld(layout)
    if layout.accounting:
        _add_accounts(layout)
        if layout.controllers:
            _learn_accounts(layout)
    for node in layout.awake:
        start_slurmd(layout, node)
    if layout.suspend_s:
        _spawn(layout, "powerd", power.POWERD)
    limit_s = 60 + 0.3 * len(layout.hosts)
    wait_for("every node", lambda: _idle_nodes(layout) == len(layout.awake), _log(layout, "slurmctld"), limit_s)
    say(f"slurm {inside(layout, 'sinfo', '--version').split()[-1]}, {len(layout.awake)} nodes idle")


def missing(layout: Layout) -> list[str]:
    """Daemons of the testbed that do not run, by the names of their logs, in the order in which they are started."""
    wanted = ["munged", *(["mariadbd", "slurmdbd"] if layout.accounting else [])]
    wanted += [f"slurmctld.{name}" for name in layout.controllers] or ["slurmctld"]
    wanted += [f"slurmd.{node}" for node in layout.awake]
    running = set()
    for pid, name in host.processes_in(layout.root).items():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
        except OSError:
            continue
        if name == "slurmd" and "-N" in words[:-1]:
            name = f"slurmd.{words[words.index('-N') + 1]}"
        elif name == "slurmctld" and layout.controllers:
            name = f"slurmctld.{controllers.of_process(layout, pid)}"
        running.add(name)
    return [name for name in wanted if name not in running]


def start_missing(layout: Layout) -> list[str]:
    """Start what of the testbed's daemons does not run; returns their names, as ``missing`` has them."""
    gone = missing(layout)
    for name in gone:
        kind, _, node = name.partition(".")
        match kind:
            case "munged":
                _start_munged(layout)
            case "mariadbd":
                _start_mariadbd(layout)
            case "slurmdbd":
                start_slurmdbd(layout)
            case "slurmctld":
                start_slurmctld(layout, node)
            case "slurmd":
                start_slurmd(layout, node)
    return gone


def start_slurmctld(layout: Layout, name: str = "") -> None:
    """Start slurmctld, also after it was ended on purpose, and wait until it answers. Where there are two hosts for
    it: that of host *name*, which is switched on if it is off; or of both."""
    for controller in [name] if name else layout.controllers:
        controllers.power_on(layout, controller)
        before = controllers.command(layout, controller)
        _spawn(layout, f"slurmctld.{controller}", "/usr/sbin/slurmctld", "-D", user="slurm", before=before)
    if not layout.controllers:
        _spawn(layout, "slurmctld", "/usr/sbin/slurmctld", "-D", user="slurm")
    wait_for("slurmctld", lambda: _works(layout, "scontrol", "ping"), _log(layout, "slurmctld"))


def start_slurmd(layout: Layout, node: str) -> None:
    """Start the slurmd of one node, also after it was ended on purpose. It registers by itself."""
    _spawn(layout, f"slurmd.{node}", "/usr/sbin/slurmd", "-D", "-N", node)


def start_slurmdbd(layout: Layout) -> None:
    """Start slurmdbd, also after it was ended on purpose, and wait until it answers."""
    _spawn(layout, "slurmdbd", "/usr/sbin/slurmdbd", "-D", user="slurm")
    wait_for("slurmdbd", lambda: _works(layout, "sacctmgr", "-n", "show", "cluster"), _log(layout, "slurmdbd"))


def wait_for(what: str, ready: Callable[[], bool], log: Path, limit_s: float = 60.0) -> None:
    """Ask every tenth of a second until *ready*.

    Raises:
        TestbedError: it was not within ``limit_s``, with the last lines of the log.
    """
    until = time.monotonic() + limit_s
    while not ready():
        if time.monotonic() > until:
            lines = log.read_text(errors="replace").splitlines()[-8:] if log.is_file() else ["(no log)"]
            raise TestbedError(f"{what} did not come up in {limit_s:g} s; {log} ends:\n  " + "\n  ".join(lines))
        time.sleep(0.1)


def _start_munged(layout: Layout) -> None:
    _spawn(layout, "munged", "/usr/sbin/munged", "--foreground", user="munge")
    wait_for("munged", lambda: _works(layout, "munge", "-n"), _log(layout, "munged"))


def _start_mariadbd(layout: Layout) -> None:
    _spawn(layout, "mariadbd", "/usr/sbin/mariadbd", "--user=mysql")
    sql = (
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db; CREATE USER IF NOT EXISTS slurm@localhost "
        "IDENTIFIED VIA unix_socket; GRANT ALL ON slurm_acct_db.* TO slurm@localhost"
    )
    wait_for("mariadbd", lambda: _works(layout, "mariadb", "-e", sql), _log(layout, "mariadbd"))


def _add_accounts(layout: Layout) -> None:
    for account, users in _ACCOUNTS.items():
        _manage(layout, "add", "account", account, "Cluster=testbed")
        _manage(layout, "add", "user", ",".join(users), f"Account={account}", "Cluster=testbed")
    _manage(layout, "add", "user", "lucid", "Account=root", "Cluster=testbed", "AdminLevel=Operator")
    if not layout.enforced:
        return
    for qos, limits in _QOS.items():
        _manage(layout, "add", "qos", qos, *limits)
    _manage(layout, "add", "account", _CAPPED, "Cluster=testbed", "GrpTRES=gres/gpu=2,gres/shard=2")
    _manage(layout, "add", "user", "alice,bob", f"Account={_CAPPED}", "Cluster=testbed")
    _manage(layout, "modify", "account", ",".join((*_ACCOUNTS, _CAPPED)), "set", f"QosLevel+={','.join(_QOS)}")


def _learn_accounts(layout: Layout) -> None:
    """slurmdbd tells its news to the address that slurmctld's connection comes from, which on loopback is not the one
    that a slurmctld of two listens on: it is started anew, and reads all of it."""
    inside(layout, "scontrol", "shutdown", "controller", check=False)
    wait_for("its end", lambda: not any(_runs(layout, name) for name in layout.controllers), _log(layout, "slurmdbd"))
    start_slurmctld(layout)


def _runs(layout: Layout, controller: str) -> bool:
    return f"slurmctld.{controller}" not in missing(layout)


def _manage(layout: Layout, *arguments: str) -> None:
    # sacctmgr exits 1 where there is nothing left to do, too; what is missing shows in the listing afterwards.
    inside(layout, "sacctmgr", "-i", "-Q", *arguments, check=False)


def _idle_nodes(layout: Layout) -> int:
    return inside(layout, "sinfo", "-h", "-N", "-o", "%N %t", check=False).count(" idle\n")


def _works(layout: Layout, *command: str) -> bool:
    done = subprocess.run([*_prefix(layout, None), *command], capture_output=True, check=False, cwd="/", timeout=30)
    return done.returncode == 0


def _spawn(layout: Layout, name: str, *command: str, user: str | None = None, before: Sequence[str] = ()) -> None:
    with _log(layout, name).open("ab") as log:
        # A session of its own and init for a parent: it outlives this command, and leaves nobody a zombie.
        subprocess.run(
            ["setsid", "--fork", *before, *_prefix(layout, user), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_environment(user),
            check=True,
        )


def _prefix(layout: Layout, user: str | None) -> list[str]:
    return ["chroot", *([f"--userspec={user}"] if user else []), str(layout.root)]


def _environment(user: str | None) -> dict[str, str]:
    home = f"/home/{user}" if user in USERS else "/root"
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "LC_ALL": "C.UTF-8"}


def _log(layout: Layout, name: str) -> Path:
    folder = layout.home / "log"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    return folder / f"{name}.log"
