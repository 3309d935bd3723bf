"""The tutorials without Slurm: every command of a page runs, and prints what the page shows of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
HEAVY = re.compile(r"lucidctl (compare|models|explain --run run --policy)|learned|widest|pip ")
"""What trains models or tells of them, starts processes or needs a package installed."""


def bare(line: str) -> str:
    return " ".join(line.strip(" │┃").split())


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Language and text."""
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def copy_data(folder: Path) -> None:
    for path in TUTORIALS.iterdir():
        if path.suffix != ".md":
            shutil.copy(path, folder)


@pytest.mark.parametrize(("page", "blocks"), [("researcher.md", 5), ("models.md", 1)])
def test_light_commands_of_a_tutorial_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, blocks: int
) -> None:
    copy_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    printed: list[str] | None = None
    compared = 0
    for language, text in blocks_of(page):
        if language == "sh":
            printed = None if HEAVY.search(text) else []
            for line in text.splitlines() if printed is not None else ():
                if line.startswith("lucidctl "):
                    done = CliRunner().invoke(lucidctl, shlex.split(line)[1:], env={"COLUMNS": "100"})
                    assert done.exit_code == 0, f"{line}\n{done.output}"
                    printed += [bare(said) for said in done.stdout.splitlines()]
                else:
                    subprocess.run(["sh", "-eu", "-c", line], check=True)
        elif printed is not None:
            assert [line for line in text.splitlines() if bare(line) not in printed] == [], "\n".join(printed)
            compared += 1
    assert compared == blocks


@pytest.mark.slow  # some twenty starts of Python, one of them pip's
@pytest.mark.parametrize(("page", "commands"), [("researcher.md", 7), ("models.md", 5)])
def test_every_command_of_a_tutorial_prints_what_the_page_shows(tmp_path: Path, page: str, commands: int) -> None:
    copy_data(tmp_path)
    blocks = blocks_of(page)
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
