"""The tuner beside a daemon: now and then a child searches the cluster's own past, and leaves a report.

A report and nothing more, unless ``tuner.apply`` says otherwise; and even then only a gain that survives on later
data is written into the configuration, which lucidd reads when it is next started.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from lucid.config import Settings
from lucid.errors import ModelError
from lucid.live.learning.child_process import Children
from lucid.live.learning.model_timer import ModelTimer
from lucid.live.learning.tuner_reports import reports_folder

__all__ = ["TuneTick", "tune_timer"]

_LOG = logging.getLogger("lucidd")
_LOOK = timedelta(hours=1)
"""How often the timer looks whether a search is due: a daemon that was down for a while is not late for long."""
_STAMP = "%Y%m%d-%H%M%S"

Child = Callable[[Sequence[str], timedelta], "CompletedProcess[str]"]


class TuneTick:
    """One look: search if the last search began long enough ago, and drop the oldest reports."""

    def __init__(
        self,
        settings: Settings,
        config: Path,
        child: Child,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._config = str(config.absolute())
        self._child = child
        self._now_s = now_s

    def __call__(self) -> list[dict[str, Any]]:
        """The summary of the search, if there was one.

        Raises:
            ModelError: the child failed, or took longer than until the next search; with its last words.
        """
        tuner, folder = self._settings.tuner, reports_folder(self._settings)
        earlier = sorted(path for path in folder.glob("*-*") if path.is_dir())
        due = time.strftime(_STAMP, time.gmtime(self._now_s() - tuner.every_h * 3600.0))
        if earlier and earlier[-1].name > due:
            return []
        for old in earlier[: max(len(earlier) - tuner.keep + 1, 0)]:
            shutil.rmtree(old, ignore_errors=True)
        out = folder / time.strftime(_STAMP, time.gmtime(self._now_s()))
        self._lucidctl(
            ["tune", "--history", f"{tuner.history_days:g}d", "--config", self._config, "--out", str(out)]
            + ["--trials", str(tuner.trials), "--workers", str(tuner.workers), "--json"]
            + [word for key in tuner.only for word in ("--only", key)]
        )
        found: dict[str, Any] = json.loads((out / "summary.json").read_text(encoding="utf-8"))
        found["folder"] = str(out)
        if tuner.apply and found["worth_it"]:
            self._lucidctl(["tune", "apply", str(out), "--config", self._config])
            found["applied"] = True
        return [found]

    def _lucidctl(self, words: Sequence[str]) -> None:
        try:
            done = self._child(words, timedelta(hours=self._settings.tuner.every_h))
        except TimeoutError as error:
            raise ModelError(f"the search {error}") from None
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise ModelError(f"lucidctl {words[0]} {words[1]} ended with status {done.returncode}: {last[0]}")


def tune_timer(settings: Settings, config: Path, children: Children | None = None) -> ModelTimer | None:
    """The timer of a daemon with this configuration file; ``None`` where nothing is to be searched."""
    if not settings.tuner.every_h:
        return None
    every = min(_LOOK, timedelta(hours=settings.tuner.every_h))
    return ModelTimer(TuneTick(settings, config, (children or Children()).run), every, _log_outcomes, "tuner")


def _log_outcomes(outcomes: Sequence[dict[str, Any]]) -> None:
    for found in outcomes:
        _LOG.info("tuner", extra={"facts": found})
