"""Joins what the models say to what the cluster shows."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from lucid.core.changes import changed_names, key_of
from lucid.core.job import Job, JobProfile, Pending, Running
from lucid.core.ports import Forecaster, Predictor
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Partition, Snapshot
from lucid.orchestrator.order.estimate_ranking import TrustBook

__all__ = ["Annotator"]


class Annotator:
    """Fills in ``Snapshot.predictions``, and ``arrivals`` where there is a forecaster. A job is predicted when first
    seen, and again when its profile comes, or its time limit or the stage times that it reports change. It is never
    predicted to run beyond its limit. Estimates are held against how long jobs ran, for ``trust``. Partitions handed
    out unchanged are not looked at again, and jobs that ended are forgotten.

    A snapshot's predictions can be read only, and stay as they are for as long as somebody keeps the snapshot."""

    def __init__(
        self,
        predictor: Predictor,
        forecaster: Forecaster | None = None,
        trust: TrustBook | None = None,
        naive: Predictor | None = None,
    ) -> None:
        """``trust``: what is known of how well estimates rank jobs; without, it is not measured. ``naive``: estimates
        durations in the predictor's place where these rank the jobs that ended better."""
        self._predictor = predictor
        self._forecaster = forecaster
        self._trust = trust
        self._predictions: dict[str, Prediction] = {}
        self._seen_with: dict[str, JobProfile | None] = {}
        self._limits: dict[str, float | None] = {}
        self._naive = naive
        self._said: dict[str, tuple[Prediction, Prediction | None]] = {}
        """By the predictor and the naive one, before time limits cut them, which plain Slurm knows as well."""
        self._by: Mapping[str, str] = {} if trust is None else trust.by
        """Whose estimates are used, by VC."""
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
            if self._naive is not None:
                self._naive.learn(new)
            for ended in new:
                self._predictions.pop(ended.job.id, None)
                said = self._said.pop(ended.job.id, None)
                if self._trust is not None and said is not None and ended.ran and ended.job.gpus:
                    self._trust.ended(ended.job.vc, *_seconds(said), ended.ran_s)
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
            known, now_s = self._said, snapshot.now_s
            self._trust.look(
                [
                    (entry.job.vc, *_seconds(known[entry.job.id]), entry.ran_s + entry.elapsed_s(now_s))
                    for part in snapshot.partitions.values()
                    for entry in part.running
                ]
            )
            if self._naive is not None:
                self._choose(snapshot, self._trust.by)
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
            naive = None if self._naive is None else self._naive.predict(job, entry.profile, now_s)
            self._said[job.id] = said, naive
            self._predictions[job.id] = self._chosen(job)

    def _choose(self, snapshot: Snapshot, by: Mapping[str, str]) -> None:
        """Where others' estimates have come to be used, all jobs have those."""
        if by == self._by:
            return
        self._by = by
        for partition in snapshot.partitions.values():
            for entry in partition.listed():
                self._predictions[entry.job.id] = self._chosen(entry.job)

    def _chosen(self, job: Job) -> Prediction:
        said, naive = self._said[job.id]
        if naive is not None and self._by.get(job.vc, self._by.get("", "")):
            said = replace(
                said, duration_s=naive.duration_s, duration_source=naive.duration_source, duration_terms=None
            )
        return said.within(job.time_limit_s)


def _seconds(said: tuple[Prediction, Prediction | None]) -> tuple[float, float | None]:
    given, naive = said
    return given.duration_s, None if naive is None else naive.duration_s


_MISSING = JobProfile(-1.0, -1.0, -1.0)
