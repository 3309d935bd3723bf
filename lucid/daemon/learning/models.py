"""``LiveModels``: the model versions that serve lucidd, and what answers where there is none.

Another process may promote, roll back or suspend a version at any time (``lucidctl models``, cron); the files that
say which serve are checked every cycle, which costs a few ``stat`` calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from lucid.binder.contention import contention_score, contention_speeds
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.ports import Forecaster, Predictor
from lucid.core.prediction import Prediction
from lucid.daemon.barrier import GuardedForecaster
from lucid.left_out import LeftOut
from lucid.models.duration.history import DurationHistory
from lucid.models.history import PriorPredictor
from lucid.models.kinds import KINDS, Served, Serving
from lucid.models.library import Library
from lucid.models.packing.measured import shipped
from lucid.models.packing.pair_memory import PairMemory, WithMemory
from lucid.models.packing.share_score import ShareTree
from lucid.models.predictor import LearnedPredictor
from lucid.models.throughput.forecaster import THROUGHPUT, LearnedForecaster
from lucid.models.throughput.model import ArrivalForecaster


class WithContention:
    """A predictor for a daemon without trained models: durations of another predictor, share scores and pair speeds
    by the contention model."""

    def __init__(self, durations: Predictor) -> None:
        self.name = durations.name
        self._durations = durations

    def predict(self, job: Job, profile: JobProfile | None, now_s: float) -> Prediction:
        """The other predictor's duration, and a share score once the job is measured."""
        found = self._durations.predict(job, profile, now_s)
        if profile is None:
            return Prediction(found.duration_s, found.duration_source)
        return Prediction(found.duration_s, found.duration_source, contention_score(profile), "contention model")

    def pair_speed(self, a: JobProfile, b: JobProfile) -> tuple[float, float] | None:
        """The speeds by the contention model, from both profiles."""
        return contention_speeds(a, b)

    def learn(self, ended: Sequence[Ended]) -> None:
        """Let the other predictor learn."""
        self._durations.learn(ended)


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
        """What answers, by kind."""
        return {} if self._served is None else self._served.serving

    def changed(self) -> bool:
        """Whether another version has come into service, or been suspended, since the predictor was made."""
        return self._signature() != self._made_from

    def make(self) -> Predictor:
        """A fresh predictor that has learned from no job yet. A version that does not check is passed over: its kind
        is answered as if there were none."""
        self._made_from, self._served, tree = self._signature(), None, shipped("share.json")
        made: Predictor = LearnedPredictor.from_served(
            self.served,
            DurationHistory(),
            WithContention(PriorPredictor(self._first_guess_s)),
            profiled_s=self._profiled_s,
            share=ShareTree.from_json(json.loads(tree.read_text(encoding="utf-8")), source=str(tree)),
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
    """The forecaster of the throughput version in service, or of seasonal means, with the submissions of the ended
    jobs.

    ``profiled``: which jobs go through profiling nodes."""
    means = ArrivalForecaster(profiled)
    made: Forecaster = means
    if models is not None and (model := models.served.model(THROUGHPUT)) is not None:
        made = LearnedForecaster(model, models.served.version(THROUGHPUT), means)
    for item in ended:
        made.observe(item.job)
    return GuardedForecaster(made, means, left_out)
