"""The tutorials without Slurm: every light command of a page runs, and prints what the page shows of it;
``test_typed_from_a_wheel.py`` types them all."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from typed import bare, blocks_of, copy_data

ROOT = Path(__file__).parents[2]
HEAVY = re.compile(r"lucidctl (compare|models|explain --run run --policy)|learned|widest|pip ")
"""What trains models or tells of them, starts processes or needs a package installed."""


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


def test_readmes_picture_is_what_the_replay_draws() -> None:
    from benchmarks.picture import PICTURE, drawn

    assert PICTURE.read_text(encoding="utf-8") == drawn(), "python -m benchmarks.picture draws it anew"
