"""pytest plugin: what each test and each fixture took, a line of JSON for each, in the folder LUCID_TEST_TIMES.

CPU time is this process's and that of the children it waited for; a daemon that a test leaves behind is not in it.
Each process of pytest-xdist writes a file of its own.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = "LUCID_TEST_TIMES"


def _now() -> tuple[float, float]:
    """CPU seconds and seconds of the clock so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in used), time.monotonic()


class Times:
    """One process's notebook."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._file = (folder / f"{name}-{os.getpid()}.jsonl").open("w", encoding="utf-8")
        self._in_fixtures: list[list[float]] = []

    def _write(self, kind: str, name: str, cpu: float, wall: float) -> None:
        self._file.write(json.dumps([kind, name, round(cpu, 4), round(wall, 4)]) + "\n")
        self._file.flush()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """A test with all its fixtures, as long as it takes from its begin to the next one's."""
        cpu, wall = _now()
        self._in_fixtures.append([0.0, 0.0])
        done = yield
        spent_cpu, spent_wall = _now()
        self._in_fixtures.pop()
        self._write("test", item.nodeid, spent_cpu - cpu, spent_wall - wall)
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        """A fixture without those that it asks for itself."""
        cpu, wall = _now()
        self._in_fixtures.append([0.0, 0.0])
        done = yield
        spent_cpu, spent_wall = _now()
        inner_cpu, inner_wall = self._in_fixtures.pop()
        whole_cpu, whole_wall = spent_cpu - cpu, spent_wall - wall
        if self._in_fixtures:
            self._in_fixtures[-1][0] += whole_cpu
            self._in_fixtures[-1][1] += whole_wall
        name = f"{fixturedef.baseid}::{fixturedef.argname}"
        self._write("fixture", name, whole_cpu - inner_cpu, whole_wall - inner_wall)
        return done


def pytest_configure(config: pytest.Config) -> None:
    """Only the processes that run tests."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if runs_tests and (folder := os.environ.get(FOLDER)):
        config.pluginmanager.register(Times(Path(folder)))
