"""``lucidctl when`` and ``why-not``: when a job would start that were submitted now, and what would start a waiting
one sooner, found by planning again as lucidd does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from msgspec import structs

from lucid.accounting.values import limit_s
from lucid.cli.console import answer
from lucid.cli.jobs.queue import live_settings, lives, seen_store
from lucid.core.job import Job, Pending
from lucid.core.ports import Predictor
from lucid.core.snapshot import Partition
from lucid.daemon.reporting.replan import LastPlan, last_plan
from lucid.daemon.reporting.starts import STARTS, expected_start, starts_from_view
from lucid.errors import ConfigError, StoreError, did_you_mean
from lucid.explain.formatting import ago, duration
from lucid.explain.live_story import check_waits_for_lucid
from lucid.explain.queue_rows import guess_words, observed_words, start_words
from lucid.explain.reasons import decision_line, short_words
from lucid.explain.what_if import Changes, WhyNot, asked_again
from lucid.orchestrator.forecast.plan_ahead import SETTLE_S, forecast

_ID = "when"
"""The id of the job that nobody has submitted; Slurm's ids are numbers."""


def tell_when(gpus: int, limit: str | None, user: str, partition: str | None, config: Path, as_json: bool) -> None:
    """Carry out ``lucidctl when``."""
    allowed_s = None if limit is None else seconds_of(limit)
    settings = live_settings(config)
    store = seen_store(settings)
    if not lives(store.lease(), time.time()):
        raise StoreError("lucidd does not run, so nobody knows the queue: systemctl start lucidd, or ask again later")
    last = last_plan(store)
    job = Job(_ID, "", gpus, last.snapshot.now_s, 2**31, user, time_limit_s=allowed_s)
    predictor = last.predictor(settings, config)
    asked = _candidates(last, gpus, partition)
    found = {vc: _answer(last, home, replace(job, vc=vc), predictor) for vc, home in asked.items()}
    words = (
        *(f"{name}: {told['words']}, estimate {duration(told['estimate_s'])}" for name, told in found.items()),
        *filter(None, (guess_words(len(last.times.known)), observed_words(last.modes, found))),
        f"by what lucidd saw {ago(time.time() - last.snapshot.now_s)}",
    )
    data = {"at_s": last.snapshot.now_s, "gpus": gpus, "time_limit_s": allowed_s, "partitions": found}
    answer(data, as_json, words, indent=None)


def seconds_of(limit: str) -> float:
    """The seconds of a time limit as ``--time`` takes it.

    Raises: ConfigError: the text is not a time limit."""
    found = limit_s(limit)
    if found is None or found <= 0:
        raise ConfigError(f"--time {limit}: is no time limit; write 6:00:00, 90 (minutes) or 2-12:00:00")
    return found


def _candidates(last: LastPlan, gpus: int, name: str | None) -> dict[str, Partition]:
    """The VCs to ask about, each with the partition of its jobs: those that could hold the job, were they empty."""
    known = {vc: part for part in last.snapshot.partitions.values() if not part.profiling for vc in part.vcs}
    if name is not None and name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(
            f"--partition {name}: lucidd does not look after it{hint}; it does after: {', '.join(known)}"
        )
    asked = known if name is None else {name: known[name]}
    most = {vc: part.quotas.get(vc, part.gpus) for vc, part in known.items()}
    fitting = {vc: part for vc, part in asked.items() if gpus <= most[vc]}
    if not fitting:
        largest = max(most, key=lambda vc: most[vc])
        raise ConfigError(
            f"--gpus {gpus}: fits nowhere in {name or 'any partition'}; the most are the {most[largest]} GPUs of "
            f"partition {largest}: ask for fewer, or for another --partition"
        )
    return fitting


def _answer(last: LastPlan, home: Partition, job: Job, predictor: Predictor) -> dict[str, Any]:
    """The job's start, by planning ahead with it in this partition: where jobs are profiled first, it queues for
    that."""
    snapshot = last.snapshot
    policy = last.policy.make(predictor)
    said = predictor.predict(job, None, snapshot.now_s).within(job.time_limit_s)
    profiling = snapshot.profiling
    room = profiling if profiling is not None and policy.profiled(job) else home
    entry = Pending(job, snapshot.now_s)
    inside = replace(room, pending=(*room.pending, entry))
    asked_of = replace(
        snapshot,
        partitions={**snapshot.partitions, room.name: inside},
        predictions={**snapshot.predictions, _ID: said},
    )
    ahead = forecast(
        asked_of,
        last.plan,  # it is being carried out: the job comes after
        policy,
        pair_speed=predictor.pair_speed,
        until=frozenset((_ID,)),
        run_times=last.run_times,
    )
    if ahead.starts_s.get(_ID, inf) <= SETTLE_S:
        ahead = structs.replace(ahead, starts_s={**ahead.starts_s, _ID: 0.0})
    starts_in_s = expected_start(inside, entry, ahead, last.times, snapshot.now_s)
    words = start_words(starts_in_s, ahead.ahead_of(_ID))
    return {
        "starts_in_s": starts_in_s,
        "estimate_s": round(said.duration_s, 1),
        "estimate_by": said.duration_source,
        "words": "as things are, it cannot start" if words == "-" else f"would start {words}",
    }


def tell_why_not(
    job_id: str, gpus: int | None, share: bool, vc: str | None, limit: str | None, config: Path, as_json: bool
) -> None:
    """Carry out ``lucidctl why-not``."""
    settings = live_settings(config)
    limit_s = None if limit is None else seconds_of(limit)
    store = seen_store(settings)
    check_waits_for_lucid(store, job_id)
    last = last_plan(store)
    starts = starts_from_view(store.view(STARTS), last.snapshot, last.plan)
    found = asked_again(last, settings, config, job_id, Changes(gpus, share, vc, limit_s), starts)
    answer(found.to_dict(), as_json, _words(job_id, found))


def _words(job_id: str, found: WhyNot) -> Iterator[str | tuple[str, bool]]:
    yield f"job {job_id}, by what lucidd saw {ago(time.time() - found.at_s)}"
    yield f"what would help: {found.helps}"
    yield f"starts: {found.starts[1]}"
    (as_it_is, row), *tried = found.rows.items()
    yield f"{as_it_is}: {'not decided' if row is None else decision_line(row)}"
    for words, row in tried:
        holds = row is None or row.verb == "hold"
        yield f"{words}: {'waits: ' if holds else ''}{short_words(row)}", holds
