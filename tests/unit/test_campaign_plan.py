"""What a campaign does follows from its seed alone, and a sabotaged Lucid is found."""

from __future__ import annotations

import itertools
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from campaign import faults_commands, faults_lucidd, faults_slurm, faults_store, faults_week  # noqa: F401
from campaign import sabotage as module
from campaign.facts import Order, Record, Task
from campaign.fault import FAULTS
from campaign.plan import LANES, plan
from campaign.site import Site
from campaign.stream import orders, script
from lucid.config.load import load_settings


def test_the_same_seed_plans_the_same_faults_and_jobs() -> None:
    assert plan(FAULTS, 7, 600) == plan(FAULTS, 7, 600)
    assert plan(FAULTS, 7, 600) != plan(FAULTS, 8, 600)
    assert list(orders(7, 300)) == list(orders(7, 300))
    assert list(orders(7, 300)) != list(orders(8, 300))


@pytest.mark.parametrize("seed", range(5))
def test_faults_never_meet_on_what_they_touch_and_leave_time_to_recover(seed: int) -> None:
    due = plan(FAULTS, seed, 3600)
    for one, other in itertools.combinations(due, 2):
        if one.at_s < other.until_s and other.at_s < one.until_s:
            assert not FAULTS[one.name].touches & FAULTS[other.name].touches, (one, other)
            assert one.lane != other.lane
    assert {item.lane for item in due} == set(range(LANES))
    assert max(item.until_s for item in due) <= 3600 - 25
    counts = [sum(item.name == name for item in due) for name in FAULTS]
    assert min(counts) >= 2, "an hour shows each of them more than once"
    assert len(FAULTS) >= 14


def test_five_minutes_show_many_kinds() -> None:
    assert len({item.name for item in plan(FAULTS, 1, 300)}) >= 9


def test_without_faults_there_is_no_plan() -> None:
    assert plan({}, 1, 600) == []


@pytest.mark.parametrize(
    ("states", "usable", "told"),
    [
        ("n1 idle|n2 mixed|n3 reserved|n4 maint", True, []),
        ("n1 idle~|n2 idle#|n3 idle%|n4 allocated!", False, ["n1 power_up"]),
        ("n1 idle|n2 down~|n3 draining@|n4 reboot^", False, ["n2 resume"]),
        ("", False, []),
    ],
)
def test_after_nodes_slept_or_rebooted_all_are_awake(states: str, usable: bool, told: list[str]) -> None:
    said: list[str] = []

    def run(*words: str, **_: float) -> SimpleNamespace:
        if words[0] == "scontrol":
            said.append(" ".join(word.partition("=")[2] for word in words[2:]))
        return SimpleNamespace(stdout=states.replace("|", "\n"), returncode=0)

    assert faults_week._awake(SimpleNamespace(run=run)) is usable  # type: ignore[arg-type]
    assert said == told


def test_users_do_all_sorts_of_things() -> None:
    drawn = list(orders(3, 1800))
    words = " ".join(" ".join(order.options) for order in drawn)
    for part in ("--array=", "--begin=", "--dependency=", "lucid:off", "--hold", "-N2", "--requeue", "--no-requeue"):
        assert part in words, part
    assert {order.user for order in drawn} == {"alice", "bob", "carol"}
    assert any(order.cancel_after_s for order in drawn)
    assert len({order.token for order in drawn}) == len(drawn)
    assert [order.at_s for order in drawn] == sorted(order.at_s for order in drawn)
    again = [order for order in drawn if re.search(r"--requeue\b|lucid:restart", " ".join(order.options))]
    assert all(order.restarts == (order in again) for order in drawn if not order.may_be_refused)


def test_a_script_counts_its_own_runs_and_never_names_what_lucid_reads_for() -> None:
    for order in itertools.islice(orders(3, 1800), 50):
        text = script(order)
        assert text.count("BEGIN $EPOCHREALTIME") == text.count("END $EPOCHREALTIME") == 1
        assert "SLURM_GPUS" not in text


def test_lucidd_takes_the_settings_that_the_campaign_writes(tmp_path: Path) -> None:
    """A setting that went once kept every campaign from its first heartbeat."""
    names = ("root", "state", "profiles", "heartbeat")
    site = SimpleNamespace(config=tmp_path / "lucid.toml", **{name: tmp_path / name for name in names})
    Site._settings(site)  # type: ignore[arg-type]
    assert load_settings(tmp_path / "lucid.toml", live=True).daemon.partitions == {
        "vc-a": "pack", "vc-b": "pack", "scav": "pack",
    }  # fmt: skip


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
