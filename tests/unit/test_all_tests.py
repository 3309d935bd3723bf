"""The tests as a whole: pytest can collect all of them at once, and none is skipped unseen by ``.ci/run``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import skips

pytest_plugins = ["pytester"]

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


def test_a_skip_that_nothing_allows_fails_the_run_and_all_are_told(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\n")
    pytester.makepyfile(
        test_one="import pytest\npytest.skip('set LUCID_SHARED', allow_module_level=True)",
        test_two="""
            import pytest
            @pytest.mark.parametrize("n", [1, 2])
            def test_two(n): pytest.skip("a bad day")
            def test_three(): pass
        """,
    )
    monkeypatch.delenv(skips.NAME, raising=False)
    assert pytester.runpytest("-p", "skips").ret == 0, "make test is as it was"
    monkeypatch.setenv(skips.NAME, "online")
    told = pytester.runpytest("-p", "skips", "-p", "xdist", "-n", "1")
    assert told.ret == 1
    told.stdout.fnmatch_lines(
        [
            "2 of test_two.py::test_two?1?: a bad day: NOT ALLOWED by skips.toml",
            "1 of test_one.py: set LUCID_SHARED: allowed: ../shared is no part of the repository",
        ]
    )
    assert pytester.runpytest("-p", "skips", "test_one.py").ret == pytest.ExitCode.NO_TESTS_COLLECTED
