"""Man pages: made from click's help, from the parsers' own help, and from the pages in docs/."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from markdown_it import MarkdownIt
from markdown_it.token import Token

from docs.site.settings_page import settings_reference
from lucid.cli.main import lucidctl
from lucid.cli.options import EXAMPLES

__all__ = ["PAGES_OF_DOCS", "completions", "man_pages"]

PAGES_OF_DOCS = {
    "lucid-admin.7": ("docs/modes.md", "Lucid for administrators of Slurm"),
    "lucid-users.7": ("docs/users.md", "what Lucid changes for users, and what they can ask of it"),
    "lucid-recovery.7": ("docs/recovery.md", "what to do when something breaks under Lucid"),
}
_PROGRAMS = {
    "lucidd.8": (
        "lucid.daemon",
        "schedule GPU jobs on Slurm",
        "lucidctl(1), lucid.toml(5), lucid-admin(7)",
    ),
    "lucid-sampler.8": (
        "lucid.node",
        "sample the GPUs of the jobs on a node, from beside them",
        "https://docs.nvidia.com/deploy/nvml-api/",
    ),
}


def man_pages(source: Path) -> dict[str, str]:
    """Text of every page, by file name."""
    pages = dict(_of_commands(lucidctl, ()))
    for file, (module, about, see) in _PROGRAMS.items():
        pages[file] = _of_help(file, module, about, see)
    pages["lucid-web.8"] = (
        pages["lucidctl-web.1"]
        .replace('LUCIDCTL\\-WEB" 1', 'LUCID\\-WEB" 8', 1)
        .replace("lucidctl\\-web \\-", "lucid\\-web \\-", 1)
    )
    pages["lucid-release.8"] = _of_release((source / "slurm/lucid-release").read_text(encoding="utf-8"))
    pages["lucid.toml.5"] = _of_markdown("lucid.toml.5", "settings of Lucid", settings_reference())
    for file, (path, about) in PAGES_OF_DOCS.items():
        pages[file] = _of_markdown(file, about, (source / path).read_text(encoding="utf-8"))
    return pages


def completions() -> dict[str, str]:
    """The scripts by which bash, zsh and fish complete ``lucidctl``."""
    from click.shell_completion import get_completion_class

    found = {}
    for shell in ("bash", "zsh", "fish"):
        kind = get_completion_class(shell)
        assert kind is not None
        maker = kind(lucidctl, {}, "lucidctl", "_LUCIDCTL_COMPLETE")
        found[shell] = maker.source_template % maker.source_vars()
    return found


def _escaped(text: str) -> str:
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", safe, flags=re.MULTILINE)


def _head(file: str, about: str) -> str:
    name, _, section = file.rpartition(".")
    return (
        f'.TH "{_escaped(name.upper())}" {section} "" "Lucid" "Lucid"\n'
        f".SH NAME\n{_escaped(name)} \\- {_escaped(about)}"
    )


def _sentence(text: str) -> str:
    """The first sentence, as ``whatis`` shows it."""
    first = " ".join(text.split()).partition(". ")[0].rstrip(".:")
    return first[:1].lower() + first[1:]


def _of_commands(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    ctx = click.Context(command, info_name=" ".join(("lucidctl", *words)))
    name = "-".join(("lucidctl", *words))
    told = (command.help or "").partition("\f")[0]
    lines = [_head(f"{name}.1", _sentence(told)), ".SH SYNOPSIS"]
    lines.append(f".B {_escaped(ctx.command_path)}\n{_escaped(' '.join(command.collect_usage_pieces(ctx)))}")
    lines += [".SH DESCRIPTION", *_paragraphs(told)]
    records = [record for param in command.get_params(ctx) if (record := param.get_help_record(ctx))]
    if records:
        lines.append(".SH OPTIONS")
        lines += [
            f".TP\n\\fB{_escaped(left)}\\fR\n{_escaped(right) or '(no description)'}" for left, right in records
        ]
    inner: list[tuple[str, click.Command]] = []
    if isinstance(command, click.Group):
        for each in command.list_commands(ctx):
            found = command.get_command(ctx, each)
            if found is not None and not found.hidden:
                inner.append((each, found))
        lines.append(".SH COMMANDS")
        for each, found in inner:
            lines.append(
                f".TP\n\\fB{_escaped(name)}\\-{_escaped(each)}\\fR(1)\n{_escaped(_sentence(found.help or ''))}"
            )
    lines += [".SH EXAMPLES", ".nf", *map(_escaped, EXAMPLES[" ".join(words)]), ".fi"]
    lines += [".SH SEE ALSO", ".BR lucidctl (1),\n.BR lucidd (8),\n.BR lucid.toml (5),\n.BR lucid-admin (7)"]
    yield f"{name}.1", "\n".join(lines) + "\n"
    for each, found in inner:
        yield from _of_commands(found, (*words, each))


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text.strip()):
        if block.startswith("\b"):
            yield f".PP\n.nf\n{_escaped(block.removeprefix(chr(8)).strip(chr(10)))}\n.fi"
        else:
            yield f".PP\n{_escaped(' '.join(block.split()))}"


def _of_help(file: str, module: str, about: str, see: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True,
        env={**os.environ, "COLUMNS": "78"},
    )  # fmt: skip
    usage, _, rest = done.stdout.partition("\n\n")
    text = usage.replace("usage: ", "", 1)
    return (
        f"{_head(file, about)}\n.SH SYNOPSIS\n.nf\n{_escaped(text)}\n.fi\n"
        f".SH DESCRIPTION\n.nf\n{_escaped(rest.strip())}\n.fi\n.SH SEE ALSO\n{_escaped(see)}\n"
    )


def _of_release(script: str) -> str:
    head = []
    for line in script.splitlines()[1:]:
        if not line.startswith("#"):
            break
        head.append(line[1:].removeprefix(" "))
    return (
        f"{_head('lucid-release.8', 'release the jobs that Lucid holds, without Lucid')}"
        "\n.SH SYNOPSIS\n.B lucid\\-release\n[\\-\\-all | \\-\\-stopped] [\\-\\-dry\\-run]\n.SH DESCRIPTION\n.nf\n"
        + _escaped("\n".join(head))
        + "\n.fi\n.SH SEE ALSO\n.BR lucidctl\\-uninstall (1),\n.BR lucid\\-recovery (7)\n"
    )


def _of_markdown(file: str, about: str, text: str) -> str:
    lines = [_head(file, about), ".SH DESCRIPTION"]
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    columns: list[str] = []
    row: list[str] = []
    for number, token in enumerate(tokens):
        before = tokens[number - 1] if number else None
        if token.type == "inline":
            words = _inline(token)
            if before is not None and before.type == "heading_open":
                if before.tag != "h1":
                    lines.append(f"{'.SH' if before.tag == 'h2' else '.SS'} {words}")
            elif before is not None and before.type in ("th_open", "td_open"):
                row.append(words)
            elif tokens[number - 2].type == "list_item_open":
                lines.append(f".IP \\(bu 2\n{words}")
            else:
                lines.append(f".PP\n{words}")
        elif token.type in ("fence", "code_block"):
            lines.append(f".PP\n.RS 4\n.nf\n{_escaped(token.content.rstrip())}\n.fi\n.RE")
        elif token.type == "tr_open":
            row = []
        elif token.type == "tr_close":
            if before is not None and before.type == "th_close":
                columns = row
            else:
                rest = zip(columns[1:], row[1:], strict=False)
                said = "\n.br\n".join(f"{head + ': ' if head else ''}{cell}" for head, cell in rest if cell)
                lines.append(f".TP\n\\fB{row[0] or chr(92) + '&'}\\fR\n{said}")
    return "\n".join(lines) + "\n"


def _inline(token: Token) -> str:
    parts = []
    for child in token.children or []:
        if child.type == "text":
            parts.append(child.content.replace("\\", "\\e").replace("-", "\\-"))
        elif child.type == "code_inline":
            parts.append(f"\\fB{child.content.replace(chr(92), chr(92) + 'e').replace('-', chr(92) + '-')}\\fR")
        elif child.type in ("softbreak", "hardbreak"):
            parts.append(" ")
    return re.sub(r"^([.'])", r"\\&\1", "".join(parts))
