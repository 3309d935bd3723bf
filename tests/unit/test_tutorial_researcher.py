"""The tutorials without Slurm: every command of a page runs, and prints what the page shows of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"


def bare(line: str) -> str:
    return " ".join(line.strip(" │┃").split())


@pytest.mark.slow  # some twenty starts of Python, one of them pip's
@pytest.mark.parametrize(("page", "commands"), [("researcher.md", 7), ("models.md", 5)])
def test_every_command_of_a_tutorial_prints_what_the_page_shows(tmp_path: Path, page: str, commands: int) -> None:
    for path in TUTORIALS.iterdir():
        if path.suffix != ".md":
            shutil.copy(path, tmp_path)
    blocks = re.findall(
        r"^```(\w*)\n(.*?)^```$", (TUTORIALS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [language for language, _ in blocks].count("sh") >= commands
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
    printed: list[str] = []
    for language, text in blocks:
        if language == "sh":
            exported = {"PYTHONPATH": str(tmp_path / "packages")} if (tmp_path / "packages").exists() else {}
            done = subprocess.run(
                ["sh", "-eu", "-c", text], cwd=tmp_path, env={**environ, **exported},
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            printed = [bare(line) for line in done.stdout.splitlines()]
        else:
            assert [line for line in text.splitlines() if bare(line) not in printed] == [], "\n".join(printed)


def test_readmes_picture_is_what_the_replay_draws() -> None:
    from benchmarks.picture import PICTURE, drawn

    assert PICTURE.read_text(encoding="utf-8") == drawn(), "python -m benchmarks.picture draws it anew"
