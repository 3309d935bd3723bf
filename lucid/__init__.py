"""Lucid: non-intrusive, explainable scheduling of deep-learning jobs on GPU clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lucid.api import Replay, Runs, replay

__all__ = ["Replay", "Runs", "__version__", "replay"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: the parts of Lucid that run beside jobs import none of it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("lucid-scheduler")
    if name in __all__:
        from lucid import api

        return getattr(api, name)
    raise AttributeError(f"module 'lucid' has no attribute {name!r}")
