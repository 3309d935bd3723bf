"""``lucidctl queue``, ``status``, ``history``: waiting jobs, lucidd's state, ended jobs, from the store.

All of it works while the daemon is down."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lucid.cli.console import Table, answer, one_line, stdout_console, table
from lucid.config.load import Settings, load_settings
from lucid.core.codec import to_json
from lucid.core.reason import Reason
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
from lucid.explain.reasons import reason_text, short_words, vc_words, window_dict, window_words, windows_ahead
from lucid.explain.story import Story
from lucid.places import Mode
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.view.failed_pairs import KEY as PAIRS_OFF
from lucid.store.port import Lease, StoreUnreadable, holder_is_dead
from lucid.store.sqlite import SqliteStore
from lucid.text import shown

if TYPE_CHECKING:
    from lucid.core.job import Job
    from lucid.core.reasons.queue import Reserved
    from lucid.daemon.reporting.last_plan import StoredPlan
    from lucid.daemon.reporting.starts import StartsAhead
    from lucid.explain.queue_rows import QueueRow
    from lucid.slurm.heartbeat import Heartbeat


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
        "standby": None if waits is None or not waits.stands_by(lease, now_s) else to_json(waits),
        "switches": {key: text for key, text in store.settings().items() if not key.startswith(("gpu.", PAIRS_OFF))},
        **seen,
    }
    answer(data, as_json, _status_words(settings, seen, data, beat, now_s))


def _status_words(
    settings: Settings,
    seen: Mapping[str, Any],
    data: Mapping[str, Any],
    beat: Heartbeat | None,
    now_s: float,
) -> Iterator[str | Table]:
    beats = "no heartbeat" if beat is None else f"last good cycle {ago(now_s - beat.at_s)}"
    alive, other = data["alive"], data["standby"]
    if troubles := [] if alive else lives_in_trouble(Path(settings.daemon.heartbeat), now_s):
        yield f"{'; '.join(shown(one.words) for one in troubles)}; {beats}"
    else:
        yield f"lucidd {'runs' if alive else 'is DOWN'} ({data['holder'] or 'no lucidd holds the lease'}), {beats}"
    if other is not None:
        yield (
            f"standby: {shown(other['host'])} (pid {other['pid']}), since "
            f"{duration(other['at_s'] - other['since_s'])}, last heard of {ago(now_s - other['at_s'])}"
        )
    elif settings.daemon.shared_state:
        yield "no standby lucidd"
    if data["switches"].get("paused") == "1":
        yield "PAUSED: nothing is held or decided; lucidctl resume ends that"
    for told in words_of_switches(settings, data["switches"], seen.get("configured", {}) if alive else {}):
        yield shown(told.what) + (f": {shown(told.remedy)}" if told.remedy else "")
    if seen.get("breaker_why"):
        yield f"breaker open for {seen['breaker_open_s']} s: {shown(seen['breaker_why'])}"
    if seen.get("last_error"):
        yield f"last cycle failed: {shown(seen['last_error'])}"
    yield from map(shown, (*words_of_plan_errors(seen), *words_of_left_out(seen)))
    for out in (seen.get("gpu_health") or {}).get("out", ()):
        yield shown(f"GPU {out['index']} of {out['node']} is out: {out['words']}; lucidctl gpu health")
    if (seen.get("reports") or {}).get("words"):
        yield f"{shown(seen['reports']['words'])}: {shown(seen['reports']['remedy'])}"
    for job_id, words in (seen.get("doubted") or {}).items():
        yield f"job {shown(job_id)}'s reports do not agree with lucidd's clock: {shown(words)}"
    for one in seen.get("trust", ()):
        yield shown(reason_text(Reason.from_json(one)))
    if seen.get("no_fair_share"):
        yield f"no fair-share factors: {shown(seen['no_fair_share'])}"
    serving, parts = seen.get("models", {}), seen.get("partitions", {})
    if serving:
        yield "models: " + ", ".join(f"{kind} by {found['version']}" for kind, found in serving.items())
    for kind, found in serving.items():
        if found["trouble"]:
            yield f"the {kind} model in service cannot be used: {shown(found['why'])}"
    rows = (
        (
            name,
            "pool" if "vcs" in part else seen["modes"].get(name, "profiling"),
            seen.get("policies", {}).get(name, ""),
            *(str(part[key]) for key in ("gpus", "pending", "running", "packed")),
        )
        for name, part in parts.items()
    )
    yield table(("partition", "mode", "policy", ">GPUs", ">waiting", ">running", ">packed"), rows)
    for part in parts.values():
        yield from (vc_words(vc, found) for vc, found in part.get("vcs", {}).items())
    if calls := seen.get("calls"):
        yield (
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
    answer({"summary": summary, "jobs": rows[-limit:]}, as_json, _history_words(summary, rows, days, limit))


_HISTORY = (
    "job", "user", "name", "VC", ">GPUs", "state", ">JCT", ">ran", "partner", "Lucid: earlier by", "start: forecast"
)  # fmt: skip


def _history_words(
    summary: Mapping[str, Any], rows: Sequence[dict[str, Any]], days: float, limit: int
) -> Iterator[str | Table]:
    if not rows:
        yield (
            f"no job that lucidd looks after has ended in the last {days:g} days; lucidctl queue has those that "
            "wait, lucidctl status counts those that run"
        )
        return
    cells = (
        (
            *(str(row[key]) for key in ("job", "user", "name", "vc", "gpus", "state")),
            duration(row["jct_s"]), duration(row["ran_s"]), str(row["packed_beside"] or ""),
            "" if row["earlier_s"] is None else duration(row["earlier_s"]), outcome_words(row["start_forecast"]),
        )
        for row in rows[-limit:]
    )  # fmt: skip
    yield table(_HISTORY, cells)
    yield f"{len(rows)} jobs ended, average JCT {duration(summary['avg_jct_s'])}"
    if summary["observed"]:
        yield (
            f"{summary['observed']} of them were only observed: Lucid would have started them "
            f"{duration(summary['avg_earlier_s'])} earlier on average (each job compared on its own)"
        )


def tell_start(job_id: str, config: Path, as_json: bool) -> None:
    """Carry out ``lucidctl when JOB``.

    Raises: ConfigError: the job does not wait for Lucid."""
    store, data = seen_store(live_settings(config)), {"job": job_id}
    story = with_expected_start(Story("", ()), data, store, config)
    if "why_now" not in data:
        check_waits_for_lucid(store, job_id)
        raise ConfigError(f"job {job_id} does not wait for Lucid (any more); look at: lucidctl explain {job_id}")
    answer(data, as_json, story.first, indent=None)


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

    def data() -> dict[str, Any]:
        found, windows = [queue_row_to_dict(row, last) for row in rows], map(window_dict, windows_ahead(snapshot))
        return {"at_s": snapshot.now_s, "queue": found, "aside": aside, "windows": list(windows)}

    answer(data, as_json, _queue_words(last, starts, rows, aside))


def _queue_words(
    last: StoredPlan, starts: StartsAhead, rows: Sequence[QueueRow], aside: Mapping[str, str]
) -> Iterator[str | Table]:
    kept, snapshot = reservations(last), last.snapshot
    for name in dict.fromkeys(row.partition for row in rows):
        for reason, holder in kept.get(name, ()):
            yield shown(f"{name}: {reservation_words(reason, holder)}")
    if rows:
        wide = stdout_console().width >= _WIDE
        cells = (_queue_cells(row, last, starts, kept.get(row.partition, ()), wide) for row in rows)
        columns = [name for name in _QUEUE if wide or name != ">takes"]
        yield table(
            columns, cells, unwrapped=len(columns) - 1, box=None, padding=(0, 1, 0, 0),
            caption=f"as of {when(snapshot.now_s)}", caption_justify="left",
        )  # fmt: skip
        guess = guess_words(starts.seen) if any(row.starts_in_s for row in rows) else ""
        yield from filter(None, (guess, observed_words(last.modes, (row.partition for row in rows))))
    else:
        at = time.strftime("%F %T", time.localtime(snapshot.now_s))
        yield f"no job waits for Lucid (as of {at}); it looks after {', '.join(snapshot.partitions)}"
    for window in windows_ahead(snapshot):
        yield shown(window_words(window, snapshot.now_s))
    for job_id, words in aside.items():
        yield shown(f"job {job_id} waits, but not for Lucid: {words}")


def _queue_cells(
    row: QueueRow, last: StoredPlan, starts: StartsAhead, kept: Sequence[tuple[Reserved, Job]], wide: bool
) -> list[Any]:
    job = row.entry.job
    why = short_words(row.decision, keepers(row, last, kept))
    return [
        f"{line_of(row, last)} {row.position or '-'}",
        job.id,
        job.user,
        str(job.gpus),
        duration(last.snapshot.now_s - row.entry.since_s),
        *([duration(last.snapshot.predictions[job.id].duration_s)] if wide else []),
        row_starts(row, starts).partition(", ")[0].partition(" (")[0],  # explain and when say the whole range
        one_line(re.sub(r"^needs \d+ GPUs?( together)?; ", "", why)),  # a column has the number
    ]
