"""When a pair is parted (packing rule 4, acceptance row L15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lucid.core.decision import Requeue
from lucid.core.job import Running
from lucid.core.reason import Requeueable, Stable

__all__ = ["Parting", "partings"]


@dataclass(frozen=True, slots=True)
class Parting:
    """The job to take off its partner's GPUs, and why."""

    entry: Running
    requeue: Requeue


def partings(running: Sequence[Running]) -> list[Parting]:
    """One for each pair in which a job has shown an unstable pattern.

    The unstable job leaves (it will run alone from then on), or its partner where the unstable one may not be
    requeued; a pair of two such jobs stays, because nobody's job is killed for another's comfort.
    """
    found: list[Parting] = []
    restless = [e for e in running if e.partner is not None and e.profile is not None and e.profile.unstable]
    if not restless:
        return found
    by_id = {entry.job.id: entry for entry in running}
    done: set[str] = set()
    for entry in restless:
        if entry.partner is None or entry.job.id in done:
            continue
        stable = Stable(entry.job.id, True)
        partner = by_id.get(entry.partner)
        for leaver in (entry, partner):
            if leaver is None:
                continue
            may = Requeueable(leaver.job.requeueable)
            if may:
                found.append(Parting(leaver, Requeue((stable, may), part=True)))
                done.update((entry.job.id, entry.partner))
                break
    return found
