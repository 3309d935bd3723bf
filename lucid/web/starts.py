"""Expected starts on the pages, as lucidd forecast them and as they changed; and what would start a job sooner.

The latter runs ``lucidctl why-not``, a few at a time and each for a limited time."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lucid.cli.options import job_number
from lucid.daemon.reporting.starts import StartsAhead

_POINTS = 24
"""How many forecasts of one job's start are remembered."""
_MOVED = 0.1
"""A forecast that differs by less, as a share of the wait, is not a new one."""
_LASTS_S = 600.0
"""How much older than the view a forecast may be to be shown."""


class Forecasts:
    """The forecasts of starts since these pages run. ``ahead``: the last one of all starts; ``None`` where there is
    none, or it is too old."""

    def __init__(self) -> None:
        self.ahead: StartsAhead | None = None
        self._by_job: dict[str, deque[tuple[float, float, float, float]]] = {}

    def update(self, told: StartsAhead | None, now_s: float) -> None:
        """Take in the forecast for the view of ``now_s``; ``None`` where lucidd has not made it yet: then the one
        before stands for a while. Jobs that wait no longer go."""
        if told is None:
            if self.ahead is not None and now_s - self.ahead.at_s > _LASTS_S:
                self.ahead = None
            return
        self.ahead = told
        for job_id in self._by_job.keys() - told.starts_in_s.keys():
            del self._by_job[job_id]
        for job_id, said in told.starts_in_s.items():
            if said is None:
                continue
            early, likely, late = (told.at_s + value for value in said)
            points = self._by_job.setdefault(job_id, deque(maxlen=_POINTS))
            if not points or abs(points[-1][2] - likely) > _MOVED * max(said[1], 60.0):
                points.append((told.at_s, early, likely, late))

    def forecasts_of(self, job_id: str) -> Sequence[tuple[float, float, float, float]]:
        """The forecasts of one job, oldest first: when each was made, and the start: early, likely, late."""
        return tuple(self._by_job.get(job_id, ()))


_LOG = logging.getLogger("lucid.web")
_LUCIDCTL = (sys.executable, "-m", "lucid.cli.main")
_AT_ONCE = 2
_MOST_S = 20.0
_ERROR = "lucidctl: "
"""The beginning of a message that Lucid gives on purpose."""


class WhatIf:
    """Answers the form on a job's page. It keeps no answer: whoever asks again has it planned again."""

    def __init__(self, lucidctl: Sequence[str] = _LUCIDCTL, at_once: int = _AT_ONCE, most_s: float = _MOST_S) -> None:
        """``at_once``: commands that run at a time. ``most_s``: how long one may take."""
        self._lucidctl, self._most_s = tuple(lucidctl), most_s
        self._room = threading.BoundedSemaphore(at_once)

    def ask(self, config: Path, job_id: str, gpus: int | None, share: bool, vc: str | None) -> dict[str, Any]:
        """The answer of ``lucidctl why-not --json``, with the names that lucidd's user may read; ``error`` where
        there is none.

        Raises: ConfigError: that is no job number."""
        words = [*self._lucidctl, "why-not", job_number(job_id), f"--config={config}", "--json"]
        words += [f"--gpus={gpus}"] if gpus else []
        words += ["--share"] if share else []
        words += [f"--vc={vc}"] if vc else []
        if not self._room.acquire(blocking=False):
            return {"error": "Others are asking already: try again in a moment."}
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=self._most_s, check=False
            )
            if done.returncode == 0:
                found: dict[str, Any] = json.loads(done.stdout)
                return found
            trouble = done.stderr
        except subprocess.TimeoutExpired:
            return {
                "error": f"It took more than {self._most_s:g} s: ask lucidctl why-not {job_id}, which has no limit."
            }
        except (OSError, ValueError) as error:
            trouble = str(error)
        finally:
            self._room.release()
        last = (trouble.strip().splitlines() or [""])[-1]
        if last.startswith(_ERROR):
            return {"error": last.removeprefix(_ERROR)}
        _LOG.warning("why-not failed", extra={"facts": {"job": job_id, "why": trouble[-2000:]}})
        return {"error": "Planning again failed. The log of lucid-web says more."}
