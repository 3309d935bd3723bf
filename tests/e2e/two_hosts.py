"""Two hosts, each with a slurmctld, a lucidd and the release timer, over one state (``LUCID_TESTBED_VARIANT=ha``).

``TwoHosts.lose(name)`` is a loss of power: every process of that host at once. ``bring_back(name)`` starts all of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from box import Box
from breakage import SLURM
from daemon_box import REPO, Lucidd

from lucid.adapters.store_sqlite import SqliteStore
from testbed import controllers, daemons
from testbed.settings import Layout

BOUND_S = 60
SAVE_S = 8
"""slurmctld saves its state every 5 s, and takes a moment: what started since may be started again."""
COUNTED = (
    'F=/tmp/runs.$SLURM_JOB_ID; echo "BEGIN ${{SLURM_RESTART_COUNT:-0}} $(date +%s)" >> $F; '
    "sleep {0} && echo END >> $F"
)
"""As RUNS of ``breakage``, with the time."""
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}


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
class Tally:
    """What came of a stream of counted jobs. ``doubled``: jobs of which a run began that Slurm did not count, or
    whose work was done more than once. ``unexplained``: those that had not just started when a host was lost."""

    jobs: int
    completed: int
    lost: tuple[str, ...]
    stuck: tuple[str, ...]
    doubled: tuple[str, ...]
    unexplained: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.jobs} jobs: {self.completed} COMPLETED, {len(self.lost)} lost, {len(self.stuck)} stuck, "
            f"{len(self.doubled)} run twice "
            f"({len(self.unexplained)} of them not in the {SAVE_S} s before a loss)"
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


def tally(box: Box, ids: list[str], limit_s: float, losses: list[float]) -> Tally:
    """Wait until all have ended, at most so long, and count. ``losses``: when hosts were lost."""
    until = time.monotonic() + limit_s
    ended: set[str] = set()
    while len(ended) < len(ids) and time.monotonic() < until:
        time.sleep(1.0)
        try:
            jobs = box.jobs()
        except (AssertionError, ValueError, subprocess.TimeoutExpired):
            continue  # slurmctld is moving
        ended = {number for number in ids if number in jobs and jobs[number]["job_state"][0] in OVER}
        for node in _drained(box):
            box.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    jobs = box.jobs()
    states = Counter(jobs[number]["job_state"][0] if number in jobs else "gone" for number in ids)
    lost, stuck, doubled, unexplained = [], [], [], []
    for number in ids:
        path = box.root / f"tmp/runs.{number}"
        lines = path.read_text().splitlines() if path.exists() else []
        begun = [line for line in lines if line.startswith("BEGIN")]
        if number not in jobs and "END" not in lines:
            lost.append(number)
        elif number in jobs and number not in ended:
            stuck.append(number)
        elif "END" not in lines:
            lost.append(number)
        runs = [line.split()[1] for line in begun]
        if len(set(runs)) != len(runs) or lines.count("END") > 1:
            doubled.append(number)
            times = [float(line.split()[2]) for line in begun]
            if not any(-1 <= at_s - time_s <= SAVE_S for at_s in losses for time_s in times):
                unexplained.append(number)
    return Tally(len(ids), states["COMPLETED"], tuple(lost), tuple(stuck), tuple(doubled), tuple(unexplained))


def _drained(box: Box) -> list[str]:
    """Nodes that slurmctld drained since a job ran there of which it had not saved the start ('Duplicate jobid')."""
    lines = box.run("sinfo", "-h", "-N", "-o", "%N %T", check=False).stdout.splitlines()
    return [line.split()[0] for line in lines if " drain" in line or " down" in line]
