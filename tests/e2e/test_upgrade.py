"""From the package of b7b0384e to this tree's and back, on a real Slurm, with a job in each of the ten states of
``JobState`` (lucid/slurm/own/state.py). lucidd is restarted once dpkg is done, as the package does it under systemd.

Files in /tmp keep every state for as long as they are there: jobs that run, or that take their time to stop, look for
them, and Slurm's scheduler sleeps from before the job that is to be starting until they are gone."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from box import Box
from breakage import ran_once
from elastic_box import REPORTS, Elastics, in_between
from story_box import GATE
from test_packages import REPO, SUITE, Host, Packages, packages  # noqa: F401 - a fixture
from testbeds import give_network, make_plain, own_testbed

from testbed import cli

pytestmark = pytest.mark.slow
OLD = "b7b0384e"
SETUP = (
    "lucidctl setup --mode pack --partitions vc-a,vc-b,scav --profiling prof --gpu-mem a100=40960 --drain "
    "--nodes-have-files --yes"
)
PARTITIONS = "PartitionName=vc-a Nodes=n[1-2] Default=YES PriorityTier=10\n"
PARTITIONS += "PartitionName=vc-b Nodes=n3 PriorityTier=10\nPartitionName=prof Nodes=n4\n"
SCAVENGERS = "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
SCAVENGERS += "PartitionName=scav Nodes=n[1-2] PriorityTier=1\n"
SETTINGS = f"""[policy.packing]
least_partner_remaining_s = 0
[slurm]
nodes_every_s = 5
poll_idle_s = 6
start_grace_s = 900
[daemon]
first_guess_s = 60
lease_s = 6
[daemon.policies]
vc-b = "elastic"
[daemon.elastic]
reports_dir = "/{REPORTS}"
resize_every_s = 3
restart_s = 5
"""
MEASURED = """
import pathlib, time
from lucid.adapters.store.port import ProfileRow
from lucid.adapters.store.sqlite import SqliteStore
from lucid.core.job import JobProfile
store = SqliteStore(pathlib.Path("/var/lib/lucid/lucid.db"))
token = store.take_lease("test", time.time(), 1.0).token
row = ProfileRow("40000000", "alice", "wrap", 4, JobProfile(20.0, 10.0, 4000.0), time.time())
assert store.put_profile(row, "before", token)
store.drop_lease(token)
"""
"""In words of that commit: Alice's programs on four GPUs are known to need little of them, and start in slots."""
BEGIN, END = "F=/tmp/runs.$SLURM_JOB_ID; echo BEGIN ${SLURM_RESTART_COUNT:-0} >> $F; ", "; echo END >> $F"
ALONE = "--comment=lucid:exclusive"
ASLEEP = "sched_interval=7200,sched_min_interval=2000000000,bf_interval=7200,defer"
"""SchedulerParameters with which Slurm starts nothing."""


@pytest.fixture(scope="module")
def old(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """That commit's package, by its own Makefile and lock, with the tools that are there."""
    archive = subprocess.run(["git", "archive", OLD], cwd=REPO, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this clone does not have commit {OLD}")
    source, tools = tmp_path_factory.mktemp(OLD), REPO / "build/supply"
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    words = [f"SUITE={SUITE}", f"TOOLS={tools}/.installed", f"TOOLS_BIN={tools}/bin", "PACK_FLAGS=--level=0"]
    done = subprocess.run(["make", "-C", str(source), "deb", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(source.glob("out/packages/lucid_*.deb"))


@pytest.fixture
def box() -> Iterator[Box]:
    with own_testbed("upgrade", LUCID_TESTBED_PLUGIN="0", LUCID_TESTBED_VARIANT="bare") as layout:
        cli.up(layout, print)
        box = Box(layout.root)
        make_plain(box, PARTITIONS)
        give_network(box)
        conf = box.root / "etc/slurm/slurm.conf"
        conf.write_text(conf.read_text().replace("KillWait=5\n", "KillWait=900\n") + SCAVENGERS)
        box.run("scontrol", "reconfigure")
        yield box


class Site:
    """A Slurm with that commit's Lucid on it, in pack mode. ``jobs``: by state, or what else they are."""

    def __init__(self, box: Box, old: Path) -> None:
        self.box, self.root, self.host, self.jobs = box, box.root, Host(box), dict[str, str]()
        self.host.sh("apt-get install --yes systemd-standalone-sysusers systemd-standalone-tmpfiles")
        self.elastics = Elastics(box)
        self.host.install(old)
        (self.root / "etc/lucid/lucid.toml").write_text(SETTINGS)
        (self.root / "srv/measured.py").write_text(MEASURED)
        self.host.sh("/usr/lib/lucid/bin/python3 -I /srv/measured.py", user="lucid")
        self.host.sh(SETUP)

    def job(self, name: str, seen: Callable[[dict[str, Any]], object], *options: str, work: str = "true") -> None:
        """Submit a job, and wait until it is seen so."""
        self.jobs[name] = self.box.sbatch(*options, "-t", "60", script=BEGIN + work + END)
        self.until(name, seen)

    def until(self, name: str, seen: Callable[[dict[str, Any]], object]) -> None:
        self.box.wait(f"a job that is {name}", lambda: bool(seen(self.box.job(self.jobs[name]))), 60)

    def begins(self, name: str) -> None:
        path = self.root / f"tmp/runs.{self.jobs[name]}"
        self.box.wait(f"the first line of {name}", path.exists, 60)

    def fill(self) -> None:
        """A job in each state, in an order in which none comes between another and its own."""
        box, on, leave = self.box, GATE.format("run"), GATE.format("leave")
        for gate in ("run", "leave"):
            (self.root / "tmp" / gate).touch()
        self.job("ENDED", lambda job: job["job_state"] == ["COMPLETED"], "-p", "vc-a", "--gres=gpu:1", ALONE)
        box.sbatch("-p", "prof", "--gres=gpu:4", "-t", "60", script=on, user="root")
        four = ("-p", "vc-a", "--gres=gpu:4")
        self.job("RUNNING", _runs, "-p", "vc-a", "--gres=gpu:2", "-w", "n2", ALONE, work=on)
        for name in ("host", "guest"):
            self.job(name, _runs, "-p", "scav", "--gres=gpu:4", work=f"trap '{leave}; exit 1' TERM; {on}")
            self.begins(name)
        stops = f"trap '{leave}; exit 143' TERM; {{}} & wait $!"
        self.jobs["RESIZING"] = self.elastics.submit("-p", "vc-b", epochs=20, wrap=stops)
        box.wait("its stop", lambda: in_between(box, self.jobs["RESIZING"]), 60)
        self.job("EMPTYING", lambda job: job["hold"] and "gpu:g0" in job["tres_per_node"], *four, ALONE)
        after = f"--dependency=afterok:{self.jobs['RUNNING']}"
        self.job("PARKED", lambda job: job["waits"] and not job["hold"], "-p", "vc-a", "--gres=gpu:1", after)
        self.job("HELD_BY_USER", lambda job: job["waits"], *four, ALONE)
        box.run("scontrol", "hold", self.jobs["HELD_BY_USER"], user="alice")
        self.until("HELD_BY_USER", lambda job: job["hold"] and "lucid:held" in job["comment"])
        self.job("NOT_OURS", lambda job: job["tag"] == "" and not job["waits"], "-w", "n2", "-c", "16")
        self.quick = self.scheduler(ASLEEP)
        off = ("-p", "vc-b", "--gres=gpu:4", "--comment=lucid:off")
        self.job("RELEASED", lambda job: job["tag"] and not (job["hold"] or job["waits"]), *off)
        two = ("-p", "vc-a", "--gres=gpu:2", ALONE)
        self.job("STARTING", _starts, *two)
        self.job("QUEUED", lambda job: job["waits"], *four, ALONE)

    def scheduler(self, parameters: str) -> str:
        """Give Slurm's scheduler other parameters; returns those that it had."""
        conf = self.root / "etc/slurm/slurm.conf"
        text = conf.read_text()
        before = re.search(r"(?m)^SchedulerParameters=(.*)$", text)
        assert before
        conf.write_text(text.replace(before[0], f"SchedulerParameters={parameters}"))
        self.box.run("scontrol", "reconfigure")
        return before[1]

    def shown(self) -> dict[str, Any]:
        """What Slurm shows of each job that would differ in another state."""
        keys = ("job_state", "hold", "waits", "required_nodes", "tres_per_node", "restart_cnt", "comment")
        every = self.box.jobs()
        return {name: {key: every[number][key] for key in keys} for name, number in self.jobs.items()}

    def settled(self, *, starting: bool = True) -> dict[str, Any]:
        """``shown``, once it has been the same for ten seconds: Slurm may refuse a start once. ``starting``: the job
        that is to be starting has been given its node."""
        seen = [self.shown()]

        def same() -> bool:
            time.sleep(10)
            seen.append(self.shown())
            return seen[-1] == seen[-2] and (not starting or _starts(seen[-1]["STARTING"]))

        self.box.wait("that nothing changes", same, 60)
        return seen[-1]

    def kept(self, before: dict[str, Any]) -> None:
        """Every job is as before, but for one whose start Slurm has refused meanwhile: that one waits again."""
        log, now = (self.root / "srv/stand-in/lucidd.log").read_text(), self.shown()
        for name in now.keys() & before.keys():
            refused = f"job {self.jobs[name]}: Slurm does not start it now" in log
            assert now[name] == before[name] or refused, name

    def switch(self, deb: Path) -> str:
        """Install a package, restart lucidd, set up anew; returns lucidd's log since."""
        path = self.root / "srv/stand-in/lucidd.log"
        begin, cycles = len(path.read_text()), "last good cycle"
        shutil.copy(deb, self.root / "srv/package.deb")
        self.host.sh("dpkg --install /srv/package.deb && systemctl restart lucidd")
        self.box.wait("a good cycle", lambda: cycles in self.host.sh("lucidctl status"), 60)
        self.host.sh(SETUP)
        self.box.wait("a good cycle", lambda: cycles in self.host.sh("lucidctl status"), 60)
        return path.read_text()[begin:]

    def go_on(self) -> None:
        """Nothing keeps a job in its state any more."""
        for gate in ("run", "leave"):
            (self.root / "tmp" / gate).unlink()
        self.scheduler(self.quick)
        self.box.run("scontrol", "release", self.jobs["HELD_BY_USER"], user="alice")


def _starts(job: dict[str, Any]) -> bool:
    return bool(not job["hold"] and job["required_nodes"] == "n2")


def _runs(job: dict[str, Any]) -> bool:
    return bool(job["job_state"] == ["RUNNING"])


@pytest.mark.parametrize("back", [False, True], ids=["upgraded", "taken-back"])
def test_no_job_is_lost_held_or_started_twice(box: Box, packages: Packages, old: Path, back: bool) -> None:  # noqa: F811
    site = Site(box, old)
    site.fill()
    ended, before = site.jobs.pop("ENDED"), site.settled()
    log = site.switch(packages.now)
    assert "cannot be read" not in log
    site.kept(before)
    assert "ended after" in site.host.sh(f"lucidctl explain {ended}")
    if back:
        site.job("submitted under the new one", lambda job: job["waits"], "-p", "vc-a", "--gres=gpu:1")
        before = site.settled(starting=False)  # Slurm may have refused its start meanwhile
        site.switch(old)
        site.kept(before)
        assert "ended after" in site.host.sh(f"lucidctl explain {ended}")
    site.job("submitted last", lambda job: job["waits"], "-p", "vc-a", "--gres=gpu:1")
    site.go_on()
    box.wait_ended(*site.jobs.values(), limit_s=120)
    elastic = site.jobs.pop("RESIZING")
    assert (box.state(elastic), site.elastics.sizes(elastic)) == ("COMPLETED", [1, 4])
    assert site.elastics.steps(elastic) == list(range(1, 401)), "each step once, in order"
    ran_once(box, *site.jobs.values())
