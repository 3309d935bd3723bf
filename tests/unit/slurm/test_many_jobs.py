"""Of many jobs only those that changed are read: the jobs are those of a whole reading all the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lucid.errors import ActionRefused
from lucid.slurm.changed_jobs import KnownJobs, listed_from
from lucid.slurm.client import Breaker
from lucid.slurm.commands import CommandClient
from lucid.slurm.records.from_json import JOB_NEEDS
from lucid.slurm.records.job import SlurmJob, unread_job

BARE = {**dict.fromkeys(JOB_NEEDS), "job_state": ["PENDING"], "name": ""}


def job(number: int, state: str = "PENDING", name: str = "a", **rest: Any) -> SlurmJob:
    made = unread_job({"job_id": number, "job_state": [state], "name": name}, "x")
    return replace(made, unread="", lost=False, **rest)


class Slurm:
    """Its jobs, the listing as scontrol prints it (names raw, as Slurm does), and what was read of it."""

    def __init__(self, *jobs: SlurmJob) -> None:
        self.jobs = {one.number: one for one in jobs}
        self.now = 0.0
        self.asked: list[list[int]] = []
        self.listings = 0
        self.between: dict[int, SlurmJob] = {}
        """Jobs that change right after the next listing."""
        self.known = KnownJobs(self.read, lambda: self.now)

    def listing(self) -> str:
        self.listings += 1
        lines = []
        for one in self.jobs.values():
            array = one.id.partition("_")[0] if "_" in one.id else ""
            head = f" ArrayJobId={array} ArrayTaskId=1" if array else f" HetJobId={one.het}" if one.het else ""
            lines.append(
                f"JobId={one.number}{head} JobName={one.name} Priority={0 if one.held else 7} JobState={one.state} "
                f"RunTime=00:00:{self.listings:02} AdminComment={one.admin_comment} Extra={one.extra} "
            )
        self.jobs.update(self.between)
        self.between = {}
        return "\n".join(lines) + "\n"

    def read(self, numbers: Sequence[int]) -> list[SlurmJob]:
        self.asked.append(list(numbers))
        return [
            one
            for one in self.jobs.values()
            if {one.number, one.het, int(one.id.partition("_")[0] or 0)} & set(numbers)
        ]

    def look(self) -> list[SlurmJob]:
        self.asked = []
        return self.known.look(self.listing)

    def numbered(self) -> dict[int, SlurmJob]:
        found = self.look()
        assert len(found) == len(self.jobs)
        return {one.number: one for one in found}


def test_only_what_changed_is_read_again() -> None:
    slurm = Slurm(*(job(number) for number in range(1, 2501)))
    assert len(slurm.look()) == 2500
    assert [len(some) for some in slurm.asked] == [1000, 1000, 500]
    slurm.jobs[7] = job(7, extra="lucid-gpus=1")
    slurm.jobs[3000] = job(3000)
    del slurm.jobs[9]
    assert slurm.look() == list(slurm.jobs.values())
    assert slurm.asked == [[7, 3000]]
    assert slurm.look() == list(slurm.jobs.values())
    assert slurm.asked == [], "the run time alone is no news"


def test_of_a_priority_only_whether_it_is_0_is_news() -> None:
    slurm = Slurm(job(1, held=False))
    slurm.look()
    assert listed_from("JobId=1 JobName=a Priority=7 JobState=PENDING").signs == (
        listed_from("JobId=1 JobName=a Priority=88 JobState=PENDING").signs
    )
    slurm.jobs[1] = job(1, held=True)
    slurm.look()
    assert slurm.asked == [[1]]


def test_tasks_of_an_array_and_parts_of_a_heterogeneous_job_are_read_together() -> None:
    slurm = Slurm(
        job(10, id="10_1"), job(11, id="10_2"), job(20, het=20), job(21, het=20), job(30), job(10 + 5, id="10_3")
    )
    assert {one.number for one in slurm.look()} == set(slurm.jobs)
    slurm.jobs[11] = job(11, id="10_2", extra="x")
    slurm.jobs[21] = job(21, het=20, extra="x")
    found = slurm.look()
    assert slurm.asked == [[10, 20]]
    assert {one.number: one for one in found} == slurm.jobs


def test_a_job_that_changes_between_the_listing_and_its_reading_is_listed_again() -> None:
    slurm = Slurm(job(1, "RUNNING"), job(2))
    slurm.look()
    slurm.jobs[2] = job(2, extra="changed")
    slurm.between = {1: job(1, "COMPLETED"), 2: job(2, "RUNNING")}
    assert [one.state for one in slurm.look()] == ["COMPLETED", "RUNNING"], "never both on the same GPUs"


def test_each_job_is_read_anew_within_ten_minutes() -> None:
    slurm = Slurm(*(job(number) for number in range(1, 101)))
    slurm.look()
    slurm.jobs[50] = replace(slurm.jobs[50], features="not in the listing")
    read: set[int] = set()
    for _ in range(60):
        slurm.now += 10.0
        found = slurm.look()
        read |= {number for some in slurm.asked for number in some}
    assert read == set(range(1, 101))
    assert found == list(slurm.jobs.values())


def test_a_record_that_could_not_be_read_is_read_at_every_look() -> None:
    slurm = Slurm(job(1), replace(job(2), unread="broken"))
    for _ in range(3):
        slurm.look()
        assert 2 in slurm.asked[0]


HOSTILE = [
    "x\nJobId=5 JobName=y",
    "x\nJobId=999 JobName=y",
    "x JobState=RUNNING",
    "x\nJobId=",
    "\nJobId=999999999999 JobName=",
    "x\n",
    "JobId=5 ",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_hides_what_changes_about_any_job(name: str) -> None:
    slurm = Slurm(*(job(number) for number in range(1, 9)))
    slurm.jobs[7] = job(7, name=name)
    assert slurm.numbered() == slurm.jobs
    for number in range(1, 9):
        slurm.jobs[number] = replace(slurm.jobs[number], extra="changed")
        assert slurm.numbered() == slurm.jobs, (name, number)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 6),
            st.sampled_from([*HOSTILE, "plain"]),
            st.sampled_from(["PENDING", "RUNNING", "COMPLETED", None]),
            st.sampled_from(["", "lucid-gpus=1", "other"]),
        ),
        max_size=12,
    )
)
def test_whatever_happens_the_jobs_are_those_of_a_whole_reading(
    steps: list[tuple[int, str, str | None, str]],
) -> None:
    slurm = Slurm(*(job(number) for number in range(1, 4)))
    slurm.look()
    for number, name, state, extra in steps:
        if state is None:
            slurm.jobs.pop(number, None)
        else:
            slurm.jobs[number] = job(number, state, name, extra=extra)
        assert slurm.numbered() == slurm.jobs


class Commands(CommandClient):
    """Its commands are answered from a list of records."""

    def __init__(self, count: int, many: int) -> None:
        super().__init__([], Breaker(lambda: 0.0), clock_s=lambda: 0.0, many=many)
        self.records = {n: {**BARE, "job_id": n, "name": f"j{n}"} for n in range(1, count + 1)}
        self.ran: list[str] = []

    def _run(self, command: Sequence[str]) -> str:
        import json

        self.ran.append(" ".join(command))
        if command[0] == "scontrol":
            return "".join(f"JobId={n} JobName={r['name']} JobState=PENDING\n" for n, r in self.records.items())
        listed = re.search(r"--jobs=(\S+)", self.ran[-1])
        wanted = set(map(int, listed[1].split(","))) if listed else set(self.records)
        found = [record for n, record in self.records.items() if n in wanted]
        if listed and not found:
            raise ActionRefused("squeue: slurm_load_jobs error: Invalid job id specified")
        return json.dumps({"jobs": found})


def test_few_jobs_are_read_whole_in_one_command() -> None:
    slurm = Commands(5, many=10)
    for _ in range(3):
        assert len(slurm.jobs()) == 5
    assert slurm.ran[1:] == ["squeue --json --states=all"] * 3
    slurm.records |= {n: {**BARE, "job_id": n} for n in range(6, 30)}
    slurm.jobs()
    assert len(slurm.jobs()) == 29, "now there are many"
    slurm.ran = []
    assert len(slurm.jobs()) == 29
    assert slurm.ran == ["scontrol --oneliner show job"]
    slurm.records = {}
    assert slurm.jobs() == []
    slurm.records = {1: {**BARE, "job_id": 1}}
    assert [one.id for one in slurm.jobs()] == ["1"]
    assert slurm.ran[-1] == "squeue --json --states=all", "few again"


def test_jobs_that_are_gone_when_they_are_read_are_no_trouble() -> None:
    slurm = Commands(30, many=10)
    assert len(slurm.jobs()) == 30
    listing, slurm.records = slurm._listing(), {}
    slurm._known.forget()
    assert slurm._known.look(lambda: listing) == []
