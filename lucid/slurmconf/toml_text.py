"""lucid.toml as text: setting single keys of it, so that comments and all other lines stay."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from lucid.errors import ConfigError

__all__ = ["NEW_TOML", "with_keys", "without_table"]

NEW_TOML = """\
# Written by `lucidctl setup`; yours to edit. Every key: docs/settings.md.
"""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def with_keys(text: str, table: str, keys: Mapping[str, str | int | Mapping[str, int]]) -> str:
    """The text with these keys set in the table *table* (``daemon.partitions``). Keys that have the value already are
    left as they stand.

    Raises:
        ConfigError: the text is no TOML, or says the table in a way that cannot be edited line by line.
    """
    try:
        before = _table(tomllib.loads(text), table)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"lucid.toml is no TOML ({error}); mend it first") from None
    wanted = {key: value for key, value in keys.items() if before.get(key) != value}
    if not wanted:
        return text
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    header = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]\s*(#.*)?$")
    start = next((number for number, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        lines.append(f"[{table}]\n")
        start = len(lines) - 1
    end = next((number for number in range(start + 1, len(lines)) if re.match(r"\s*\[", lines[number])), len(lines))
    while end > start + 1 and not lines[end - 1].strip():
        end -= 1
    for key, value in wanted.items():
        name = key if _BARE.fullmatch(key) else json.dumps(key)
        old = re.compile(rf"""\s*(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')\s*=""")
        at = next((number for number in range(start + 1, end) if old.match(lines[number])), None)
        line = f"{name} = {_value(value)}\n"
        if at is None:
            lines.insert(end, line)
            end += 1
        else:
            lines[at] = line
    fresh = "".join(lines)
    try:
        if _table(tomllib.loads(fresh), table) == {**before, **wanted}:
            return fresh
    except tomllib.TOMLDecodeError:
        pass
    says = "; ".join(f"{key} = {_value(value)}" for key, value in wanted.items())
    raise ConfigError(f"lucid.toml has {table} in a form that setup does not edit; write there yourself: {says}")


def without_table(text: str, table: str) -> str:
    """The text without this table and the tables in it; as it is where there is none.

    Raises:
        ConfigError: the text is no TOML, or says the table in a way that cannot be edited line by line.
    """
    kept, inside = list[str](), False
    header = re.compile(rf"\s*\[\[?\s*{re.escape(table)}\s*[.\]]")
    for line in text.splitlines(keepends=True):
        if re.match(r"\s*\[", line):
            inside = header.match(line) is not None
        if not inside:
            kept.append(line)
    fresh = "".join(kept)
    try:
        if not _table(tomllib.loads(fresh), table):
            return fresh
    except tomllib.TOMLDecodeError:
        pass
    raise ConfigError(f"lucid.toml has {table} in a form that setup does not edit; take it out there yourself")


def _table(document: Mapping[str, Any], table: str) -> dict[str, Any]:
    for part in table.split("."):
        found = document.get(part, {})
        if not isinstance(found, dict):
            return {}
        document = found
    return dict(document)


def _value(value: str | int | Mapping[str, int]) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{key if _BARE.fullmatch(key) else json.dumps(key)} = {number}" for key, number in value.items()
        )
        return f"{{ {inner} }}"
    return json.dumps(value, ensure_ascii=False)
