"""A testbed as a site has it before it hears of Lucid, with a network and a wheel of Lucid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from box import Box
from test_install_guide import give_network, make_plain, ports_of

from testbed import cli, tree
from testbed.settings import layout_from

REPO = Path(__file__).resolve().parents[2]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@contextmanager
def plain_slurm(suffix: str) -> Iterator[Box]:
    """Four nodes, vc-a and vc-b, in a testbed of its own."""
    base = os.environ.get("LUCID_TESTBED_NAME", "pytest")
    plain = {"LUCID_TESTBED_NAME": f"{base}-{suffix}", "LUCID_TESTBED_PLUGIN": "0", "LUCID_TESTBED_VARIANT": "bare"}
    layout = layout_from({**os.environ, **plain})
    if reason := cli.unfit(layout):
        pytest.skip(reason)
    with tree.locked(layout.cache / f"{layout.name}.session.lock"):
        tree.build(layout, print)
        cli.down(layout)
        cli.up(layout, print)
        try:
            box = Box(layout.root)
            make_plain(box, ports_of(box))
            give_network(box)
            wheel = subprocess.run(
                [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir",
                 str(box.root / "srv/wheels"), str(REPO)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert wheel.returncode == 0, wheel.stderr
            yield box
        finally:
            if os.environ.get("LUCID_TESTBED_KEEP") != "1":
                cli.down(layout)


def typed(box: Box, line: str, limit_s: float = 300) -> subprocess.CompletedProcess[str]:
    """One line, as root types it."""
    return subprocess.run(
        ["chroot", str(box.root), "sh", "-c", line],
        capture_output=True, text=True, check=False, cwd="/", stdin=subprocess.DEVNULL, timeout=limit_s,
        env={"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/tmp", "COLUMNS": "200"},
    )  # fmt: skip
