"""The testbed itself: comes up beside another, survives a crash, and leaves no trace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from box import Box

from lucid.setup.install import check_installation
from testbed import cli, host
from testbed.settings import TestbedError, layout_from

PROGRAM = Path(cli.__file__).parent


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        capture_output=True, text=True, check=False, env={**os.environ, **environ}, timeout=300,
    )  # fmt: skip


def test_a_second_testbed_comes_up_again_after_a_crash_and_leaves_no_trace(testbed: Box) -> None:
    small = {
        "LUCID_TESTBED_NAME": f"{os.environ.get('LUCID_TESTBED_NAME', 'pytest')[:20]}-second",
        "LUCID_TESTBED_NODES": "m1:gpus=2,cpus=4,mem=8000",
        "LUCID_TESTBED_PARTITIONS": "only=m1",
        "LUCID_TESTBED_ACCOUNTING": "0",
        "LUCID_TESTBED_PLUGIN": "0",
    }
    layout = layout_from({**os.environ, **small})
    try:
        first = run("up", "--json", **small)
        assert first.returncode == 0, first.stderr
        described = json.loads(first.stdout)
        assert described["partitions"] == {"only": "m1"}
        assert "is up already" in run("up", **small).stderr
        box = Box(layout.root)
        assert "lua" not in box.run("scontrol", "show", "config").stdout
        for pid, name in host.processes_in(layout.root).items():
            if name in ("slurmctld", "slurmd"):
                os.kill(pid, signal.SIGKILL)
        again = run("up", **small)
        assert (again.returncode, "clearing what an earlier run left" in again.stderr) == (0, True)
        assert box.run("sinfo", "-h", "-o", "%t").stdout == "idle\n"
    finally:
        done = run("down", **small)
    assert "ended" in done.stdout
    assert host.processes_in(layout.root) == {}
    assert host.mounts_under(layout.home) == []
    assert not layout.home.exists()
    assert layout.tree.is_dir()
    assert "is not up" in run("down", **small).stdout
    assert run("status", **small).returncode == 1


def test_what_it_writes_passes_the_check_of_an_installation_and_gpus_are_seen_inside_only(testbed: Box) -> None:
    assert [finding for finding in check_installation(testbed.root) if not finding.ok] == []
    outside = set(Path("/dev").glob("nvidia*"))
    assert (testbed.root / "dev/nvidia3").is_char_device()
    assert set(Path("/dev").glob("nvidia*")) == outside


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("LUCID_TESTBED_NAME", "../x", "small letters"),
        ("LUCID_TESTBED_SUITE", "a b", "small letters"),
        ("LUCID_TESTBED_PORT", "80", "number from 1024"),
        ("LUCID_TESTBED_NODES", "n[1-2001]:gpus=1", "more than"),
        ("LUCID_TESTBED_VARIANT", "sites", "two-prof"),
        ("LUCID_TESTBED_CGROUP", "v3", "none, v1 or v2"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(setting: str, value: str, says: str) -> None:
    with pytest.raises(TestbedError, match=says):
        layout_from({setting: value})
