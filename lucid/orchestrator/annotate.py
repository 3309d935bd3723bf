"""Joins what the models say to what the cluster shows."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from lucid.core.job import JobProfile, Pending, Running
from lucid.core.ports import Forecaster, Predictor
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition, Snapshot
from lucid.core.versioned import changed_names, key_of
from lucid.orchestrator.order.estimate_ranking import TrustBook

__all__ = ["Annotator"]


class Annotator:
    """Fills in ``Snapshot.predictions``, and ``arrivals`` where there is a forecaster. A job is predicted when first
    seen, and again when its profile comes, or its time limit or the stage times that it reports change. It is never
    predicted to run beyond its limit. Estimates are held against how long jobs ran, for ``trust``. Partitions handed
    out unchanged are not looked at again, and jobs that ended are forgotten.

    A snapshot's predictions can be read only, and stay as they are for as long as somebody keeps the snapshot."""

    def __init__(
        self, predictor: Predictor, forecaster: Forecaster | None = None, trust: TrustBook | None = None
    ) -> None:
        """``trust``: what is known of how well estimates rank jobs; without, it is not measured."""
        self._predictor = predictor
        self._forecaster = forecaster
        self._trust = trust
        self._predictions: dict[str, Prediction] = {}
        self._seen_with: dict[str, JobProfile | None] = {}
        self._limits: dict[str, float | None] = {}
        self._estimates_s: dict[str, float] = {}
        """Before they are cut at time limits, which plain Slurm knows as well."""
        self._learnt: frozenset[str] = frozenset()
        """Jobs that the last snapshot told as ended: where its cycle failed, the next one tells them again."""
        self._partitions: dict[str, Partition] = {}
        """As they were looked at last."""
        self._seen: object | None = None
        self._handed_out: weakref.ref[Snapshot] | None = None

    def __call__(self, snapshot: Snapshot, memory: Mapping[str, object] | None = None) -> Snapshot:
        """The snapshot with a prediction for each pending and running job, and the ``memory`` of the plan before."""
        if self._handed_out is not None and self._handed_out() is not None:
            # a caller may keep the last snapshot: its predictions must not change, ours go on. Usually none does
            self._predictions = self._predictions.copy()
        new = [ended for ended in snapshot.ended if ended.job.id not in self._learnt]
        self._learnt = frozenset(ended.job.id for ended in snapshot.ended)
        if new:
            self._predictor.learn(new)
            for ended in new:
                self._predictions.pop(ended.job.id, None)
                estimate_s = self._estimates_s.pop(ended.job.id, None)
                if self._trust is not None and estimate_s is not None and ended.ran and ended.job.gpus:
                    self._trust.ended(ended.job.vc, estimate_s, ended.ran_s)
                self._seen_with.pop(ended.job.id, None)
                self._limits.pop(ended.job.id, None)
        names = changed_names(self._seen, snapshot.partitions)
        self._seen = None  # a predictor that fails leaves some unseen
        for name in names:
            partition = snapshot.partitions[name]
            before = self._partitions.get(name)
            if before is not partition:
                self._predict(partition.listed() if before is None else partition.since(before).came, snapshot.now_s)
                self._partitions[name] = partition
        self._seen = key_of(snapshot.partitions)
        if self._trust is not None and self._trust.due:
            running = [entry for part in snapshot.partitions.values() for entry in part.running]
            self._trust.look(running, self._estimates_s, snapshot.now_s)
        arrivals = snapshot.arrivals if self._forecaster is None else self._forecaster.forecast(snapshot.now_s)
        annotated = Snapshot(  # not by ``replace``, which takes twice as long: each cycle makes one
            snapshot.now_s,
            snapshot.partitions,
            snapshot.ended,
            MappingProxyType(self._predictions),
            memory or {},
            arrivals,
            snapshot.fair_share,
            {} if self._trust is None else self._trust.told,
        )
        self._handed_out = weakref.ref(annotated)
        return annotated

    def _predict(self, entries: Iterable[Pending | Running], now_s: float) -> None:
        seen, limits, missing = self._seen_with, self._limits, _MISSING
        for entry in entries:
            job = entry.job
            known = seen.get(job.id, missing) is entry.profile and limits.get(job.id) == job.time_limit_s
            if known and (entry.stages is None or entry.stages == self._predictions[job.id].stages):
                continue
            if self._forecaster is not None and job.id not in seen:
                self._forecaster.saw(job)
            seen[job.id], limits[job.id] = entry.profile, job.time_limit_s
            said = self._predictor.predict(job, entry.profile, now_s)
            if entry.stages is not None:
                said = replace(said, stages=entry.stages)
            self._estimates_s[job.id] = said.duration_s
            self._predictions[job.id] = said.within(job.time_limit_s)


_MISSING = JobProfile(-1.0, -1.0, -1.0)
