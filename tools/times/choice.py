"""pytest plugin: ``--within CPU_S`` runs as many tests as fit into so much CPU time, for an inner loop.

By the table of times the cheapest test functions come first. Tests that the table does not know yet always run, and
so do all tests of files that differ from the last commit.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest

from times.table import Row, read, test_of

REPO = Path(__file__).resolve().parents[2]


def chosen(
    tests: Sequence[str], known: Mapping[str, Row], within_s: float, changed: Collection[str] = ()
) -> frozenset[str]:
    """Which of the test functions ``tests`` (one entry for each set of parameters) run. All tests of the files
    ``changed`` do."""
    count = Counter(tests)
    always = {name for name in count if name not in known or name.partition("::")[0] in changed}
    cost = {name: known[name].cpu_s / known[name].times * count[name] for name in count.keys() - always}
    left, taken = within_s, set(always)
    for name in sorted(cost, key=lambda name: (cost[name], name)):
        left -= cost[name]
        if left < 0:
            break
        taken.add(name)
    return frozenset(taken)


def changed_files(repo: Path = REPO) -> frozenset[str]:
    """What differs from the last commit, and files that git does not know; nothing where git does not answer."""
    try:
        done = subprocess.run(
            ["git", "status", "--porcelain", "--no-renames", "--untracked-files=all"],
            cwd=repo, capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(line[3:].strip('"') for line in done.stdout.splitlines())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--within", type=float, metavar="CPU_S", help="only the cheapest tests, so many CPU seconds in all"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """After the marks have chosen."""
    within = config.getoption("within")
    if within is None:
        return
    names = [test_of(item.nodeid) for item in items]
    taken = chosen(names, read(), within, changed_files())
    left_out = [item for item, name in zip(items, names, strict=True) if name not in taken]
    items[:] = [item for item, name in zip(items, names, strict=True) if name in taken]
    config.hook.pytest_deselected(items=left_out)
