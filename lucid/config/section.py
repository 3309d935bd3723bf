"""What every section of the configuration is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

_MARK = "of simulations, or of the live policy"
_FIXED = "no setting"


class Section(BaseModel):
    """A section of the configuration: frozen, and with no key but its own. The text below a field says what it is."""

    # A section is compiled when it is read: who runs a command waits for none that no file names.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


def defaults(section: type[BaseModel], *, policy: str | None = None) -> Any:
    """A table within a section: its defaults, where the file has no such table. ``policy``: of simulations, as in
    ``simulated``."""
    extra: dict[str, Any] | None = None if policy is None else {_MARK: policy}
    return Field(default_factory=section.model_construct, json_schema_extra=extra)


def simulated(default: Any, *, policy: str = "", **limits: Any) -> Any:
    """A field of simulations: lucidd refuses a file that sets it, unless it runs the policy that is named here."""
    return Field(default, json_schema_extra={_MARK: policy}, **limits)


def fixed(default: Any, **limits: Any) -> Any:
    """A field that no file sets: nobody knows a site that needs another value. A study gives another one in Python,
    and a record of a plan says what held then."""
    return Field(default, json_schema_extra={_FIXED: True}, **limits)


def is_fixed(section: type[BaseModel], key: str) -> bool:
    """Whether a file may not set it."""
    extra = section.model_fields[key].json_schema_extra
    return isinstance(extra, dict) and _FIXED in extra


def of_simulations(section: type[BaseModel], key: str) -> str | None:
    """``None`` for a field that lucidd reads; of others the policy under which it does, empty where none."""
    extra = section.model_fields[key].json_schema_extra
    return str(extra[_MARK]) if isinstance(extra, dict) and _MARK in extra else None
