"""Slurm's own files as text: statements with the lines on which they stand, and edits that leave all other bytes
alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lucid.errors import ConfigError

__all__ = [
    "Edit",
    "Statement",
    "Texts",
    "edited",
    "pairs_of",
    "read_text",
    "read_texts",
    "statements_of",
    "with_values",
]

_DEPTH = 8
_RECORDS = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname")
_LISTS = ("prolog", "epilog")  # may stand on several lines, and Slurm runs them all
_PAIR = re.compile(r"([^\s=]+)=(\"[^\"]*\"|\S*)")
_INCLUDE = re.compile(r"include\s+(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: without its comment, continued lines joined. It stands on the lines *first* to before *after* of
    the file *path*."""

    path: Path
    first: int
    after: int
    text: str

    @property
    def key(self) -> str:
        """What it sets, in small letters."""
        return self.text.partition("=")[0].strip().lower()

    @property
    def value(self) -> str:
        """What follows the first ``=``."""
        return self.text.partition("=")[2].strip()

    @property
    def pairs(self) -> dict[str, str]:
        """All that it says, by key in small letters: of NodeName, PartitionName and lines of gres.conf."""
        return pairs_of(self.text)


@dataclass(frozen=True, slots=True)
class Edit:
    """These lines (without their ends) in place of the lines *first* to before *after*."""

    first: int
    after: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Texts:
    """slurm.conf and what it includes: the text of each file, and all statements in the order in which Slurm reads
    them."""

    main: Path
    files: Mapping[Path, str]
    statements: tuple[Statement, ...]

    def of(self, key: str) -> list[Statement]:
        """The statements that begin with *key* (NodeName, PartitionName)."""
        return [statement for statement in self.statements if statement.key == key.lower()]

    def setting(self, key: str) -> list[Statement]:
        """The statements that set the parameter *key*, several of which may stand on one line."""
        plain = [statement for statement in self.statements if statement.key not in _RECORDS]
        return [statement for statement in plain if key.lower() in statement.pairs]

    @property
    def settings(self) -> dict[str, str]:
        """Parameters by key in small letters. The last line counts, as for Slurm; what may stand on several lines is
        joined by commas, as ``scontrol show config`` is read."""
        found: dict[str, str] = {}
        for statement in self.statements:
            for key, value in statement.pairs.items() if statement.key not in _RECORDS else ():
                found[key] = f"{found[key]},{value}" if key in _LISTS and found.get(key) else value
        return found


def _physical(text: str) -> list[str]:
    """Lines with their ends. Only a line feed ends one: Slurm takes the carriage return before it for nothing."""
    return re.findall(r"[^\n]*\n|[^\n]+$", text)


def pairs_of(text: str) -> dict[str, str]:
    """``A=b C=d`` by key in small letters."""
    return {key.lower(): value for key, value in _PAIR.findall(text)}


def statements_of(text: str, path: Path) -> list[Statement]:
    """Every statement of one file, ``include`` lines among them."""
    found, lines, number = [], _physical(text), 0
    while number < len(lines):
        first, joined = number, ""
        while True:
            bare = re.sub(r"(?<!\\)#.*", "", lines[number].rstrip("\r\n"), flags=re.DOTALL)
            number += 1
            if not bare.endswith("\\") or number == len(lines):
                joined += bare
                break
            joined += bare[:-1] + " "
        if joined.strip():
            found.append(Statement(path, first, number, joined.strip()))
    return found


def read_text(path: Path) -> str:
    """A file, byte for byte: what is not UTF-8 is kept as it is.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name it with --conf, or --root") from None


def read_texts(root: Path, conf: Path, given: Mapping[Path, str] | None = None) -> Texts:
    """slurm.conf at *conf* below *root*, with what it includes. *given*: texts that count in place of files.

    Raises:
        ConfigError: one of the files cannot be read.
    """
    files: dict[Path, str] = {}
    found: list[Statement] = []

    def read(path: Path, depth: int) -> None:
        files[path] = given[path] if given and path in given else read_text(path)
        for statement in statements_of(files[path], path):
            included = _INCLUDE.match(statement.text)
            if not (included and depth < _DEPTH):
                found.append(statement)
                continue
            named = Path(included[1])
            read(root / named.relative_to("/") if named.is_absolute() else conf.parent / named, depth + 1)

    read(conf, 0)
    return Texts(conf, files, tuple(found))


def edited(text: str, edits: Iterable[Edit], more: Iterable[str] = ()) -> str:
    """The text with these lines replaced and *more* lines at its end. Line ends are those of the file, and every line
    that is not named stays as it is, byte for byte."""
    lines = _physical(text)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    added = [line + end for line in more]
    for edit in sorted(edits, key=lambda edit: edit.first, reverse=True):
        fresh = [line + end for line in edit.lines]
        if fresh and edit.after == len(lines) and not lines[-1].endswith("\n") and not added:
            fresh[-1] = edit.lines[-1]
        lines[edit.first : edit.after] = fresh
    if added and lines and not lines[-1].endswith("\n"):
        lines[-1] += end
    return "".join(lines + added)


def with_values(statement: Statement, text: str, values: Mapping[str, str]) -> Edit:
    """An edit of the file *text* that sets these keys where *statement* stands. Layout and comments stay. A key that
    is not there is added at the statement's end."""
    raw = "".join(_physical(text)[statement.first : statement.after]).rstrip("\r\n")
    for key, value in values.items():
        raw = _with_value(raw, key, value)
    return Edit(statement.first, statement.after, tuple(line.rstrip("\r") for line in raw.split("\n")))


def _with_value(raw: str, key: str, value: str) -> str:
    """*raw*: the lines of one statement, with comments and backslashes."""
    for found in _PAIR.finditer(raw):
        comment = raw.rfind("#", raw.rfind("\n", 0, found.start()) + 1, found.start())
        if found[1].lower() == key.lower() and comment < 0:
            old = found[2].partition("#")[0].removesuffix("\\")
            return f"{raw[: found.start()]}{found[1]}={value}{raw[found.start(2) + len(old) :]}"
    bare = re.match(r"(?s)(.*?)(\s*(?<!\\)#[^\n]*)?$", raw)
    assert bare
    return f"{bare[1].rstrip()} {key}={value}{bare[2] or ''}"
