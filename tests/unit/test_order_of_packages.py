"""Packages import in one order, without circles, and take no private names. docs/architecture.md shows the order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import lucid

ROOT = Path(lucid.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ORDER = (
    "errors", "files text untrusted places", "config html left_out", "core accounting", "binder profiler", "models",
    "orchestrator", "node", "store", "simulator slurm", "tuner", "daemon", "explain", "setup", "cli", "api web",
)  # fmt: skip
"""Of the packages and files of lucid/: each imports from those before it. Those of one word import no neighbour."""
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names.split()}
DECIDES = {"core", "binder", "orchestrator", "profiler"}
MACHINE = {
    "pyslurm", "pynvml", "subprocess", "socket", "sqlite3", "apscheduler", "click", "rich", "sklearn", "interpret",
    "pandas", "time", "random",
}  # fmt: skip
HEAVY = {"numpy", "scipy", "pandas", "sklearn", "interpret", "matplotlib", "click", "rich", "jinja2"}
"""What the sampler, which runs beside jobs, never loads."""


def module(path: Path) -> str:
    return ".".join(("lucid", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module(path) for path in FILES}


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Each import, wherever it stands in the file: the module, and the name that is taken of it."""

    def found() -> Iterator[tuple[str, str]]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)

    return tuple((f"{of}.{name}", "") if f"{of}.{name}" in MODULES else (of, name) for of, name in found())


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


@pytest.mark.parametrize("path", FILES, ids=module)
def test_imports_run_down_and_take_what_is_public(path: Path) -> None:
    own = room(module(path))
    for of, name in imports(path):
        other = room(of) if of.startswith("lucid.") else ""
        assert not other or not own or other == own or LEVEL[other] < LEVEL[own], f"{own} imports {of}"
        assert not (other and name.startswith("_") and name != "__version__"), f"{name} is private to {of}"


def test_what_decides_touches_no_machine_and_the_sampler_loads_little() -> None:
    walls = [(of, module(path)) for path in FILES for of, _ in imports(path) if room(module(path)) in DECIDES]
    assert [(where, of) for of, where in walls if of.split(".")[0] in MACHINE] == []
    sampler = [(of, module(path)) for path in FILES for of, _ in imports(path) if room(module(path)) == "node"]
    assert [(where, of) for of, where in sampler if of.split(".")[0] in HEAVY] == []


def test_only_what_runs_beside_slurm_imports_what_talks_to_it() -> None:
    may = {"slurm", "daemon", "setup", "cli"}
    found = {module(path) for path in FILES for of, _ in imports(path) if room(of) == "slurm"}
    assert {name for name in found if room(name) not in may} == {"lucid.web.demo", "lucid.web.pages.people"}


STEERED = re.compile(r"in [\w.]+\.reasons\b|\.reasons\[|isinstance\(\w*reason, ")
"""Code that looks into the reasons of a decision."""


def test_reasons_only_leave() -> None:
    """What a later step needs stands in the decision: only what is shown or stored is made of reasons."""
    rooms = {*DECIDES, "slurm", "node", "store", "daemon"} - {"core"}
    stored = ("store/view.py", "store/sqlite.py", "store/recorder.py")
    asked = [path for path in FILES if room(module(path)) in rooms and not str(path).endswith(stored)]
    assert [path for path in asked if STEERED.search(path.read_text(encoding="utf-8"))] == []


def test_there_are_no_circles() -> None:
    graph = {module(path): {of for of, _ in imports(path) if of in MODULES} - {module(path)} for path in FILES}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1]))


def test_the_page_has_the_packages_in_their_order() -> None:
    page = (ROOT.parent / "docs/architecture.md").read_text(encoding="utf-8")
    text = page.partition("## The packages")[2].partition("\n## ")[0]
    rows = [set(re.findall(r"`(\w+)`", row)) for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)]
    first, second, *others = [set(names.split()) for names in ORDER]
    assert rows == [first | second, *others[:-2], others[-2] | others[-1]]
