"""What every section of the configuration is."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Section", "of_simulations", "simulated"]

_MARK = "of simulations, or of the live policy"


class Section(BaseModel):
    """A section of the configuration: frozen, and with no key but its own. The text below a field says what it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def simulated(default: Any, *, policy: str = "", **limits: Any) -> Any:
    """A field of simulations: lucidd refuses a file that sets it, unless it runs the policy that is named here."""
    return Field(default, json_schema_extra={_MARK: policy}, **limits)


def of_simulations(section: type[BaseModel], key: str) -> str | None:
    """``None`` for a field that lucidd reads; of others the policy under which it does, empty where none."""
    extra = section.model_fields[key].json_schema_extra
    return str(extra[_MARK]) if isinstance(extra, dict) and _MARK in extra else None
