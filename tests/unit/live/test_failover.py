"""Several lucidd on one store: who acts, when another takes over, and by whose clock."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from daemon_site import Site
from fake_slurm import FakeSlurm
from lucid.daemon.loop import Daemon
from lucid.errors import ClusterUnavailable
from lucid.slurm.heartbeat import read_heartbeat
from lucid.store.port import holder_is_dead

TURN_S = 2.0


def other(site: Site, **parts: Any) -> Daemon:
    """A lucidd on another host. Whatever befalls two of them is tests/property/test_lease_protocol.py."""
    return site.lucidd("elsewhere:1:1", **parts)


class Cut:
    """The network between one host and slurmctld."""

    def __init__(self, slurm: FakeSlurm) -> None:
        self._slurm, self.whole = slurm, True

    def __getattr__(self, name: str) -> Any:
        if not self.whole and name != "name":
            raise ClusterUnavailable("no route to host")
        return getattr(self._slurm, name)


def test_who_does_not_reach_slurm_hands_over_to_one_that_does(site: Site) -> None:
    cut = Cut(site.slurm)
    first, second = other(site, client=cut), site.start("two")
    first.turn()
    cut.whole = False
    second.turn()
    assert second.cluster is None
    first.turn()
    second.turn()
    assert second.cluster is not None
    first.turn()
    assert first.cluster is None


def test_a_turn_that_takes_long_keeps_the_lease(site: Site) -> None:
    first, second = site.daemon, other(site)
    first.turn()
    second.turn()
    look = site.slurm.jobs

    def slow() -> Any:
        for _ in range(20):
            site.slurm.now += TURN_S
            first.renew_lease()
            second.turn()
        return look()

    site.slurm.jobs = slow  # type: ignore[method-assign]
    first.turn()
    assert first.cluster is not None
    assert second.cluster is None


def test_between_turns_and_in_one_that_hangs_nothing_keeps_the_lease(site: Site) -> None:
    first, second = site.daemon, other(site)
    first.turn()
    for _ in range(10):
        first.renew_lease()
        second.turn()
        site.slurm.advance(TURN_S)
    assert second.cluster is not None


def test_the_heartbeat_names_its_host_and_who_stands_by(site: Site) -> None:
    site.daemon.turn()
    beat = read_heartbeat(site.folder / "run/heartbeat")
    assert (beat.host, beat.standby) == (socket.gethostname(), "")
    second = other(site)
    second.turn()
    site.daemon.turn()
    beat = read_heartbeat(site.folder / "run/heartbeat")
    assert beat.standby == socket.gethostname()
    for _ in range(20):  # the second one dies
        site.daemon.turn()
        site.slurm.advance(TURN_S)
    beat = read_heartbeat(site.folder / "run/heartbeat")
    assert beat.standby == ""


def test_the_lease_of_a_dead_process_of_this_host_is_taken_at_once(site: Site) -> None:
    site.start(f"{socket.gethostname()}:999999999:1").turn()
    second = site.start("two")
    second.turn()
    assert second.cluster is not None


@pytest.mark.parametrize("pid", ["99999999999999999999", "9" * 5000, "²", "", "-1", "4194305"])
def test_no_holder_raises(pid: str) -> None:
    assert holder_is_dead(f"{socket.gethostname()}:{pid}:1") is (pid.isascii() and pid.isdigit())
    assert not holder_is_dead(f"elsewhere:{pid}:1")


def _profiled(site: Site) -> int:
    """How often a job was taken from its profiling run."""
    return sum(action.verb == "release" and action.result == "done" for action in site.store.actions("1"))


def test_nothing_is_started_over_until_slurmctld_knows_what_ended_while_it_was_silent(site: Site) -> None:
    """A node tells slurmctld of an end again and again. Until it has, a job that ended would be run once more."""
    site.submit("1")
    site.turns(10.0)
    assert site.slurm.records["1"].partition == "prof"
    site.slurm.down = True
    site.turns(30.0)
    site.slurm.down = False
    site.turns(40.0)
    assert _profiled(site) == 0
    site.turns(20.0)
    assert _profiled(site) == 1


def test_nor_right_after_the_lease_was_taken_from_another_host(site: Site) -> None:
    site.submit("1")
    site.turns(10.0)
    second = other(site)
    while second.cluster is None:
        site.slurm.advance(second.turn())
    took_s = site.slurm.now
    site.turns(40.0, second)
    assert _profiled(site) == 0
    site.turns(20.0, second)
    assert _profiled(site) == 1, site.slurm.now - took_s
