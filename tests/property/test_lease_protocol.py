"""The lease between two hosts, whatever befalls them: who reaches Slurm has it soon, and no two act at once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lucid.daemon.barrier import FailureBarrier
from lucid.daemon.leader import Leader
from lucid.errors import ClusterUnavailable
from lucid.store.port import Lease, LeaseLost
from lucid.store.sqlite import SqliteStore

_MEMORY = Path("/dev/shm")
LASTS_S = 4.0
TURN_S = 1.0
SOON = int(LASTS_S / TURN_S) + 4
"""Turns of each host after which who reaches Slurm has the lease: it has run out, and was handed over once."""


class Host:
    """One host, its way to slurmctld, and the lucidd on it, if any. A turn has two steps: ``begins`` and ``ends``."""

    def __init__(self, name: str, folder: Path, time: list[float], off_s: float) -> None:
        self.name, self.reaches = name, True
        self.leader: Leader | None = None
        self.in_turn = self.failed = False
        self._folder, self._time, self._off_s, self._starts = folder, time, off_s, 0

    def start(self) -> None:
        """A new lucidd, which has to reach the store."""
        self._starts += 1
        self.store = SqliteStore(self._folder / "lucid.db")
        daemon = SimpleNamespace(lease_s=LASTS_S, heartbeat=str(self._folder / "heartbeat"))
        parts: Any = SimpleNamespace(
            settings=SimpleNamespace(daemon=daemon, slurm=SimpleNamespace(poll_idle_s=LASTS_S / 2)),
            store=self.store,
            clock=SimpleNamespace(now_s=lambda: self._time[0] + self._off_s),
            monotonic_s=lambda: self._time[0],
            client=SimpleNamespace(jobs=self._jobs),
        )
        barrier = FailureBarrier(1.0, lambda: self._time[0], lambda _: None)
        self.leader = Leader(parts, f"{self.name}:{self._starts}:1", barrier)
        self.in_turn = self.failed = False

    def stop(self, kindly: bool) -> None:
        """``systemctl stop``, which gives the lease back, or a kill."""
        if kindly and self.leader is not None and self.leader.lease is not None:
            self.store.drop_lease(self.leader.lease.token)
        self.store.close()
        self.leader, self.in_turn = None, False

    def begins(self) -> Lease | None:
        """The lease, where it got that from another one just now."""
        assert self.leader is not None
        before = self.leader.lease
        lease = self.leader.hold()
        self.in_turn = lease is not None
        return lease if lease is not None and (before is None or lease.token != before.token) else None

    def ends(self) -> None:
        """As ``Daemon`` does it: what is written is written under the lease, and a silent slurmctld is told."""
        assert self.leader is not None
        assert self.leader.lease is not None
        self.in_turn, self.failed = False, not self.reaches
        try:
            if self.reaches:
                self.writes()
                self.leader.standby()
            else:
                self.leader.slurm_was_silent()
                self.leader.offer()
        except LeaseLost as error:
            self.leader.step_down(str(error))

    def writes(self) -> None:
        """What comes before each command to Slurm."""
        assert self.leader is not None
        assert self.leader.lease is not None
        with self.store.writing(self.leader.lease.token):
            pass

    def _jobs(self) -> list[object]:
        if not self.reaches:
            raise ClusterUnavailable("no route to host")
        return []


class Two(RuleBasedStateMachine):
    """Two hosts on one store. Their clocks are hours apart, and any step of one may fall between two of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
        self.time = [1e6]
        self.hosts: list[Host] = []
        self.renewed_s: dict[str, float] = {}
        """When each holder of the lease last renewed it."""

    def teardown(self) -> None:
        """The last word, whatever was before: twice each gets the lease without Slurm, since the other one is frozen;
        then Slurm is back, and the one that has the lease is the first to know."""
        try:
            for i in (0, 0, 1, 1) if self.hosts else ():
                if self.hosts[i].leader is None:
                    self.hosts[i].start()
                self.comes_to_rest((i != 0, i != 1))
                self.the_other_is_frozen(i)
                self.comes_to_rest((i != 0, i != 1))
            if self.hosts:
                self.comes_to_rest((False, False))
                first, second = self.hosts
                first.reaches = second.reaches = True
                self.turns(0 if first.leader is not None and first.leader.lease is not None else 1, 2)
                self.comes_to_rest((True, True))
        finally:
            for host in self.hosts:
                if host.leader is not None:
                    host.store.close()
            shutil.rmtree(self.folder)

    @initialize(offs=st.tuples(*[st.sampled_from([0.0, -3600.0, 3600.0])] * 2))
    def begin(self, offs: tuple[float, float]) -> None:
        """Both hosts are up, and their lucidd have not taken a turn."""
        self.hosts = [Host(name, self.folder, self.time, off) for name, off in zip("ab", offs, strict=True)]
        for host in self.hosts:
            host.start()

    @rule(i=st.integers(0, 1))
    def step(self, i: int) -> None:
        """The next step of one host."""
        host, other = self.hosts[i], self.hosts[1 - i]
        if host.leader is None:
            return
        if host.in_turn:
            host.ends()
            return
        held = host.store.lease()
        took = host.begins()
        if took is not None and held is not None and other.leader is not None and held.holder == other.leader.holder:
            idle_s = self.time[0] - self.renewed_s[held.holder]
            assert other.failed or idle_s >= LASTS_S, "it was taken from one that renews it and reaches Slurm"
        self.renewed_s[host.leader.holder] = self.time[0]  # of nobody that has no lease is it asked

    @rule(i=st.integers(0, 1), turns=st.integers(1, 4))
    def turns(self, i: int, turns: int) -> None:
        """One host goes on, while the other is slow."""
        for _ in range(2 * turns):
            self.step(i)
            self.time[0] += TURN_S / 2

    @rule(i=st.integers(0, 1))
    def the_other_is_frozen(self, i: int) -> None:
        """For longer than a lease lasts, wherever it is, and the one goes on."""
        self.turns(i, SOON)

    @rule()
    def both_are_frozen(self) -> None:
        """For longer than a lease lasts."""
        self.time[0] += 2 * LASTS_S

    @rule(i=st.integers(0, 1))
    def network(self, i: int) -> None:
        """Slurm is lost, or reached again."""
        self.hosts[i].reaches = not self.hosts[i].reaches

    @rule(i=st.integers(0, 1), kindly=st.booleans(), again=st.booleans())
    def stops(self, i: int, kindly: bool, again: bool) -> None:
        """``again``: it is started anew at once."""
        if self.hosts[i].leader is not None:
            self.hosts[i].stop(kindly)
        if again:
            self.hosts[i].start()

    @rule(ways=st.tuples(st.booleans(), st.booleans()))
    def comes_to_rest(self, ways: tuple[bool, bool]) -> None:
        """Nothing befalls anybody for a while: one that reaches Slurm has the lease, and keeps it."""
        for host, reaches in zip(self.hosts, ways, strict=True):
            host.reaches = reaches
        alive = [(i, host) for i, host in enumerate(self.hosts) if host.leader is not None]
        holders: list[str] = []
        for _ in range(SOON + 4):
            for _ in range(2):
                for i, _host in alive:
                    self.step(i)
            self.time[0] += TURN_S
            lease = alive[0][1].store.lease() if alive else None
            holders.append("" if lease is None else lease.holder)
        able = [host.leader.holder for _, host in alive if host.reaches and host.leader is not None]
        if able:
            assert set(holders[SOON:]) <= set(able), "who reaches Slurm has no lease"
        if alive:
            assert len(set(holders[SOON:])) == 1, "the lease goes to and fro"
            assert holders[-1]

    @invariant()
    def no_two_act_at_once(self) -> None:
        """Of those that take themselves for the one that acts, the store lets one write."""
        able = 0
        for host in self.hosts:
            if host.leader is not None and host.leader.lease is not None:
                try:
                    host.writes()
                except LeaseLost:
                    continue
                able += 1
        assert able <= 1


def _run(examples: int) -> None:
    run_state_machine_as_test(
        Two,
        settings=settings(max_examples=examples, stateful_step_count=25, deadline=None, report_multiple_bugs=False),
    )


def test_who_reaches_slurm_has_the_lease_soon_and_no_two_act_at_once() -> None:
    _run(8)


@pytest.mark.slow
def test_the_same_for_many_more_stories() -> None:
    _run(400)
