"""What every section of the configuration is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = [
    "Section",
]


class Section(BaseModel):
    """A section of the configuration: frozen, and with no key but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
