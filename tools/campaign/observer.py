"""The one who looks: at Slurm, at the heartbeat; and who does what samplers and administrators do meanwhile."""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from campaign.facts import runs_from
from campaign.lanes import Lanes
from campaign.people import People
from campaign.site import BOUND_S, Site
from campaign.stream import FOLDER, PARTITIONS, SCAVENGERS
from campaign.watch import Look, Watch, free_gpus, keyed, number, yielding
from lucid.core.job import JobProfile
from lucid.core.placement import hosts_in
from lucid.errors import LucidError
from lucid.node.reports import write_summary
from lucid.profiler.summary import Summary

EVERY_S = 2.5
_FORGOTTEN_S = 30.0
_ADMIN_EVERY = 5
"""Looks between two in which nodes that Slurm drained are brought back."""


class Observer:
    """A thread of its own. ``watch`` holds what it has seen."""

    def __init__(self, site: Site, people: People, lanes: Lanes, note: Callable[..., None]) -> None:
        self._site, self._people, self._lanes, self._note = site, people, lanes, note
        self.watch = Watch(people.by_token, FOLDER, BOUND_S)
        people.ended = lambda: sum(record.over for record in list(self.watch.records.values()))
        self.unseen_s = 0.0
        """Time in which Slurm did not answer."""
        self.resumed: list[str] = []
        self.back_s: dict[int, float] = {}
        """How long after the end of a fault (by its place in the list) lucidd's next heartbeat came."""
        self._measured: set[str] = set()
        self._looks = 0
        self._beat = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name="observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _live(self) -> None:
        while not self._stop.wait(EVERY_S):
            began = time.monotonic()
            jobs = self._site.jobs()
            if jobs is None:
                self.unseen_s += time.monotonic() - began + EVERY_S
                continue
            self._looks += 1
            try:
                self._look(jobs)
            except Exception as error:  # one look less; the campaign goes on, and says so
                self._note("campaign trouble", said=f"look: {type(error).__name__}: {error}")
                self._lanes.errors.append(f"look: {type(error).__name__}: {error}")

    def _look(self, jobs: list[dict[str, Any]]) -> None:
        now_s = time.time()
        ours = [job for job in jobs if str(job.get("standard_output", "")).startswith(f"{FOLDER}/out/")]
        for job in ours:
            token = str(job["standard_output"]).removeprefix(f"{FOLDER}/out/")
            self._people.saw(str(job["job_id"]), token)
            if token in self._people.unsaid and job["state_reason"] == "BadConstraints":
                self._people.refuse(token, "BadConstraints; the answer was lost")
            elif token in self._people.unsaid:
                self._people.accept(token, str(job.get("array_job_id", {}).get("number") or job["job_id"]), now_s)
        beat_s = self._beat_s()
        barred = bool(self._lanes.in_force("slurmctld", 10) or self._lanes.in_force("munge", 10))
        free = free_gpus(self._nodes(), PARTITIONS, yielding(jobs, SCAVENGERS))
        self.watch.look(Look(now_s, ours, free, now_s - beat_s, self._lanes.broken(), barred))
        for n, broken in enumerate([] if self._lanes.in_force("clock", 20) else list(self._lanes.done)):
            ended_s = broken.ended_s
            if ended_s is not None and n not in self.back_s and beat_s > ended_s:
                self.back_s[n] = beat_s - ended_s
        self._sample(ours, now_s)
        if self._looks % _ADMIN_EVERY == 0 and not self._lanes.in_force("nodes", 15):
            done = self._site.resume_nodes()
            if not self._lanes.in_force("slurmctld", 25):
                done += self._ask_about_ended(ours, now_s)
            for words in done:
                self.resumed.append(words)
                self._note("node mended", was=words)

    def _ask_about_ended(self, jobs: list[dict[str, Any]], now_s: float) -> list[str]:
        """A slurmctld that was killed takes a job for running whose end it forgot, until the node says what runs."""
        asked = {}
        for key, job in keyed(jobs, self._people.by_token, FOLDER):
            if job["job_state"] != ["RUNNING"]:
                continue
            try:
                runs = runs_from((self._site.root / FOLDER[1:] / "runs" / key).read_text())
            except OSError:
                continue
            ended_s = runs[-1].ended_s if runs else None
            if ended_s is not None and now_s - max(ended_s, number(job, "start_time")) > _FORGOTTEN_S:
                asked[hosts_in(str(job["nodes"]))[0]] = str(job["job_id"])
        for node in asked:
            self._site.ask_node(node)
        return [f"{node} asked what runs there: job {job} has ended" for node, job in asked.items()]

    def _beat_s(self) -> float:
        """When the last heartbeat was written that could be read: a broken file makes nobody older."""
        try:
            found = float(self._site.heartbeat.read_text(errors="replace")[:40].split()[1])
        except (OSError, ValueError, IndexError):
            found = math.nan
        if math.isfinite(found):
            self._beat = min(found, time.time())  # of a clock that is ahead
        return self._beat

    def _nodes(self) -> list[Mapping[str, Any]]:
        done = self._site.run("scontrol", "show", "nodes", "--json", limit_s=10)
        try:
            return list(json.loads(done.stdout)["nodes"])
        except (ValueError, KeyError):
            return []

    def _sample(self, jobs: list[dict[str, Any]], now_s: float) -> None:
        """What the samplers of the nodes would have written of jobs that have run for a little."""
        for job in jobs:
            name = str(job["job_id"])
            if job["job_state"] != ["RUNNING"] or name in self._measured or now_s - number(job, "start_time") < 2:
                continue
            self._measured.add(name)
            share = hashlib.sha256(str(job["name"]).encode()).digest()
            profile = JobProfile(5.0 + share[0] / 3, 2.0 + share[1] / 4, 1000.0 + 30.0 * share[2])
            with suppress(OSError, LucidError):  # its disk may be full just now
                write_summary(self._site.profiles, Summary(name, "n", (), 0.0, 30.0, 30, profile))
