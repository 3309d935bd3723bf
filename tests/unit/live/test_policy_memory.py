"""What plans leave for the next outlives the daemon, and a change of models."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from fake_slurm import FakeSampler, FakeSlurm, fake_node
from lucid.binder.candidates import CalmSince
from lucid.config.load import Settings, settings_from
from lucid.daemon import policies as policy_memory
from lucid.daemon.build import Parts
from lucid.daemon.learning.models import WithContention
from lucid.daemon.loop import Daemon
from lucid.daemon.policies import PolicyMemory
from lucid.errors import StoreError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.policies.lucid.plan import promise_kept
from lucid.orchestrator.policies.shadow import Kept
from lucid.slurm.client import Breaker
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


class Site:
    """A VC of one node, with a promise of two hours beyond plain order."""

    def __init__(self, folder: Path, bound_s: float = 7200.0) -> None:
        self.folder = folder
        self.slurm = FakeSlurm([fake_node("n1", "vc")], now=1000.0)
        self.daemon = self.start(bound_s)

    def start(self, bound_s: float = 7200.0) -> Daemon:
        settings: Settings = settings_from(
            {
                "policy": {"profiling": {"enabled": False}, "fairness": {"beyond_plain_s": bound_s}},
                "daemon": {
                    "partitions": {"vc": "pack"},
                    "state_dir": str(self.folder),
                    "heartbeat": str(self.folder / "heartbeat"),
                },
            },
            "test",
        )
        self.store = SqliteStore(self.folder / "lucid.db")
        breaker, sampler = Breaker(lambda: self.slurm.now), FakeSampler(self.slurm, {})
        predictor = WithContention(HistoryPredictor(2000.0))
        parts = Parts(settings, self.slurm, breaker, self.store, sampler, self.slurm, predictor)
        self.daemon = Daemon(parts, "one")
        return self.daemon

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.daemon.turn()
            self.slurm.advance(5.0)

    @property
    def kept(self) -> Kept | None:
        return promise_kept(memory(self))


def memory(site: Site) -> Mapping[str, object]:
    found = site.daemon._cycles.memory
    assert found is not None
    return found


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    for name in "123":
        made.slurm.submit(name, "vc", 1, run_s=9000.0)
    made.turns(3)
    assert made.kept == Kept(7200.0, 3)
    return made


def test_the_shadow_and_its_tally_outlive_a_restart(site: Site) -> None:
    site.daemon.stop()
    site.start()
    site.turns(1)
    assert site.kept == Kept(7200.0, 3)


def test_they_outlive_a_kill_but_for_what_was_not_yet_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_memory, "_LEAST_EVERY_S", 0.0)
    monkeypatch.setattr(policy_memory, "_COST", 0.0)
    site = Site(tmp_path)
    site.slurm.submit("1", "vc", 1, run_s=9000.0)
    site.turns(3)
    site.slurm.submit("2", "vc", 1, run_s=9000.0)  # while nobody looks
    site.start()
    site.turns(3)
    assert site.kept == Kept(7200.0, 2)


def test_another_cycle_of_the_same_daemon_goes_on_with_it(site: Site) -> None:
    assert site.daemon._cycles._make_cycle().memory is memory(site)


def test_another_promise_is_tallied_anew(site: Site) -> None:
    site.daemon.stop()
    site.start(bound_s=3600.0)
    site.turns(1)
    assert site.kept == Kept(3600.0, 0)


def test_a_full_disk_at_the_end_does_not_keep_the_lease(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, data: object) -> None:
        raise StoreError("no space left")

    site.turns(1)
    site.slurm.submit("4", "vc", 1, run_s=9000.0)
    site.turns(1)
    monkeypatch.setattr(site.store, "put_view", full)
    site.daemon.stop()
    assert site.store.lease() is None
