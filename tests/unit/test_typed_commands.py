"""Commands that users type, from pages and tutorials."""

from __future__ import annotations

import re
import tomllib

import pytest

from sdists import tracked
from typed import REPO, Command, commands_of, pages, refusals, typed

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


def test_readmes_picture_is_what_the_replay_draws() -> None:
    from benchmarks.picture import PICTURE, drawn

    assert PICTURE.read_text(encoding="utf-8") == drawn(), "python -m benchmarks.picture draws it anew"
