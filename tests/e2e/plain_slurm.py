"""A testbed as a site has it before it hears of Lucid, with a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box
from own_testbed import own_testbed

from testbed import cli

REPO = Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/lucid/bin"
"""The last folder has Lucid of this checkout, where ``lucid_tree.put_in`` has brought it."""


@contextmanager
def plain_slurm(suffix: str) -> Iterator[Box]:
    """Four nodes, vc-a and vc-b, in a testbed of its own."""
    with own_testbed(suffix, LUCID_TESTBED_PLUGIN="0", LUCID_TESTBED_VARIANT="bare") as layout:
        cli.up(layout, print)
        box = Box(layout.root)
        make_plain(box)
        give_network(box)
        yield box


def give_wheel(box: Box) -> None:
    """A wheel of Lucid, in /srv/wheels."""
    wheel = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir",
         str(box.root / "srv/wheels"), str(REPO)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert wheel.returncode == 0, wheel.stderr


def typed(box: Box, line: str, limit_s: float = 300) -> subprocess.CompletedProcess[str]:
    """One line, as root types it."""
    return subprocess.run(
        ["chroot", str(box.root), "sh", "-c", line],
        capture_output=True, text=True, check=False, cwd="/", stdin=subprocess.DEVNULL, timeout=limit_s,
        env={"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/tmp", "COLUMNS": "200"},
    )  # fmt: skip


def ports_of(box: Box) -> str:
    """By what the nodes of this machine are told apart."""
    text = "".join(path.read_text() for path in (box.root / "etc/slurm").glob("*slurm.conf"))
    found = re.search(r"NodeHostname=\S+ NodeAddr=\S+ Port=\S+", text)
    assert found
    return found[0]


BARE = "PartitionName=vc-a Nodes=n[1-2] Default=YES\nPartitionName=vc-b Nodes=n[3-4]\n"


def make_plain(box: Box, partitions: str = BARE) -> None:
    """As a site has it before it hears of Lucid: GPUs without addresses or slots, no user and no file of Lucid's."""
    root, etc, ports = box.root, box.root / "etc/slurm", ports_of(box)
    own = (etc / "slurm.conf").read_text().replace("include /etc/slurm/lucid.slurm.conf\n", "")
    (etc / "slurm.conf").write_text(
        own + "GresTypes=gpu\nSelectType=select/cons_tres\nPriorityType=priority/multifactor\n"
        "AccountingStorageTRES=gres/gpu\n"
        f"NodeName=n[1-4] CPUs=16 RealMemory=64000 Gres=gpu:a100:4 {ports}\n" + partitions
    )
    (etc / "gres.conf").write_text("NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia[0-3]\n")
    box.run("sacctmgr", "-i", "delete", "user", "lucid", check=False)
    for name in ("passwd", "group", "shadow"):
        path = root / "etc" / name
        if path.exists():
            kept = [line for line in path.read_text().splitlines(keepends=True) if not line.startswith("lucid:")]
            path.write_text("".join(kept))
    for path in [
        *etc.glob("lucid*"),
        *etc.glob("*.lua"),
        root / "run/lucid",
        *root.glob("etc/systemd/system/lucid*"),
    ]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    stand_in = root / "usr/local/bin/systemctl"
    stand_in.write_text((Path(__file__).parent / "systemctl_stand_in.py").read_text())
    stand_in.chmod(0o755)
    box.run("/usr/local/bin/systemctl", "restart", "slurmctld", "slurmd")
    box.wait("every node", lambda: box.run("sinfo", "-h", "-N", "-t", "idle").stdout.count("\n") == 4)


def give_network(box: Box) -> None:
    """The host's name server and certificates, and apt's lists. A machine that reaches no mirror skips."""
    root = box.root
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    names = root / "etc/nsswitch.conf"
    names.write_text(names.read_text().replace("hosts: files", "hosts: files dns"))
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    # a mirror may hold sid as it was weeks ago
    (root / "etc/apt/apt.conf.d/90old-mirror").write_text('Acquire::Check-Valid-Until "false";\n')
    done = subprocess.run(
        ["chroot", str(root), "sh", "-c", "apt-get update && apt-get install -y ca-certificates"],
        capture_output=True, text=True, check=False, timeout=300,
        env={"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive"},
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"no Debian mirror is reached from the testbed: {done.stderr[-300:]}")
    if certificates.exists():
        shutil.copy(certificates, root / "etc/ssl/certs/ca-certificates.crt")


def slurms_own(box: Box) -> dict[str, bytes | str]:
    """Every file of Slurm's, and what it runs with, but for what tells the time."""
    found: dict[str, bytes | str] = {
        str(path): path.read_bytes() for path in (box.root / "etc/slurm").rglob("*") if path.is_file()
    }
    config = box.run("scontrol", "show", "config").stdout
    volatile = ("Configuration data as of", "BOOT_TIME", "NEXT_JOB_ID")
    found["config"] = "\n".join(line for line in config.splitlines() if not line.startswith(volatile))
    return found
