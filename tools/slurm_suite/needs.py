"""A cached tree with what Slurm's tests need beside Slurm; the suite's own tree stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from testbeds import grown

from testbed.settings import Layout, TestbedError

_PACKAGES = (
    "expect", "python3", "python3-pytest", "python3-requests", "sudo", "gcc", "libc6-dev", "libslurm-dev", "make",
    "procps", "bc", "file", "jq", "iproute2", "perl", "bsdextrautils", "psmisc",
)  # fmt: skip


def with_needs(layout: Layout) -> Layout:
    """The layout over a copy of its tree in which these packages are. It is made once.

    Raises:
        TestbedError: it cannot be made here.
    """
    try:
        return grown(layout, "slurm-suite", _PACKAGES, _PACKAGES, _sudo)
    except pytest.skip.Exception as unreached:
        raise TestbedError(str(unreached)) from None


def _sudo(part: Path) -> None:
    (part / "etc/sudoers.d/slurm-suite").write_text("alice ALL=(ALL:ALL) NOPASSWD: ALL\n")
    (part / "etc/sudoers.d/slurm-suite").chmod(0o440)
