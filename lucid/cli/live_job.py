"""``lucidctl explain JOB`` of a live job, and ``why-not``: what would start it sooner, found by planning again."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lucid.adapters.store.snapshot_json import decision_to_dict, snapshot_from_dict
from lucid.adapters.store.sqlite import SqliteStore
from lucid.cli.console import say
from lucid.cli.live import config_option, live_settings, live_snapshot, seen_store
from lucid.cli.render import duration, reason_text
from lucid.cli.render_prediction import prediction_data, prediction_lines
from lucid.config import PolicySettings, library_folder
from lucid.core.decision import Decision, Hold, Start
from lucid.core.job import Pending
from lucid.core.placement import show_placement
from lucid.core.ports import Predictor
from lucid.core.reason import reason_from_dict, reason_to_dict
from lucid.core.snapshot import Snapshot
from lucid.errors import ConfigError
from lucid.live.models import LiveModels
from lucid.live.modes import live_profiling
from lucid.live.published import Published
from lucid.orchestrator.policy import make_policy
from lucid.shown import shown

__all__ = ["live_story", "live_text", "replanned", "why_not"]

_TASKS_NAMED = 8
_VERBS = {
    "start": "starts",
    "hold": "waits",
    "requeue": "is requeued",
    "part": "is parted from its partner, and will run alone",
    "release": "moves on to its VC with its profile",
    "keep": "carries on in place",
}


def live_story(store: SqliteStore | Published, job_id: str) -> dict[str, Any]:
    """Decisions on a job, what was done, and its profile, oldest first; of what is published, the last decision.

    Raises:
        ConfigError: nothing is known of it.
    """
    if isinstance(store, Published):
        return _published_story(store, job_id)
    decisions, actions = store.decisions(job_id), store.actions(job_id)
    row, said = store.profiles().get(job_id), store.prediction(job_id)
    if not decisions and not actions:
        tasks = {d.job_id for d in store.decisions(limit=50_000) if d.job_id.startswith(f"{job_id}_")}
        if tasks:
            named = ", ".join(sorted(tasks, key=lambda i: int(i.rpartition("_")[2]))[:_TASKS_NAMED])
            raise ConfigError(
                f"job {job_id} is an array, and its {len(tasks)} tasks are decided one by one: ask about {named}"
            )
        if _ran_at_once(store, job_id):
            raise ConfigError(
                f"nothing was decided about job {job_id}: Slurm started it before lucidd saw it wait, as it does "
                "where GPUs are free and nobody holds the job"
            )
        raise ConfigError(
            f"nothing was decided about job {job_id}: it asks for no GPU, is not in a partition of Lucid's, was "
            "left to Slurm (scontrol show job: AdminComment says why), or is older than daemon.keep_days"
        )
    every = store.decisions(limit=50_000)
    joined = [(d.at_s, d.job_id) for d in every if d.beside == job_id and d.mode == "pack"]
    return {
        "job": job_id,
        "decisions": [
            {
                "at_s": d.at_s,
                "partition": d.partition,
                "verb": d.verb,
                "placement": d.placement,
                "beside": d.beside,
                "mode": d.mode,
                "reasons": [reason_to_dict(r) for r in d.reasons],
                "words": [reason_text(r) for r in d.reasons],
            }
            for d in decisions
        ],
        "actions": [{"at_s": a.at_s, "verb": a.verb, "detail": a.detail, "result": a.result} for a in actions],
        "joined_by": [{"at_s": at_s, "job": other} for at_s, other in joined],
        "profile": None
        if row is None
        else {
            "gpu_util": row.profile.gpu_util,
            "mem_util": row.profile.mem_util,
            "gpu_mem_mib": row.profile.gpu_mem_mib,
        },
        "prediction": None if said is None else {"user": said.user, **prediction_data(said.prediction)},
        "prediction_words": [] if said is None else prediction_lines(said.prediction, said.user),
    }


def _published_story(store: Published, job_id: str) -> dict[str, Any]:
    found = store.decided(job_id)
    if found is None:
        _told_aside(store, job_id)
        raise ConfigError(
            f"job {job_id} does not wait for Lucid, and its story is kept for lucidd's user and root: ask an "
            f"operator for sudo -u lucid lucidctl explain {job_id}"
        )
    partition, decided = found
    snapshot, status = store.view("snapshot"), store.view("status")
    told = {
        "at_s": snapshot["now_s"],
        "partition": partition,
        "placement": "",
        "beside": None,
        "mode": status["modes"].get(partition, "pack"),
        **decided,
        "words": [reason_text(reason_from_dict(data)) for data in decided["reasons"]],
    }
    return {
        "job": job_id,
        "decisions": [told],
        "actions": [],
        "joined_by": [],
        "profile": None,
        "prediction": None,
        "prediction_words": ["this is the last decision; what came before is kept for lucidd's user and root"],
    }


def _ran_at_once(store: SqliteStore, job_id: str) -> bool:
    """Does it run, or has it run, without having been seen waiting?"""
    seen = store.view("snapshot")
    partitions = {} if seen is None else snapshot_from_dict(seen).partitions
    running = {entry.job.id for part in partitions.values() for entry in part.running}
    return job_id in running or any(ended.job.id == job_id for ended in store.ended())


def live_text(story: dict[str, Any]) -> str:
    """The same in words."""
    events: list[tuple[float, list[str]]] = []
    for d in story["decisions"]:
        would = "" if d["mode"] == "pack" else f" [would, in {d['mode']} mode]"
        where = f" on {d['placement']}" if d["placement"] else ""
        beside = f", beside job {d['beside']}" if d["beside"] else ""
        head = f"{_VERBS.get(d['verb'], d['verb'])}{where}{beside} ({d['partition']}){would}"
        events.append((d["at_s"], [head, *(f"    - {words}" for words in d["words"])]))
    for a in story["actions"]:
        result = a["result"] or "under way"
        events.append((a["at_s"], [f"Slurm is told: {a['verb']} {a['detail']}".rstrip() + f": {result}"]))
    events += [(j["at_s"], [f"job {j['job']} starts beside it, on the same GPUs"]) for j in story["joined_by"]]
    lines = [shown(f"job {story['job']}")]
    if story["profile"]:
        p = story["profile"]
        lines[0] += (
            f": measured at {p['gpu_util']:.0f} % of GPU time, {p['mem_util']:.0f} % of memory time, "
            f"{p['gpu_mem_mib']:,.0f} MiB"
        )
    for at_s, text in sorted(events, key=lambda e: e[0]):
        lines.append(f"{time.strftime('%F %T', time.localtime(at_s))}  {shown(text[0])}")
        lines += [f"{'':21}{shown(line)}" for line in text[1:]]
    lines += story["prediction_words"]
    return "\n".join(lines)


def replanned(
    snapshot: Snapshot,
    job_id: str,
    settings: PolicySettings,
    predictor: Predictor,
    gpus: int | None,
    share: bool,
) -> tuple[Decision | None, Decision | None]:
    """The decision on a waiting job as things are, and if it asked for ``gpus`` GPUs or was willing to share.

    Raises:
        ConfigError: it does not wait.
    """
    for name, partition in snapshot.partitions.items():
        entry = next((e for e in partition.pending if e.job.id == job_id), None)
        if entry is None:
            continue
        changed = _changed(entry, gpus, share)
        others = tuple(changed if e is entry else e for e in partition.pending)
        asked = replace(snapshot, partitions={**snapshot.partitions, name: replace(partition, pending=others)})
        before, after = (make_policy("lucid", settings, predictor).plan(seen) for seen in (snapshot, asked))
        return before.decision_of(job_id), after.decision_of(job_id)
    raise ConfigError(f"job {job_id} does not wait for Lucid (any more); look at: lucidctl explain {job_id}")


def _told_aside(store: SqliteStore | Published, job_id: str) -> None:
    """Raises:
    ConfigError: the job waits, and not for Lucid; the message says for whom.
    """
    words = ((store.view("status") or {}).get("aside") or {}).get(job_id)
    if words:
        raise ConfigError(f"job {job_id} waits, but not for Lucid: {words}")


def _changed(entry: Pending, gpus: int | None, share: bool) -> Pending:
    job = entry.job
    if gpus is not None:
        per = (job.cpus / job.gpus, job.mem_mib / job.gpus) if job.gpus else (0.0, 0.0)
        job = replace(
            job,
            gpus=gpus,
            min_nodes=min(job.min_nodes, max(gpus, 1)),
            cpus=round(per[0] * gpus),
            mem_mib=round(per[1] * gpus),
        )
    if share:
        job = replace(job, shareable=True)
    return replace(entry, job=job, alone=entry.alone and not share)


def _words(decision: Decision | None) -> str:
    if decision is None:
        return "would not be decided"
    why = "; ".join(reason_text(reason) for reason in decision.reasons)
    if isinstance(decision, Start):
        beside = f" beside job {decision.beside}" if decision.beside else ""
        return f"would start at once on {show_placement(decision.placement)}{beside}: {why}"
    return f"{'would wait' if isinstance(decision, Hold) else 'would move on'}: {why}"


@click.command("why-not")
@click.argument("job_id", metavar="JOB")
@click.option("--gpus", type=click.IntRange(min=1), help="What if it asked for so many GPUs?")
@click.option("--share", is_flag=True, help="What if it were willing to share its GPUs?")
@config_option
@click.option("--json", "as_json", is_flag=True)
def why_not(job_id: str, gpus: int | None, share: bool, config: Path, as_json: bool) -> None:
    """Plan again as if waiting JOB had asked differently: would it start now?"""
    settings = live_settings(config)
    store = seen_store(settings)
    _told_aside(store, job_id)
    snapshot, _ = live_snapshot(store)
    packing = settings.policy.packing.model_copy(update={"same_user_only": not settings.daemon.share_across_users})
    profiling = live_profiling(settings.policy)
    policy = settings.policy.model_copy(update={"packing": packing, "profiling": profiling})
    library = None if isinstance(store, Published) else library_folder(settings, config.parent)
    predictor = LiveModels(library or Path()).make()  # estimates are in the snapshot; this one is asked about pairs
    variants: list[tuple[str, int | None, bool]] = (
        [(f"with {gpus} GPUs" if gpus else "", gpus, False)] if gpus else []
    )
    variants += [("willing to share", None, True)] if share else []
    if not variants:
        widths = {e.job.gpus for p in snapshot.partitions.values() for e in p.pending if e.job.id == job_id}
        less = max(widths, default=1) // 2
        variants = [(f"with {less} GPUs", less, False)] if less else []
        variants.append(("willing to share", None, True))
    now, _ = replanned(snapshot, job_id, policy, predictor, None, False)
    answers = [(words, replanned(snapshot, job_id, policy, predictor, g, s)[1]) for words, g, s in variants]
    if as_json:
        data = {
            "job": job_id,
            "as_it_is": decision_to_dict(now) if now else None,
            "if": {words: decision_to_dict(found) if found else None for words, found in answers},
        }
        say(json.dumps(data, indent=1))
        return
    say(f"job {job_id}, by what lucidd saw {duration(time.time() - snapshot.now_s)} ago")
    say(f"as it is: {_words(now)}")
    for words, found in answers:
        say(f"{words}: {_words(found)}")
