"""Breaking a running testbed on purpose, bringing it back, and counting afterwards how often each job ran."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from box import Box

from testbed import daemons, host
from testbed.settings import Layout, layout_from

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

    def start_slurmctld(self) -> None:
        daemons.start_slurmctld(self.layout)

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


class Warden:
    """No test leaves the testbed broken for the next: what it broke is brought back, and the test that did it fails.

    Knows a testbed as it was when it came up: its daemons, its configuration files, partitions and nodes."""

    def __init__(self, box: Box, layout: Layout) -> None:
        self._box, self._layout = box, layout
        self._files = self._configuration()
        self._partitions = self._asked("show", "partitions", "-o")
        self._found: list[str] = []

    def mend(self) -> None:
        """Bring back what is not as it was, and remember what that was, for ``blame``."""
        self._found += [f"{name} was dead" for name in daemons.start_missing(self._layout)]
        changed = self._restored()
        self._found += [f"{name} was changed" for name in changed]
        if changed or self._asked("show", "partitions", "-o") != self._partitions:
            if not changed:
                self._found.append("partitions were changed by scontrol")
            self._box.run("scontrol", "reconfigure")
        self._drop_reservations()
        self._box.wait("nodes that answer", lambda: not any("*" in state for state in self._states().values()), 30)
        for node, state in self._states().items():
            if state.startswith(("drain", "down")):
                self._found.append(f"node {node} was {state}")
                self._box.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)

    def blame(self) -> str:
        """What was found since the last time, in words; empty where nothing was."""
        found, self._found = self._found, []
        return ", ".join(found)

    def _configuration(self) -> dict[Path, bytes]:
        folder = self._layout.root / "etc/slurm"
        return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    def _restored(self) -> list[str]:
        now, before = self._configuration(), self._files
        changed = [path for path in sorted(now.keys() | before.keys()) if now.get(path) != before.get(path)]
        for path in changed:
            if path in before:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(before[path])  # one that is there keeps its owner and mode
            else:
                path.unlink()
        return [path.name for path in changed]

    def _drop_reservations(self) -> None:
        for line in self._asked("show", "reservations", "-o").splitlines():
            name = line.partition("ReservationName=")[2].partition(" ")[0]
            if name:
                self._found.append(f"reservation {name} was left")
                self._box.run("scontrol", "delete", f"reservation={name}", check=False)

    def _states(self) -> dict[str, str]:
        lines = self._box.run("sinfo", "-h", "-N", "-o", "%N %T").stdout.splitlines()
        return {node: state for node, _, state in (line.partition(" ") for line in lines)}

    def _asked(self, *words: str) -> str:
        return self._box.run("scontrol", *words).stdout


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
