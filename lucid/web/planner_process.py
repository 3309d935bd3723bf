"""Plans ahead and plans again in a process of its own, at low priority: the policies and their libraries take more
memory than all pages together, and a plan must not make a page wait. The process ends when nobody has asked for a
while.

It reads one JSON object a line: first ``{"settings": ..., "config": ...}``, then
questions, and answers each with one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from lucid.adapters.store.sqlite import SqliteStore
from lucid.config import Settings, settings_from
from lucid.errors import LucidError
from lucid.explain.what_if import Changes, asked_again
from lucid.live.plans.replan import LastPlan, last_plan
from lucid.live.plans.stored_starts import STARTS, StartsAhead, told_starts

__all__ = ["main", "serve"]

_NICE = 10


class _Last:
    """The last plan, read again when another was drawn; with the forecast from it."""

    def __init__(self, settings: Settings, config: Path) -> None:
        self.settings, self.config = settings, config
        self._path = Path(settings.daemon.state_dir) / "lucid.db"
        self._head = ""
        self._last: LastPlan | None = None
        self._starts: StartsAhead | None = None

    def look(self) -> LastPlan:
        store = SqliteStore(self._path, read_only=True, shared=self.settings.daemon.shared_state)
        try:
            with store.reading() as db:
                head = str(
                    db.execute(
                        "SELECT substr(data, 1, 64), length(data) FROM views WHERE name = 'snapshot'"
                    ).fetchone()
                )
            if head != self._head or self._last is None:
                self._last, self._starts = None, None
                self._last, self._head = last_plan(store), head
                self._starts = told_starts(store.view(STARTS), self._last.snapshot, self._last.plan)
        finally:
            store.close()
        return self._last

    def starts(self, last: LastPlan) -> StartsAhead:
        """As lucidd foresaw them when that plan was read first; else planned ahead here."""
        if self._starts is None:
            self._starts = last.starts(self.settings, self.config)
        return self._starts


def serve(lines: TextIO, out: TextIO) -> None:
    """Answer until the other side closes."""
    first = json.loads(lines.readline())
    last = _Last(settings_from(first["settings"], "settings of lucid-web"), Path(first["config"]))
    for line in lines:
        try:
            answer = _answer(last, json.loads(line))
        except LucidError as error:
            answer = {"error": str(error)}
        except Exception as error:  # whatever it is: the page says it, and the next question may do better
            answer = {"error": f"planning failed ({error!r})"}
        out.write(json.dumps(answer) + "\n")
        out.flush()


def _answer(known: _Last, asked: dict[str, Any]) -> dict[str, Any]:
    last = known.look()
    if asked["do"] == "why-not":
        changes = Changes(asked.get("gpus"), bool(asked.get("share")), asked.get("vc"))
        return asked_again(last, known.settings, known.config, asked["job"], changes, known.starts(last)).to_dict()
    return known.starts(last).to_dict()


def main() -> None:
    """The process."""
    os.nice(_NICE)
    try:
        serve(sys.stdin, sys.stdout)
    except BrokenPipeError:  # lucid-web ended while this process planned: the answer is no longer wanted
        os._exit(0)


if __name__ == "__main__":
    main()
