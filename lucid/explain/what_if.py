"""What would start a waiting job sooner, found by planning again as lucidd does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lucid.core.decision import DecisionRow, Plan, Start, verb_of
from lucid.core.frozen import frozen_dataclass
from lucid.core.job import Pending
from lucid.core.snapshot import Snapshot
from lucid.daemon.reporting.last_plan import row_in
from lucid.daemon.reporting.replan import LastPlan
from lucid.daemon.reporting.starts import StartsAhead
from lucid.errors import ConfigError, did_you_mean
from lucid.explain.queue_rows import starts_of
from lucid.explain.reasons import decision_line, ends_in_time_s, limit_words
from lucid.explain.story import row_to_dict
from lucid.places import PublishedSettings

if TYPE_CHECKING:
    from lucid.config.load import Settings


_AS_IT_IS = "as it is"

OTHER_PLAN = (
    "what would change that cannot be told: planning again here comes to another plan than lucidd's, because its "
    "models, its pairs.json or its policy's memory cannot be read here or have changed since"
)


@frozen_dataclass(frozen=True, slots=True)
class Changes:
    """The changed request of the job. With nothing set: half its GPUs, sharing them, and a time limit that ends
    before nodes close, where these keep it waiting."""

    gpus: int | None = None
    share: bool = False
    vc: str | None = None
    limit_s: float | None = None


@frozen_dataclass(frozen=True, slots=True)
class WhyNot:
    """The answers. ``rows``: the decision as it is, and as it would be, each with its words; ``None`` where nothing
    is decided. ``agrees``: whether planning again gives lucidd's own plan; if not, nothing can be said of other
    plans. ``starts``: when the job is expected to start, as JSON and in words."""

    job_id: str
    at_s: float
    rows: Mapping[str, DecisionRow | None]
    agrees: bool
    starts: tuple[dict[str, Any], str] | None

    def to_dict(self) -> dict[str, Any]:
        """The answers as JSON."""
        made = {words: row and {**row_to_dict(row), "words": decision_line(row)} for words, row in self.rows.items()}
        data: dict[str, Any] = {
            "job": self.job_id,
            "as_it_is": made.pop(_AS_IT_IS),
            **(self.starts[0] if self.starts else {}),
            "if": made,
        }
        return data if self.agrees else {**data, "why_no_if": OTHER_PLAN}


def asked_again(
    last: LastPlan,
    settings: Settings | PublishedSettings,
    config: Path,
    job_id: str,
    changes: Changes,
    starts: StartsAhead | None,
) -> WhyNot:
    """Plan lucidd's last snapshot again with only this job changed. ``starts``: where they are known already.

    Raises:
        ConfigError: the job does not wait, or there is no such VC."""
    name, entry = _waiting(last.snapshot, job_id)
    policy = last.policy_again(settings, config)
    agrees = _agree(last.plan, policy.plan(last.snapshot), job_id)
    rows = {_AS_IT_IS: last.row(job_id)}
    if changes == Changes():
        held = rows[_AS_IT_IS]
        ends_s = None if held is None else ends_in_time_s(held.reasons, last.snapshot.now_s)
        changes = Changes(entry.job.gpus // 2 or None, share=True, limit_s=ends_s)
    for words, (home, changed) in _variants(last.snapshot, name, entry, changes).items() if agrees else ():
        rows[words] = row_in(policy.plan(_with(last.snapshot, name, entry, home, changed)), job_id, last.modes)
    found = starts_of(last, starts or last.starts(settings, config), job_id)
    return WhyNot(job_id, last.snapshot.now_s, rows, agrees, found)


def _waiting(snapshot: Snapshot, job_id: str) -> tuple[str, Pending]:
    for name, partition in snapshot.partitions.items():
        for entry in partition.pending:
            if entry.job.id == job_id:
                return name, entry
    raise ConfigError(f"job {job_id} does not wait for Lucid (any more); look at: lucidctl explain {job_id}")


def _agree(plan: Plan, again: Plan, job_id: str) -> bool:
    """Whether both plans decide the same about the job, and start the same jobs in the same places."""

    def outline(made: Plan) -> tuple[str, dict[str, object]]:
        decision = made.decision_of(job_id)
        starts: dict[str, object] = {
            a.job_id: (a.decision.placement, a.decision.beside) for a in made.actions if isinstance(a.decision, Start)
        }
        return "" if decision is None else verb_of(decision), starts

    return outline(plan) == outline(again)


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
        found["willing to share"] = name, replace(entry, job=replace(entry.job, shareable=True), alone=False)
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
