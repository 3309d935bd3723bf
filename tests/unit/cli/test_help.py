"""Help of each command, the pages that list the commands, and names on a terminal."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from json_schemas import every_command
from lucid.cli.console import stdout_console, warn_on_stderr
from lucid.cli.main import lucidctl
from lucid.cli.options import EXAMPLES
from lucid.left_out import LeftOut


@pytest.mark.parametrize("words", [words for words, _ in every_command()])
def test_every_help_ends_with_examples_of_its_command(words: str) -> None:
    """That they can be typed: test_typed_commands.py reads them in docs/commands.md."""
    told = CliRunner().invoke(lucidctl, [*words.split(), "--help"], terminal_width=80)
    assert told.exit_code == 0
    lines = EXAMPLES[words]
    shown = [f"    {line}" for line in lines]
    assert told.output.rstrip().splitlines()[-len(lines) :] == shown, "not folded, at the end"
    assert [line for line in lines if not f"{line} ".startswith(f"{f'lucidctl {words}'.strip()} ")] == []


def listed(words: str) -> list[str]:
    """The commands that a help lists, each in one line of a terminal of 80 columns."""
    told = CliRunner().invoke(lucidctl, [*words.split(), "--help"], terminal_width=80).output
    part = told[told.index("-h, --help") :].partition("Examples:")[0].splitlines()[1:]
    rows = [line.split() for line in part if line.strip() and line.startswith("  ")]
    assert max(map(len, part)) <= 80
    assert [row for row in rows if not row[-1].endswith(".")] == [], "a row that is folded or cut"
    return [row[0] for row in rows]


def test_the_first_screen_has_15_commands_and_each_readers_group_lists_all_of_theirs() -> None:
    first, groups = listed(""), {name: listed(name) for name in ("site", "job", "study")}
    assert first[:3] == groups["site"][:3] == ["setup", "doctor", "status"]
    assert len(first) <= 15
    assert set(EXAMPLES) == {words for words, _ in every_command()}, "none of a command that is gone"
    rows = [(group, name) for group, names in groups.items() for name in names]
    assert sorted(name for _, name in rows) == sorted(lucidctl.list_commands(click.Context(lucidctl)))
    for group, name in rows:
        told = [CliRunner().invoke(lucidctl, [*words, "--help"]).output for words in ([name], [group, name])]
        plain, within = (text.partition("\n")[2] for text in told)
        assert plain == within != ""


PAGE = Path(__file__).parents[3] / "docs/commands.md"
HEAD = """# Commands

Every command of `lucidctl` with its options, as its `--help` says them. A test writes this page
from the help, and fails where the two differ."""


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    safe = re.sub(r"([<*])", r"\\\1", " ".join(text.split()))
    return textwrap.fill(safe, 150, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def block(text: str) -> str:
    return f"```\n{textwrap.dedent(text.strip(chr(10)))}\n```"


def options(records: list[tuple[str, str]], name: str, told: dict[tuple[str, str], str]) -> Iterator[str]:
    """An option that another command has in the same words is named with that command alone."""
    again: dict[str, list[str]] = {}
    for record in records:
        first = told.setdefault(record, name)
        if first == name:
            yield wrapped(record[1], f"- `{record[0]}`: ", "  ")
        else:
            again.setdefault(first, []).append(f"`{record[0].split()[0]}`")
    for first, names in again.items():
        yield wrapped(f"as for `{first}`: {', '.join(names)}", "- ", "  ")


def sections(command: click.Command, words: tuple[str, ...], told: dict[tuple[str, str], str]) -> Iterator[str]:
    ctx = click.Context(command, info_name=" ".join(("lucidctl", *words)))
    yield f"## {ctx.info_name}"
    yield block(f"{ctx.info_name} {' '.join(command.collect_usage_pieces(ctx))}")
    for part in (command.help or "").partition("\f")[0].split("\n\n"):
        yield (
            "" if not part.strip() else block(part.strip("\n").removeprefix("\b")) if "\b" in part else wrapped(part)
        )
    records = [record for param in command.get_params(ctx) if (record := param.get_help_record(ctx))]
    own = [record for record in records if not record[0].endswith("--help")]
    yield "\n".join(options(own, str(ctx.info_name), told))
    yield block("\n".join(EXAMPLES[" ".join(words)]))
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            if inner is not None:
                yield from sections(inner, (*words, name), told)


def test_the_page_is_what_help_says() -> None:
    text = "\n\n".join(part for part in (HEAD, *sections(lucidctl, (), {})) if part) + "\n"
    if os.environ.get("LUCID_WRITE_GOLDEN"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text, "LUCID_WRITE_GOLDEN=1 writes it"


def test_tables_for_a_pipe_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert stdout_console().width == 120
    monkeypatch.setenv("COLUMNS", "93")
    assert stdout_console().width == 93


def test_warnings_stand_on_stderr_with_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read stdout; a job that cannot be read is named for the administrator beside it."""
    warn_on_stderr()
    warn_on_stderr()
    LeftOut().one("jobs", "job 7", "asks for 10000000 GPUs")
    told = capsys.readouterr()
    words = "warning: left out: cannot be read source=jobs which=job 7 why=asks for 10000000 GPUs\n"
    assert (told.out, told.err) == ("", words)
