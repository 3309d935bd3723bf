"""``lucidctl why-not``: what would start a waiting job sooner, found by planning again as lucidd does."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import say
from lucid.cli.live import config_option, live_settings, seen_store
from lucid.cli.live_story import check_waits_for_lucid
from lucid.cli.render import decision_line, duration
from lucid.cli.start_words import starts_of
from lucid.cli.story import row_to_dict
from lucid.core.decision import Plan, Start, verb_of
from lucid.core.job import Pending
from lucid.core.snapshot import Snapshot
from lucid.errors import ConfigError
from lucid.live.last_plan import last_plan, row_in

__all__ = ["why_not"]

_OTHER_PLAN = (
    "what would change that cannot be told: planning again here comes to another plan than lucidd's, because its "
    "models, its pairs.json or its policy's memory cannot be read here or have changed since"
)


@click.command("why-not")
@click.argument("job_id", metavar="JOB")
@click.option("--gpus", type=click.IntRange(min=1), help="What if it asked for so many GPUs?")
@click.option("--share", is_flag=True, help="What if it were willing to share its GPUs?")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def why_not(job_id: str, gpus: int | None, share: bool, config: Path, as_json: bool) -> None:
    """Say why JOB waits, and whether it would start now if it had asked for something else.

    With --gpus or --share, the command plans lucidd's last snapshot again with only this job changed.
    """
    settings = live_settings(config)
    store = seen_store(settings)
    check_waits_for_lucid(store, job_id)
    last = last_plan(store)
    name, entry = _waiting(last.snapshot, job_id)
    policy = last.policy_again(settings, config)
    agrees = _agree(last.plan, policy.plan(last.snapshot), job_id)
    rows = {"as it is": last.row(job_id)}
    for words, changed in _variants(entry, gpus, share).items() if agrees else ():
        rows[words] = row_in(policy.plan(_with(last.snapshot, name, entry, changed)), job_id, last.modes)
    found = starts_of(last, last.ahead(settings, config), job_id)
    if as_json:
        made = {words: row and {**row_to_dict(row), "words": decision_line(row)} for words, row in rows.items()}
        data: dict[str, Any] = {
            "job": job_id,
            "as_it_is": made.pop("as it is"),
            **(found[0] if found else {}),
            "if": made,
        }
        say(json.dumps(data if agrees else {**data, "why_no_if": _OTHER_PLAN}, indent=1))
        return
    say(f"job {job_id}, by what lucidd saw {duration(time.time() - last.snapshot.now_s)} ago")
    if found is not None:
        say(f"starts in about: {found[1]}")
    for words, row in rows.items():
        say(f"{words}: {'not decided' if row is None else decision_line(row)}")
    if not agrees:
        say(f"{_OTHER_PLAN}; ask an operator for sudo -u lucid lucidctl why-not {job_id}")


def _waiting(snapshot: Snapshot, job_id: str) -> tuple[str, Pending]:
    for name, partition in snapshot.partitions.items():
        for entry in partition.pending:
            if entry.job.id == job_id:
                return name, entry
    raise ConfigError(f"job {job_id} does not wait for Lucid (any more); look at: lucidctl explain {job_id}")


def _agree(plan: Plan, again: Plan, job_id: str) -> bool:
    """Do both plans decide the same about the job, and start the same jobs in the same places?"""

    def outline(made: Plan) -> tuple[str, dict[str, object]]:
        decision = made.decision_of(job_id)
        starts: dict[str, object] = {
            a.job_id: (a.decision.placement, a.decision.beside) for a in made.actions if isinstance(a.decision, Start)
        }
        return "" if decision is None else verb_of(decision), starts

    return outline(plan) == outline(again)


def _variants(entry: Pending, gpus: int | None, share: bool) -> dict[str, Pending]:
    if gpus is None and not share:
        gpus, share = entry.job.gpus // 2 or None, True
    found: dict[str, Pending] = {}
    if gpus is not None:
        found[f"with {gpus} GPU{'s' if gpus != 1 else ''}"] = _with_gpus(entry, gpus)
    if share:
        found["willing to share"] = replace(entry, job=replace(entry.job, shareable=True), alone=False)
    return found


def _with_gpus(entry: Pending, gpus: int) -> Pending:
    job = entry.job
    per = (job.cpus / job.gpus, job.mem_mib / job.gpus) if job.gpus else (0.0, 0.0)
    nodes = min(job.min_nodes, gpus)
    cpus, mem_mib = round(per[0] * gpus), round(per[1] * gpus)
    return replace(entry, job=replace(job, gpus=gpus, min_nodes=nodes, cpus=cpus, mem_mib=mem_mib))


def _with(snapshot: Snapshot, name: str, entry: Pending, changed: Pending) -> Snapshot:
    partition = snapshot.partitions[name]
    pending = tuple(changed if e is entry else e for e in partition.pending)
    return replace(snapshot, partitions={**snapshot.partitions, name: replace(partition, pending=pending)})
