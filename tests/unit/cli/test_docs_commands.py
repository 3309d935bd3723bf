"""docs/commands.md is the help of every command.

``LUCID_WRITE_GOLDEN=1 python -m pytest tests/unit/cli/test_docs_commands.py`` writes it.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from lucid.cli.main import lucidctl
from lucid.cli.options import EXAMPLES

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
            if inner is not None and not inner.hidden:
                yield from sections(inner, (*words, name), told)


def test_the_page_is_what_help_says() -> None:
    text = "\n\n".join(part for part in (HEAD, *sections(lucidctl, (), {})) if part) + "\n"
    if os.environ.get("LUCID_WRITE_GOLDEN"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text, "LUCID_WRITE_GOLDEN=1 writes it"
