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

__all__ = ["sabotage"]


_A_LOOK_S = 6.0
"""A start that lucidd had decided on before it could see the hold has reached Slurm by then."""


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
    harmed: set[str] = set()
    while left and not stop.wait(0.5):
        for kind, fits in list(left.items()):
            for key, record in list(observer.watch.records.items()):
                task = people.tasks.get(key)
                if task is None or key in harmed or not _plain(task.order) or not fits(key, record):
                    continue
                if _do(site, kind, record.job):
                    note("sabotage", kind=kind, key=key, job=record.job)
                    harmed.add(key)
                    del left[kind]
                    break


def _plain(order: Order) -> bool:
    return not (order.tasks or order.after or order.cancel_after_s or order.release_after_s or order.may_be_refused)


def _long(site: Site, key: str) -> bool:
    path = site.root / FOLDER[1:] / "runs" / key
    return path.exists() and "END" not in path.read_text()


def _do(site: Site, kind: str, job: str) -> bool:
    match kind:
        case "killed":
            return site.run("scancel", job).returncode == 0
        case "lost":
            # only while it waits: one that has begun is another thing
            return site.run("scancel", "--state=PENDING", job).returncode == 0 and _never_ran(site, job)
        case "doubled":
            return site.run("scontrol", "requeue", job).returncode == 0
        case _:
            words = ["scontrol", "update", f"JobId={job}", "Comment=lucid:held", "Priority=0"]
            done = site.run(*words).returncode == 0
            time.sleep(_A_LOOK_S)
            return done and "JobState=PENDING" in site.run("scontrol", "show", "job", job).stdout


def _never_ran(site: Site, job: str) -> bool:
    return "JobState=CANCELLED" in site.run("scontrol", "show", "job", job).stdout
