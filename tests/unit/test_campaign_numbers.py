"""A killed slurmctld gives the numbers of the jobs that it forgot out again: the campaign judges each of their owners
by its own records."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from campaign.facts import Broken, Order, Record, Run, Task
from campaign.people import People
from campaign.slurmctld_log import told_by
from campaign.verdict import settle, verdict

FOLDER = "/var/campaign"
RECORDED = """\
[2026-11-25T01:23:46.899] _slurm_rpc_submit_batch_job: JobId=6 InitPrio=1000 usec=639
[2026-11-25T01:23:48.001] sched: Allocate JobId=6_1(9) NodeList=n4 #CPUs=1 Partition=prof
[2026-11-25T01:23:50.914] _job_complete: JobId=6_1(9) done
[2026-11-25T01:23:51.527] sched/backfill: _start_job: Started JobId=6_2(6) in prof on n4
[2026-11-25T01:23:52.314] _slurm_rpc_submit_batch_job: JobId=13 InitPrio=1000 usec=1098
[2026-11-25T01:23:52.528] sched/backfill: _start_job: Started JobId=13 in vc-a on n2
[2026-11-25T01:24:02.357] Purged files for defunct batch JobId=13
[2026-11-25T01:24:02.365] job_complete: invalid JobId=13
[2026-11-25T01:24:02.369] _slurm_rpc_submit_batch_job: Requested node configuration is not available
[2026-11-25T01:24:02.371] _slurm_rpc_submit_batch_job: JobId=13 InitPrio=600 usec=457
[2026-11-25T01:24:09.100] sched: Allocate JobId=13 NodeList=n1 #CPUs=1 Partition=vc-a
[2026-11-25T01:24:11.000] _job_complete: requeue JobId=13 per user/system request
[2026-11-25T01:24:11.200] Requeuing JobId=13
[2026-11-25T01:24:12.000] _job_complete: JobId=13 WEXITSTATUS 0
[2026-11-25T01:24:12.001] _job_complete: JobId=13 done
[2026-11-25T01:24:13.000] error: Vestigial state files for JobId=17, but no job record. This may be
[2026-11-25T01:24:14.000] sched: Allocate JobId=20_1(9) NodeList=n4 #CPUs=1 Partition=prof
"""
AT_S = 1795569826.0
"""01:23:46 of that log."""


def test_a_log_tells_the_owners_of_a_number_apart() -> None:
    log = told_by(RECORDED)
    first, second = log.of("13", AT_S + 10), log.of("13", AT_S + 30)
    assert first is not None
    assert second is not None
    counts = [
        (len(t.submitted), len(t.started), len(t.requeued), len(t.completed), len(t.forgotten))
        for t in (first, second)
    ]
    assert counts == [(1, 1, 0, 0, 1), (1, 1, 2, 1, 0)]
    assert second.requeued[1] - second.requeued[0] == pytest.approx(0.2)
    task, later = log.of("9", AT_S + 5), log.of("9", AT_S + 30)
    assert task is not None
    assert later is not None
    assert (len(task.completed), len(later.completed)) == (1, 0), "first a task of array 6, then one of array 20"
    last = log.of("6", AT_S + 30)
    assert last is not None
    assert (len(last.submitted), len(last.started)) == (1, 1), "the last task of an array keeps its number"
    lost = log.of("17", AT_S + 30)
    assert lost is not None
    assert lost.forgotten
    assert log.of("13", AT_S) is None


@dataclass
class Site:
    """A made-up campaign: jobs come, start and end; slurmctld saves now and then, and is killed."""

    dice: random.Random
    now_s: float = AT_S
    tasks: dict[str, Task] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    live: dict[str, str] = field(default_factory=dict)
    """Number by key: what slurmctld knows."""
    next_number: int = 1
    log: list[str] = field(default_factory=list)
    accounting: list[str] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)

    def says(self, words: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.now_s))
        self.log.append(f"[{stamp}.{int(self.now_s % 1 * 1000):03d}] {words}")

    def submit(self) -> None:
        key, number = f"j1-{len(self.tasks):05d}", str(self.next_number)
        self.next_number += 1
        self.says(f"_slurm_rpc_submit_batch_job: JobId={number} InitPrio=1000 usec=300")
        order = Order(key, 0.0, "alice", (), "sleep 5", partition="vc-a", gpus=1)
        self.now_s += self.dice.uniform(0.1, 0.5)
        self.tasks[key] = Task(order, key, self.now_s, number)
        self.live[key] = number

    def look(self) -> None:
        for key, number in self.live.items():
            state = "PENDING" if not self.tasks[key].runs else "RUNNING"
            if key not in self.records or not self.records[key].over:
                self.records[key] = Record(number, state, seen_s=self.now_s)

    def run(self, key: str) -> None:
        number, began_s = self.live[key], self.now_s
        self.says(f"sched: Allocate JobId={number} NodeList=n1 #CPUs=1 Partition=vc-a")
        self.now_s += self.dice.uniform(0.5, 3.0)
        self.says(f"_job_complete: JobId={number} done")
        self.tasks[key].runs = [Run(began_s + 0.1, number, 0, "n1", False, self.now_s - 0.1)]
        self.ended(key, "COMPLETED")

    def ended(self, key: str, state: str) -> None:
        number = self.live.pop(key)
        self.accounting.append(f"{number}|{number}|{state}|{FOLDER}/out/{key}")
        if self.dice.random() < 0.7:  # else nobody saw it before it was gone
            self.records[key] = Record(number, state, seen_s=self.now_s)

    def killed(self) -> set[str]:
        """Returns the keys of those that it forgets: all that came after it has saved its state for the last time."""
        saved_s, saved, number = self.now_s + 1.5, set(self.live), self.next_number
        self.now_s += 3.0
        for _ in range(self.dice.randint(1, 4)):
            self.submit()
            if self.dice.random() < 0.5:
                self.look()
        forgotten = self.live.keys() - saved
        self.broken.append(
            Broken("slurmctld-kill", self.now_s, self.now_s + 5, {"saved_at": saved_s, "killed_at": self.now_s})
        )
        for key in forgotten:
            self.accounting.append(f"{self.live[key]}|{self.live[key]}|PENDING|{FOLDER}/out/{key}")
            del self.live[key]
        self.next_number = number
        self.now_s += 5.0
        return forgotten

    def findings(self) -> dict[str, tuple[str, bool]]:
        self.accounting += [f"{n}|{n}|PENDING|{FOLDER}/out/{key}" for key, n in self.live.items()]
        jobs: list[dict[str, Any]] = [
            {"job_id": int(n), "job_state": ["PENDING"], "standard_output": f"{FOLDER}/out/{key}"}
            for key, n in self.live.items()
        ]
        orders = {key: task.order for key, task in self.tasks.items()}
        settle(self.tasks, self.records, orders, FOLDER, jobs, "\n".join(self.accounting))
        for key, task in self.tasks.items():
            task.record = self.records.get(key)
        found = verdict(self.tasks.values(), "\n".join(self.log), self.broken, {}, finished=True)
        assert len({finding.key for _, finding in found}) == len(found)
        return {finding.key: (finding.kind, bool(finding.excuse)) for _, finding in found}


def played(seed: int) -> Iterator[tuple[Site, set[str]]]:
    dice = random.Random(seed)
    site, forgotten = Site(dice), set[str]()
    for _ in range(dice.randint(10, 40)):
        site.now_s += dice.uniform(1.0, 4.0)
        if dice.random() < 0.15:
            forgotten |= site.killed()
        elif site.live and dice.random() < 0.6:
            site.run(dice.choice(sorted(site.live)))
        else:
            site.submit()
        if dice.random() < 0.6:
            site.look()
    yield site, forgotten


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_of_jobs_whose_number_was_given_out_again_each_is_judged_by_itself(first: int) -> None:
    again = 0
    for seed in range(first, first + 50):
        for site, forgotten in played(seed):
            for key in sorted(site.live):
                site.run(key)
            numbers = [task.job for task in site.tasks.values()]
            again += len(numbers) - len(set(numbers))
            assert site.findings() == dict.fromkeys(forgotten, ("lost", True)), seed
    assert again > 50, "numbers were given out again"


@pytest.mark.parametrize("kind", ["stuck", "lost", "killed"])
def test_harm_done_to_the_second_owner_of_a_number_is_found(kind: str) -> None:
    harmed = 0
    for seed in range(60):
        for site, forgotten in played(seed):
            numbers = [task.job for task in site.tasks.values()]
            seconds = [k for k in sorted(site.live) if numbers.count(site.live[k]) > 1]
            victim = next(iter(seconds), "")
            for key in sorted(site.live.keys() - {victim}):
                site.run(key)
            if not victim:
                continue
            harmed += 1
            task, number = site.tasks[victim], site.live[victim]
            site.now_s += 60.0
            site.look()
            if kind == "lost":
                site.live.pop(victim)  # slurmctld itself has lost it
            elif kind == "killed":
                task.runs = [Run(site.now_s, number, 0, "n1", False)]
                site.ended(victim, "CANCELLED")
            assert site.findings() == {**dict.fromkeys(forgotten, ("lost", True)), victim: (kind, False)}, seed
    assert harmed > 10


def test_a_job_that_waits_for_a_stuck_one_is_not_stuck_itself() -> None:
    def task(token: str, after: str, state: str, reason: str) -> Task:
        order = Order(token, 0.0, "alice", (), "", after=after)
        return Task(order, token, 1.0, token, record=Record(token, state, 0, reason))

    def found(*tasks: Task) -> list[tuple[str, bool]]:
        return [(one.key, bool(one.excuse)) for _, one in verdict(tasks, "", [], {}, finished=True)]

    first, second = task("1", "", "PENDING", "JobHeldAdmin"), task("2", "1", "PENDING", "Dependency")
    assert found(first, second) == [("1", False), ("2", True)]
    assert found(first, task("2", "1", "PENDING", "Resources")) == [("1", False), ("2", False)]
    done = task("1", "", "CANCELLED", "")
    done.cancelled_s = 2.0
    assert found(done, second) == [("2", False)]


class _Silent:
    """Runs no command; ``said`` are those that it was given."""

    def __init__(self) -> None:
        self.said: list[tuple[str, ...]] = []

    def run(self, *words: str, **_: Any) -> Any:
        self.said.append(words)
        return type("Done", (), {"returncode": 0, "stdout": "", "stderr": ""})()


def test_whoever_cancels_or_releases_a_number_that_is_another_jobs_now_does_not_harm_that_one() -> None:
    site = _Silent()
    people = People(site, iter(()), lambda *_, **__: None)  # type: ignore[arg-type]
    try:
        first, second, third = (Order(f"j1-{n}", 0.0, "alice", (), "") for n in (1, 2, 3))
        people.by_token = {order.token: order for order in (first, second, third)}
        people.accept("j1-1", "13", time.time())
        people.accept("j1-2", "13", time.time())
        people._cancel(first, "13")
        people._release(first, "13")
        assert site.said == [], "its user sees whose it is"
        assert people.tasks["j1-2"].cancelled_s is None
        people._asked_s["j1-3"] = time.time()
        people._cancel(second, "13")
        people.accept("j1-3", "13", time.time())
        assert people.tasks["j1-3"].cancelled_s is not None, "it had the number already, and sbatch had not answered"
    finally:
        people.close()
