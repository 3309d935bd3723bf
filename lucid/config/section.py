"""``Section``, the base of all sections of the configuration, and the kinds of field that a file may not set."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

_MARK = "of simulations, or of the live policy"
_FIXED = "no setting"


class Section(BaseModel):
    """Base of the sections: frozen, and with no key but its own. The text below a field describes it."""

    # A section is compiled when it is read: who runs a command waits for none that no file names.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


def defaults(section: type[BaseModel], *, policy: str | None = None) -> Any:
    """The field of a table within a section, with its defaults where the file has no such table. ``policy``: of
    simulations, as in ``simulated``."""
    extra: dict[str, Any] | None = None if policy is None else {_MARK: policy}
    return Field(default_factory=section.model_construct, json_schema_extra=extra)


def simulated(default: Any, *, policy: str = "", **limits: Any) -> Any:
    """A field of simulations: lucidd refuses a file that sets it, unless it runs the policy that is named here."""
    return Field(default, json_schema_extra={_MARK: policy}, **limits)


def fixed(default: Any, **limits: Any) -> Any:
    """A field that no file sets: no site is known that needs another value. A study gives another one in Python, and
    a record of a plan holds the value in force."""
    return Field(default, json_schema_extra={_FIXED: True}, **limits)


def is_fixed(section: type[BaseModel], key: str) -> bool:
    """Whether a file may not set the key."""
    extra = section.model_fields[key].json_schema_extra
    return isinstance(extra, dict) and _FIXED in extra


def of_simulations(section: type[BaseModel], key: str) -> str | None:
    """``None`` for a field that lucidd reads; else the policy under which it does, empty where there is none."""
    extra = section.model_fields[key].json_schema_extra
    return str(extra[_MARK]) if isinstance(extra, dict) and _MARK in extra else None
