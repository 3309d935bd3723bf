"""JSON schemas of what ``--json`` prints: made from what the tests' own calls print, and held against each of them.

``LUCID_RECORD_SCHEMAS=1 python -m pytest -p no:xdist TESTS`` widens docs/schemas by all that the commands printed.
To make a schema anew, delete its file first and run all of tests/unit and tests/parity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any

import click
from jsonschema import Draft202012Validator

from lucid.cli.main import lucidctl

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_BY_NAME = {
    "modes", "configured", "partitions", "aside", "elastic", "turns", "boots", "done", "refused", "restarts",
    "starvation", "promises", "vcs",
    "if", "models", "left_out", "by_user", "by_policy", "policies", "features", "files", "starts_in", "names",
    "metrics", "settings", "unit", "values", "errors", "results", "by_vc", "gains",
}  # fmt: skip
"""Members whose own members are names of a site's or a run's things (partitions, jobs, policies), not of ours."""


@cache
def commands() -> dict[str, click.Command]:
    """Every command that takes ``--json``, by its words after lucidctl."""
    found = every_command()
    return {name: one for name, one in found if any("--json" in getattr(option, "opts", ()) for option in one.params)}


def every_command(command: click.Command = lucidctl, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """A command and all below it, by what a user types after lucidctl."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            assert inner is not None
            yield from every_command(inner, f"{name} {word}".strip())


def name_of(command: click.Command, words: Sequence[str]) -> str | None:
    """Which of `commands` a call means; ``command`` is lucidctl or one below it."""
    rest = list(words)
    while isinstance(command, click.Group):
        inner = None
        for at, word in enumerate(rest):
            inner = command.get_command(click.Context(command), word)
            if inner is not None:
                rest = rest[at + 1 :]
                break
        if inner is None and command.name == "tune":  # what it does where no command below it is named
            inner = command.get_command(click.Context(command), "search")
        if inner is None and command.invoke_without_command:
            break
        if inner is None:
            return None
        command = inner
    for name, known in commands().items():
        if known.callback is command.callback:
            return name
    return None


# -- made from what was printed --------------------------------------------------------------------------------


class Recorder:
    """Takes in documents, and gives the schema that all of them keep to: with ``widen`` what is published already,
    too."""

    def __init__(self, widen: bool = False) -> None:
        self._widen = widen
        self._seen: dict[str, Any] = {}

    def take(self, name: str, document: Any) -> None:
        if self._widen and name not in self._seen and (known := schema_of(name)) is not None:
            self._seen[name] = _shape_in(known)
        self._seen[name] = _merged(self._seen.get(name), _shape(document))

    def schema(self, name: str) -> dict[str, Any]:
        return _schema(self._seen[name])

    def write(self, folder: Path) -> None:
        """A file for each command of which there was a document."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, shape in self._seen.items():
            made = schema_from(name, shape)
            if "anyOf" in (known := schema_of(name) or {}):
                made["anyOf"] = known["anyOf"]  # said by hand: which members come together
            text = json.dumps(made, indent=1, sort_keys=True)
            (folder / f"{name.replace(' ', '-')}.json").write_text(text + "\n", encoding="utf-8")


def _shape(value: Any, of_names: bool = False) -> dict[str, Any]:
    if isinstance(value, dict):
        if of_names or any(not key.isidentifier() for key in value):
            inner = reduce(_merged, map(_shape, value.values()), None)
            return {"types": {"object"}, "names": inner or {"types": set()}}
        members = {key: _shape(item, key in _BY_NAME) for key, item in value.items()}
        return {"types": {"object"}, "members": members, "always": set(value)}
    if isinstance(value, list):
        return {"types": {"array"}, "items": reduce(_merged, map(_shape, value), None)}
    if value is None:
        return {"types": {"null"}}
    kind = "boolean" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
    return {"types": {kind}}


def _shape_in(schema: Any) -> dict[str, Any]:
    """The inverse of ``_schema``."""
    types = schema.get("type", "null")
    shape: dict[str, Any] = {"types": {types} if isinstance(types, str) else set(types)}
    if "items" in schema:
        shape["items"] = _shape_in(schema["items"])
    if "additionalProperties" in schema:
        shape["names"] = _shape_in(schema["additionalProperties"])
    elif "properties" in schema:
        shape["members"] = {key: _shape_in(inner) for key, inner in schema["properties"].items()}
        shape["always"] = set(schema.get("required", ()))
    return shape


def _merged(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any]:
    if one is None or other is None:
        return one or other or {"types": set()}
    made: dict[str, Any] = {"types": one["types"] | other["types"]}
    if "items" in one or "items" in other:
        made["items"] = _merged(one.get("items"), other.get("items"))
    if "names" in one or "names" in other:
        inner = _merged(one.get("names"), other.get("names"))
        for shape in (one, other):
            for member in shape.get("members", {}).values():
                inner = _merged(inner, member)
        made["names"] = inner
    elif "members" in one or "members" in other:
        mine, its = one.get("members", {}), other.get("members", {})
        made["members"] = {key: _merged(mine.get(key), its.get(key)) for key in {*mine, *its}}
        sets = [shape["always"] for shape in (one, other) if "always" in shape]
        made["always"] = set.intersection(*sets)
    return made


def schema_from(name: str, shape: dict[str, Any]) -> dict[str, Any]:
    """The schema as it is published: other members may be added to any object."""
    words = commands()[name].get_short_help_str(300)
    return {"$schema": _DRAFT, "title": f"lucidctl {name} --json", "description": words, **_schema(shape)}


def _schema(shape: dict[str, Any]) -> dict[str, Any]:
    types = sorted(shape["types"])
    if not types or types == ["null"]:
        return {}  # never seen with a value
    made: dict[str, Any] = {"type": types[0] if len(types) == 1 else types}
    if shape.get("items"):
        made["items"] = _schema(shape["items"])
    if "names" in shape:
        made["additionalProperties"] = _schema(shape["names"])
    elif "members" in shape:
        made["properties"] = {key: _schema(inner) for key, inner in sorted(shape["members"].items())}
        made["required"] = sorted(shape["always"])
    return made


# -- held against what is printed --------------------------------------------------------------------------------


def closed(schema: Any) -> Any:
    """The same, with no room for members that it does not name: what the tests hold documents against, so that a new
    member gets into docs/schemas."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and "type" in schema:
        made["additionalProperties"] = False
    return made


@cache
def schema_of(name: str) -> Any:
    """The published schema of a command, ``None`` where there is none."""
    path = FOLDER / f"{name.replace(' ', '-')}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@cache
def _validator(name: str) -> Draft202012Validator | None:
    schema = schema_of(name)
    return None if schema is None else Draft202012Validator(closed(schema))


def trouble_with(name: str, document: Any) -> list[str]:
    """How a document departs from its command's schema."""
    validator = _validator(name)
    if validator is None:
        return [f"docs/schemas has no schema of lucidctl {name} --json"]
    errors = sorted(validator.iter_errors(document), key=lambda error: list(map(str, error.absolute_path)))
    return [f"{'.'.join(map(str, error.absolute_path)) or 'document'}: {error.message[:300]}" for error in errors[:5]]
