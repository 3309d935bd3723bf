"""Each module, and what is public of it, says what it is for; the faces of folders load nothing."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import lucid

ROOT = Path(lucid.__file__).parent
MODULES = sorted(m.name for m in pkgutil.walk_packages(lucid.__path__, "lucid.") if not m.name.endswith("__main__"))
LOADS = {".", "config", "core/reasons", "web/pages"}
"""Lucid's version, the settings as one name, every kind of reason, and the list of pages."""


@pytest.mark.parametrize("name", MODULES)
def test_a_module_and_what_is_public_of_it_have_docstrings(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "lucid").startswith("lucid"):
            raise
        pytest.skip(f"needs {missing.name}")
    own = {
        item: value
        for item, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == name and item[0] != "_"
    }
    assert [item for item, value in {name: module, **own}.items() if not value.__doc__] == []
    assert [item for item in getattr(module, "__all__", ()) if not hasattr(module, item)] == []


def test_a_folder_holds_at_most_fifteen_files_and_its_face_loads_nothing() -> None:
    for face in ROOT.rglob("__init__.py"):
        assert len(list(face.parent.glob("*.py"))) <= 16, face
        loads = re.search(r"^\s*(?:from|import) ", face.read_text().rpartition('"""')[2], re.MULTILINE)
        assert not loads or str(face.parent.relative_to(ROOT)) in LOADS, face
