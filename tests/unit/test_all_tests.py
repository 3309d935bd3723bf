"""The tests as a whole: pytest can collect all of them at once, and none is skipped unseen by ``.ci/run``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import skips

TESTS = Path(__file__).parents[1]


def test_no_two_files_of_tests_have_one_name() -> None:
    """Folders of tests are no packages: pytest imports a file by its bare name, and refuses the second of a name."""
    count = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, times in count.items() if times > 1] == []


@pytest.mark.parametrize(
    ("reason", "online", "offline"),
    [
        ("no muri*.json in /shared/vectors (set LUCID_VECTORS)", True, True),
        ("torch is not installed", True, True),
        ("no pyslurm in this testbed: LUCID_TESTBED_PYSLURM (docs/testbed.md)", True, True),
        ("the testbed needs root (chroot, mount, mknod): run it as root", True, True),
        ("only root can be somebody else", True, True),
        ("no browser: /usr/bin/chromium is not installed (apt install chromium)", False, True),
        ("no Prometheus: apt-get install prometheus", False, True),
        ("/var/tree is not there yet and debootstrap is not installed: apt-get install debootstrap", False, True),
        ("could not import 'interpret': No module named 'interpret'", False, False),
        ("unconditional skip", False, False),
    ],
)
def test_what_may_be_skipped(reason: str, online: bool, offline: bool) -> None:
    assert (skips.allowed_by(reason, "online") is not None) is online
    assert (skips.allowed_by(reason, "offline") is not None) is offline
