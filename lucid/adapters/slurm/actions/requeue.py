"""Stops running jobs and puts them back into the queue, held."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lucid.adapters.slurm.actions.job_writer import JobWriter
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob
from lucid.adapters.store.port import JobNote
from lucid.core.placement import Placement, show_placement
from lucid.errors import ActionRefused, Refusal

__all__ = ["Stops"]

_REVOKED_S = 5.0
"""A requeued job that starts on the same node sooner may be killed there: Job credential revoked."""


class Stops:
    """What every stop is checked for, and the requeue. ``_revoked``: victims that were requeued, when and where."""

    def __init__(self, writer: JobWriter, slurm_knows_all: Callable[[], bool]) -> None:
        """``slurm_knows_all``: does slurmctld know by now which jobs have ended, as far as can be told?"""
        self._writer = writer
        self._slurm_knows_all = slurm_knows_all
        self._revoked: dict[str, tuple[float, Placement]] = {}

    def unless_configuring(self, record: SlurmJob) -> None:
        """No node is woken for a job that is then stopped before it has begun."""
        if record.configuring:
            raise ActionRefused(
                f"job {record.id}: its node boots, or is set up; it is not stopped before it has begun",
                Refusal.NODES_NOT_FREE_YET,
            )

    def unless_unheard(self, record: SlurmJob, more: str = "") -> None:
        """A job that has ended, of which slurmctld has not heard, would be run again."""
        if not self._slurm_knows_all():
            raise ActionRefused(
                f"job {record.id}: slurmctld did not answer lately{more}; tried again later", Refusal.SLURM_WAS_SILENT
            )

    def unless_revoked(self, job_id: str, placement: Placement) -> None:
        """Was it requeued just now on one of these nodes?"""
        stopped_s, ran_on = self._revoked.get(job_id, (0.0, ()))
        nodes = {part.node for part in placement}
        if self._writer.clock.now_s() - stopped_s < _REVOKED_S and any(part.node in nodes for part in ran_on):
            raise ActionRefused(
                f"job {job_id}: was requeued just now; its node would kill it (credential revoked)",
                Refusal.NODES_NOT_FREE_YET,
            )

    def put_back(self, record: SlurmJob, note: JobNote, verb: str, now_s: float) -> None:
        """The job runs until Slurm has taken the requeue; what is noted before says where it goes then. ``now_s``: of
        the look that showed it to run."""
        self.unless_configuring(record)
        self.unless_unheard(record, ", so it may not know yet that the job has ended")
        before = note
        ran_s = note.ran_s + max(now_s - record.start_s, 0.0)
        back = replace(note, where="", released=False, shards=False, wait_since_s=now_s, ran_s=ran_s)
        self._writer.put(replace(back, requeued=record.restarts + 1))
        try:
            self._writer.do(
                record.id, verb, show_placement(record.placement), lambda: self._writer.client.requeue_hold(record.id)
            )
        except ActionRefused:
            self._writer.put(before if verb != "release" else replace(before, to_home=False))
            raise

    def victim(self, record: SlurmJob, note: JobNote, now_s: float) -> None:
        """Put back a job whose GPUs another one gets."""
        self.put_back(record, note, "requeue", now_s)
        requeued_s = self._writer.clock.now_s()
        self._revoked = {job: one for job, one in self._revoked.items() if requeued_s - one[0] < _REVOKED_S}
        self._revoked[record.id] = requeued_s, record.placement
