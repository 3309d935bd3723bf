"""Commands that users type, from pages and tutorials."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from sdists import tracked
from typed import REPO, Command, bare, blocks_of, commands_of, copy_data, pages, refusals, typed

REFUSED = {
    "lucidctl why-not": "Missing argument 'JOB'", "lucidctl status --colour": "No such option",
    "lucidctl web --port http": "not a valid integer", "lucidd --chek": "unrecognized",
    "lucid-sampler start": "required", "make dmeo": "no target dmeo", "python -m benchmarks.yardstik": "no module",
    "pip install '.[web,tpo]'": "no extra tpo",
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_typed_is_refused(line: str) -> None:
    (refusal,) = refusals(commands_of(f"```\n{line}\n```\n"))
    assert REFUSED[line] in refusal


def test_every_command_of_every_page_is_parsed() -> None:
    commands = typed()
    assert refusals(commands) == []
    programs = {command.words[0] for command in commands if isinstance(command, Command)}
    assert programs >= {"lucidctl", "lucidd", "lucid-sampler", "make", "python", "pip"}
    assert {page.name for page in pages()} >= {"README.md", "differences.md", "researcher.md", "elastic.md"}
    assert len(commands) > 500


def test_no_page_installs_by_a_name_under_which_nothing_is_published() -> None:
    for page in pages():
        lines = re.findall(r"^.*pip install.*lucid-scheduler\[.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert [line for line in lines if "--find-links" not in line] == [], page


def test_the_address_of_the_repository_stands_in_one_place() -> None:
    urls = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    address = urls["Homepage"].removeprefix("https://").rstrip("/")
    texts = [name for name in tracked() if name.endswith((".md", ".py", ".cff", ".toml", ".yml", ".html.j2"))]
    assert [name for name in texts if address in (REPO / name).read_text(encoding="utf-8")] == ["pyproject.toml"]
    assert len(urls) == 1


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
