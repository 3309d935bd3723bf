"""The models' upkeep beside a daemon: finished jobs go into a log, and a child trains from it when that is due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from lucid.adapters.store.port import Store
from lucid.config import Settings, own_job_log
from lucid.errors import StoreError
from lucid.live.learning.child_process import Children
from lucid.live.learning.job_log import write_job_log
from lucid.live.learning.model_timer import ChildTick, ModelTimer
from lucid.models.upkeep.update import Rules

__all__ = ["UPKEEP", "Upkeep", "model_timer"]

UPKEEP = "upkeep"
"""Name of the view with what the last look at the models came to, an object for each kind: drift and action."""
_LOG = logging.getLogger("lucidd")


class Upkeep:
    """One tick: write the log, and let a child train where there is enough to learn from."""

    def __init__(self, settings: Settings, store: Store, train: Callable[[], Sequence[dict[str, Any]]]) -> None:
        self._settings = settings
        self._store = store
        self._train = train

    def __call__(self) -> Sequence[dict[str, Any]]:
        """The result of the training, one object for each kind; nothing where no child was started.

        Raises:
            ModelError: the child failed.
        """
        models = self._settings.models
        try:
            ended = self._store.ended()
            write_job_log(own_job_log(self._settings), ended)
        except StoreError as error:
            _LOG.error("finished jobs not written out", extra={"facts": {"why": str(error)}})
            ended = []
        if len(ended) < Rules.least_jobs and not (models.jobs or models.profiles or models.bins):
            return []  # a child costs seconds of CPU to find that out
        found = self._train()
        try:
            self._store.put_view(UPKEEP, list(found))
        except StoreError as error:
            _LOG.error("what training found is not kept", extra={"facts": {"why": str(error)}})
        return found


def model_timer(
    settings: Settings, config: Path, store: Store, children: Children | None = None
) -> ModelTimer | None:
    """The timer of a daemon with this configuration file; ``None`` where it is not to train."""
    if not settings.models.every_h:
        return None
    child = ChildTick(["--config", str(config.absolute())], children=children)
    return ModelTimer(Upkeep(settings, store, child), timedelta(hours=settings.models.every_h), _log_outcomes)


def _log_outcomes(outcomes: Sequence[dict[str, Any]]) -> None:
    for found in outcomes:
        facts = {
            key: found[key] for key in ("kind", "action", "version", "promoted", "why", "trouble") if key in found
        }
        _LOG.info("models", extra={"facts": facts})
