"""A cached tree with what Slurm's tests need beside Slurm; the suite's own tree stays as it is."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from box import Box
from plain_slurm import PATH, give_network

from testbed import tree
from testbed.settings import Layout, TestbedError

__all__ = ["with_needs"]

_PACKAGES = (
    "expect", "python3", "python3-pytest", "python3-requests", "sudo", "gcc", "libc6-dev", "libslurm-dev", "make",
    "procps", "bc", "file", "jq", "iproute2", "perl", "bsdextrautils", "psmisc",
)  # fmt: skip


def with_needs(layout: Layout, say: tree.Say) -> Layout:
    """The layout over a copy of its tree in which these packages are. It is made once.

    Raises:
        TestbedError: it cannot be made here.
    """
    digest = hashlib.sha256(" ".join(_PACKAGES).encode()).hexdigest()[:8]
    wanted = replace(layout, built=f"{layout.built}-slurm-suite-{digest}")
    tree.build(layout, say)
    with tree.locked(layout.cache / f"{wanted.tree.name}.lock", lambda: say("another run makes the tree; waiting")):
        if not wanted.tree.is_dir():
            part = wanted.tree.with_name(f"{wanted.tree.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            say(f"{part.name}: expect and others beside Slurm (once; one to three minutes)")
            subprocess.run(["cp", "-a", "--reflink=auto", layout.tree, part], check=True)
            try:
                give_network(Box(part))
            except pytest.skip.Exception as unreached:
                raise TestbedError(str(unreached)) from None
            _install(part)
            part.rename(wanted.tree)
    return wanted


def _install(part: Path) -> None:
    (part / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # a package starts no service here
    (part / "usr/sbin/policy-rc.d").chmod(0o755)
    words = ["apt-get", "install", "--yes", "-qq", "--no-install-recommends", *_PACKAGES]
    done = subprocess.run(
        ["chroot", str(part), *words], capture_output=True, text=True, check=False, cwd="/", timeout=1200,
        stdin=subprocess.DEVNULL, env={"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    if done.returncode:
        raise TestbedError(f"{' '.join(words[:3])} …: {(done.stderr or done.stdout)[-500:]}")
    for deb in (part / "var/cache/apt/archives").glob("*.deb"):
        deb.unlink()
    shutil.rmtree(part / "var/lib/apt/lists")
    (part / "etc/sudoers.d/slurm-suite").write_text("alice ALL=(ALL:ALL) NOPASSWD: ALL\n")
    (part / "etc/sudoers.d/slurm-suite").chmod(0o440)
