"""Folders of lucid/ hold few files, and their faces (``__init__``) load nothing but in four that say why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "lucid"
MOST = 15
FACES = sorted(ROOT.rglob("__init__.py"))
LOADS = {"", "config", "core/reasons", "web/pages"}
"""Lucid's version, the settings as one name, every kind of reason, and the list of pages."""


@pytest.mark.parametrize("face", FACES, ids=lambda face: str(face.parent.relative_to(ROOT)))
def test_a_folder_holds_at_most_fifteen_files_and_its_face_loads_nothing(face: Path) -> None:
    assert len(list(face.parent.glob("*.py"))) - 1 <= MOST
    if str(face.parent.relative_to(ROOT)).strip(".") not in LOADS:
        text = face.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(?:from|import) ", text.rpartition('"""')[2], re.MULTILINE)
