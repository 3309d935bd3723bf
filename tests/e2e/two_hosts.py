"""Two hosts, each with a slurmctld, a lucidd and the release timer, over one state (``LUCID_TESTBED_VARIANT=ha``).

``TwoHosts.lose(name)`` is a loss of power: every process of that host at once. ``bring_back(name)`` starts all of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from box import OVER, Box
from breakage import SLURM
from daemon_box import REPO, Lucidd

from lucid.store.sqlite import SqliteStore
from testbed import controllers, daemons, host
from testbed.settings import Layout

BOUND_S = 60
SAVE_S = 8
"""slurmctld saves its state every 5 s, and takes a moment: what started or ended since may be started again."""
FORGOTTEN_S = 30
"""A job that has ended for so long, and that slurmctld takes for running: its node is asked what runs there."""
COUNTED = (
    'F=/tmp/runs.$SLURM_JOB_ID; echo "BEGIN ${{SLURM_RESTART_COUNT:-0}} $(date +%s)" >> $F; '
    'sleep {0} && echo "END $(date +%s)" >> $F'
)
"""As RUNS of ``breakage``, with the times."""


class TwoHosts:
    """Both are up at first, and the first one acts. Lease and polling are as installed."""

    def __init__(self, box: Box, layout: Layout, folder: Path) -> None:
        self.box, self.layout = box, layout
        self._shared = folder / "shared"
        self._shared.mkdir()
        self._lucidd = Lucidd(box, folder / "lucidd", state=self._shared, more="shared_state = true")
        toml = self._lucidd.folder / "lucid.toml"
        kept = [line for line in toml.read_text().splitlines() if not line.startswith("poll_idle_s")]
        toml.write_text("\n".join(kept) + "\n")
        self._config = str(toml)
        self.losses: list[float] = []
        self._stop = threading.Event()
        self._timers = threading.Thread(target=self._release_timers, daemon=True)
        for name in layout.controllers:
            self._start_lucidd(name)
            self.box.wait("a lease", lambda: bool(self.acting()), 60)
        self._timers.start()

    def lose(self, name: str) -> int:
        """Returns how many processes that was."""
        self.losses.append(time.time())
        return controllers.power_off(self.layout, name)

    def bring_back(self, name: str) -> None:
        daemons.start_slurmctld(self.layout, name)
        self._start_lucidd(name)

    def acting(self) -> str:
        """The host whose lucidd has the lease; empty where nobody has."""
        try:
            store = SqliteStore(self._shared / "lucid.db", read_only=True)
        except Exception:  # it is being made
            return ""
        lease = store.lease()
        store.close()
        return "" if lease is None else lease.holder.partition(":")[0]

    def ask_node(self, node: str) -> None:
        """Start its slurmd anew, as an administrator would; jobs run on. It tells slurmctld what runs there."""
        for pid, name in host.processes_in(self.layout.root).items():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") if name == "slurmd" else []
            if node.encode() in words:
                os.kill(pid, signal.SIGTERM)
                self.box.wait(f"the end of {node}'s slurmd", lambda p=pid: not Path(f"/proc/{p}").exists(), 30)  # type: ignore[misc]
        daemons.start_slurmd(self.layout, node)

    def ctl(self, *words: str) -> str:
        return self._lucidd.ctl(*words)

    def log(self, name: str) -> str:
        return (self._lucidd.folder / f"log.{name}").read_text()

    def close(self) -> None:
        self._stop.set()
        self._timers.join(60)
        self._lucidd.close()
        for name in self.layout.controllers:
            self.lose(name)
        daemons.start_slurmctld(self.layout)

    def _start_lucidd(self, name: str) -> None:
        words = [*controllers.command(self.layout, name), sys.executable, "-m", "lucid.daemon", "--config"]
        with (self._lucidd.folder / f"log.{name}").open("ab") as log:
            subprocess.Popen(
                ["setsid", "--fork", *words, self._config],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPO, env={**os.environ},
            ).wait()  # fmt: skip

    def _release_timers(self) -> None:
        """On each host that is on; none of them sees a heartbeat file, so that each has to ask."""
        environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LUCID_HEARTBEAT": "/nonexistent/heartbeat",
            "LUCID_SLURM_PREFIX": f"chroot --userspec=lucid {self.box.root}",
            "LUCID_BOUND_S": str(BOUND_S),
            "LUCID_STATE": str(self._shared),
        }
        while not self._stop.wait(5.0):
            for name in self.layout.controllers:
                if controllers.is_up(self.layout, name):
                    subprocess.run(
                        [*controllers.command(self.layout, name), "/bin/sh", str(SLURM / "lucid-release")],
                        env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120,
                    )  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One line BEGIN, and the line END that followed, if any; times by the host's clock."""

    restart: str
    began_s: float
    ended_s: float | None


def runs_of(box: Box, number: str) -> list[Run]:
    """What a job wrote. A job that runs twice at once writes two lines BEGIN, and then two END."""
    path = box.root / f"tmp/runs.{number}"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    ends = [float(words[1]) for words in lines if words[0] == "END"]
    begun = [words for words in lines if words[0] == "BEGIN"]
    return [Run(words[1], float(words[2]), ends[n] if n < len(ends) else None) for n, words in enumerate(begun)]


@dataclass(frozen=True)
class Tally:
    """What came of a stream of counted jobs.

    ``done``: their work was done at least once. ``lost``: Slurm is done with it, and it was not. ``stuck``: Slurm is
    not done with it. ``doubled``: a run began that Slurm did not count, or the work was done more than once.
    ``unexplained``: those of which no run had begun or ended just before a host was lost. ``misjudged``: done, and
    another end than COMPLETED in Slurm's books."""

    jobs: int
    done: int
    lost: tuple[str, ...]
    stuck: tuple[str, ...]
    doubled: tuple[str, ...]
    unexplained: tuple[str, ...]
    misjudged: tuple[str, ...]
    mended: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs: {self.done} done, {len(self.lost)} lost, {len(self.stuck)} stuck, "
            f"{len(self.doubled)} run twice ({len(self.unexplained)} of them not within {SAVE_S} s before a loss), "
            f"{len(self.misjudged)} done and not COMPLETED; mended as an administrator: {list(self.mended)}"
        )


def submit(box: Box, count: int, seconds: int) -> list[str]:
    """Counted jobs of one or two GPUs in both VCs."""
    return [
        box.sbatch(
            f"--gres=gpu:{1 + n % 2}",
            "-p",
            ("vc-a", "vc-b")[n % 2],
            "-J",
            f"c{n % 7}",
            script=COUNTED.format(seconds),
        )
        for n in range(count)
    ]


class Stream:
    """The jobs of a test from their submission to their end. ``look`` as often as you like: slurmctld forgets a job a
    while after its end."""

    def __init__(self, hosts: TwoHosts, count: int, seconds: int) -> None:
        self._hosts, self._box = hosts, hosts.box
        self.ids = submit(hosts.box, count, seconds)
        self._states: dict[str, str] = {}
        self._mended: list[str] = []
        self._asked_s: dict[str, float] = {}

    def look(self) -> int:
        """Note the states, and mend what is an administrator's to mend; returns how many jobs have not ended."""
        try:
            jobs = self._box.jobs()
        except (AssertionError, ValueError, subprocess.TimeoutExpired):
            return len(self.ids)  # slurmctld is moving
        for number in self.ids:
            if number in jobs:
                self._states[number] = str(jobs[number]["job_state"][0])
            elif self._states.get(number) not in OVER:
                self._states[number] = "gone"
        for node in _drained(self._box):
            self._box.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
            self._mended.append(f"{node} resumed")
        for node, number in self._forgotten(jobs).items():
            if time.time() - self._asked_s.get(node, 0.0) < FORGOTTEN_S:
                continue
            self._asked_s[node] = time.time()
            self._hosts.ask_node(node)
            self._mended.append(f"{node} asked: {number} had ended")
        return sum(self._states[number] not in OVER | {"gone"} for number in self.ids)

    def _forgotten(self, jobs: dict[str, dict[str, Any]]) -> dict[str, str]:
        """Nodes with a job that has ended, which slurmctld takes for running."""
        found = {}
        for number in self.ids:
            if self._states[number] != "RUNNING":
                continue
            runs = runs_of(self._box, number)
            late_s = jobs[number]["start_time"]["number"]
            if runs and runs[-1].ended_s is not None and time.time() - max(runs[-1].ended_s, late_s) > FORGOTTEN_S:
                found[str(jobs[number]["nodes"])] = number
        return found

    def tally(self, limit_s: float) -> Tally:
        """Wait until all have ended, at most so long, and count."""
        until = time.monotonic() + limit_s
        while self.look() and time.monotonic() < until:
            time.sleep(2.0)
        lost, stuck, doubled, unexplained, misjudged = [], [], [], [], []
        for number in self.ids:
            runs, state = runs_of(self._box, number), self._states[number]
            ends = [run.ended_s for run in runs if run.ended_s is not None]
            if state not in OVER | {"gone"}:
                stuck.append(number)
            elif not ends:
                lost.append(number)
            elif state != "COMPLETED":
                misjudged.append(f"{number} {state}")
            if len({run.restart for run in runs}) != len(runs) or len(ends) > 1:
                doubled.append(number)
                times = [time_s for run in runs for time_s in (run.began_s, run.ended_s) if time_s is not None]
                if not any(-1 <= at_s - time_s <= SAVE_S for at_s in self._hosts.losses for time_s in times):
                    unexplained.append(number)
        done = len(self.ids) - len(lost) - len(stuck)
        parts = (lost, stuck, doubled, unexplained, misjudged, self._mended)
        return Tally(len(self.ids), done, *(tuple(part) for part in parts))


def _drained(box: Box) -> list[str]:
    """Nodes that slurmctld drained since a job ran there of which it had not saved the start ('Duplicate jobid')."""
    lines = box.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout.splitlines()
    return sorted({line.split()[0] for line in lines if " drain" in line or " down" in line})
