"""pytest plugin: which tests of ``make test`` judge mutants (LUCID_MUTANTS=1, as ``make mutants`` sets it).

All but those that start processes: mutmut runs the tests that were seen to reach a function, and sees its own process
only.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

_PROCESSES = frozenset(["subprocess", "multiprocessing", "tracked"])
_BY_OTHERS = frozenset(["test_grafana", "test_lucid_turns", "test_lucid_turns_hostile", "test_model_timer"])
"""Modules that start processes by something they import."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    if os.environ.get("LUCID_MUTANTS") != "1":
        return
    left_out = [item for item in items if _starts_processes(item)]
    items[:] = [item for item in items if not _starts_processes(item)]
    config.hook.pytest_deselected(items=left_out)


def _starts_processes(item: pytest.Function) -> bool:
    return item.path.stem in _BY_OTHERS or bool(_PROCESSES & _reached(item.path, item.originalname))


@cache
def _reached(path: Path, test: str) -> frozenset[str]:
    """Names in a test, in what it names of its module, its fixtures there included, and so on."""
    uses, seen, left = _uses(path), {test}, [test]
    while left:
        more = uses.get(left.pop(), frozenset()) - seen
        seen |= more
        left += more
    return frozenset(seen)


@cache
def _uses(path: Path) -> Mapping[str, frozenset[str]]:
    """By function, class or constant of a module, the names in it."""
    found = {}
    for node in ast.parse(path.read_bytes()).body:
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        names |= {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
        defined = [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else names
        found |= {name: frozenset(names) | found.get(name, frozenset()) for name in defined}
    return found
