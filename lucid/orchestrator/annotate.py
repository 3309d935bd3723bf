"""``Annotator``: adds predictions, the forecast of arrivals and the trust in estimates to a snapshot."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from msgspec.structs import replace

from lucid.core.job import Ended, Job, JobProfile, Pending, Running
from lucid.core.ports import Forecaster, Predictor
from lucid.core.prediction import Prediction
from lucid.core.snapshot import Changes, Partition, Snapshot, changed_names
from lucid.orchestrator.order.estimate_ranking import TrustBook


@dataclass(frozen=True, slots=True)
class _Said:
    """The predictions of a job, and what they were made from: ``given`` by the predictor, ``naive`` by the other one.
    Both are those from before time limits cut them, which plain Slurm knows as well."""

    job: Job
    profile: JobProfile | None
    given: Prediction
    naive: Prediction | None

    @property
    def seconds(self) -> tuple[float, float | None]:
        """The given and the naive duration, s."""
        return self.given.duration_s, None if self.naive is None else self.naive.duration_s


class Annotator:
    """Fills in ``Snapshot.predictions``, and ``arrivals`` where there is a forecaster. A job is predicted when first
    seen, and again when its request, its profile or its reported stage times change; never to run beyond its limit.
    Estimates are compared with how long jobs ran, for ``trust``. Partitions handed out unchanged are passed over.
    Jobs that have left the snapshot are forgotten.

    The predictions of a snapshot are read-only, and stay as they are for as long as somebody keeps the snapshot."""

    def __init__(
        self,
        predictor: Predictor,
        forecaster: Forecaster | None = None,
        trust: TrustBook | None = None,
        naive: Predictor | None = None,
    ) -> None:
        """``trust``: how well estimates ranked jobs so far; ``None``: that is not measured. ``naive``: the predictor
        whose durations replace the first one's where they rank the ended jobs better."""
        self._predictor = predictor
        self._forecaster = forecaster
        self._trust = trust
        self._predictions: dict[str, Prediction] = {}
        self._naive = naive
        self._said: dict[str, _Said] = {}
        self._by: Mapping[str, str] = {} if trust is None else trust.by
        """The source of the estimates in use, by VC."""
        self._learnt: frozenset[str] = frozenset()
        """Jobs that the last snapshot listed as ended: if its cycle failed, the next snapshot lists them again."""
        self._partitions: Mapping[str, Partition] = {}
        """The partitions as they were followed last."""
        self._handed_out: weakref.ref[Snapshot] | None = None

    def __call__(self, snapshot: Snapshot, memory: Mapping[str, object] | None = None) -> Snapshot:
        """The snapshot with a prediction for each pending and running job, and the ``memory`` of the plan before."""
        if self._handed_out is not None and self._handed_out() is not None:
            # a caller may keep the last snapshot: its predictions must not change, ours go on. Usually none does
            self._predictions = self._predictions.copy()
        self._learn([ended for ended in snapshot.ended if ended.job.id not in self._learnt])
        self._learnt = frozenset(ended.job.id for ended in snapshot.ended)
        self._follow(snapshot)
        if self._trust is not None and self._trust.due:
            self._trust.check(partial(self._running, snapshot))
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
            {} if self._trust is None else self._trust.unranked,
        )
        self._handed_out = weakref.ref(annotated)
        return annotated

    def _learn(self, new: Sequence[Ended]) -> None:
        if not new:
            return
        self._predictor.learn(new)
        if self._naive is not None:
            self._naive.learn(new)
        for ended in new:
            self._predictions.pop(ended.job.id, None)
            said = self._said.pop(ended.job.id, None)
            if self._trust is not None and said is not None and ended.ran and ended.job.gpus:
                self._trust.ended(ended.job.vc, *said.seconds, ended.ran_s)

    def _follow(self, snapshot: Snapshot) -> None:
        partitions, looked_at = snapshot.partitions, self._partitions
        came, went = list[Pending | Running](), list[Pending | Running]()
        changed = changed_names(partitions, looked_at)
        for name in changed:
            partition, before = partitions[name], looked_at.get(name)
            if before is not partition:
                changes = Changes(partition.listed(), ()) if before is None else partition.since(before)
                came += changes.came
                went += changes.went
        self._predict(came, snapshot.now_s)
        for name in looked_at.keys() - changed if len(changed) == len(partitions) else ():
            went += looked_at[name].listed()
        self._partitions = partitions
        if not went:
            return
        gone = {entry.job.id for entry in went} - {entry.job.id for entry in came}
        gone &= self._said.keys()  # not those that ended, which are forgotten already
        if gone:  # unless another partition shows them still
            gone.difference_update(entry.job.id for part in partitions.values() for entry in part.listed())
            for job_id in gone:
                del self._said[job_id], self._predictions[job_id]

    def _running(self, snapshot: Snapshot, vc: str, least_s: float) -> Iterator[tuple[float, float | None, float]]:
        """Both estimates, and the time run so far, s, of the jobs of a VC (of all for "") that have run for longer
        than ``least_s``, the last first."""
        for partition in reversed([*snapshot.partitions.values()]):
            if not vc or partition.profiling or vc in partition.vcs:
                for entry in reversed(partition.running):
                    ran_s = entry.ran_s + entry.elapsed_s(snapshot.now_s)
                    if ran_s > least_s and (not vc or entry.job.vc == vc):
                        yield *self._said[entry.job.id].seconds, ran_s

    def _predict(self, entries: Iterable[Pending | Running], now_s: float) -> None:
        for entry in entries:
            job, known = entry.job, self._said.get(entry.job.id)
            if (
                known is not None
                and known.profile is entry.profile
                and (known.job is job or known.job == job)
                and (entry.stages is None or entry.stages == known.given.stages)
            ):
                continue
            if self._forecaster is not None and known is None:
                self._forecaster.observe(job)
            said = self._predictor.predict(job, entry.profile, now_s)
            if entry.stages is not None:
                said = replace(said, stages=entry.stages)
            naive = None if self._naive is None else self._naive.predict(job, entry.profile, now_s)
            self._said[job.id] = _Said(job, entry.profile, said, naive)
            self._predictions[job.id] = self._chosen(job)

    def _choose(self, snapshot: Snapshot, by: Mapping[str, str]) -> None:
        """Use the estimates that rank best (``by``): where that has changed, all jobs of the VC get the others."""
        if by == self._by:
            return
        self._by = by
        for partition in snapshot.partitions.values():
            for entry in partition.listed():
                self._predictions[entry.job.id] = self._chosen(entry.job)

    def _chosen(self, job: Job) -> Prediction:
        known = self._said[job.id]
        said, naive = known.given, known.naive
        if naive is not None and self._by.get(job.vc, self._by.get("", "")):
            said = replace(
                said, duration_s=naive.duration_s, duration_source=naive.duration_source, duration_terms=None
            )
        return said.within(job.time_limit_s)
