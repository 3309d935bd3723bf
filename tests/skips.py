"""pytest plugin: with LUCID_SKIPS=online or offline, as ``.ci/run`` sets it, each skip is printed with its reason and
what allows it, and one that nothing in ``skips.toml`` allows makes the run fail."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest

NAME = "LUCID_SKIPS"
TABLE = Path(__file__).with_suffix(".toml")


def allowed_by(reason: str, how: str) -> str | None:
    """Why a skip is allowed; ``None`` where it is not. ``how``: what LUCID_SKIPS is."""
    for row in tomllib.loads(TABLE.read_text(encoding="utf-8"))["allowed"]:
        if re.search(row["reason"], reason) and (how == "offline" or not row.get("offline")):
            return str(row["why"])
    return None


class _Skips:
    """Of the process that prints: under pytest-xdist its workers' reports come by here."""

    def __init__(self, how: str) -> None:
        self._how = how
        self._seen: dict[str, tuple[str, int]] = {}

    def pytest_runtest_logreport(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            first, times = self._seen.get(reason, (report.nodeid, 0))
            self._seen[reason] = first, times + 1

    pytest_collectreport = pytest_runtest_logreport

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus in (0, pytest.ExitCode.NO_TESTS_COLLECTED) and any(
            allowed_by(reason, self._how) is None for reason in self._seen
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"skips ({NAME}={self._how})")
        for reason, (first, times) in sorted(self._seen.items()):
            why = allowed_by(reason, self._how)
            verdict = f"NOT ALLOWED by {TABLE.name}" if why is None else f"allowed: {why}"
            terminalreporter.line(f"{times} of {first}: {reason}: {verdict}")


def pytest_configure(config: pytest.Config) -> None:
    """Workers of pytest-xdist print nothing."""
    how = os.environ.get(NAME)
    if how and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Skips(how))
