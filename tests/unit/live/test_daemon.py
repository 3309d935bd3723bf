"""The whole daemon over a slurmctld in memory: cycles, modes, the lease, trouble."""

from __future__ import annotations

import json
import socket
from copy import copy
from pathlib import Path
from typing import Any

import pytest

from builders import at
from daemon_site import Site
from lucid.config.live import SlurmSettings
from lucid.config.load import settings_from
from lucid.daemon.loop import Daemon
from lucid.daemon.modes import modes_from, policy_settings
from lucid.daemon.process import main
from lucid.places import Mode
from lucid.slurm.heartbeat import read_heartbeat
from lucid.store.port import holder_is_dead
from scenes.slurm import MINE


def unmarked(site: Site, jobs: int, **rest: Any) -> None:
    """Jobs that Lucid's plugin has not touched: not held, as in a partition that is only watched or ordered."""
    for n in range(jobs):
        site.submit(f"{n}", 4, held=False, mark="none", **rest)


def beat(site: Site) -> Any:
    return read_heartbeat(site.folder / "run/heartbeat")


def placed(site: Site) -> list[tuple[str, Any]]:
    """Starts so far, in their order."""
    return [(job, place) for _, job, place in site.slurm.starts]


def ends(site: Site) -> set[tuple[str, int]]:
    """The states of all jobs, and how often they were started over."""
    return {(record.state, record.restarts) for record in site.slurm.records.values()}


def test_jobs_are_profiled_then_packed_and_told_of(site: Site) -> None:
    for name in ("1", "2"):
        site.submit(name, 2, run_s=900.0)
    site.turns(200.0)
    assert [place for job, place in placed(site) if job == "2"] == [at("p1:2-3"), at("n1:0-1")]
    assert site.slurm.records["1"].placement == site.slurm.records["2"].placement
    told = site.ctl("explain", "2")
    assert "moves on to its VC (prof)" in told
    assert "starts on n1:0-1, sharing GPUs with job 1" in told
    assert json.loads(site.ctl("status", "--json"))["partitions"]["vc"]["packed"] == 2
    site.turns(1200.0, every_s=10.0)
    assert {state for state, _ in ends(site)} == {"COMPLETED"}
    assert json.loads(site.ctl("history", "--json", "--days", "1e6"))["summary"]["jobs"] == 2


def test_by_default_a_job_starts_at_once_in_its_vc_in_slots_and_only_there(tmp_path: Path) -> None:
    site = Site(tmp_path, restarts=None)
    site.submit("1", 2, run_s=300.0)
    site.daemon.turn()
    assert placed(site) == [("1", at("n1:0-1"))], "in one turn"
    assert site.slurm.records["1"].request.shards
    site.turns(60.0)
    site.submit("2", 2, run_s=100.0)
    site.turns(600.0)
    assert placed(site)[1:] == [("2", at("n1:0-1"))], "beside the first"
    assert ends(site) == {("COMPLETED", 0)}


def test_by_default_profiling_nodes_take_in_who_finds_no_place_and_keep_him(tmp_path: Path) -> None:
    site = Site(tmp_path, restarts=None)
    for name in ("1", "2", "3"):
        site.submit(name, 4, run_s=200.0)
    site.daemon.turn()
    assert dict(placed(site)) == {"1": at("n1:0-3"), "2": at("n2:0-3"), "3": at("p1:0-3")}
    assert site.slurm.records["3"].partition == "prof"
    site.turns(100.0)
    assert site.slurm.records["3"].placement == at("p1:0-3"), "its 60 s of profiling are over"
    assert "carries on in place" in site.ctl("explain", "3")
    site.turns(200.0)
    assert ends(site) == {("COMPLETED", 0)}


def test_while_lucid_only_watches_no_profiling_node_is_meant_for_anybody(tmp_path: Path) -> None:
    site = Site(tmp_path, restarts=None, partitions={"vc": "observe"})
    for name in ("1", "2", "3"):
        site.slurm.submit(name, "vc", 4, held=False, run_s=200.0)
    site.daemon.turn()
    assert not vc(site).acting
    assert not [d for d in site.store.decisions(limit=100) if d.partition == "prof"]


@pytest.mark.parametrize("across", [False, True])
def test_users_share_with_each_other_only_where_the_site_says_so(tmp_path: Path, across: bool) -> None:
    site = Site(tmp_path, share_across_users=across)
    for name, user in (("1", "ada"), ("2", "bob"), ("3", "ada")):
        site.submit(name, 4, user=user)
    site.turns(400.0)
    pairs = {frozenset((e.job.id, e.partner)) for e in vc(site).running if e.partner}
    assert pairs == {frozenset("13")} or (across and pairs)


def vc(site: Site) -> Any:
    assert site.daemon.cluster is not None
    return site.daemon.cluster.observe().partitions["vc"]


@pytest.mark.parametrize("how", ["pause", "mode"])
def test_the_kill_switch_lets_every_job_go(site: Site, how: str) -> None:
    for n in range(12):
        site.submit(f"{n}", 4)
    site.turns(20.0)
    assert any(r.held for r in site.slurm.records.values())
    site.ctl("pause") if how == "pause" else site.ctl("mode", "vc", "observe")
    site.turns(20.0)
    assert not any(r.held for r in site.slurm.records.values() if r.pending)
    assert beat(site).modes == {"vc": Mode.OBSERVE}
    site.ctl("resume") if how == "pause" else site.ctl("mode", "vc", "configured")
    site.turns(20.0)
    assert beat(site).modes == {"vc": Mode.PACK}


def test_observe_mode_touches_nothing_and_reports_afterwards(tmp_path: Path) -> None:
    site = Site(tmp_path, partitions={"vc": "observe"})
    unmarked(site, 4, run_s=100.0)
    site.turns(600.0)
    assert site.slurm.writes == []
    assert len(site.store.ended()) == 4
    assert "[would, in observe mode]" in site.ctl("explain", "3")
    assert json.loads(site.ctl("history", "--json", "--days", "1e6"))["summary"]["observed"] >= 1


def test_a_slurm_before_23_11_is_refused_by_lucidd_and_by_doctor(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.slurm.slurm_version = (22, 5)
    unmarked(site, 6)
    site.turns(30.0)
    words = "this is Slurm 22.05, and Lucid needs Slurm 23.11 or later"
    assert words in site.ctl("status")
    assert not site.slurm.writes
    assert beat(site) is None
    old = tmp_path / "old-slurm"
    old.write_text("#!/bin/sh\necho slurm 22.05.8\n")
    old.chmod(0o755)
    config = tmp_path / "lucid.toml"
    config.write_text(config.read_text() + f'[slurm]\nprefix = ["{old}"]\n')
    told = site.ctl("doctor")
    assert (words in told, "docs/slurm-versions.md" in told) == (True, True)
    site.slurm.slurm_version = (23, 11)
    site.turns(30.0)
    assert beat(site).modes == {"vc": Mode.PACK}


@pytest.mark.parametrize(("policy", "first"), [("lucid", "small"), ("fifo", "large")])
def test_order_mode_writes_the_order_of_the_policy(tmp_path: Path, policy: str, first: str) -> None:
    site = Site(tmp_path, partitions={"vc": "order"}, policy=policy)
    for name, gpus in (("1", 4), ("2", 4), ("large", 4), ("small", 1)):
        site.submit(name, gpus, held=False, mark="none")
        site.slurm.advance(1.0)
    site.turns(30.0)
    notes = site.store.notes()
    assert max(("large", "small"), key=lambda job_id: notes[job_id].site_factor) == first
    waiting = [record.id for record in site.slurm.records.values() if record.pending]
    assert sorted(site.slurm.writes) == [(job_id, "update") for job_id in sorted(waiting)], "one a job"
    site.ctl("pause")
    site.turns(20.0)
    assert not any(site.slurm.factors.values()), "and takes them back"


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_killed_again_and_again_it_loses_no_job_and_starts_none_twice(site: Site, every: int) -> None:
    """A new daemon after every few commands, each killed in the middle of a turn."""
    site.slurm.completing_s = 2.0
    for n in range(6):
        site.submit(f"{n}", 1 + n % 2, run_s=200.0, name=f"job{n}")
    for life in range(60):
        fatal = len(site.slurm.writes) + every
        site.slurm.fails_at_write = lambda n, fatal=fatal: KeyboardInterrupt() if n == fatal else None  # type: ignore[misc,return-value]
        daemon = site.start(f"life {life}")
        site.slurm.advance(16.0)
        try:
            site.turns(20.0, daemon)
        except KeyboardInterrupt:
            site.store.close()
        if all(record.ended for record in site.slurm.records.values()):
            break
    site.slurm.fails_at_write = lambda n: None
    site.slurm.advance(16.0)
    site.turns(1500.0, site.start("last"), every_s=10.0)
    assert {state for state, _ in ends(site)} == {"COMPLETED"}
    for name, record in site.slurm.records.items():
        assert sum(job == name for job, _ in placed(site)) == 1 + record.restarts


def test_modes_follow_the_switches(site: Site) -> None:
    settings = settings_from({"daemon": {"partitions": {"a": "pack", "b": "order"}}}, "test")
    switched = ({}, {"mode.a": "order"}, {"mode.a": "nonsense"}, {"paused": "1"})
    assert [[*modes_from(settings, switch).values()] for switch in switched] == [
        [Mode.PACK, Mode.ORDER], [Mode.ORDER, Mode.ORDER], [Mode.OBSERVE, Mode.ORDER], [Mode.OBSERVE, Mode.OBSERVE],
    ]  # fmt: skip
    assert policy_settings(settings, frozenset()).packing.gss == 0


SIMULATED = "[policy.packing]\nsame_user_only = false"
BAD = {
    "daemon.partitions is empty": ("[daemon]", ""),
    "daemon.partitions.vc": ("", "fast"),
    'it stops running jobs, which then start over; that takes policy.profiling.restarts = "allowed"': (
        "srtf",
        "pack",
    ),
    "mean 'lucid'?; lucidd can run: ": ("lucyd", "order"),
    "it resizes jobs, and lacks resize here: set daemon.elastic.reports_dir": ("pollux", "order"),
    "line 2: policy.packing.same_user_only: lucidd does not read such settings of simulations": (SIMULATED, "pack"),
    "it needs preempt, which": ('[slurm]\nclient = "pyslurm"\n[daemon]\npolicy = "srtf"', "order"),
}
"""What is said of a file with this policy, or these lines, and then the mode of a partition."""


def test_bad_configurations_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lucid.toml"
    for words, (text, mode) in BAD.items():
        lines = f'[daemon]\npolicy = "{text}"' if text.isalpha() else text
        path.write_text(lines + f'\n[daemon.partitions]\nvc = "{mode}"\n' * bool(mode))
        assert main(["--config", str(path)]) == 2
        said = capsys.readouterr().err
        assert (words in said, str(path) in said) == (True, True), said
    assert not (tmp_path / "lucid.db").exists()
    assert main(["--config", str(tmp_path / "none")]) == 2


def test_observing_a_full_queue_is_idle(tmp_path: Path) -> None:
    site = Site(tmp_path, partitions={"vc": "observe"})
    unmarked(site, 6)
    site.turns(30.0)
    before = site.slurm.reads
    site.turns(600.0)
    assert (site.slurm.reads - before) / 10 <= 12


@pytest.mark.parametrize(("depends", "waits"), [("afterok:9", "poll_busy_s"), ("", "poll_idle_s")])
def test_the_end_of_a_dependency_is_looked_for_soon(tmp_path: Path, depends: str, waits: str) -> None:
    """Slurm wakes nobody when it ends: Slurm's own test 28.7 took 23 s where plain Slurm takes 7."""
    site = Site(tmp_path, restarts=None)
    if depends:
        site.slurm.submit("1", "vc", 1, mark=MINE, dependency=depends, held=False)
    assert [site.daemon.turn() for _ in range(3)][-1] == getattr(site.settings.slurm, waits)


def test_what_slurm_makes_of_a_start_is_looked_at_soon(tmp_path: Path) -> None:
    """With nobody waiting lucidd looked again only after ``poll_idle_s``, and a barred job was told nothing."""
    site, busy_s = Site(tmp_path, restarts=None), SlurmSettings().poll_busy_s
    site.slurm.limits = lambda job: "QOSMaxJobsPerUserLimit"
    site.submit("1", 1)
    for _ in range(3):
        assert site.daemon.turn() == busy_s
        site.slurm.advance(busy_s)
    assert "QOSMaxJobsPerUserLimit" in site.ctl("explain", "1").partition("waits (vc)")[2]


TURN_S = 2.0


def other(site: Site, **parts: Any) -> Daemon:
    """A lucidd on another host. Whatever befalls two of them is tests/property/test_lease_protocol.py."""
    return site.lucidd("elsewhere:1:1", **parts)


def act(*lucidds: Daemon) -> list[bool]:
    """A turn of each; which of them had the lease then."""
    return [lucidd.turn() > 0 and lucidd.cluster is not None for lucidd in lucidds]


def test_who_does_not_reach_slurm_hands_over_to_one_that_does(site: Site) -> None:
    cut = copy(site.slurm)  # the way of one host to it
    first, second = other(site, client=cut), site.start("two")
    first.turn()
    cut.down = True
    assert act(second) == [False]
    first.turn()
    assert act(second, first) == [True, False]


def test_a_turn_that_takes_long_keeps_the_lease(site: Site) -> None:
    first, second = site.daemon, other(site)
    act(first, second)
    look = site.slurm.jobs

    def slow() -> Any:
        for _ in range(20):
            site.slurm.now += TURN_S
            first.renew_lease()
            second.turn()
        return look()

    site.slurm.jobs = slow  # type: ignore[method-assign]
    assert act(first) == [True]
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
    assert (beat(site).host, beat(site).standby) == (socket.gethostname(), "")
    act(other(site), site.daemon)
    assert beat(site).standby == socket.gethostname()
    for _ in range(20):  # the second one dies
        site.daemon.turn()
        site.slurm.advance(TURN_S)
    assert beat(site).standby == ""


def test_the_lease_of_a_dead_process_of_this_host_is_taken_at_once(site: Site) -> None:
    site.start(f"{socket.gethostname()}:999999999:1").turn()
    assert act(site.start("two")) == [True]


@pytest.mark.parametrize("pid", ["99999999999999999999", "9" * 5000, "²", "", "-1", "4194305"])
def test_no_holder_raises(pid: str) -> None:
    assert holder_is_dead(f"{socket.gethostname()}:{pid}:1") is (pid.isascii() and pid.isdigit())
    assert not holder_is_dead(f"elsewhere:{pid}:1")


@pytest.mark.parametrize("befell", ["slurmctld was silent", "the lease was taken from another host"])
def test_nothing_is_started_over_until_slurmctld_knows_what_ended_meanwhile(site: Site, befell: str) -> None:
    """A node tells slurmctld of an end again and again. Until it has, a job that ended would be run once more."""
    site.submit("1")
    site.turns(10.0)
    assert site.slurm.records["1"].partition == "prof"
    acting = site.daemon
    if befell == "slurmctld was silent":
        site.slurm.down = True
        site.turns(30.0)
        site.slurm.down = False
    else:
        acting = other(site)
        while acting.cluster is None:
            site.slurm.advance(acting.turn())
    for seconds, taken in ((40.0, 0), (20.0, 1)):
        site.turns(seconds, acting)
        assert sum((one.verb, one.result) == ("release", "done") for one in site.store.actions("1")) == taken
