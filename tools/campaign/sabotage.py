"""Harm done on purpose, once each, to see that the campaign finds it: ``--sabotage``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from campaign.facts import Order, Record
from campaign.observer import Observer
from campaign.people import People
from campaign.site import Site
from campaign.stream import FOLDER

_A_LOOK_S = 6.0
"""A start that lucidd had decided on before it could see the hold has reached Slurm by then."""
_FRESH_S = 6.0
"""A job that was not seen for so long may not have its number any more."""


def sabotage(
    site: Site, people: People, observer: Observer, stop: threading.Event, note: Callable[..., None]
) -> threading.Thread:
    """In a thread: root cancels a job that runs (killed) and one that waits (lost), requeues one that has completed
    (doubled), and holds one as nobody ever lets go (stuck)."""
    thread = threading.Thread(target=_harm, args=(site, people, observer, stop, note), name="sabotage", daemon=True)
    thread.start()
    return thread


def _harm(site: Site, people: People, observer: Observer, stop: threading.Event, note: Callable[..., None]) -> None:
    left: dict[str, Callable[[str, Record], bool]] = {
        "killed": lambda key, record: record.state == "RUNNING" and _long(site, key),
        "lost": lambda key, record: record.state == "PENDING",
        "doubled": lambda key, record: record.state == "COMPLETED",
        "stuck": lambda key, record: record.state == "PENDING",
    }
    touched: set[str] = set()
    while left and not stop.wait(0.5):
        for kind, fits in list(left.items()):
            for key, record in list(observer.watch.records.items()):
                task = people.tasks.get(key)
                fresh = time.time() - record.seen_s < _FRESH_S
                if task is None or key in touched or not fresh or not _plain(task.order) or not fits(key, record):
                    continue
                touched.add(key)  # whatever comes of it: harm of two kinds would be found as one
                if done := _do(site, kind, record.job, key):
                    note("sabotage", kind=done, key=key, job=record.job)
                    left.pop(done, None)
                    break


def _plain(order: Order) -> bool:
    return not (order.tasks or order.after or order.cancel_after_s or order.release_after_s or order.may_be_refused)


def _lines(site: Site, key: str) -> str:
    path = site.root / FOLDER[1:] / "runs" / key
    return path.read_text() if path.exists() else ""


def _long(site: Site, key: str) -> bool:
    lines = _lines(site, key)
    return bool(lines) and "END" not in lines


def _do(site: Site, kind: str, job: str, key: str) -> str:
    """Do harm of this kind. Returns which came of it: a job may start or end at the same moment; empty: none."""
    match kind:
        case "killed" | "lost":
            site.run("scancel", *(["--state=PENDING"] if kind == "lost" else []), job)
            if _state(site, job) != "CANCELLED":
                return ""
            return "killed" if _lines(site, key) else "lost"
        case "doubled":
            done = site.run("scontrol", "requeue", job).returncode == 0
            site.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm puts it off by two minutes
            return kind if done else ""
        case _:
            words = ["scontrol", "update", f"JobId={job}"]
            site.run(*words, "Comment=lucid:held", "Priority=0")
            if _state(site, job) == "PENDING":
                return kind
            site.run(*words, "Comment=")  # it had started: nothing shall hold it where it is started over
            site.run("scontrol", "release", job)
            return ""


def _state(site: Site, job: str) -> str:
    time.sleep(_A_LOOK_S)
    said = site.run("scontrol", "show", "job", job).stdout
    return said.partition("JobState=")[2].partition(" ")[0]
