"""What would start a waiting job sooner: ``lucidctl why-not`` is run and asked, a few at a time and for a while."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lucid.cli.options import job_number

__all__ = ["WhatIf"]

_LOG = logging.getLogger("lucid.web")
_LUCIDCTL = (sys.executable, "-m", "lucid.cli.main")
_AT_ONCE = 2
_MOST_S = 20.0
_TOLD = "lucidctl: "
"""How a message begins that Lucid gives on purpose."""


class WhatIf:
    """The form on the page of a job. It holds no answer: who asks again has it planned again."""

    def __init__(self, lucidctl: Sequence[str] = _LUCIDCTL, at_once: int = _AT_ONCE, most_s: float = _MOST_S) -> None:
        """``at_once``: commands that run at a time. ``most_s``: how long one may take."""
        self._lucidctl, self._most_s = tuple(lucidctl), most_s
        self._room = threading.BoundedSemaphore(at_once)

    def ask(self, config: Path, job_id: str, gpus: int | None, share: bool, vc: str | None) -> dict[str, Any]:
        """What ``lucidctl why-not --json`` says, with the names that lucidd's user may read; ``error`` where it says
        nothing.

        Raises:
            ConfigError: that is no job number.
        """
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
        if last.startswith(_TOLD):
            return {"error": last.removeprefix(_TOLD)}
        _LOG.warning("why-not failed", extra={"facts": {"job": job_id, "why": trouble[-2000:]}})
        return {"error": "Planning again failed. The log of lucid-web says more."}
