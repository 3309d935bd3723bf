"""No test leaves the testbed broken for the next: what it broke is brought back, and the test that did it fails."""

from __future__ import annotations

from pathlib import Path

from box import Box

from testbed import daemons
from testbed.settings import Layout


class Warden:
    """Knows a testbed as it was when it came up: its daemons, its configuration files, partitions and nodes."""

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
