"""Which models the daemon uses: the library's versions in service, and the replacement where there is none.

Another process may promote, roll back or suspend a version at any time (``lucidctl models``, cron); the files that
say what is in service are looked at every cycle, and cost a few ``stat`` calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from lucid.adapters.estimates import WithContention
from lucid.adapters.left_out import LeftOut
from lucid.core.job import Ended, Job
from lucid.core.ports import Forecaster, Predictor
from lucid.live.resilience.guarded_models import GuardedForecaster
from lucid.models.duration.history import DurationHistory
from lucid.models.packing.pair_memory import PairMemory, WithMemory
from lucid.models.packing.share_score import ShareTree
from lucid.models.packing.shipped import shipped
from lucid.models.predictor import LearnedPredictor
from lucid.models.prior import PriorPredictor
from lucid.models.throughput.arrivals import ArrivalForecaster
from lucid.models.throughput.forecaster import LearnedForecaster
from lucid.models.throughput.kind import THROUGHPUT
from lucid.models.upkeep.kinds import KINDS
from lucid.models.upkeep.library import Library
from lucid.models.upkeep.serving import Served, Serving

__all__ = ["LiveModels", "live_forecaster"]

_SAYS: Final = ("service.json", "suspended.json")

_Signature = tuple[tuple[str, int, int], ...]


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
        self._served: Served | None = None

    @property
    def served(self) -> Served:
        """The versions that serve, as they were read last."""
        if self._served is None:
            self._served = Served(self._library)
        return self._served

    @property
    def serving(self) -> Mapping[str, Serving]:
        """By kind, what answers."""
        return {} if self._served is None else self._served.serving

    def changed(self) -> bool:
        """Has another version come into service, or been suspended, since the predictor was made?"""
        return self._signature() != self._made_from

    def make(self) -> Predictor:
        """A fresh predictor that has learned from no job yet. A version that does not check is passed over: its
        kind is answered as if there were none."""
        self._made_from, self._served = self._signature(), None
        made: Predictor = LearnedPredictor.from_served(
            self.served,
            DurationHistory(),
            WithContention(PriorPredictor(self._first_guess_s)),
            profiled_s=self._profiled_s,
            share=_synthetic_tree(),
        )
        return made if self._memory is None else WithMemory(made, self._memory)

    def _signature(self) -> _Signature:
        found = []
        for kind in KINDS:
            for name in _SAYS:
                path = self._library.root / kind.name / name
                try:
                    stat = path.stat()
                except OSError:
                    continue
                found.append((f"{kind.name}/{name}", stat.st_mtime_ns, stat.st_ino))
        return tuple(found)


def live_forecaster(
    models: LiveModels | None, ended: Sequence[Ended], profiled: Callable[[Job], bool], left_out: LeftOut
) -> Forecaster:
    """The throughput version in service, or seasonal means, knowing the submissions of the jobs that have ended.

    ``profiled``: which jobs go through profiling nodes.
    """
    means = ArrivalForecaster(profiled)
    made: Forecaster = means
    if models is not None and (model := models.served.model(THROUGHPUT)) is not None:
        made = LearnedForecaster(model, models.served.version(THROUGHPUT), means)
    for item in ended:
        made.saw(item.job)
    return GuardedForecaster(made, means, left_out)


def _synthetic_tree() -> ShareTree:
    path = shipped("share.json")
    return ShareTree.from_json(json.loads(path.read_text(encoding="utf-8")), source=str(path))
