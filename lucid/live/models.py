"""Which models the daemon goes by: the library's versions in service, and what stands in where there is none.

Another process may promote, roll back or suspend a version at any time (``lucidctl models``, cron); the files that
say what is in service are looked at every cycle, and cost a few ``stat`` calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lucid.adapters.estimates import WithContention
from lucid.calibrate.tables import shipped
from lucid.core.ports import Predictor
from lucid.errors import ModelError
from lucid.models.duration.features import DurationHistory
from lucid.models.history import HistoryPredictor
from lucid.models.packing.pair_memory import PairMemory, WithMemory
from lucid.models.packing.share_score import ShareTree
from lucid.models.predictor import LearnedPredictor
from lucid.models.upkeep.library import Library

__all__ = ["KINDS", "LiveModels", "Serving"]

KINDS: Final = ("duration", "share", "pairs")
_INSTEAD: Final = {"duration": "history means", "share": "synthetic share tree", "pairs": "contention model"}
"""What answers where no version does. The tree comes with the package, from a table that nobody has measured."""
_SAYS: Final = ("service.json", "suspended.json")

_Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Serving:
    """What answers for one kind: a version (``v3``), or what stands in for one, and ``why``. ``trouble``: a version
    is in service and cannot be used."""

    version: str
    why: str
    trouble: bool = False


class LiveModels:
    """Makes the daemon's predictor, and says when it should be made anew."""

    def __init__(
        self,
        folder: Path,
        *,
        first_guess_s: float = 3600.0,
        profiled_s: float = 0.0,
        memory: PairMemory | None = None,
    ) -> None:
        self._library = Library(folder)
        self._first_guess_s = first_guess_s
        self._profiled_s = profiled_s
        self._memory = memory
        self._made_from: _Signature | None = None
        self._serving: Mapping[str, Serving] = {}

    @property
    def serving(self) -> Mapping[str, Serving]:
        """By kind, what the predictor made last goes by."""
        return self._serving

    def changed(self) -> bool:
        """Has another version come into service, or been suspended, since the predictor was made?"""
        return self._signature() != self._made_from

    def make(self) -> Predictor:
        """A fresh predictor that has learned from no job yet. A version that does not check is passed over: its
        kind is answered as if there were none."""
        self._made_from = self._signature()
        otherwise = WithContention(HistoryPredictor(self._first_guess_s))
        self._serving = {kind: self._look(kind) for kind in KINDS}
        usable = [kind for kind, serving in self._serving.items() if not serving.trouble]
        made: Predictor = LearnedPredictor.from_library(
            self._library,
            DurationHistory(),
            otherwise,
            profiled_s=self._profiled_s,
            kinds=usable,
            share=_synthetic_tree(),
            share_source=_INSTEAD["share"],
        )
        return made if self._memory is None else WithMemory(made, self._memory)

    def _look(self, kind: str) -> Serving:
        instead = _INSTEAD[kind]
        try:
            number, suspended = self._library.serving(kind), self._library.suspended(kind)
            if number is None:
                return Serving(instead, f"no version in {self._library.root}")
            if suspended is not None:
                return Serving(instead, f"v{number} is suspended: {suspended}")
            LearnedPredictor.from_library(self._library, DurationHistory(), HistoryPredictor(), kinds=[kind])
        except ModelError as error:
            return Serving(instead, str(error), trouble=True)
        except Exception as error:  # a version that does not check, whatever is wrong with it
            return Serving(instead, f"{type(error).__name__}: {error}", trouble=True)
        return Serving(f"v{number}", self._promoted(kind, number))

    def _promoted(self, kind: str, number: int) -> str:
        """Why this version serves, from the library's own trail."""
        try:
            trail = self._library.trail(kind)
            taken = ("promote", "rollback")
            return self._last_why(trail, number, taken)
        except Exception as error:  # the trail explains, and no more
            return str(error)

    @staticmethod
    def _last_why(trail: Sequence[Mapping[str, Any]], number: int, taken: Sequence[str]) -> str:
        return next((str(e["why"]) for e in reversed(trail) if e["version"] == number and e["action"] in taken), "")

    def _signature(self) -> _Signature:
        found = []
        for kind in KINDS:
            for name in _SAYS:
                path = self._library.root / kind / name
                try:
                    stat = path.stat()
                except OSError:
                    continue
                found.append((f"{kind}/{name}", stat.st_mtime_ns, stat.st_ino))
        return tuple(found)


def _synthetic_tree() -> ShareTree:
    path = shipped("share.json")
    return ShareTree.from_json(json.loads(path.read_text(encoding="utf-8")), source=str(path))
