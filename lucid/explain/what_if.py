"""What would start a waiting job sooner, found by planning again as lucidd does."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from lucid.config.load import Settings
from lucid.core.decision import DecisionRow, Plan, Start, verb_of
from lucid.core.job import Pending
from lucid.core.snapshot import Snapshot
from lucid.daemon.reporting.last_plan import row_in
from lucid.daemon.reporting.replan import LastPlan
from lucid.daemon.reporting.starts import StartsAhead
from lucid.errors import ConfigError, did_you_mean
from lucid.explain.queue_rows import row_starts, waiting_row
from lucid.explain.reasons import decision_line, ends_in_time_s, limit_words
from lucid.explain.story import row_to_dict

_AS_IT_IS = "as it is"

_OTHER = (
    "cannot be told: planning again here comes to another plan than lucidd's, because its models, its pairs.json or "
    "its policy's memory cannot be read here or have changed since"
)


class Changes(Struct, frozen=True):
    """The changed request of the job. With nothing set, all that may help is tried (``_tries``)."""

    gpus: int | None = None
    share: bool = False
    vc: str | None = None
    limit_s: float | None = None


class WhyNot(Struct, frozen=True):
    """The answers. ``rows``: the decision as it is, and as it would be, each with its words; ``None`` where nothing
    is decided. ``agrees``: whether planning again gives lucidd's own plan; if not, nothing can be said of other
    plans. ``starts``: when the job is expected to start, in seconds and in words. ``kinds``: what was changed,
    in words without values. ``left``: the kinds of which
    not all was tried in ``_MOST_S``."""

    job_id: str
    at_s: float
    rows: Mapping[str, DecisionRow | None]
    agrees: bool
    starts: tuple[tuple[int, int, int] | None, str]
    kinds: Sequence[str]
    left: Sequence[str]

    @property
    def now(self) -> list[str]:
        """The changes with which the job would start now."""
        return [words for words, row in self.rows.items() if words != _AS_IT_IS and row and row.verb == "start"]

    @property
    def helps(self) -> str:
        """What would help, in one sentence, as far as it was tried."""
        if not self.agrees:
            return f"{_OTHER}; ask an operator for sudo -u lucid lucidctl why-not {self.job_id}"
        if self.now:
            return f"{', or '.join(self.now)} it would start now"
        late = f"; not all tried within {_MOST_S:g} s: {', '.join(dict.fromkeys(self.left))}" if self.left else ""
        return f"nothing that was tried would start it now ({', '.join(dict.fromkeys(self.kinds))}){late}"

    def to_dict(self) -> dict[str, Any]:
        """The answers as JSON."""
        made = {words: row and {**row_to_dict(row), "words": decision_line(row)} for words, row in self.rows.items()}
        data: dict[str, Any] = {
            "job": self.job_id,
            "as_it_is": made.pop(_AS_IT_IS),
            "starts_in_s": self.starts[0],
            "if": made,
            "helps": {"words": self.helps, "now": self.now},
        }
        return data if self.agrees else {**data, "why_no_if": f"what would change that {_OTHER}"}


def asked_again(
    last: LastPlan,
    settings: Settings,
    config: Path,
    job_id: str,
    changes: Changes,
    starts: StartsAhead | None,
) -> WhyNot:
    """Plan lucidd's last snapshot again with only this job changed. ``starts``: where they are known already.

    Raises:
        ConfigError: the job does not wait, or there is no such VC."""
    starts = starts or last.starts(settings, config)
    waits = waiting_row(last, starts, job_id)
    if waits is None:
        raise ConfigError(f"job {job_id} does not wait for Lucid (any more); look at: lucidctl explain {job_id}")
    name, entry, held = waits.partition, waits.entry, waits.decision
    policy = last.policy_again(settings, config)
    agrees = _agree(last.plan, policy.plan(last.snapshot), job_id)
    if changes != Changes():
        tries, until_s = [(one[0], [one]) for one in _variants(last.snapshot, name, entry, changes).items()], math.inf
    else:
        ends_s = None if held is None else ends_in_time_s(held.reasons, last.snapshot.now_s)
        tries, until_s = _tries(last.snapshot, name, entry, ends_s), time.monotonic() + _MOST_S
    expected = waits.starts_in_s, row_starts(waits, starts)
    rows, kinds, left = {_AS_IT_IS: held}, list[str](), list[str]()
    found = WhyNot(job_id, last.snapshot.now_s, rows, agrees, expected, kinds, left)
    for kind, some in tries if agrees else ():
        for words, (home, changed) in () if kind == "both" and found.now else some:  # else one of them suffices
            if kinds and time.monotonic() > until_s:
                left.append(kind)
                break
            kinds.append(kind)
            plan = policy.plan(_with(last.snapshot, name, entry, home, changed))
            rows[words] = row_in(plan, job_id, last.modes)
            if words in found.now:
                break
    return found


def _agree(plan: Plan, again: Plan, job_id: str) -> bool:
    """Whether both plans decide the same about the job, and start the same jobs in the same places."""

    def outline(made: Plan) -> tuple[str, dict[str, object]]:
        decision = made.decision_of(job_id)
        starts: dict[str, object] = {
            a.job_id: (a.decision.placement, a.decision.beside) for a in made.actions if isinstance(a.decision, Start)
        }
        return "" if decision is None else verb_of(decision), starts

    return outline(plan) == outline(again)


_Variant = tuple[str, tuple[str, Pending]]
"""What is changed, in words; the partition in which the changed job would wait, and the job."""
_MOST_VCS = 16
"""How many other VCs are tried."""
_MOST_S = 4.0
"""How long is tried what may help; a plan over 12,000 waiting jobs takes 0.8 s."""
_SHARES = "willing to share"


def _tries(snapshot: Snapshot, name: str, entry: Pending, ends_s: float | None) -> list[tuple[str, list[_Variant]]]:
    """All that may help, by kind: a time limit that ends in time, half its GPUs and halves of that, sharing, both,
    other VCs that could hold it. Of each kind the first that starts the job is enough, but for VCs."""
    job, homes = entry.job, [part for part in snapshot.partitions.values() if not part.profiling]
    others = [vc for part in homes for vc in part.vcs if vc != job.vc and job.gpus <= part.quotas.get(vc, part.gpus)]
    halves = [Changes(job.gpus >> by) for by in range(1, job.gpus.bit_length())]

    def changed(*some: Changes) -> list[_Variant]:
        return [made for one in some for made in _variants(snapshot, name, entry, one).items()]

    fewer, both = changed(*halves), list[_Variant]()
    if entry.alone or not job.shareable:
        both = [(f"{words}, {_SHARES}", (home, _sharing(one))) for words, (home, one) in fewer]
    made = [("a shorter time limit", changed(Changes(limit_s=ends_s))), ("fewer GPUs", fewer)]
    made += [("sharing", changed(Changes(share=True))), ("both", both)]
    made += [("another VC", changed(Changes(vc=vc))) for vc in others[:_MOST_VCS]]
    return [(kind, some) for kind, some in made if some]


def _variants(snapshot: Snapshot, name: str, entry: Pending, changes: Changes) -> dict[str, tuple[str, Pending]]:
    """The changed jobs, each with the partition in which it would wait, by what is changed."""
    gpus, limit_s = changes.gpus, changes.limit_s
    found: dict[str, tuple[str, Pending]] = {}
    if limit_s is not None:
        limited = replace(entry, job=replace(entry.job, time_limit_s=limit_s))
        found[f"with --time {limit_words(limit_s)}"] = name, limited
    if gpus is not None:
        found[f"with {gpus} GPU{'s' if gpus != 1 else ''}"] = name, _with_gpus(entry, gpus)
    if changes.share:
        found[_SHARES] = name, _sharing(entry)
    if changes.vc is not None:
        home = snapshot.home(changes.vc)
        if home is None or home.profiling:
            known = [vc for part in snapshot.partitions.values() if not part.profiling for vc in part.vcs]
            hint = did_you_mean(changes.vc, known)
            raise ConfigError(
                f"--vc {changes.vc}: lucidd looks after no such VC{hint}; it does after: {', '.join(known)}"
            )
        room = name if snapshot.partitions[name].profiling else home.name
        found[f"in VC {changes.vc}"] = room, replace(entry, job=replace(entry.job, vc=changes.vc))
    return found


def _sharing(entry: Pending) -> Pending:
    return replace(entry, job=replace(entry.job, shareable=True), alone=False)


def _with_gpus(entry: Pending, gpus: int) -> Pending:
    job = entry.job
    per = (job.cpus / job.gpus, job.mem_mib / job.gpus) if job.gpus else (0.0, 0.0)
    nodes = min(job.min_nodes, gpus)
    cpus, mem_mib = round(per[0] * gpus), round(per[1] * gpus)
    return replace(entry, job=replace(job, gpus=gpus, min_nodes=nodes, cpus=cpus, mem_mib=mem_mib))


def _with(snapshot: Snapshot, name: str, entry: Pending, home: str, changed: Pending) -> Snapshot:
    """The snapshot with the changed job: in its place in the queue, or in another partition at the end."""
    own, other = snapshot.partitions[name], snapshot.partitions[home]
    if home == name:
        parts = {name: replace(own, pending=tuple(changed if e is entry else e for e in own.pending))}
    else:
        parts = {
            name: replace(own, pending=tuple(e for e in own.pending if e is not entry)),
            home: replace(other, pending=(*other.pending, changed)),
        }
    return replace(snapshot, partitions={**snapshot.partitions, **parts})
