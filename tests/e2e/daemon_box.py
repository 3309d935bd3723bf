"""lucidd beside a running testbed, with an emulated sampler: nothing here has a GPU to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from box import Box

from lucid.core.job import JobProfile
from lucid.node.reports import write_summary
from lucid.profiler.summary import Summary
from lucid.slurm.act.prolog_extra import Items
from lucid.slurm.commands import MUNGE, credential
from lucid.store.port import ProfileRow
from lucid.store.sqlite import SqliteStore

REPO = Path(__file__).resolve().parents[2]
LIGHT = JobProfile(20.0, 10.0, 4000.0)


def with_constant(module: str, name: str, value: float) -> Sequence[str]:
    """A lucidd with another value of a constant: ``program`` of ``Lucidd``."""
    return "-c", f"import {module}; {module}.{name} = {value}; from lucid.daemon.__main__ import main; main()"


def has_measured(daemon: Lucidd, program: str) -> None:
    """As if it had measured Alice's program on each number of GPUs: it starts in slots at once. None runs yet."""
    store = SqliteStore(daemon.folder / "lucid.db")
    lease = store.take_lease("test", time.time(), 1.0)
    assert lease is not None
    for gpus in range(1, 9):
        row = ProfileRow(f"{gpus}0000000", "alice", program, gpus, LIGHT, time.time())
        assert store.put_profile(row, f"before {gpus}", lease.token)
    store.drop_lease(lease.token)
    store.close()


def seal(
    box: Box,
    job: str,
    gpus: tuple[int, ...],
    mem_mib: int | None = None,
    speed: float | None = None,
    *,
    user: str = "lucid",
    numbers: tuple[int, ...] = (),
) -> str:
    """The Extra of a job's start on these GPUs of n1, sealed by ``user`` as lucidd does it: for jobs that a test
    starts itself."""
    items = Items("n1", gpus, mem_mib, speed, numbers=numbers)
    prefix = ["chroot", f"--userspec={user}", str(box.root)]
    return f"{items.plain()};lucid-seal={credential([*prefix, *MUNGE, items.payload(int(job), 0)])}"


class Lucidd:
    """One daemon process after the other on one state folder. ``program``: what is run in place of lucidd itself;
    ``state``: where it keeps its state, ``folder`` unless given. ``before``: words before the command, such as those
    that run it on another host. ``more``: further lines of [daemon]. ``restarts``: who may be started over; "" leaves
    that to lucidd's default."""

    def __init__(
        self,
        box: Box,
        folder: Path,
        mode: str = "pack",
        t_prof_s: float = 4.0,
        *,
        restarts: str = "allowed",
        program: Sequence[str] = ("-m", "lucid.daemon"),
        environ: Mapping[str, str] | None = None,
        state: Path | None = None,
        more: str = "",
    ) -> None:
        self.box, self.folder = box, folder
        self.program, self.environ = program, {**os.environ, **(environ or {})}
        self.profiles = folder / "profiles"
        self.profiles.mkdir(parents=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.measured: dict[str, JobProfile] = {}
        """By job name, where a job is not light."""
        prefix = ["chroot", "--userspec=lucid", str(box.root)]
        (folder / "lucid.toml").write_text(
            f"[policy.profiling]\nt_prof_s = {t_prof_s}\ncarry_on_share = 0.0\n"
            + (f'restarts = "{restarts}"\n' if restarts else "")
            # who may be started over is profiled first here, although home has room
            + ("home_if_room = false\n" if restarts == "allowed" else "")
            +
            # Slurm still remembers the other tests' jobs, of a second each: by that history every job is nearly done
            "[policy.packing]\nleast_partner_remaining_s = 0\n"
            f"[slurm]\nprefix = {json.dumps(prefix)}\nnodes_every_s = 5\npoll_idle_s = 6\nstart_grace_s = 10\n"
            f'[daemon]\nstate_dir = "{state or folder}"\nprofiles_dir = "{self.profiles}"\n'
            f'heartbeat = "{box.root}/run/lucid/heartbeat"\n'
            f'profiling_partition = "prof"\nfirst_guess_s = 60\n{more or "lease_s = 6"}\n'
            f'[daemon.partitions]\nvc-a = "{mode}"\nvc-b = "{mode}"\n'
        )
        self._told: set[str] = set()
        self._telling = threading.Lock()
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._sampler.start()

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            try:
                jobs = self.box.jobs()
            except (AssertionError, OSError, ValueError):
                continue  # slurmctld is being restarted
            for number, job in jobs.items():
                if job["job_state"] == ["RUNNING"] and time.time() - job["start_time"]["number"] >= 2:
                    profile = self.measured.get(job["name"], LIGHT)
                    self.tell(Summary(number, "n", (), 0.0, 30.0, 30, profile), first=True)

    def tell(self, summary: Summary, *, first: bool = False) -> None:
        """What the sampler has measured of a job, in place of what it told before and would tell later. ``first``:
        only if it told nothing before."""
        with self._telling:
            if not (first and summary.job in self._told):
                self._told.add(summary.job)
                write_summary(self.profiles, summary)

    def start(self) -> None:
        beat = self.box.root / "run/lucid/heartbeat"
        beat.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "--config", str(self.folder / "lucid.toml")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPO, env=self.environ,
            )  # fmt: skip
        self.box.wait("a heartbeat", beat.exists, 90)

    def kill(self) -> None:
        """As hard as can be."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop.set()
        self._sampler.join(5)
        self.kill()

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "lucid.cli.main", *words, "--config", str(self.folder / "lucid.toml")],
            capture_output=True, text=True, check=False, cwd=REPO, env={**os.environ, "COLUMNS": "160"}, timeout=90,
        )  # fmt: skip

    def ctl(self, *words: str) -> str:
        done = self._run(*words)
        return done.stdout + done.stderr

    def json(self, *words: str) -> Any:
        """What scripts read: stdout alone. Warnings stand on stderr."""
        return json.loads(self._run(*words, "--json").stdout)

    def story(self, number: str) -> Any:
        """Of a job about which nothing is decided yet, as just after its submission, there are no decisions."""
        done = self._run("explain", number, "--json")
        if "nothing was decided about job" in done.stderr:
            return {"actions": [], "decisions": []}
        return json.loads(done.stdout)

    def log(self) -> str:
        return (self.folder / "log").read_text()
