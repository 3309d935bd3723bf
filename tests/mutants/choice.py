"""pytest plugin: which tests of ``make test`` judge mutants (LUCID_MUTANTS=1, as ``make mutants`` sets it).

All but those of modules that start processes: mutmut runs the tests that were seen to reach a function, and sees its
own process only.
"""

from __future__ import annotations

import os

import pytest

_PROCESSES = frozenset(["subprocess", "multiprocessing"])
_BY_OTHERS = frozenset(["test_grafana", "test_lucid_turns", "test_lucid_turns_hostile", "test_model_timer"])
"""Modules that start processes by something they import."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    if os.environ.get("LUCID_MUTANTS") != "1":
        return
    left_out = [item for item in items if _starts_processes(item)]
    items[:] = [item for item in items if not _starts_processes(item)]
    config.hook.pytest_deselected(items=left_out)


def _starts_processes(item: pytest.Function) -> bool:
    return bool(_PROCESSES & vars(item.module).keys()) or item.path.stem in _BY_OTHERS
