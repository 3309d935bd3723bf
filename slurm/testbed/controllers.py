"""Two hosts for slurmctld on one machine (``LUCID_TESTBED_VARIANT=ha``): each has a hostname, an address on loopback
and a ``/run/slurm`` of its own. Everything else is shared, as a StateSaveLocation on a file server is.

A host is a UTS and a mount namespace, held open by one process that sleeps. Whatever was started by ``command``
belongs to it, also what runs outside of the testbed's root (lucidd), and dies with it in ``power_off``.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

from testbed import host
from testbed.settings import Layout, TestbedError

__all__ = ["address", "command", "is_up", "of_process", "power_off", "power_on", "run_folder"]

_NAME = "LUCID_TESTBED_HOST"


def address(layout: Layout, name: str) -> str:
    """Where the slurmctld of this host listens. Testbeds differ by their ports."""
    return f"127.0.1.{layout.controllers.index(name) + 1}"


def run_folder(layout: Layout, name: str) -> Path:
    """What this host sees as ``/run/slurm``: two slurmctld cannot share a file of their process id."""
    return layout.root / f"run/slurm.{name}"


def is_up(layout: Layout, name: str) -> bool:
    """Has it been switched on?"""
    return _holder(layout, name) is not None


def power_on(layout: Layout, name: str) -> None:
    """Switch a host on: nothing runs on it yet. One that is on stays as it is.

    Raises:
        TestbedError: this machine allows no such namespaces.
    """
    if is_up(layout, name):
        return
    run = shlex.quote(str(layout.root / "run/slurm"))
    script = (
        f"hostname {name} && mount --bind {shlex.quote(str(run_folder(layout, name)))} {run} && "
        f"exec chroot {shlex.quote(str(layout.root))} sleep infinity"
    )
    subprocess.run(
        ["setsid", "--fork", "unshare", "--uts", "--mount", "sh", "-c", script],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", check=True,
        env={**os.environ, _NAME: name},
    )  # fmt: skip
    until = time.monotonic() + 10
    while not is_up(layout, name):
        if time.monotonic() > until:
            raise TestbedError(f"no host {name}: unshare --uts --mount does not work here")
        time.sleep(0.02)


def command(layout: Layout, name: str) -> list[str]:
    """Words that run a command on this host, before it.

    Raises:
        TestbedError: it is switched off.
    """
    holder = _holder(layout, name)
    if holder is None:
        raise TestbedError(f"host {name} is switched off")
    return ["nsenter", f"--target={holder}", "--uts", "--mount"]


def power_off(layout: Layout, name: str) -> int:
    """Kill everything on this host at once, as a loss of power does; returns how many processes that were."""
    holder = _holder(layout, name)
    if holder is None:
        return 0
    space, ended = _uts(holder), 0
    until = time.monotonic() + 10
    while (left := [pid for pid in _all() if _uts(pid) == space]) and time.monotonic() < until:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                ended += 1
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    return ended


def of_process(layout: Layout, pid: int) -> str:
    """The host on which a process runs; empty where it is none of the layout's."""
    space = _uts(pid)
    found = ((name, _holder(layout, name)) for name in layout.controllers)
    return next((name for name, holder in found if holder is not None and _uts(holder) == space), "")


def _holder(layout: Layout, name: str) -> int | None:
    for pid, what in host.processes_in(layout.root).items():
        if what != "sleep":
            continue
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{_NAME}={name}".encode() in words and _uts(pid) != _uts(os.getpid()):
            return pid
    return None


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _uts(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/uts").readlink())
    except OSError:
        return ""
