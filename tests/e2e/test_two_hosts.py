"""Two hosts over one state, each with a slurmctld, a lucidd and the release timer (``LUCID_TESTBED_VARIANT=ha``): one
is lost with all of these, and the other goes on. Jobs that begin or end as it is lost are the campaign's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from box import Box
from breakage import RUNS, SLURM, ran_once
from daemon_box import REPO, Lucidd
from testbeds import own_testbed

from lucid.store.sqlite import SqliteStore
from testbed import cli, controllers, daemons
from testbed.settings import Layout

pytestmark = pytest.mark.slow
BOUND_S = 60
GATE = "while test -e /tmp/lost; do sleep 0.2; done; "


class TwoHosts:
    """Both are up at first, and the first one acts. Lease and polling are as installed."""

    def __init__(self, box: Box, layout: Layout, folder: Path) -> None:
        self.box, self.layout = box, layout
        self._shared = folder / "shared"
        self._shared.mkdir()
        self._lucidd = Lucidd(box, folder / "lucidd", restarts="", state=self._shared, more="shared_state = true")
        toml = self._lucidd.folder / "lucid.toml"
        kept = [line for line in toml.read_text().splitlines() if not line.startswith("poll_idle_s")]
        toml.write_text("\n".join(kept) + "\n")
        self._config = str(toml)
        self._stop = threading.Event()
        self._timers = threading.Thread(target=self._release_timers, daemon=True)
        for name in layout.controllers:
            self._start_lucidd(name)
            self.box.wait("a lease", lambda: bool(self.acting()), 60)
        self._timers.start()

    def lose(self, name: str) -> None:
        """A loss of power: every process of that host at once."""
        controllers.power_off(self.layout, name)

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

    def stands_by(self, name: str) -> bool:
        return "standby: " + name in self._lucidd.ctl("status")

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


def test_the_other_host_takes_over_within_thirty_seconds(tmp_path: Path) -> None:
    with own_testbed("ha", LUCID_TESTBED_VARIANT="ha") as layout:
        cli.up(layout, print)
        box = Box(layout.root)
        hosts = TwoHosts(box, layout, tmp_path)
        first = hosts.acting()
        (second,) = set(layout.controllers) - {first}
        box.wait("a standby", lambda: hosts.stands_by(second), 30)
        gate = box.root / "tmp/lost"
        gate.touch()
        ids = [
            box.sbatch(f"--gres=gpu:{1 + 3 * (n % 2)}", "-p", ("vc-a", "vc-b")[n % 2], "-J", f"c{n % 7}",
                       script=GATE + RUNS.format(1))
            for n in range(24)
        ]  # fmt: skip
        box.wait("some run", lambda: sum(box.state(number) == "RUNNING" for number in ids) >= 3)
        time.sleep(12)  # slurmctld has saved all of it: it does so every 5 s
        assert any(box.job(number)["waits"] for number in ids)
        hosts.lose(first)
        began = time.monotonic()
        box.wait("the other one acts", lambda: hosts.acting() == second, 30)
        print(f"taken over in {time.monotonic() - began:.0f} s")
        box.wait("slurmctld answers", lambda: box.run("squeue", "-h", check=False).returncode == 0, 60)
        gate.unlink()
        box.wait_ended(*ids, limit_s=400)
        ran_once(box, *ids)
        hosts.bring_back(first)
        box.wait("it stands by", lambda: hosts.stands_by(first), 60)
        hosts.close()
