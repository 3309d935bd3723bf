"""The cached Debian tree with Slurm in it: made once a suite by debootstrap, then shared by every testbed."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import host, source
from testbed.settings import Layout, TestbedError

__all__ = ["PACKAGES", "Say", "apt_mirror", "build", "debootstrap", "locked", "release"]

Say = Callable[[str], None]
"""Where progress is told."""

PACKAGES = (
    "munge",
    "mariadb-server",
    "python3-minimal",
    "lua5.4",
)
"""In every tree."""
_SLURM = (
    "slurm-wlm",
    "slurm-wlm-basic-plugins",
    "slurmdbd",
)
"""Debian's Slurm, where it is not built from source …"""
_HEADERS = ("libslurm-dev", "slurm-wlm-basic-plugins-dev")
"""… and what pyslurm needs of it."""


@contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock on a file; it falls with the process, so a crash leaves none behind.

    Args:
        path: The file; made if absent.
        waiting: Called once if somebody else holds the lock, before waiting for it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def apt_mirror(folder: Path = Path("/etc/apt")) -> str:
    """The Debian mirror that apt is configured with; the public one where it says none."""
    for path in [*sorted((folder / "sources.list.d").glob("*")), folder / "sources.list"]:
        if not path.is_file():
            continue
        found = re.search(
            r"^(?:URIs:|deb)\s(?:\s*\[[^\]]*\])?\s*(https?://\S+/debian)/?(?=\s|$)", path.read_text(), re.M
        )
        if found:
            return found.group(1)
    return "http://deb.debian.org/debian"


def debootstrap() -> str | None:
    """Where debootstrap is, if it is."""
    return shutil.which("debootstrap", path="/usr/sbin:/usr/bin:/sbin:/bin")


def build(layout: Layout, say: Say) -> None:
    """Make the tree unless it is there. An interrupted build leaves only a folder ending in ``.part``.

    Raises:
        TestbedError: debootstrap is missing or failed; with its last lines.
    """
    if layout.tree.is_dir():
        return
    with locked(layout.cache / f"{layout.tree.name}.lock", lambda: say("another build of the tree runs; waiting")):
        if layout.tree.is_dir():
            return
        if (program := debootstrap()) is None:
            raise TestbedError("debootstrap is not installed; as root: apt-get install debootstrap")
        mirror = layout.mirror or apt_mirror()
        part = layout.tree.with_name(layout.tree.name + ".part")
        for point in host.mounts_under(part):  # an interrupted debootstrap leaves /proc there
            subprocess.run(["umount", str(point)], check=True)
        shutil.rmtree(part, ignore_errors=True)
        log = layout.cache / f"{layout.tree.name}.log"
        say(f"debootstrap {layout.suite} from {mirror} into {layout.tree} (once; one to three minutes; {log})")
        wanted = f"--include={','.join(_packages(layout))}"
        command = [program, "--variant=minbase", wanted, layout.suite, str(part), mirror]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
        with log.open("w") as out:
            code = subprocess.run(command, stdout=out, stderr=out, env=environment, check=False).returncode
        if code != 0:
            tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-5:])
            raise TestbedError(
                f"debootstrap of {layout.suite} from {mirror} failed with {code}; its last lines ({log}):\n  {tail}\n"
                "if the mirror does not answer, name another with LUCID_TESTBED_MIRROR"
            )
        if layout.source or layout.pyslurm:
            say(f"building {layout.tree.name} from source (once; ten minutes and more on two cores)")
            with log.open("a") as out:
                source.compile_into(layout, part, out)
        for deb in (part / "var/cache/apt/archives").glob("*.deb"):
            deb.unlink()
        part.rename(layout.tree)


def release(layout: Layout) -> str:
    """Slurm's release in the tree, as ``24.11.5``.

    Raises:
        TestbedError: the tree has no slurmctld that runs.
    """
    command = ["chroot", str(layout.tree), "/usr/sbin/slurmctld", "-V"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/").stdout.split()
    if not said:
        raise TestbedError(f"{layout.tree}: {' '.join(command)} says nothing; remove the tree and make it again")
    return said[-1]


def _packages(layout: Layout) -> list[str]:
    wanted = [*PACKAGES, *(source.SLURM_PACKAGES if layout.source else _SLURM)]
    if layout.pyslurm:
        wanted += [*source.PYSLURM_PACKAGES, *(() if layout.source else _HEADERS)]
    return list(dict.fromkeys(wanted))
