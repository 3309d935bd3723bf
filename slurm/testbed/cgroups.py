"""Control groups of a testbed, where they are wanted: cores, memory and devices are then constrained for real.

With cgroup/v1 each testbed has a part of the machine's hierarchies of its own (``lucid-NAME``), which it sees as the
whole. cgroup/v2 knows no such part: slurmd reads its own path in /proc, which a mount cannot change. Its groups are
told apart by node names alone, so only one testbed at a time can have them.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from testbed.settings import Layout, TestbedError

__all__ = ["cgroup_conf", "plugins", "prepare", "remove", "unfit"]

_TOP = Path("/sys/fs/cgroup")
_V1 = ("cpuacct", "cpuset", "devices", "freezer", "memory")
_CONSTRAINED = "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"


def plugins(layout: Layout) -> list[str]:
    """Lines of slurm.conf."""
    if layout.cgroup == "none":
        return ["ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/linux"]
    return [
        "ProctrackType=proctrack/cgroup",
        "TaskPlugin=task/cgroup,task/affinity",
        "JobAcctGatherType=jobacct_gather/cgroup",
    ]


def cgroup_conf(layout: Layout, release: str) -> str:
    """The whole of cgroup.conf. Slurm before 24.05 cannot switch control groups off."""
    if layout.cgroup == "none":
        return "" if release < "24.05" else "CgroupPlugin=disabled\n"
    more = "IgnoreSystemd=yes\nEnableControllers=yes\n" if layout.cgroup == "v2" else ""
    return f"CgroupPlugin=cgroup/{layout.cgroup}\nCgroupMountpoint={_TOP}\n{more}{_CONSTRAINED}"


def unfit(
    layout: Layout, mounts: Path = Path("/proc/self/mounts"), own: Path = Path("/proc/self/cgroup")
) -> str | None:
    """Why this machine has not the control groups that the testbed wants, in words; ``None`` where it has."""
    mounted = {tuple(line.split()[1:3]) for line in mounts.read_text().splitlines()}
    if layout.cgroup == "v1":
        lacking = [name for name in _V1 if (str(_TOP / name), "cgroup") not in mounted]
        if lacking:
            return f"LUCID_TESTBED_CGROUP=v1: not mounted below {_TOP}: {', '.join(lacking)}"
    if layout.cgroup == "v2":
        others = [line for line in own.read_text().splitlines() if not line.startswith("0::")]
        if others:
            return (
                "LUCID_TESTBED_CGROUP=v2: this machine mounts cgroup v1, too, and its slurmd ends with "
                f"'fatal: Hybrid mode is not supported' where /proc/self/cgroup has {', '.join(others)}; use v1"
            )
        if (str(_TOP), "cgroup2") not in mounted:
            return f"LUCID_TESTBED_CGROUP=v2: {_TOP} is no mount of cgroup2"
    return None


def prepare(layout: Layout) -> None:
    """Give the testbed its control groups. Its root must be mounted, and ``unfit`` must have found nothing.

    Raises:
        TestbedError: a mount was refused.
    """
    if layout.cgroup != "v1":
        return
    inside = layout.root / "sys/fs/cgroup"
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(inside))
    for name in _V1:
        mine = _mine(layout, name)
        mine.mkdir(exist_ok=True)
        if name == "cpuset":  # a new cpuset is empty, and takes no process
            for file in ("cpuset.cpus", "cpuset.mems"):
                (mine / file).write_text((_TOP / name / file).read_text())
        (inside / name).mkdir()
        _mount("--bind", str(mine), str(inside / name))


def remove(layout: Layout, patience_s: float = 5.0) -> None:
    """Take the testbed's control groups away, after its processes have ended and its mounts are gone.

    Raises:
        TestbedError: some are still in use.
    """
    tops = [_mine(layout, name) for name in _V1]
    tops += [_TOP / "system.slice" / f"{host}_slurmstepd.scope" for host in layout.hosts if layout.cgroup == "v2"]
    until = time.monotonic() + patience_s
    while left := [top for top in tops if top.is_dir() and not _removed(top)]:
        if time.monotonic() > until:
            raise TestbedError(f"control groups are still in use: {', '.join(map(str, left))}")
        time.sleep(0.1)


def _removed(top: Path) -> bool:
    try:
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()
    except OSError:
        return False
    return True


def _mine(layout: Layout, name: str) -> Path:
    return _TOP / name / f"lucid-{layout.name}"


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TestbedError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")
