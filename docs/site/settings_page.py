"""The page of all settings, from the fields themselves: ``python docs/site/settings_page.py > docs/settings.md``.

With ``--example`` it prints a lucid.toml with every key behind a #, which the packages bring.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lucid.config.load import Settings
from lucid.config.policy import LIVE_DEFAULTS
from lucid.config.section import is_fixed, of_simulations

__all__ = ["field_texts", "settings_example", "settings_reference"]

_HEAD: Final = """# Settings

This page is written from the settings themselves. Every key is optional. An unknown key is an error
that names the known ones. In TOML the key `gss` below `[policy.packing]` is written so, or as `policy.packing.gss`.
In brackets: the default, and the values that are allowed.

## Settings of lucidd

They stand in `/etc/lucid/lucid.toml`, which lucidd reads when it starts. `lucidctl simulate --config` takes the same
file.
"""
_SIMULATIONS: Final = """
## Settings of simulations only

They stand in a file for `lucidctl simulate --config`. lucidd does not start with a file that sets one of them; it
takes those of the policies that `daemon.policy` and `daemon.policies` name.
"""
_EXAMPLE: Final = """\
# An example of /etc/lucid/lucid.toml: every key that lucidd reads, with its meaning and lucidd's default.
# Every key is optional. To set one, remove the # in front of it.
# To begin, name the partitions to look after (docs/install.md); lucidd changes nothing in "observe":
#
#   [daemon.partitions]
#   vc-a = "observe"
"""
_ORDER: Final = ("daemon", "slurm", "policy", "models", "efficiency", "web", "overheads")
_BOUNDS: Final = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))


@dataclass(frozen=True, slots=True)
class _Key:
    table: str
    says: str
    """What the table is about."""
    name: str
    field: FieldInfo
    about: str
    """The text below the field."""
    simulated: bool


def settings_reference() -> str:
    """The page, in Markdown."""
    keys = [*_keys(Settings, "", simulated=False)]
    parts = [_HEAD]
    for simulated in (False, True):
        parts += [_SIMULATIONS] if simulated else []
        some = [key for key in keys if key.simulated is simulated]
        tables = dict.fromkeys(key.table for key in some)
        for table in sorted(tables, key=lambda name: _ORDER.index(name.partition(".")[0])):
            parts.append(_table([key for key in some if key.table == table]))
    return "\n".join(parts)


def settings_example() -> str:
    """An example of lucid.toml: every key that lucidd reads, behind a #, with its meaning and its default."""
    parts = [_EXAMPLE]
    live = [key for key in _keys(Settings, "", simulated=False) if not key.simulated]
    tables = dict.fromkeys(key.table for key in live)
    for table in sorted(tables, key=lambda name: _ORDER.index(name.partition(".")[0])):
        some = [key for key in live if key.table == table]
        parts += [f"[{table}]", _comment(some[0].says), "", *map(_example_of, some)]
    return "\n".join(parts)


def _example_of(key: _Key) -> str:
    live = LIVE_DEFAULTS.get(key.table.removeprefix("policy."), {}) if key.table.startswith("policy.") else {}
    value = live.get(key.name, key.field.get_default(call_default_factory=True))
    given = f"#{key.name} =" + ("" if value is None else f" {_toml(value)}")
    values = _allowed(key.field).replace("`", "")
    return f"{_comment(_says(key.about))}\n# Values: {values}{'; unset by default' * (value is None)}\n{given}\n"


def _comment(text: str) -> str:
    plain = text.replace("``", "`")
    return "\n".join(textwrap.wrap(plain, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False))


def _keys(section: type[BaseModel], table: str, *, simulated: bool) -> Iterator[_Key]:
    inner: list[tuple[str, type[BaseModel], bool]] = []
    texts = field_texts(section)
    for name, field in section.model_fields.items():
        if is_fixed(section, name):
            continue
        only = simulated or of_simulations(section, name) is not None
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            inner.append((f"{table}.{name}".lstrip("."), kind, only))
        else:
            yield _Key(table, " ".join((section.__doc__ or "").split()), name, field, texts.get(name, ""), only)
    for name, kind, only in inner:
        yield from _keys(kind, name, simulated=only)


def _table(keys: list[_Key]) -> str:
    entries = [
        _wrapped(f"- `{key.name}` ({_default(key.field)}; {_allowed(key.field)}): {_says(key.about)}", "  ")
        for key in keys
    ]
    return "\n".join([f"### [{keys[0].table}]", "", _wrapped(keys[0].says), "", *entries, ""])


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 150, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "unset" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if value < 1e6 else f"{value:.0f}"
    return "{}" if value == {} else json.dumps(value)


def _allowed(field: FieldInfo) -> str:
    """The values that a key may have, in words."""
    kinds = [kind for kind in (get_args(field.annotation) or [field.annotation]) if kind is not NoneType]
    if get_origin(field.annotation) is Literal:
        return " or ".join(f"`{_toml(value)}`" for value in get_args(field.annotation))
    kind = field.annotation if get_origin(field.annotation) in (dict, tuple) else kinds[0]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return " or ".join(f"`{_toml(str(value))}`" for value in kind)
    if kind is bool:
        return "`true` or `false`"
    if get_origin(kind) is tuple:
        return "list of texts"
    if get_origin(kind) is dict:
        return "table of " + _allowed_in(get_args(kind)[1])
    bounds = [
        f"{words} {getattr(bound, name):g}"
        for bound in field.metadata
        for name, words in _BOUNDS
        if hasattr(bound, name)
    ]
    number = {int: "whole number", float: "number", str: "text"}[kind]  # type: ignore[index]
    return " ".join([number, " and ".join(bounds)]).strip()


def _allowed_in(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return " or ".join(f"`{_toml(str(value))}`" for value in kind)
    if get_origin(kind) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(kind))
    return "texts" if kind is str else "numbers"


def _says(about: str) -> str:
    return " ".join(about.replace("``", "`").split())


def field_texts(section: type[BaseModel]) -> dict[str, str]:
    """The text below each field, by the field's name."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = str(ast.literal_eval(text.value))
    return found


if __name__ == "__main__":
    print((settings_example() if "--example" in sys.argv else settings_reference()).rstrip())
