"""The harm that a campaign does with ``--sabotage`` is of the kind that it notes, whatever the jobs do meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from campaign import sabotage as module
from campaign.facts import Order, Record, Task


class Slurm:
    """Jobs that run to their end, whatever is said; ``late``: those that start at the moment at which they are to be
    harmed."""

    def __init__(self, root: Path, states: dict[str, str], late: set[str]) -> None:
        self.root, self.states, self.late = root, states, late
        self.held: set[str] = set()
        (root / "var/campaign/runs").mkdir(parents=True)
        for job, state in states.items():
            if state != "PENDING":
                self.began(job)

    def began(self, job: str) -> None:
        end = "END 2.0 7 0 0\n" if self.states[job] == "COMPLETED" else ""
        (self.root / f"var/campaign/runs/j{job}").write_text(f"BEGIN 1.0 {job} 0 n1 alone\n{end}")

    def run(self, *words: str, **_: Any) -> Any:
        job = words[-1] if words[1] != "update" else words[2].removeprefix("JobId=")
        if words[1] != "show" and job in self.late:
            self.late.discard(job)
            self.states[job] = "COMPLETED"
            self.began(job)
        match words[0], words[1]:
            case "scancel", _ if self.states[job] in ("PENDING", "RUNNING"):
                if "--state=PENDING" not in words or self.states[job] == "PENDING":
                    self.states[job] = "CANCELLED"
            case "scontrol", "requeue":
                self.states[job] = "PENDING"
            case "scontrol", "update" if "Comment=lucid:held" in words:
                self.held.add(job)
            case "scontrol", "release":
                self.held.discard(job)
        return SimpleNamespace(returncode=0, stdout=f"JobId={job} JobState={self.states[job]} Reason=None")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_A_LOOK_S", 0.0)


@pytest.mark.parametrize("late", ["", "1", "2", "12", "123"])
def test_each_kind_is_done_once_to_a_job_of_its_own(tmp_path: Path, late: str) -> None:
    states = dict.fromkeys("12345", "PENDING") | dict.fromkeys("67", "RUNNING") | {"8": "COMPLETED"}
    slurm, noted = Slurm(tmp_path, states, set(late)), list[tuple[str, str]]()
    tasks = {f"j{n}": Task(Order(f"j{n}", 0.0, "alice", (), ""), f"j{n}", 0.0, n) for n in states}
    stop = threading.Event()

    class Watch:
        """As Slurm is whenever somebody looks. Where nothing is left to be done nobody looks."""

        looks = 0

        @property
        def records(self) -> dict[str, Record]:
            self.looks += 1
            if self.looks > 60:
                stop.set()
            return {f"j{n}": Record(n, state, seen_s=time.time()) for n, state in states.items()}

    stop.wait = lambda _=None: stop.is_set()  # type: ignore[assignment, method-assign]
    module._harm(
        slurm, SimpleNamespace(tasks=tasks), SimpleNamespace(watch=Watch()), stop,  # type: ignore[arg-type]
        lambda what, **facts: noted.append((facts["kind"], facts["job"])),
    )  # fmt: skip
    assert sorted(kind for kind, _ in noted) == ["doubled", "killed", "lost", "stuck"]
    assert len({job for _, job in noted}) == 4
    harmed = dict(noted)
    assert slurm.held == {harmed["stuck"]}, "no other job was left held"
    assert states[harmed["stuck"]] == "PENDING"
    assert states[harmed["lost"]] == states[harmed["killed"]] == "CANCELLED"


def test_a_job_that_started_as_it_was_to_be_lost_counts_as_killed(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, {"1": "RUNNING"}, set())
    slurm.states["1"] = "PENDING"
    assert module._do(slurm, "lost", "1", "j1") == "killed"  # type: ignore[arg-type]
