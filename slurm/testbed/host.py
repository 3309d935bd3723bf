"""Mounts, devices and processes of one testbed, on the machine it runs on."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

from testbed.settings import Layout, TestbedError

__all__ = ["mount", "mounts_under", "processes_in", "stop", "unmount"]

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_NVIDIA = 195


def mounts_under(folder: Path) -> list[Path]:
    """Mount points at or below *folder*, the last mounted first."""
    points = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(line.split(" ")[4].encode().decode("unicode_escape"))
        if point == folder or folder in point.parents:
            points.append(point)
    return points[::-1]


def processes_in(root: Path) -> dict[int, str]:
    """Processes whose root folder is *root*, by id, with their names: exactly those that chroot started there.
    Debian's ``slurmctld-wlm`` is ``slurmctld``: which of both a process is called hangs on how it was started."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if (entry / "root").readlink() == root:
                found[int(entry.name)] = (entry / "comm").read_text().strip().removesuffix("-wlm")
        except OSError:
            continue
    return found


def stop(root: Path, patience_s: float = 5.0) -> list[str]:
    """End every process of the testbed, by id: politely, then not. Returns the names of those ended."""
    ended: list[str] = []
    for sign, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 10.0)):
        until = time.monotonic() + limit_s
        signalled: set[int] = set()
        while (left := processes_in(root)) and time.monotonic() < until:
            for pid, name in left.items():
                if pid in signalled:
                    continue
                signalled.add(pid)
                ended.append(name)
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)
        if not left:
            break
    if left:
        raise TestbedError(f"processes of the testbed cannot be ended: {left}")
    return ended


def mount(layout: Layout) -> None:
    """Lay this testbed's own view over the cached tree, with its own /dev (fake GPUs), /run, /tmp and /proc.

    Devices stand on a file system of the testbed's own: nothing appears in the machine's /dev.
    """
    root, home = layout.root, layout.home
    for folder in (root, home / "upper", home / "work"):
        folder.mkdir(parents=True, exist_ok=True)
    overlay = f"lowerdir={layout.tree},upperdir={home / 'upper'},workdir={home / 'work'}"
    if _mount("-t", "overlay", "-o", overlay, "overlay", str(root)) != 0:
        # No overlay in this kernel, or the cache itself lies on one: a copy serves as well, only slower to make.
        root.rmdir()
        subprocess.run(["cp", "-a", "--reflink=auto", str(layout.tree), str(root)], check=True)
        _must("--bind", str(root), str(root))
    _must("-t", "proc", "proc", str(root / "proc"))
    _must("--rbind", "-o", "ro", "/sys", str(root / "sys"))
    _must("--make-rslave", str(root / "sys"))
    _must("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(root / "run"))
    _must("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(root / "dev"))
    for name, (major, minor) in _DEVICES.items():
        _device(root / "dev" / name, major, minor)
    # Nodes of one machine share their devices; no two processes of the testbed ever open one.
    gpus = {node.device.replace("{}", str(number)): number for node in layout.nodes for number in range(node.gpus)}
    for path, number in gpus.items():
        _device(root / path.lstrip("/"), _NVIDIA, number)
    for link, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (root / "dev" / link).symlink_to(target)
    (root / "dev/ptmx").symlink_to("pts/ptmx")
    for name, options in (("pts", ("devpts", "newinstance,ptmxmode=666")), ("shm", ("tmpfs", "mode=1777"))):
        (root / "dev" / name).mkdir()
        _must("-t", options[0], "-o", options[1], options[0], str(root / "dev" / name))


def unmount(layout: Layout) -> None:
    """Take every mount of the testbed away, then its files. The cached tree stays.

    Raises:
        TestbedError: something is still mounted; nothing was removed.
    """
    for point in mounts_under(layout.home):
        if subprocess.run(["umount", str(point)], capture_output=True, check=False).returncode != 0:
            subprocess.run(["umount", "-l", str(point)], capture_output=True, check=False)
    if left := mounts_under(layout.home):
        raise TestbedError(f"still mounted: {', '.join(map(str, left))}; leave those folders and try again")
    if layout.home.exists():
        shutil.rmtree(layout.home)


def _mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode


def _must(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


def _device(path: Path, major: int, minor: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    path.chmod(0o666)
