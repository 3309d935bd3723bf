"""slurm.conf and its like as text: statements with their lines, edits of single lines, and diffs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lucid.errors import ConfigError

HOOKS = "/etc/slurm/lucid"
"""Lucid's folder on every node."""
NEEDED = {
    "GresTypes": "gpu,shard",
    "SelectType": "select/cons_tres",
    "PriorityType": "priority/multifactor",
    "AccountingStorageTRES": "gres/gpu,gres/shard",
    "JobSubmitPlugins": "lua",
    "CliFilterPlugins": "lua",
    "Prolog": f"{HOOKS}/prolog.d/*",
    "Epilog": f"{HOOKS}/epilog.d/*",
    "TaskProlog": f"{HOOKS}/task_prolog",
}
"""What pack mode needs of slurm.conf."""
FOR_ALL = ("SelectType", "PriorityType")
"""Those that concern every job: setup does not change them."""
_RECORDS = ("nodename", "partitionname", "nodeset", "downnodes", "frontendname", "slurmctldhost", "name")
"""First keys of lines with several pairs. Any other line of Slurm's files sets one parameter."""
_LISTS = ("prolog", "epilog")  # may stand on several lines, and Slurm runs them all
_PAIR = re.compile(r"\s*([a-z0-9_.]+)\s*[-*+/]?=\s*(?:\"([^\"]*)\"|(\S+))(?!\S)", re.IGNORECASE | re.ASCII)
"""A key, an operator that slurm.conf gives no meaning (``+=`` is ``=``), and a value, as Slurm separates them."""
_INCLUDE = re.compile(r"include\s+(\S+)\s*$", re.IGNORECASE | re.ASCII)  # not behind a blank
_UNCOMMENTED = re.compile(r"(?:[^\\#]|\\.)*\\?", re.DOTALL)
_BLANKS = " \t\n\r\f\v"


@dataclass(frozen=True, slots=True)
class Pair:
    """One ``KEY = "value"``: the key in small letters, the value without its quotes, and where the value stands in
    the file's text, with them."""

    key: str
    value: str
    begin: int
    end: int
    quoted: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: without its comment, continued lines joined, escapes read. It stands on the lines *first* to
    before *after* of the file *path*; each character of *text* stands at its one of *places* in the file's text."""

    path: Path
    first: int
    after: int
    text: str
    places: tuple[int, ...]

    @property
    def found(self) -> list[Pair]:
        """All pairs, in their order."""
        return self._split()[0]

    @property
    def left(self) -> str:
        """The part that Slurm cannot read: it would not start with this line."""
        found, end = self._split()
        return self.text[end:].strip() if self.key in _RECORDS or len(found) < 2 else self.text.strip()

    @property
    def key(self) -> str:
        """The key that it sets, in small letters."""
        found = self.found
        return found[0].key if found else ""

    @property
    def pairs(self) -> dict[str, str]:
        """Its values by key in small letters, for NodeName, PartitionName and lines of gres.conf."""
        return {pair.key: pair.value for pair in self.found}

    def _split(self) -> tuple[list[Pair], int]:
        pairs, end = list[Pair](), 0
        while match := _PAIR.match(self.text, end):
            end = match.end()
            quoted = match[2] is not None
            begin = match.start(2) - 1 if quoted else match.start(3)
            value = match[2] if quoted else match[3]
            pairs.append(Pair(match[1].lower(), value, self.places[begin], self.places[end - 1] + 1, quoted))
        return pairs, end


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit: these lines (without their ends) in place of the lines *first* to before *after*."""

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

    def statements_of(self, key: str) -> list[Statement]:
        """The statements that begin with *key* (NodeName, PartitionName)."""
        return [statement for statement in self.statements if statement.key == key.lower()]

    @property
    def settings(self) -> dict[str, str]:
        """Parameters by key in small letters. The last line counts, as for Slurm; a parameter that may stand on
        several lines is joined by commas, as ``scontrol show config`` is read."""
        found: dict[str, str] = {}
        for pair in (statement.found[0] for statement in self.statements if statement.key not in _RECORDS):
            joined = pair.key in _LISTS and found.get(pair.key)
            found[pair.key] = f"{found[pair.key]},{pair.value}" if joined else pair.value
        return found


def _physical(text: str) -> list[str]:
    """Lines with their ends. Only a line feed ends one: Slurm ignores the carriage return before it."""
    return re.findall(r"[^\n]*\n|[^\n]+$", text)


def statements_of(text: str, path: Path) -> list[Statement]:
    """Every statement of one file, ``include`` lines among them."""
    found, lines, number, start = list[Statement](), _physical(text), 0, 0
    while number < len(lines):
        first, places = number, list[int]()
        goes_on = True
        while goes_on and number < len(lines):
            match = _UNCOMMENTED.match(lines[number])
            said = match[0] if match else ""
            body = said.rstrip(_BLANKS)
            goes_on = (len(body) - len(body.rstrip("\\"))) % 2 == 1  # blanks and a comment may follow the backslash
            places += range(start, start + (len(body) - 1 if goes_on else len(said)))
            start += len(lines[number])
            number += 1
        kept, escaped = list[int](), False
        for place in places:
            escaped = text[place] == "\\" and not escaped
            if not escaped:
                kept.append(place)
        joined = "".join(text[place] for place in kept)
        if joined.strip(_BLANKS):
            found.append(Statement(path, first, number, joined, tuple(kept)))
    return found


def read_text(path: Path) -> str:
    """The text of a file, byte for byte: bytes that are not UTF-8 are kept.

    Raises: ConfigError: it cannot be read."""
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name it with --conf, or --root") from None


def read_texts(root: Path, conf: Path, given: Mapping[Path, str] | None = None) -> Texts:
    """slurm.conf at *conf* below *root*, with what it includes. *given*: texts that count in place of files.

    Raises: ConfigError: one of the files cannot be read, or has a line with which Slurm would not start."""
    files: dict[Path, str] = {}
    found: list[Statement] = []
    cluster = ""

    def read(path: Path, above: tuple[Path, ...]) -> None:
        nonlocal cluster
        if path in above:
            raise ConfigError(f"{path}: includes itself")
        files[path] = given[path] if given and path in given else read_text(path)
        for statement in statements_of(files[path], path):
            included = _INCLUDE.match(statement.text)
            if included:
                named = Path(included[1].replace("%c", cluster.lower()))
                below = root / named.relative_to("/") if named.is_absolute() else conf.parent / named
                read(below, (*above, path))
                continue
            if statement.left:
                raise ConfigError(
                    f"{path}, line {statement.first + 1}: Slurm does not read {statement.left!r}; mend it first"
                )
            cluster = statement.found[0].value if statement.key == "clustername" else cluster
            found.append(statement)

    read(conf, ())
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
    """An edit of the file *text* that sets these keys where *statement* stands. Layout, quotes and comments stay. A
    key that is not there is added at the statement's end."""
    lines = _physical(text)
    start = sum(map(len, lines[: statement.first]))
    raw = "".join(lines[statement.first : statement.after]).rstrip("\r\n")
    last = {pair.key: pair for pair in statement.found}  # of two the last counts
    end = statement.found[-1].end - start
    added = "".join(f" {key}={written(value)}" for key, value in values.items() if key.lower() not in last)
    raw = raw[:end] + added + raw[end:]
    set_anew = [(last[key.lower()], value) for key, value in values.items() if key.lower() in last]
    for pair, value in sorted(set_anew, key=lambda item: item[0].begin, reverse=True):
        raw = raw[: pair.begin - start] + written(value, quoted=pair.quoted) + raw[pair.end - start :]
    return Edit(statement.first, statement.after, tuple(line.rstrip("\r") for line in raw.split("\n")))


def written(value: str, *, quoted: bool = False) -> str:
    """A value as it stands in a file."""
    text = re.sub(r"([\\#])", r"\\\1", value)
    return f'"{text}"' if quoted or not value or re.search(r"\s", value) else text


@dataclass(frozen=True, slots=True)
class Change:
    """One file to write; *path* is where the bytes really lie, behind all links. ``own``: the file is Lucid's alone
    (lucid.toml): it stays until a purge. ``shipped``: its text is one of this version's files."""

    path: Path
    before: bytes | None
    after: bytes
    mode: int = 0o644
    own: bool = False
    shipped: bool = False


def diff_of(changes: Iterable[Change], around: int = 3) -> str:
    """The changes as a unified diff, with ``around`` lines about each edit."""
    return "".join(_diff(change, around) for change in changes)


def _diff(change: Change, around: int) -> str:
    old = (change.before or b"").decode("utf-8", "replace").splitlines(keepends=True)
    new = change.after.decode("utf-8", "replace").splitlines(keepends=True)
    lines = difflib.unified_diff(
        old, new, "/dev/null" if change.before is None else str(change.path), str(change.path), n=around
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ no line end\n" for line in lines)
