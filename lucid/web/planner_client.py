"""The pages' side of the process that plans (``planner_process``): asks it, keeps its answers, ends it when nobody
looks."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from lucid.live.plans.stored_starts import StartsAhead
from lucid.web.picture import Ahead
from lucid.web.source import Source

__all__ = ["Forecasts", "Planning"]

_LOG = logging.getLogger("lucid.web")
_IDLE_S = 120.0
"""The process ends once nobody has asked for so long."""
_ANSWERS = 64
_FRESH_S = 30.0
"""For so long an answer stands; a page that is asked for again then plans anew."""
_EVERY_S = 30.0
"""While somebody looks, expected starts are planned ahead at most this often, by a process of low priority."""
_POINTS = 24
"""Forecasts of one job's start that are remembered."""
_MOVED = 0.1
"""A forecast that differs by less, as a share of the wait, is no news."""


class Forecasts:
    """How the forecasts of starts have changed since this process began."""

    def __init__(self) -> None:
        self._by_job: dict[str, deque[tuple[float, float, float, float]]] = {}

    def take(self, ahead: Ahead) -> None:
        """Keep what is new; jobs that wait no longer go."""
        for job_id in self._by_job.keys() - ahead.starts.keys():
            del self._by_job[job_id]
        for job_id, said in ahead.starts.items():
            if said is None:
                continue
            early, likely, late = (ahead.at_s + value for value in said)
            points = self._by_job.setdefault(job_id, deque(maxlen=_POINTS))
            if not points or abs(points[-1][2] - likely) > _MOVED * max(said[1], 60.0):
                points.append((ahead.at_s, early, likely, late))

    def of(self, job_id: str) -> Sequence[tuple[float, float, float, float]]:
        """When it was said, and the start: early, likely, late; oldest first."""
        return tuple(self._by_job.get(job_id, ()))


class Planning:
    """``ahead``: the last forecast of all starts; ``None`` before the first."""

    def __init__(self, source: Source) -> None:
        self.ahead: Ahead | None = None
        self.trouble = ""
        self.forecasts = Forecasts()
        self._source = source
        self._every_s = _EVERY_S
        self._wanted = threading.Condition()
        self._asked_s = float("-inf")
        self._ahead_due_s = 0.0
        self._ahead_of = -1
        self._questions: deque[tuple[Any, ...]] = deque()
        self._answers: OrderedDict[tuple[Any, ...], tuple[float, dict[str, Any]]] = OrderedDict()
        self._process: subprocess.Popen[str] | None = None
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="lucid-web planning", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the process."""
        with self._wanted:
            self._ended = True
            self._wanted.notify()
        self._thread.join(5.0)
        self._end()

    def look(self) -> Ahead | None:
        """The last forecast; another is begun where one is due."""
        with self._wanted:
            self._asked_s = time.monotonic()
            self._wanted.notify()
        return self.ahead

    def why_not(self, job_id: str, gpus: int | None, share: bool, vc: str | None) -> dict[str, Any] | None:
        """What ``lucidctl why-not --json`` says; ``None`` while it is being planned."""
        key = (job_id, gpus, share, vc)
        with self._wanted:
            at_s, found = self._answers.get(key, (0.0, None))
            if found is not None and time.monotonic() - at_s > _FRESH_S:
                found = None
            if found is None and key not in self._questions:
                if len(self._questions) >= _ANSWERS:
                    return {"error": "too many questions at once: ask again later"}
                self._questions.append(key)
                self._asked_s = time.monotonic()
                self._wanted.notify()
        return found

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wanted:
                while not self._ended and not (due := self._due()):
                    self._wanted.wait(5.0)
                    if time.monotonic() - self._asked_s > _IDLE_S:
                        break
                if self._ended:
                    return
                if not due:
                    key = None
                else:
                    key = self._questions[0] if self._questions else ()
            if key is None:
                self._end()
            elif key:
                self._answer(key)
            else:
                self._plan_ahead()

    def _due(self) -> bool:
        if self._questions:
            return True
        picture, now_s = self._source.picture, time.monotonic()
        if picture is None or picture.version == self._ahead_of or now_s - self._asked_s > _IDLE_S:
            return False
        return now_s >= self._ahead_due_s

    def _answer(self, key: tuple[Any, ...]) -> None:
        job_id, gpus, share, vc = key
        found = self._ask({"do": "why-not", "job": job_id, "gpus": gpus, "share": share, "vc": vc})
        with self._wanted:
            self._questions.popleft()
            self._answers[key] = time.monotonic(), found
            while len(self._answers) > _ANSWERS:
                self._answers.popitem(last=False)

    def _plan_ahead(self) -> None:
        picture, began_s = self._source.picture, time.monotonic()
        found = self._ask({"do": "ahead"})
        took_s = time.monotonic() - began_s
        self._ahead_due_s = began_s + max(self._every_s / (self._source.demo_speed or 1.0), 2.0, 3.0 * took_s)
        self._ahead_of = -1 if picture is None else picture.version
        self.trouble = found.get("error", "")
        if not self.trouble:
            told = StartsAhead.from_dict(found)
            self.ahead = Ahead(told.at_s, told.ahead_s, told.starts_in_s, told.own_ahead_s)
            self.forecasts.take(self.ahead)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            if self._process is None or self._process.poll() is not None:
                self._begin()
            assert self._process is not None
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if not line:
                raise OSError("the process ended")
            found: dict[str, Any] = json.loads(line)
            return found
        except (OSError, ValueError) as error:
            self._end()
            _LOG.warning("starts not planned", extra={"facts": {"why": str(error)}})
            return {"error": f"planning is not to be had ({error})"}

    def _begin(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lucid.web.planner_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        settings = self._source.settings.model_dump(mode="json", exclude_unset=True)
        self._process.stdin.write(json.dumps({"settings": settings, "config": str(self._source.config)}) + "\n")
        self._process.stdin.flush()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
