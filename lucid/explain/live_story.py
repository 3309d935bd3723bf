"""The story of a live job: from lucidd's store, or from what lucidd publishes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lucid.config.load import load_settings
from lucid.core import reasons as why
from lucid.core.codec import to_json
from lucid.core.decision import DecisionRow
from lucid.core.job import Ended
from lucid.core.placement import show_placement
from lucid.daemon.reporting.last_plan import stored_plan, stored_view
from lucid.daemon.reporting.public_view import Published
from lucid.daemon.reporting.starts import StartsAhead
from lucid.errors import ConfigError, LucidError
from lucid.explain.predictions import prediction_data, prediction_lines
from lucid.explain.queue_rows import (
    guess_words,
    observed_words,
    read_stored_starts,
    row_starts,
    waiting_row,
    waits_words,
)
from lucid.explain.reasons import boots, ends_in_time_s, limit_words, reaches_words, reason_texts
from lucid.explain.story import Story, row_to_dict
from lucid.store.port import RELEASED, SEEN, ActionRow, ProfileRow
from lucid.store.sqlite import SqliteStore

_TASKS_NAMED = 8


def live_story(
    store: SqliteStore | Published, job_id: str, profiling: str = "", why_unknown: Callable[[str], str] | None = None
) -> tuple[Story, dict[str, Any]]:
    """The decisions about a job and what was done with it, as a story and as JSON; from published data, the last
    decision on a job that waits, or where it runs. ``profiling``: name of the profiling partition. ``why_unknown``:
    called with a job of which nothing is stored.

    Raises: ConfigError: nothing is known of the job."""
    if isinstance(store, Published):
        row, words = _published(store, job_id)
        told = [*words, *_stays(store, job_id), *_bad_gpu(store, job_id)]
        return _story(job_id, [row], profiling, estimate=told)
    story, data = known_story(store, job_id, profiling)
    if not data["decisions"] and not data["actions"]:
        why = why_nothing(store, job_id, _ran_at_once(store, job_id), why_unknown)
        if store.ended_job(job_id) is None and not _bad_gpu(store, job_id):
            raise ConfigError(why)
        story = replace(story, estimate=[*story.estimate, why])  # and its end can be told
    return story, data


def known_story(store: SqliteStore, job_id: str, profiling: str = "") -> tuple[Story, dict[str, Any]]:
    """The story of any stored job, with every member: measurements and expectations also where nothing was
    decided."""
    rows, actions = store.decisions(job_id), store.actions(job_id)
    measured, said = store.profile(job_id), store.prediction(job_id)
    joined = store.joined(job_id, rows[0].at_s if rows else 0.0)
    story, data = _story(
        job_id,
        rows,
        profiling,
        measured,
        joined,
        [(a.at_s, _action_text(a)) for a in actions],
        [*([] if said is None else prediction_lines(said.prediction, said.user)), *_now_lines(store, job_id)],
    )
    data["actions"] = [{"at_s": a.at_s, "verb": a.verb, "detail": a.detail, "result": a.result} for a in actions]
    data["prediction"] = None if said is None else {"user": said.user, **prediction_data(said.prediction)}
    return story, data


def _action_text(action: ActionRow) -> str:
    if action.result == SEEN:
        return f"{action.verb} {action.detail}"
    verb = "Lucid hands it over to Slurm" if action.verb == RELEASED else f"Lucid told Slurm: {action.verb}"
    return f"{verb} {action.detail}".rstrip() + f"; {action.result or 'under way'}"


def _now_lines(store: SqliteStore, job_id: str) -> list[str]:
    """The present state of a job whose user opted in to resizing or to taking turns, whose node boots, or that is
    kept in its partition."""
    status = store.view("status") or {}
    found = {kind: (status.get(kind) or {}).get(job_id) for kind in ("elastic", "turns")}
    lines = [f"{kind}: {words}" for kind, words in found.items() if words]
    boot = (status.get("boots") or {}).get(job_id)
    if boot:
        left_s = max(boot["until_s"] - status.get("at_s", 0.0), 0.0)
        lines.append(f"now: {boots(why.Boots(boot['node'], False, left_s))}")
    return [*lines, *_stays(store, job_id, store.ended_job(job_id)), *_bad_gpu(store, job_id)]


def _stays(store: SqliteStore | Published, job_id: str, ended: Ended | None = None) -> list[str]:
    """A line about a job that is kept in its partition."""
    parts = (store.view("snapshot") or {}).get("partitions", {}).values()  # as JSON: one job of it is wanted
    listed = (entry["job"] for part in parts for key in ("pending", "running") for entry in part[key])
    job = next((one for one in listed if one["id"] == job_id), None) or (to_json(ended.job) if ended else {})
    return [f"stays: in partition {job['vc']}, {job['stays']}"] if job.get("stays") else []


def _bad_gpu(store: SqliteStore | Published, job_id: str) -> list[str]:
    """Lines about a GPU that is not well on which the job runs."""
    told = (store.view("status") or {}).get("on_gpus_out") or ()
    found = [one["words"] for one in told if one["job"] == job_id]
    return [f"it runs on a GPU that is not well, and goes on: {words}" for words in found]


def _story(
    job_id: str,
    rows: list[DecisionRow],
    profiling: str,
    measured: ProfileRow | None = None,
    joined: list[tuple[str, float]] | None = None,
    events: list[tuple[float, str]] | None = None,
    estimate: list[str] | None = None,
) -> tuple[Story, dict[str, Any]]:
    head, profile = f"job {job_id}", None
    if measured is not None:
        p = measured.profile
        profile = {"gpu_util": p.gpu_util, "mem_util": p.mem_util, "gpu_mem_mib": p.gpu_mem_mib}
        head += (
            f": measured at {p.gpu_util:.0f} % of GPU time, {p.mem_util:.0f} % of memory time, "
            f"{p.gpu_mem_mib:,.0f} MiB"
        )
    story = Story(head, rows, joined or (), events or (), estimate=estimate or (), profiling=profiling)
    return story, {
        "job": job_id,
        "decisions": [{**row_to_dict(row), "words": reason_texts(row.reasons)} for row in rows],
        "actions": [],
        "joined_by": [{"at_s": at_s, "job": other} for other, at_s in joined or ()],
        "profile": profile,
        "prediction": None,
        "prediction_words": estimate or [],
        "ended": None,
    }


def with_expected_start(
    story: Story, data: dict[str, Any], store: SqliteStore | Published, config: Path, tries: bool = False
) -> Story:
    """The story, and ``data`` too, with why a job waits now, and its expected start. ``tries``: also with what would
    start it now, for which lucidd's plan is made again."""
    if store.view("snapshot") is None:
        return story
    last, starts = read_stored_starts(store, config)
    if lasts := reaches_words(last.snapshot, data["job"]):
        data["reaches"] = lasts
        return replace(story, estimate=[*story.estimate, *lasts])
    waits = waiting_row(last, starts, data["job"])
    if waits is None:
        return story
    row, now_s = waits.decision, max(last.snapshot.now_s, (store.view("status") or {}).get("at_s", 0.0))
    data["starts_in_s"], data["starts"] = waits.starts_in_s, row_starts(waits, starts)
    data["why_now"] = waits_words(waits, last, now_s)
    words = [data["why_now"], f"starts: {data['starts']}"]
    if waits.starts_in_s and (guess := guess_words(starts.seen)):
        words.append(guess)
    if observed := observed_words(last.modes, [waits.partition]):
        words.append(observed)
    if tries and (row is None or row.verb == "hold"):
        words.insert(1, f"what would help: {_tried(data, row, store, config, starts)}")
    return replace(story, first=words)


def _tried(
    data: dict[str, Any], row: DecisionRow | None, store: SqliteStore | Published, config: Path, starts: StartsAhead
) -> str:
    """What would start a waiting job now, in words and in ``data``, as ``why-not`` finds it."""
    from lucid.daemon.reporting.replan import last_plan
    from lucid.explain.what_if import Changes, asked_again  # with all policies: the story itself needs none

    try:
        last = last_plan(store)
        again = asked_again(last, load_settings(config), config, data["job"], Changes(), starts)
    except LucidError as error:
        return f"cannot be told: {error}"
    data["helps"] = again.to_dict()["helps"]
    ends_s = None if row is None else ends_in_time_s(row.reasons, last.snapshot.now_s)
    if ends_s is not None and f"with --time {limit_words(ends_s)}" in again.now:
        data["sooner"] = {"limit_s": ends_s}
    return again.helps


def _published(store: Published, job_id: str) -> tuple[DecisionRow, list[str]]:
    seen = stored_plan(store, stored_view(store))
    row = seen.row(job_id)
    if row is not None:
        return row, ["this is the last decision; only lucidd's user and root can read the earlier ones"]
    for name, part in seen.snapshot.partitions.items():
        for entry in part.running:
            if entry.job.id == job_id:
                words = ["only lucidd's user and root can read why it started there"]
                words += [f"it shares its GPUs with job {entry.partner}"] if entry.partner else []
                where = show_placement(entry.placement)
                return DecisionRow(entry.start_s, job_id, name, "start", (), where), words
    check_waits_for_lucid(store, job_id)
    raise ConfigError(
        f"job {job_id} neither waits for Lucid nor runs, and only lucidd's user and root can read its story: ask an "
        f"operator for sudo -u lucid lucidctl explain {job_id}"
    )


def check_waits_for_lucid(store: SqliteStore | Published, job_id: str) -> None:
    """Raise ``ConfigError`` if the job waits for something other than Lucid; the message says for what."""
    words = ((store.view("status") or {}).get("aside") or {}).get(job_id)
    if words:
        raise ConfigError(f"job {job_id} waits, but not for Lucid: {words}")


def why_nothing(
    store: SqliteStore, job_id: str, ran_at_once: bool, why_unknown: Callable[[str], str] | None = None
) -> str:
    """Why there is no story. ``ran_at_once``: the job runs, or has run, without having been seen waiting."""
    tasks = store.tasks(job_id)
    if tasks:
        named = ", ".join(sorted(tasks, key=lambda i: int(i.rpartition("_")[2]))[:_TASKS_NAMED])
        return f"job {job_id} is an array, and its {len(tasks)} tasks are decided one by one: ask about {named}"
    if ran_at_once:
        return (
            f"nothing was decided about job {job_id}: Slurm started it before lucidd saw it wait, as Slurm does "
            "where GPUs are free and the job is not held"
        )
    return (why_unknown(job_id) if why_unknown is not None else "") or (
        f"nothing was decided about job {job_id}: it asks for no GPU, is in no partition of daemon.partitions, was "
        "left to Slurm (scontrol show job: AdminComment says why), or is older than daemon.keep_days"
    )


def _ran_at_once(store: SqliteStore, job_id: str) -> bool:
    """Whether the job runs, or has run, without having been seen waiting."""
    seen = store.last_view()
    running = {entry.job.id for part in seen.partitions.values() for entry in part.running} if seen else ()
    return job_id in running or store.ended_job(job_id) is not None
