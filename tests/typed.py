"""What the pages tell a reader to type: taken out of the pages, and parsed by the programs themselves.

``python tests/typed.py`` parses the commands of Lucid's own programs with the lucid that Python finds, prints what is
refused, and ends with 1 if anything is.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import click

REPO = Path(__file__).resolve().parents[1]
CLICK = {"lucidctl": "lucid.cli.main:lucidctl", "lucid-web": "lucid.web.command:web"}
ARGPARSE = {"lucidd": "lucid.daemon.process:main", "lucid-sampler": "lucid.node.command:main"}
PROGRAMS = {*CLICK, *ARGPARSE, "make", "python", "python3", "pip"}
STANDS_FOR = {
    "BIN": "1", "DAYS": "7", "FILE": "file", "JOB": "17", "JOBS:GPUS": "1000:512", "KIND": "duration", "N": "1",
    "NODE:INDEX": "node7:3", "VERSION": "3",
}  # fmt: skip
"""Words of the pages that the reader replaces, where a name in capitals would not do."""
_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}[^\n]*\n|\n(?= {4}))+")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_BEFORE = {"sudo", "if", "until", "while", "then", "do", "else", "!", "time", "exec", "$"}
"""What may stand before a command."""


@dataclass(frozen=True)
class Command:
    """One command of a page: where it stands and its words. ``mention``: within a sentence, which may leave out what
    the command cannot do without."""

    page: str
    line: int
    words: tuple[str, ...]
    mention: bool = False

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


def pages() -> list[Path]:
    """Those that say how something is done; not docs/decisions, which say what was done once."""
    docs = REPO / "docs"
    folders = (docs, docs / "tutorials", docs / "systems", REPO / "examples")
    listed = (page for at in folders for page in sorted(at.glob("*.md")))
    return [REPO / "README.md", REPO / "CONTRIBUTING.md", *listed]


def typed() -> list[Command]:
    texts = ((page.read_text(encoding="utf-8"), str(page.relative_to(REPO))) for page in pages())
    return [command for text, page in texts for command in commands_of(text, page)]


def commands_of(text: str, page: str = "") -> list[Command]:
    """The commands of a page that name one of ``PROGRAMS``. Of a page that marks blocks as ``sh``, only those are
    typed: the others show what is printed."""
    marked = any(found["language"] == "sh" for found in _FENCE.finditer(text))
    typed_in = (found for found in _FENCE.finditer(text) if found["language"] == ("sh" if marked else ""))
    blocks = [(found.start("text"), found["text"]) for found in typed_in]
    rest = _FENCE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    blocks += [(found.start(), found[0]) for found in _INDENTED.finditer(rest) if found[0].strip()]
    rest = _INDENTED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), rest)
    spans = [(found.start(1), " ".join(found[1].split())) for found in _SPAN.finditer(rest)]
    found_all = []
    for mention, pieces in ((False, blocks), (True, spans)):
        for start, piece in pieces:
            first = text.count("\n", 0, start) + 1
            for offset, words in _typed_in(piece):
                found_all.append(Command(page, first + offset, words, mention))
    return sorted(found_all, key=lambda command: command.line)


def _typed_in(block: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line within the block, and words."""
    lines = block.splitlines()
    number = 0
    while number < len(lines):
        first, line = number, uncommented(lines[number])
        while line.endswith("\\") and number + 1 < len(lines):
            number += 1
            line = line[:-1] + uncommented(lines[number])
        number += 1
        for words in simple_commands(line):
            if words[0] in PROGRAMS and not elided(words):
                yield first, words


def uncommented(line: str) -> str:
    """Without what follows a ``#`` that begins a word outside quotes."""
    found = re.match(r"""(?:[^\s'"\\#]+#*|'[^']*'|"(?:\\.|[^"\\])*"|\\.|\\$|\s+(?!\#)|['"])*""", line.strip())
    return "" if found is None else found[0].rstrip()


def simple_commands(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line between ``|``, ``&&``, ``;`` and brackets, without redirections, variables that are set
    before them, prompts and the brackets round what may be left out."""
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        tokens = list(lexer)
    except ValueError:  # a quote that nothing closes: prose, or a command that is refused
        tokens = line.split()
    words: list[str] = []
    skipped = False
    for token in [*tokens, ";"]:
        if re.fullmatch(r"[<>]+&?", token):
            if words and words[-1] in ("1", "2"):
                words.pop()
            skipped = True
        elif re.fullmatch(r"[();|&]+", token):
            while words and (words[0] in _BEFORE or re.fullmatch(r"\w+=.*", words[0])):
                words.pop(0)
            if words:
                yield tuple(words)
            words = []
        elif skipped:
            skipped = False
        else:
            words.append(_unbracketed(token))


def _unbracketed(word: str) -> str:
    opened, closed = word.count("["), word.count("]")
    if opened == closed:  # [--json], but not lucid[models]
        return word[1:-1] if word[:1] == "[" and word[-1:] == "]" else word
    return word.removeprefix("[") if opened > closed else word.removesuffix("]")


def elided(words: Sequence[str]) -> bool:
    """Not the whole command: something is left out, or click's synopsis."""
    return any("…" in word or word in ("...", "OPTIONS", "COMMAND", "ARGS") for word in words)


def refused(command: Command) -> str:
    """Why a command cannot be typed as it stands, or nothing."""
    program, *rest = command.words
    words = [STANDS_FOR.get(word, word) for word in rest]
    if program in CLICK:
        return _by_click(CLICK[program], program, words, command.mention)
    if program in ARGPARSE:
        return _by_argparse(ARGPARSE[program], words, command.mention)
    if program == "make":
        return _by_make(words)
    if program == "pip" or words[:2] == ["-m", "pip"]:
        return _by_pip(words)
    if words[:1] == ["-m"]:
        module = words[1] if len(words) > 1 else ""
        return "" if importlib.util.find_spec(module) else f"no module {module}"
    return _by_path(words)


def _named(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def _by_click(place: str, name: str, words: list[str], mention: bool) -> str:
    command = _named(place)
    assert isinstance(command, click.Command)
    try:
        with _only_parsed(mention):
            command.main(words, name, standalone_mode=False)
    except click.UsageError as error:
        named = type(error).__name__ == "NoArgsIsHelpError" or "requires an argument" in error.message
        return "" if mention and named else error.format_message()
    return ""


@contextmanager
def _only_parsed(mention: bool) -> Iterator[None]:
    """No callback is called, no file has to be there, and a mention lacks nothing."""
    with ExitStack() as patches:
        for owner, name, instead in (
            (click.Command, "invoke", lambda *_: None),
            (click.Path, "convert", lambda self, value, *_: self.coerce_path_result(value)),
            *([(click.Parameter, "value_is_missing", lambda *_: False)] if mention else []),
        ):
            patches.enter_context(mock.patch.object(owner, name, instead))
        yield


class _Parsed(Exception):
    """An argparse program came as far as having its arguments."""


def _by_argparse(place: str, words: list[str], mention: bool) -> str:
    parse, told = argparse.ArgumentParser.parse_args, []

    def stop(self: argparse.ArgumentParser, given: Sequence[str]) -> None:
        parse(self, given)
        raise _Parsed

    def error(self: argparse.ArgumentParser, message: str) -> None:
        told.append(message)
        raise _Parsed

    main = _named(place)
    assert callable(main)
    patched = mock.patch.multiple(argparse.ArgumentParser, parse_args=stop, error=error)
    try:
        with patched:
            main(words)
    except _Parsed:
        pass
    return "" if not told or (mention and "required" in told[0]) else told[0]


def _by_make(words: list[str]) -> str:
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    for word in words:
        name, set_, _ = word.partition("=")
        there = rf"\$\([^)]*\b{name}\b|^{name} \?=" if set_ else rf"^(\.PHONY:.*|)\b{re.escape(name)}( [^:=]*)?:( |$)"
        if not name.startswith("-") and not re.search(there, makefile, re.MULTILINE):
            return f"Makefile has no {'variable' if set_ else 'target'} {name}"
    return ""


def _by_pip(words: list[str]) -> str:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in words:
        found = re.fullmatch(r"(.*?)\[([\w,-]+)\]", word)
        if found and (lacking := set(found[2].split(",")) - set(project["optional-dependencies"])):
            return f"no extra {', '.join(sorted(lacking))}"
    return ""


def _by_path(words: list[str]) -> str:
    for word in words:
        if "/" in word and not word.startswith(("-", "/", "out/", "$")) and not (REPO / word.split("::")[0]).exists():
            return f"no file {word}"
    return ""


def extras_of(page: str) -> tuple[str, ...]:
    """Those that a page tells its reader to install."""
    text = (REPO / page).read_text(encoding="utf-8")
    named = re.findall(r"pip install[^\n`]*?'[^'\n]*\[([\w,-]+)\]'", text)
    return tuple(sorted({extra for names in named for extra in names.split(",")}))


def blocks_of(tutorial: str) -> list[tuple[str, str]]:
    """Language and text of each block."""
    text = (REPO / "docs/tutorials" / tutorial).read_text(encoding="utf-8")
    return [(found["language"], found["text"]) for found in _FENCE.finditer(text)]


def bare(line: str) -> str:
    """What a line of output says, without the lines of a table."""
    return " ".join(line.strip(" │┃").split())


def copy_data(folder: Path) -> None:
    """The files that the tutorials work on."""
    for path in (REPO / "docs/tutorials").iterdir():
        if path.suffix != ".md":
            shutil.copy(path, folder)


def first_page(command: Sequence[str], within_s: float) -> str:
    """What a server of pages answers at the address that it prints; it is then ended by Ctrl-C."""
    until = time.monotonic() + within_s
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    said, page = "", ""
    try:
        for line in child.stderr:
            said += line
            if " at http://" in line:
                page = _answer(line.partition(" at ")[2].split()[0], until)
                break
    finally:
        child.send_signal(signal.SIGINT)
        try:
            said += child.communicate(timeout=20)[1]
        except subprocess.TimeoutExpired:
            child.kill()
            said += child.communicate()[1]
    assert page, f"{' '.join(command)} serves no page:\n{said[-2000:]}"
    assert "Traceback" not in said, said[-2000:]
    return page


def _answer(address: str, until: float) -> str:
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return str(answer.read().decode("utf-8"))
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > until:
                return ""
            time.sleep(0.1)


def refusals(commands: Iterable[Command]) -> list[str]:
    """Each with its page and line."""
    return [f"{command}: {why}" for command in commands if (why := refused(command))]


if __name__ == "__main__":
    wrong = refusals(command for command in typed() if command.words[0] in {*CLICK, *ARGPARSE})
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)
