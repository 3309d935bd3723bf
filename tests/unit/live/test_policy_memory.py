"""What plans leave for the next outlives the daemon, and a change of models."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from daemon_site import Site
from fake_slurm import fake_node
from lucid.binder.candidates import CalmSince
from lucid.daemon import policies as policy_memory
from lucid.daemon.policies import PolicyMemory
from lucid.errors import StoreError
from lucid.orchestrator.policies.lucid.plan import promise_kept
from lucid.orchestrator.policies.shadow import Kept
from lucid.store.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "lucid.db")


CALM = {"vc": CalmSince(12.5)}


def test_a_memory_is_kept_for_the_policy_that_left_it(store: SqliteStore) -> None:
    PolicyMemory(store, "lucid").keep(CALM)
    assert PolicyMemory(store, "lucid").load() == CALM
    assert PolicyMemory(store, "fifo").load() == {}


def test_it_is_written_when_due_and_at_the_end(store: SqliteStore) -> None:
    memory = PolicyMemory(store, "lucid")
    memory.keep({})
    assert store.view("policy_memory") is None  # most policies leave nothing
    memory.keep(CALM)
    later = {"vc": CalmSince(None)}
    memory.keep(later)
    assert PolicyMemory(store, "lucid").load() == CALM
    memory.keep(later, now=True)
    assert PolicyMemory(store, "lucid").load() == later
    memory.keep({}, now=True)
    assert PolicyMemory(store, "lucid").load() == {}


def test_what_cannot_be_kept_of_one_partition_costs_no_other(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    memory = PolicyMemory(store, "lucid")
    for _ in range(2):
        memory.keep({**CALM, "odd": object()}, now=True)
    assert PolicyMemory(store, "lucid").load() == CALM
    assert [record.message for record in caplog.records if "not kept" in record.message] != []
    assert len(caplog.records) == 1


def test_what_another_version_left_is_said_and_left_alone(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_view("policy_memory", {"policy": "lucid", "memory": {"is": "lucid.gone.Nothing"}})
    with caplog.at_level(logging.WARNING):
        assert PolicyMemory(store, "lucid").load() == {}
    assert "begins anew" in caplog.text


class Promised(Site):
    """A VC of one node, with a promise of two hours beyond plain order."""

    def __init__(self, folder: Path) -> None:
        policy = {"profiling": {"enabled": False}, "fairness": {"beyond_plain_s": 7200.0}}
        super().__init__(folder, machines=[fake_node("n1", "vc")], policy=policy)

    def turn(self, count: int) -> None:
        for _ in range(count):
            self.daemon.turn()
            self.slurm.advance(5.0)

    @property
    def kept(self) -> Kept | None:
        return promise_kept(memory(self))


def memory(site: Promised) -> Mapping[str, object]:
    return site.daemon._cycles.memory


@pytest.fixture
def site(tmp_path: Path) -> Promised:
    made = Promised(tmp_path)
    for name in "123":
        made.slurm.submit(name, "vc", 1, run_s=9000.0)
    made.turn(3)
    assert made.kept == Kept(7200.0, 3)
    return made


def test_the_shadow_and_its_tally_outlive_a_restart(site: Promised) -> None:
    site.daemon.stop()
    site.start()
    site.turn(1)
    assert site.kept == Kept(7200.0, 3)


def test_they_outlive_a_kill_but_for_what_was_not_yet_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_memory, "_LEAST_EVERY_S", 0.0)
    monkeypatch.setattr(policy_memory, "_COST", 0.0)
    site = Promised(tmp_path)
    site.slurm.submit("1", "vc", 1, run_s=9000.0)
    site.turn(3)
    site.slurm.submit("2", "vc", 1, run_s=9000.0)  # while nobody looks
    site.start()
    site.turn(3)
    assert site.kept == Kept(7200.0, 2)


def test_another_cycle_of_the_same_daemon_goes_on_with_it(site: Promised) -> None:
    assert site.daemon._cycles._make_cycle().memory is memory(site)


def test_another_promise_is_tallied_anew(site: Promised) -> None:
    site.daemon.stop()
    site.settings = site.settings.changed({"policy.fairness.beyond_plain_s": 3600.0})
    site.start()
    site.turn(1)
    assert site.kept == Kept(3600.0, 0)


def test_a_full_disk_at_the_end_does_not_keep_the_lease(site: Promised, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, data: object) -> None:
        raise StoreError("no space left")

    site.turn(1)
    site.slurm.submit("4", "vc", 1, run_s=9000.0)
    site.turn(1)
    monkeypatch.setattr(site.store, "put_view", full)
    site.daemon.stop()
    assert site.store.lease() is None
