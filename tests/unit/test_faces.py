"""A folder's face says what is in it, in which order to read it: all of it, and nothing that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "lucid"
MOST = 15
FACES = [
    face for face in sorted(ROOT.rglob("__init__.py")) if "Read in this order:" in face.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("face", FACES, ids=lambda face: str(face.parent.relative_to(ROOT)))
def test_a_face_names_every_file_of_its_folder(face: Path) -> None:
    said = face.read_text(encoding="utf-8").partition("Read in this order:")[2].partition("Others import")[0]
    there = {path.stem for path in face.parent.glob("*.py")} - {"__init__", "__main__"}
    folders = {path.parent.name for path in face.parent.glob("*/__init__.py")}
    assert set(re.findall(r"``(\w+)``", said)) == there | folders


@pytest.mark.parametrize("face", FACES, ids=lambda face: str(face.parent.relative_to(ROOT)))
def test_a_folder_holds_about_a_dozen_files(face: Path) -> None:
    assert len(list(face.parent.glob("*.py"))) - 1 <= MOST


@pytest.mark.parametrize("face", FACES, ids=lambda face: str(face.parent.relative_to(ROOT)))
def test_a_face_loads_nothing(face: Path) -> None:
    assert not re.search(r"^\s*(?:from|import) ", face.read_text(encoding="utf-8").rpartition('"""')[2], re.MULTILINE)
