"""The page of one job: its story, estimate, partner and start, and what would let it start sooner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from lucid.accounting.endings import Cause, why_ended
from lucid.core.codec import to_json
from lucid.core.decision import DecisionRow
from lucid.core.job import Ended, Job, JobProfile, Pending, Running
from lucid.core.reason import Reason
from lucid.core.reasons.queue import PlainOrder
from lucid.daemon.reporting.starts import dated
from lucid.explain.formatting import gpus, when
from lucid.explain.live_story import known_story, why_nothing
from lucid.explain.queue_rows import forecast_outcome, guess_words, observed_words, outcome_words, queue_row_to_dict
from lucid.explain.reasons import against, decision_line
from lucid.explain.story import Story, row_to_dict
from lucid.explain.waste import account_to_dict, plain_ending, with_readings
from lucid.places import Mode
from lucid.store.sqlite import SqliteStore
from lucid.web.pages.cluster import pair_of
from lucid.web.pages.queue import row_of, starts_words
from lucid.web.pages.shown import Event, Forecasts, JobPage, NotShown, Outcome, Runs, Start, WhyNot, number, text
from lucid.web.site import Sight, Site, Viewer

_UNKNOWN = "nothing is known of job {} here"
_YET = "Nothing was decided about it yet."


def job(site: Site, viewer: Viewer, path: Mapping[str, str], asked: Mapping[str, str]) -> JobPage:
    """The content of a job's page. ``ask`` in the address plans again, with ``gpus``, ``share`` and ``vc``
    changed."""
    job_id = path["job_id"]
    entry = site.view.entry(job_id)
    with site.source.store() as store:
        ended = store.ended_job(job_id) if entry is None else None
        known = entry[1].job if entry is not None else ended.job if ended is not None else None
        user = known.user if known is not None else _user(store, job_id)
        sight = viewer.jobs if user is None else viewer.sees(user)
        if sight is Sight.OWN:
            raise NotShown(_UNKNOWN.format(job_id))
        story, data = known_story(store, job_id, site.source.settings.daemon.profiling_partition)
        note = ""
        if not data["decisions"] and not data["actions"]:
            waits = entry is not None and isinstance(entry[1], Pending)
            note = _YET if waits else why_nothing(store, job_id, ran_at_once=known is not None)
    if note and known is None:
        aside = site.view.status.aside.get(job_id)
        raise NotShown(f"job {job_id} waits, but not for Lucid: {aside}" if aside else note)
    if sight is Sight.NAMELESS:
        story, data = _nameless(site, viewer, story, data)
    shown = None if known is None else site.job_of(known, viewer)
    if story.rows and entry is not None and isinstance(entry[1], Pending):  # what holds now
        *before, last = story.rows
        now = tuple(dated(last.reasons, site.source.forecasts.ahead))
        story = structs.replace(story, rows=[*before, structs.replace(last, reasons=now)])
    pending = None if entry is None or not isinstance(entry[1], Pending) else (entry[0], entry[1])
    runs = entry[1] if entry is not None and isinstance(entry[1], Running) else None
    account = site.source.account_of.get(job_id) if sight is Sight.ALL else None
    profile = entry[1].profile if entry is not None else ended.profile if ended is not None else None
    return {
        "job": job_id,
        "note": note,
        "decisions": data["decisions"],
        "actions": data["actions"],
        "joined_by": data["joined_by"],
        "prediction": data["prediction"],
        "prediction_words": data["prediction_words"],
        "at_s": site.view.now_s,
        "state": "waits" if pending else "runs" if runs else "ended" if ended else "unknown",
        "asks": None if shown is None else to_json(shown),
        "profile": None if profile is None else _profile(profile, sight),
        "use": None if account is None or shown is None else account_to_dict(account),
        "gpus_used": [] if account is None else [to_json(use) for use in account.job.use],
        "partner": None if runs is None or runs.partner is None else pair_of(site, viewer, runs),
        "start": None if pending is None else _start(site, viewer, *pending),
        "start_forecasts": _forecasts(site, job_id),
        "outcome": None if ended is None else _outcome(site, ended, story.rows, sight),
        "why_not": None if pending is None else _why_not(site, viewer, shown, asked),
        "_events": [_event(at_s, words) for at_s, words in reversed(story.history())],
        "_head": _head(shown, job_id),
        "_start_notes": [] if pending is None else _start_notes(site, *pending),
        "_runs": None if runs is None else _runs(site, runs),
        "_vcs": [part.name for part in site.view.seen.snapshot.partitions.values() if not part.profiling],
    }


def _user(store: SqliteStore, job_id: str) -> str | None:
    """The user of a job that neither waits nor runs, and has not been seen to end."""
    said, measured = store.prediction(job_id), store.profile(job_id)
    return said.user if said is not None else measured.user if measured is not None else None


def _nameless(site: Site, viewer: Viewer, story: Story, data: Mapping[str, Any]) -> tuple[Story, dict[str, Any]]:
    """The story and data without the terms of the estimate, which name users and jobs."""
    rows = [site.row_of(row, viewer) for row in story.rows]
    told = [decision | {"reasons": []} for decision in data["decisions"]]
    return structs.replace(story, rows=rows, estimate=()), {
        **data,
        "decisions": told,
        "prediction": None,
        "prediction_words": [],
    }


def _head(shown: Job | None, job_id: str) -> str:
    if shown is None:
        return f"Job {job_id}"
    parts = gpus(shown.gpus), f"VC {shown.vc}", shown.user and f"user {shown.user}", shown.name
    return ", ".join(part for part in parts if part)


def _event(at_s: float, words: Sequence[str]) -> Event:
    headline, *reasons = words
    return {"at_s": at_s, "headline": headline, "reasons": reasons}


def _profile(profile: JobProfile, sight: Sight) -> dict[str, Any]:
    data: dict[str, Any] = to_json(profile)
    return data if sight is Sight.ALL else {**data, "workload": ""}


def _runs(site: Site, entry: Running) -> Runs:
    now_s = site.view.now_s
    said = site.view.seen.snapshot.predictions.get(entry.job.id)
    ran_s = entry.elapsed_s(now_s)
    left_s = None if said is None else said.remaining_s(ran_s)
    where = " ".join(f"{part.node}:{','.join(map(str, part.gpus))}" for part in entry.placement)
    return {"ran_s": ran_s, "left_s": left_s, "where": where, "stage": str(entry.stage), "restarts": entry.restarts}


def _start(site: Site, viewer: Viewer, partition: str, entry: Pending) -> Start:
    row = row_of(site, partition, entry)
    decision = None if row.decision is None else site.row_of(row.decision, viewer)
    told = queue_row_to_dict(row, site.view.seen)
    return {
        "partition": partition,
        "position": row.position,
        "waited_s": told["waited_s"],
        "estimate_s": told["estimate_s"],
        "estimate_by": told["estimate_by"],
        "starts_in_s": row.starts_in_s,
        "words": starts_words(site, row),
        "obstacles": [] if decision is None else against(decision.reasons),
    }


def _start_notes(site: Site, partition: str, entry: Pending) -> list[str]:
    row, seen = row_of(site, partition, entry), site.view.seen
    guess = guess_words(len(site.view.times.known)) if row.starts_in_s else ""
    return [words for words in (guess, observed_words(seen.modes, [partition])) if words]


def _forecasts(site: Site, job_id: str) -> Forecasts:
    times = site.view.times
    known = {one.job_id: one for one in (*times.known, *times.open.values())}
    first = forecast_outcome(known, job_id)
    points = [list(point) for point in site.source.forecasts.forecasts_of(job_id)]
    return {"first": first, "_words": outcome_words(first), "since": points}


def _outcome(site: Site, ended: Ended, rows: Sequence[DecisionRow], sight: Sight) -> Outcome:
    """The outcome of an ended job. Accounting is not asked for a page: ``lucidctl explain`` shows what only it
    knows."""
    began_s = ended.end_s - ended.ran_s
    why = why_ended(with_readings(plain_ending(ended), ended, site.source.settings)) if sight is Sight.ALL else None
    if why is not None and why.cause is Cause.UNKNOWN:
        why = replace(why, advice=f"lucidctl explain {ended.job.id} asks Slurm's accounting.")
    earlier_s, by = _against_plain(rows, began_s)
    return {
        "state": ended.state,
        "end_s": ended.end_s,
        "ran_s": round(ended.ran_s, 1),
        "jct_s": round(ended.end_s - ended.job.submit_s, 1),
        "earlier_s": None if earlier_s is None else round(earlier_s, 1),
        "by": by,
        "cause": None if why is None else str(why.cause),
        "seen": "" if why is None else why.seen,
        "advice": "" if why is None else why.advice,
    }


def _against_plain(rows: Sequence[DecisionRow], began_s: float) -> tuple[float | None, str]:
    would = next((row for row in rows if row.verb == "start" and row.mode == Mode.OBSERVE), None)
    if would is not None:
        return max(began_s - would.at_s, 0.0), f"Lucid only observed, and would have started it {when(would.at_s)}"
    plain = [reason for row in rows for reason in row.reasons if isinstance(reason, PlainOrder)]
    started = [row.at_s for row in rows if row.verb == "start"]
    if plain and started:
        return plain[-1].plain_s - started[-1], f"plain Slurm order would have started it {when(plain[-1].plain_s)}"
    return None, "lucidd works out plain Slurm's order only where a starvation bound is set (policy.fairness)"


def _why_not(site: Site, viewer: Viewer, shown: Job | None, asked: Mapping[str, str]) -> WhyNot:
    gpus, share, vc = number(asked, "gpus", 0, 0, 100_000), asked.get("share") == "1", text(asked, "vc")
    found: WhyNot = {
        "gpus": gpus or None, "share": share, "vc": vc, "asked": "ask" in asked, "answer": None
    }  # fmt: skip
    if shown is None or not found["asked"]:
        return found
    return {**found, "answer": _answer(site, viewer, shown, gpus or None, share, vc or None)}


def _answer(site: Site, viewer: Viewer, shown: Job, gpus: int | None, share: bool, vc: str | None) -> dict[str, Any]:
    """The answer of ``lucidctl why-not --json``; every decision without the names that this viewer may not read."""
    if viewer.sees(shown.user) is not Sight.ALL:
        return {"error": "Only those who may see the job's names can ask that."}
    if site.source.config is None:
        return {"error": f"lucid-web runs with --store: ask lucidctl why-not {shown.id}."}
    if vc is not None and all(vc not in part.vcs for part in site.view.seen.snapshot.partitions.values()):
        return {"error": "There is no such VC."}
    told = site.what_if.ask(site.source.config, shown.id, gpus, share, vc)
    if "error" in told:
        return told
    answer: dict[str, Any] = {key: told[key] for key in ("job", "starts_in_s", "why_no_if", "helps") if key in told}
    made = {words: _row(site, viewer, shown.id, row) for words, row in told["if"].items()}
    return {**answer, "as_it_is": _row(site, viewer, shown.id, told["as_it_is"]), "if": made}


def _row(site: Site, viewer: Viewer, job_id: str, data: dict[str, Any] | None) -> dict[str, Any] | None:
    if data is None:
        return None
    reasons = tuple(Reason.from_json(reason) for reason in data["reasons"])
    rest = data["placement"], data["beside"], data.get("mode", "")
    row = site.row_of(DecisionRow(data["at_s"], job_id, data["partition"], data["verb"], reasons, *rest), viewer)
    return {**row_to_dict(row), "words": decision_line(row)}
