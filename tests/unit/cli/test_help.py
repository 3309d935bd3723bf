"""``lucidctl COMMAND --help``: every command has an example, and every example parses."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.cli.options import EXAMPLES
from lucid.config.load import Settings
from lucid.store.plan_records import records_folder


def commands(command: click.Command = lucidctl, words: str = "") -> Iterator[str]:
    """Every command that help lists, as what a user types after ``lucidctl``."""
    yield words
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            if not inner.hidden:
                yield from commands(inner, f"{words} {name}".strip())


def parse(line: str) -> str:
    """What the line calls, its options and arguments parsed as when it is run; nothing is run."""
    words = shlex.split(line.partition(" > ")[0], comments=True)
    assert words.pop(0) == "lucidctl"
    command: click.Command = lucidctl
    ctx, called = None, []
    while isinstance(command, click.Group):
        ctx = command.make_context(command.name, words, parent=ctx)
        rest = [*ctx._protected_args, *ctx.args]
        if not rest and command.invoke_without_command:
            return " ".join(called)
        name, found, words = command.resolve_command(ctx, rest)
        assert name is not None
        assert found is not None
        called.append(name)
        command = found
    command.make_context(command.name, words, parent=ctx)
    return " ".join(called)


@pytest.mark.parametrize("words", list(commands()))
def test_every_help_ends_with_examples_that_parse(words: str) -> None:
    told = CliRunner().invoke(lucidctl, [*words.split(), "--help"], terminal_width=80)
    assert told.exit_code == 0
    lines = EXAMPLES[words]
    assert told.output.rstrip().splitlines()[-len(lines) :] == [f"    {line}" for line in lines], (
        "not folded, at the end"
    )
    assert [
        line for line in lines if not f"{parse(line)} ".startswith(f"{words} ".lstrip()) and words != "tune"
    ] == []


def test_no_example_is_of_a_command_that_is_gone() -> None:
    assert set(EXAMPLES) == set(commands())


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parse("lucidctl queue --no-such-option")


def test_replay_is_shown_with_the_folder_in_which_lucidd_keeps_records() -> None:
    folder = records_folder(Settings())
    assert f"lucidctl replay {folder}" in EXAMPLES["replay"]
