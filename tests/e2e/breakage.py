"""Breaking a running testbed on purpose, and counting afterwards how often each job ran."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from box import Box

from testbed import daemons, host
from testbed.settings import Layout, layout_from

SLURM = Path(__file__).resolve().parents[2] / "slurm"
RUNS = 'F=/tmp/runs.$SLURM_JOB_ID; echo "BEGIN ${{SLURM_RESTART_COUNT:-0}}" >> $F; sleep {0} && echo END >> $F'
"""A job's script: each run of it leaves a line that no requeue takes away, as it begins and as it ends of itself."""


class Breakage:
    """What may befall the daemons of a testbed. Processes are found by the testbed's root and ended by id."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.layout: Layout = layout_from({"LUCID_TESTBED_NAME": "pytest", **os.environ})

    def pids(self, name: str, word: str = "") -> list[int]:
        """Processes of the testbed of this name, with this word in their command line."""
        found = []
        for pid, comm in host.processes_in(self.box.root).items():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            if comm == name and word in f" {line} ":
                found.append(pid)
        return found

    def kill(self, name: str, word: str = "") -> None:
        """As hard as can be."""
        pids = self.pids(name, word)
        assert pids, f"no {name} {word} to kill"
        _kill(pids)

    def start_slurmctld(self) -> None:
        daemons.start_slurmctld(self.layout)

    def start_slurmdbd(self) -> None:
        daemons.start_slurmdbd(self.layout)

    @contextmanager
    def without_accounting(self) -> Iterator[None]:
        """slurmdbd is dead for so long; it comes back whatever happens."""
        self.kill("slurmdbd")
        try:
            yield
        finally:
            self.start_slurmdbd()

    def start_node(self, name: str) -> None:
        daemons.start_slurmd(self.layout, name)
        self.box.wait(f"node {name}", lambda: self.node_state(name) in ("idle", "mix", "alloc"), 60)

    def node_state(self, name: str) -> str:
        return self.box.run("sinfo", "-h", "-n", name, "-o", "%t", check=False).stdout.split("\n")[0].strip()

    def lose_node(self, name: str) -> None:
        """Its slurmd, and everything that ran there: what is left when a machine loses power."""
        mine = set(self.pids("slurmd", f" -N {name} "))
        assert mine, f"no slurmd of {name}"
        jobs = [number for number, job in self.box.jobs().items() if job["nodes"] == name]
        for number in jobs:
            mine |= set(self.pids("slurmstepd", f"[{number}."))
        for pid in host.processes_in(self.box.root):
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"SLURMD_NODENAME={name}".encode() in environ:
                mine.add(pid)
        _kill(sorted(mine))


def _kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/exe").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)


class ReleaseTimer:
    """What ``lucid-release.timer`` does, every second instead of every minute, with a bound of ``bound_s``."""

    def __init__(self, box: Box, bound_s: int) -> None:
        self._environ = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LUCID_HEARTBEAT": str(box.root / "run/lucid/heartbeat"),
            "LUCID_SLURM_PREFIX": f"chroot --userspec=lucid {box.root}",
            "LUCID_BOUND_S": str(bound_s),
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._turn, daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        while not self._stop.wait(1.0):
            subprocess.run(
                ["/bin/sh", str(SLURM / "lucid-release")],
                env=self._environ, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60,
            )  # fmt: skip

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)


def ran_once(box: Box, *numbers: str) -> None:
    """Each job came to its end, no run of it was counted twice by Slurm, and its work was done exactly once."""
    for number in numbers:
        record = box.job(number)
        assert record["job_state"][0] == "COMPLETED", (number, record["job_state"])
        lines = (box.root / f"tmp/runs.{number}").read_text().splitlines()
        begun = [line for line in lines if line.startswith("BEGIN")]
        assert len(set(begun)) == len(begun), (number, "the same run twice", lines)
        assert len(begun) <= record["restart_cnt"] + 1, (number, record["restart_cnt"], lines)
        assert lines.count("END") == 1, (number, lines)
        assert lines[-1] == "END", (number, lines)
