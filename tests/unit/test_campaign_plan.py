"""What a campaign does follows from its seed alone, and no two faults that touch the same are planned together."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from campaign import faults_commands, faults_lucidd, faults_slurm, faults_store, faults_week  # noqa: F401
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
