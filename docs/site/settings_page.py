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
from typing import Any, Final

from lucid.config.load import SIMULATED, Settings
from lucid.config.policy import LIVE_DEFAULTS
from lucid.config.section import Section, allowed, is_table, keys_of

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


@dataclass(frozen=True, slots=True)
class _Key:
    table: str
    says: str
    """What the table is about."""
    name: str
    kind: Any
    default: Any
    about: str
    """The text below the field."""
    simulated: bool


def settings_reference() -> str:
    """The page, in Markdown."""
    keys = [*_keys(Settings())]
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
    live = [key for key in _keys(Settings()) if not key.simulated]
    tables = dict.fromkeys(key.table for key in live)
    for table in sorted(tables, key=lambda name: _ORDER.index(name.partition(".")[0])):
        some = [key for key in live if key.table == table]
        parts += [f"[{table}]", _comment(some[0].says), "", *map(_example_of, some)]
    return "\n".join(parts)


def _example_of(key: _Key) -> str:
    value = LIVE_DEFAULTS.get(f"{key.table}.{key.name}".removeprefix("policy."), key.default)
    given = f"#{key.name} =" + ("" if value is None else f" {_toml(value)}")
    values = allowed(key.kind).replace("`", "")
    return f"{_comment(_says(key.about))}\n# Values: {values}{'; unset by default' * (value is None)}\n{given}\n"


def _comment(text: str) -> str:
    plain = text.replace("``", "`")
    return "\n".join(textwrap.wrap(plain, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False))


def _keys(section: Section, table: str = "") -> Iterator[_Key]:
    says, texts, kinds = " ".join((section.__doc__ or "").split()), field_texts(type(section)), keys_of(type(section))
    for name, kind in kinds.items():
        key = f"{table}.{name}".lstrip(".")
        if not is_table(kind):
            simulated = key in SIMULATED or table in SIMULATED
            yield _Key(table, says, name, kind, getattr(section, name), texts.get(name, ""), simulated)
    for name, kind in kinds.items():
        if is_table(kind):
            yield from _keys(getattr(section, name), f"{table}.{name}".lstrip("."))


def _table(keys: list[_Key]) -> str:
    entries = [
        _wrapped(f"- `{key.name}` ({_default(key.default)}; {allowed(key.kind)}): {_says(key.about)}", "  ")
        for key in keys
    ]
    return "\n".join([f"### [{keys[0].table}]", "", _wrapped(keys[0].says), "", *entries, ""])


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 150, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _default(value: Any) -> str:
    return "unset" if value is None else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}" if value < 1e6 else f"{value:.0f}"
    return "{}" if value == {} else json.dumps(value)


def _says(about: str) -> str:
    return " ".join(about.replace("``", "`").split())


def field_texts(section: type[Section]) -> dict[str, str]:
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
