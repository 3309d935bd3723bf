"""``lucidctl queue``, ``status``, ``history``: waiting jobs, lucidd's state, ended jobs, from the store.

All of it works while the daemon is down."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lucid.cli.console import Table, one_line, say, stdout_console
from lucid.config.load import load_settings
from lucid.core.reason import reason_from_dict
from lucid.daemon.barrier import lives_in_trouble
from lucid.daemon.leader import standby_of
from lucid.daemon.modes import words_of_switches
from lucid.daemon.plan_errors import words_of_plan_errors
from lucid.daemon.reporting.public_view import Published
from lucid.daemon.reporting.status import words_of_left_out
from lucid.errors import ConfigError
from lucid.explain.formatting import ago, duration, when
from lucid.explain.live_story import check_waits_for_lucid, with_expected_start
from lucid.explain.queue_rows import (
    forecast_outcome,
    guess_words,
    keepers,
    line_of,
    observed_words,
    outcome_words,
    queue_row_to_dict,
    queue_rows,
    read_stored_starts,
    reservation_words,
    reservations,
    row_starts,
)
from lucid.explain.reasons import reason_text, short_words, vc_words, window_dicts, window_words, windows_ahead
from lucid.explain.story import Story
from lucid.places import Mode
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.view.failed_pairs import KEY as PAIRS_OFF
from lucid.store.port import Lease, StoreUnreadable, holder_is_dead
from lucid.store.sqlite import SqliteStore
from lucid.text import shown

if TYPE_CHECKING:
    from lucid.config.load import Settings


_NO_PARTITION = "{}: daemon.partitions is empty; name the partitions that lucidd looks after"


def live_settings(config: Path) -> Settings:
    """lucidd's settings.

    Raises:
        ConfigError: the file cannot be read, is wrong, or names no partition."""
    settings = load_settings(config)
    if not settings.daemon.partitions:
        raise ConfigError(_NO_PARTITION.format(config))
    return settings


def live_store(settings: Settings, write: bool = False) -> SqliteStore:
    """The daemon's store.

    Raises:
        StoreError: there is none, or it cannot be opened."""
    daemon = settings.daemon
    return SqliteStore(Path(daemon.state_dir) / "lucid.db", read_only=not write, shared=daemon.shared_state)


def seen_store(settings: Settings) -> SqliteStore | Published:
    """The daemon's store, or, for users who may not read it, the part that lucidd publishes.

    Raises: StoreError: there is none, or nothing is published."""
    try:
        return live_store(settings)
    except StoreUnreadable:
        return Published(settings)


def lives(lease: Lease | None, now_s: float) -> bool:
    """Whether a daemon holds the lease, as far as can be told from here."""
    return lease is not None and lease.until_s > now_s and not holder_is_dead(lease.holder)


_GONE = ("too_old",)
"""Members that earlier versions reported, which stay in the store until lucidd's next turn."""


def tell_status(config: Path, as_json: bool) -> None:
    """Carry out ``lucidctl status``."""
    settings = live_settings(config)
    store = seen_store(settings)
    seen = {key: told for key, told in (store.view("status") or {}).items() if key not in _GONE}
    lease, beat, now_s = store.lease(), read_heartbeat(Path(settings.daemon.heartbeat)), time.time()
    alive = lives(lease, now_s)
    waits = standby_of(store)
    data = {
        "alive": alive,
        "holder": lease.holder if lease else "",
        "heartbeat_age_s": round(now_s - beat.at_s, 1) if beat else None,
        "standby": None if waits is None or not waits.stands_by(lease, now_s) else asdict(waits),
        "switches": {key: text for key, text in store.settings().items() if not key.startswith(("gpu.", PAIRS_OFF))},
        **seen,
    }
    if as_json:
        say(json.dumps(data, indent=1))
        return
    beats = "no heartbeat" if beat is None else f"last good cycle {ago(now_s - beat.at_s)}"
    troubles = [] if alive else lives_in_trouble(Path(settings.daemon.heartbeat), now_s)
    if troubles:
        say(f"{'; '.join(shown(one.words) for one in troubles)}; {beats}")
    else:
        say(f"lucidd {'runs' if alive else 'is DOWN'} ({data['holder'] or 'no lucidd holds the lease'}), {beats}")
    other = data["standby"]
    if other is not None:
        say(
            f"standby: {shown(other['host'])} (pid {other['pid']}), since "
            f"{duration(other['at_s'] - other['since_s'])}, last heard of {ago(now_s - other['at_s'])}"
        )
    elif settings.daemon.shared_state:
        say("no standby lucidd")
    if data["switches"].get("paused") == "1":
        say("PAUSED: nothing is held or decided; lucidctl resume ends that")
    for told in words_of_switches(settings, data["switches"], seen.get("configured", {}) if alive else {}):
        say(shown(told.what) + (f": {shown(told.remedy)}" if told.remedy else ""))
    if seen.get("breaker_why"):
        say(f"breaker open for {seen['breaker_open_s']} s: {shown(seen['breaker_why'])}")
    if seen.get("last_error"):
        say(f"last cycle failed: {shown(seen['last_error'])}")
    for words in words_of_plan_errors(seen):
        say(shown(words))
    for words in words_of_left_out(seen):
        say(shown(words))
    for out in (seen.get("gpu_health") or {}).get("out", ()):
        say(shown(f"GPU {out['index']} of {out['node']} is out: {out['words']}; lucidctl gpu health"))
    if (seen.get("reports") or {}).get("words"):
        say(f"{shown(seen['reports']['words'])}: {shown(seen['reports']['remedy'])}")
    for job_id, words in (seen.get("doubted") or {}).items():
        say(f"job {shown(job_id)}'s reports do not agree with lucidd's clock: {shown(words)}")
    for one in seen.get("trust", ()):
        say(shown(reason_text(reason_from_dict(one))))
    if seen.get("no_fair_share"):
        say(f"no fair-share factors: {shown(seen['no_fair_share'])}")
    serving = seen.get("models", {})
    if serving:
        say("models: " + ", ".join(f"{kind} by {found['version']}" for kind, found in serving.items()))
    for kind, found in serving.items():
        if found["trouble"]:
            say(f"the {kind} model in service cannot be used: {shown(found['why'])}")
    table = Table()
    for name in ("partition", "mode", "policy", "GPUs", "waiting", "running", "packed"):
        table.add_column(name, justify="left" if name in ("partition", "mode", "policy") else "right")
    policies = seen.get("policies", {})
    for name, part in seen.get("partitions", {}).items():
        mode_ = "pool" if "vcs" in part else seen["modes"].get(name, "profiling")
        table.add_row(
            name, mode_, policies.get(name, ""), *(str(part[key]) for key in ("gpus", "pending", "running", "packed"))
        )
    stdout_console().print(table)
    for part in seen.get("partitions", {}).values():
        for vc, found in part.get("vcs", {}).items():
            say(vc_words(vc, found))
    calls = seen.get("calls")
    if calls:
        say(
            f"Slurm was asked {calls['reads']} times and changed {calls['writes']} times; of both it refused "
            f"{calls['refused']} and did not answer {calls['failed']}; slowest {calls['slowest_s']:.2f} s"
        )


def tell_history(config: Path, days: float, limit: int, as_json: bool) -> None:
    """Carry out ``lucidctl history``."""
    from lucid.daemon.reporting.starts import START_TIMES, start_times_of

    store = live_store(live_settings(config))
    ended = store.ended(time.time() - days * 86400.0)
    rows: list[dict[str, Any]] = []
    known = {one.job_id: one for one in start_times_of(store.view(START_TIMES)).known}
    for item in ended:
        decisions = store.decisions(item.job.id)
        began_s = item.end_s - item.ran_s
        guest = next((d for d in reversed(decisions) if d.beside and d.mode == Mode.PACK), None)
        observed = any(d.mode == Mode.OBSERVE for d in decisions)
        would = next((d for d in decisions if d.verb == "start" and d.mode == Mode.OBSERVE), None)
        rows.append(
            {
                "job": item.job.id,
                "user": item.job.user,
                "name": item.job.name,
                "vc": item.job.vc,
                "gpus": item.job.gpus,
                "state": item.state,
                "jct_s": round(item.end_s - item.job.submit_s, 1),
                "ran_s": round(item.ran_s, 1),
                "packed_beside": guest.beside if guest else None,
                "earlier_s": round(max(began_s - would.at_s, 0.0), 1) if would else 0.0 if observed else None,
                "start_forecast": forecast_outcome(known, item.job.id),
            }
        )
    gains = [row["earlier_s"] for row in rows if row["earlier_s"] is not None]
    summary = {
        "jobs": len(rows),
        "avg_jct_s": round(sum(r["jct_s"] for r in rows) / len(rows), 1) if rows else None,
        "observed": len(gains),
        "avg_earlier_s": round(sum(gains) / len(gains), 1) if gains else None,
    }
    if as_json:
        say(json.dumps({"summary": summary, "jobs": rows[-limit:]}, indent=1))
        return
    table = Table()
    for column in (
        "job",
        "user",
        "name",
        "VC",
        "GPUs",
        "state",
        "JCT",
        "ran",
        "partner",
        "Lucid: earlier by",
        "start: forecast",
    ):
        table.add_column(column, justify="right" if column in ("GPUs", "JCT", "ran") else "left")
    for row in rows[-limit:]:
        earlier = row["earlier_s"]
        table.add_row(
            str(row["job"]), str(row["user"]), str(row["name"]), str(row["vc"]), str(row["gpus"]), str(row["state"]),
            duration(row["jct_s"]), duration(row["ran_s"]), str(row["packed_beside"] or ""),
            "" if earlier is None else duration(earlier), outcome_words(row["start_forecast"]),
        )  # fmt: skip
    if not rows:
        say(
            f"no job that lucidd looks after has ended in the last {days:g} days; lucidctl queue has those that "
            "wait, lucidctl status counts those that run"
        )
        return
    stdout_console().print(table)
    say(f"{len(rows)} jobs ended, average JCT {duration(summary['avg_jct_s'] or 0.0)}")
    if gains:
        say(
            f"{len(gains)} of them were only observed: Lucid would have started them "
            f"{duration(sum(gains) / len(gains))} earlier on average (each job compared on its own)"
        )


def tell_start(job_id: str, config: Path, as_json: bool) -> None:
    """Carry out ``lucidctl when JOB``.

    Raises: ConfigError: the job does not wait for Lucid."""
    store, data = seen_store(live_settings(config)), {"job": job_id}
    story = with_expected_start(Story("", ()), data, store, config)
    if "why_now" not in data:
        check_waits_for_lucid(store, job_id)
        raise ConfigError(f"job {job_id} does not wait for Lucid (any more); look at: lucidctl explain {job_id}")
    say(json.dumps(data) if as_json else "\n".join(story.first))


_QUEUE = (">#", "job", "user", ">GPUs", ">waits", ">takes", "starts", "why it waits")
"""Columns of the queue; ``>``: flush right."""
_WIDE = 100
"""Columns of a terminal from which on the queue has the estimates."""


def tell_queue(config: Path, as_json: bool) -> None:
    """Carry out ``lucidctl queue``."""
    store = seen_store(live_settings(config))
    last, starts = read_stored_starts(store, config)
    snapshot = last.snapshot
    rows = queue_rows(last, starts)
    aside: dict[str, str] = (store.view("status") or {}).get("aside") or {}
    if as_json:
        found = [queue_row_to_dict(row, last) for row in rows]
        windows = window_dicts(windows_ahead(snapshot))
        told = {"at_s": snapshot.now_s, "queue": found, "aside": aside, "windows": windows}
        say(json.dumps(told, indent=1))
        return
    kept, console = reservations(last), stdout_console()
    table = Table(box=None, padding=(0, 1, 0, 0), caption=f"as of {when(snapshot.now_s)}", caption_justify="left")
    columns = [name for name in _QUEUE if name != ">takes" or console.width >= _WIDE]
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.lstrip(">"), justify="right" if right else "left", no_wrap=name != columns[-1])
    for row in rows:
        job = row.entry.job
        why = short_words(row.decision, keepers(row, last, kept.get(row.partition, ())))
        takes = duration(snapshot.predictions[job.id].duration_s)
        table.add_row(
            f"{line_of(row, last)} {row.position or '-'}",
            job.id,
            job.user,
            str(job.gpus),
            duration(snapshot.now_s - row.entry.since_s),
            *([takes] if ">takes" in columns else []),
            row_starts(row, starts).partition(", ")[0].partition(" (")[0],  # explain and when say the whole range
            one_line(re.sub(r"^needs \d+ GPUs?( together)?; ", "", why)),  # a column has the number
        )
    for name in dict.fromkeys(row.partition for row in rows):
        for reason, holder in kept.get(name, ()):
            say(shown(f"{name}: {reservation_words(reason, holder)}"))
    if rows:
        console.print(table)
        guess = guess_words(starts.seen) if any(row.starts_in_s for row in rows) else ""
        for words in (guess, observed_words(last.modes, (row.partition for row in rows))):
            if words:
                say(words)
    else:
        at = time.strftime("%F %T", time.localtime(snapshot.now_s))
        say(f"no job waits for Lucid (as of {at}); it looks after {', '.join(snapshot.partitions)}")
    for window in windows_ahead(snapshot):
        say(shown(window_words(window, snapshot.now_s)))
    for job_id, words in aside.items():
        say(shown(f"job {job_id} waits, but not for Lucid: {words}"))
