"""``lucidctl replay``: plans again what lucidd planned, and says whether the result is the same."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import answer, progress
from lucid.cli.jobs.queue import live_settings
from lucid.cli.options import PATH, config_option
from lucid.core.decision import row_of
from lucid.errors import StoreError
from lucid.explain.reasons import decision_line
from lucid.store.plan_records import PlanRecord, lucid_version, read_record, record_files, records_folder, replan
from lucid.store.values import value_from_json

_LISTED = 20


@click.command()
@click.argument("paths", metavar="[RECORD]...", nargs=-1, type=PATH)
@config_option
@click.option("--last", type=click.IntRange(min=1), help="Only so many, the newest.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(paths: tuple[Path, ...], config: Path, last: int | None, as_json: bool) -> None:
    """Plan recorded snapshots again. Each plan must equal lucidd's plan byte for byte.

    RECORD is a file, or a folder of files. Without RECORD, the command reads the records of lucidd (--config). It
    sends nothing to Slurm.

    Exit status: 0 all plans are equal, 1 some differ (the output says where), 2 a record cannot be read."""
    files = _files(paths, config)[-last:] if last else _files(paths, config)
    found: list[dict[str, Any]] = []
    with progress("planning again") as report:
        for number, path in enumerate(files):
            report(number, len(files))
            found.append(_one(path))
    differing = [item for item in found if item["differs"]]
    foreign = {item["code"] for item in found} - {lucid_version()}
    more, same = len(differing) - _LISTED, f"{len(differing)} DIFFER" if differing else "all the same"
    words = (
        *(line for item in differing[:_LISTED] for line in _difference_words(item)),
        *([f"and {more} more records; --json has all"] if more > 0 else []),
        *(f"note: some were recorded by {code}, this is {lucid_version()}" for code in sorted(foreign)),
        f"{len(found)} records with {sum(item['partitions'] for item in found)} partitions' plans made again: {same}",
    )
    told = {"records": len(found), "same": len(found) - len(differing), "code": lucid_version(), "found": found}
    answer(told, as_json, words)
    if differing:
        raise SystemExit(1)


def _files(paths: Sequence[Path], config: Path) -> list[Path]:
    given = paths or (records_folder(live_settings(config)),)
    files = [file for path in given for file in (record_files(path) if path.is_dir() else [path])]
    if not files:
        places = ", ".join(map(str, given))
        raise StoreError(f"no record of a plan in {places}; lucidd writes them while daemon.record_mib is above 0")
    return files


def _one(path: Path) -> dict[str, Any]:
    record = read_record(path)
    again = replan(record)
    changed = {name: was for name, was in record.plans.items() if again.get(name) != was}
    return {
        "file": str(path),
        "at_s": record.at_s,
        "policy": record.policy,
        "code": record.code,
        "partitions": len(record.plans),
        "jobs": _jobs(record),
        "kept": sum(record.contexts[i].snapshot.now_s != record.at_s for i in record.context.values()),
        "differs": {name: _differences(name, was, again.get(name)) for name, was in changed.items()},
    }


def _jobs(record: PlanRecord) -> int:
    now = next((c.snapshot for c in record.contexts if c.snapshot.now_s == record.at_s), record.contexts[0].snapshot)
    return sum(len(part.pending) + len(part.running) for part in now.partitions.values())


def _differences(name: str, was: bytes, now: bytes | None) -> list[dict[str, Any]]:
    """The differences, one entry for each job or part of the plan."""
    if now is None:
        return [{"what": "partition", "was": "planned", "now": "not planned"}]
    old, new = json.loads(was), json.loads(now)
    before, after = dict(old["decisions"]), dict(new["decisions"])
    found: list[dict[str, Any]] = [
        {"what": f"job {job_id}", "was": _words(name, before.get(job_id)), "now": _words(name, after.get(job_id))}
        for job_id in {**before, **after}
        if before.get(job_id) != after.get(job_id)
    ]
    if not found and old["decisions"] != new["decisions"]:
        found.append({"what": "order of decisions", "was": list(before), "now": list(after)})
    if [a[0] for a in old["actions"]] != [a[0] for a in new["actions"]]:
        names = [[a[0] for a in plan["actions"]] for plan in (old, new)]
        found.append({"what": "order of actions", "was": names[0], "now": names[1]})
    found += [{"what": key, "was": old[key], "now": new[key]} for key in ("wake_s", "memory") if old[key] != new[key]]
    return found


def _words(partition: str, decision: Any) -> str:
    return "no decision" if decision is None else decision_line(row_of(0.0, "", partition, value_from_json(decision)))


def _difference_words(item: dict[str, Any]) -> Iterator[str]:
    at = time.strftime("%F %T", time.localtime(item["at_s"]))
    for name, differences in item["differs"].items():
        yield (f"{item['file']} ({at}), partition {name}:")
        for one in differences[:_LISTED]:
            yield (f"  {one['what']}\n    was: {one['was']}\n    now: {one['now']}")
        if len(differences) > _LISTED:
            yield (f"  and {len(differences) - _LISTED} more")
