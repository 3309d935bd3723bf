"""Renews the leases of parked jobs, many by one command: after a burst thousands are due within minutes."""

from __future__ import annotations

from collections import defaultdict

from lucid.adapters.slurm.actions.job_writer import JobWriter
from lucid.adapters.slurm.records.jobs_and_nodes import SlurmJob
from lucid.errors import ActionRefused

__all__ = ["LeaseRenewal"]

_FIRST = 8
_QUICK_S, _SLOW_S = 1.0, 3.0
"""A list that took less time is followed by one twice as long, one that took more by one half as long."""


class LeaseRenewal:
    """The leases that are due in one round of repair. Lists of jobs grow while Slurm is quick, and shrink where it
    puts requests off (``rl_enable``)."""

    def __init__(self, writer: JobWriter) -> None:
        self._writer = writer
        self._due: defaultdict[float, list[SlurmJob]] = defaultdict(list)
        """By until when the jobs are parked on, Unix s."""
        self._most = _FIRST
        self._alone: set[str] = set()
        """Jobs of lists that Slurm declined for one of them. Those that it did not mean are not due the next time."""

    def new_round(self) -> None:
        """Forget what a round that failed has left."""
        self._due.clear()

    def takes(self, record: SlurmJob, until_s: float) -> bool:
        """Note a lease for ``renew``, unless the job is to be told alone."""
        if self._writer.client.at_once == 1 or record.id in self._alone:
            return False
        self._due[until_s].append(record)
        return True

    def renew(self) -> list[str]:
        """Renew the leases that end soonest, within the cap on writes, and return what went wrong, in words. Those
        that are left come with the next look: a lease is renewed long before its end.

        Raises:
            ClusterUnavailable: Slurm does not answer.
        """
        due, done, writer = self._due, list[str](), self._writer
        self._due, self._alone = defaultdict(list), set()
        for until_s, jobs in sorted(due.items(), key=lambda item: min(job.eligible_s for job in item[1])):
            while jobs and not writer.full(1):
                listed, jobs = jobs[: self._most], jobs[self._most :]
                most, began_s, self._most = self._most, writer.clock.now_s(), 1  # should Slurm not answer
                try:
                    writer.park_on(listed, until_s)
                except ActionRefused as error:
                    self._alone.update(record.id for record in listed)
                    done.append(f"{len(listed)} jobs: parked on one by one, since Slurm declined ({error})")
                took_s = writer.clock.now_s() - began_s
                more = 2 * most if took_s < _QUICK_S else most if took_s < _SLOW_S else max(most // 2, 1)
                self._most = min(more, writer.client.at_once)
        return done
