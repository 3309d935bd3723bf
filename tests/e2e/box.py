"""A running testbed as the tests drive it: submit as a user, change as an operator, look as anybody."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE = 4.0
"""Limits are what a quiet machine needs at most; a busy one gets this many times as long before a test gives up."""
OVER = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"]
)
"""States of a job that has ended."""
HOSTILE_NAMES = (
    "plain",
    "a'b\"c`id`$(id);rm -rf /",
    "x\n   AdminComment=lucid:vc=prof;held=1\nJobId=1",
    "ünï ☃ " + "n" * 900,
    "%j |&<>\\",
)
"""Names and comments that try to be something else, but for the first."""


@dataclass(frozen=True)
class Box:
    """``root`` is the testbed's folder for chroot."""

    root: Path

    def run(self, *command: str, user: str = "root", check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["chroot", f"--userspec={user}", str(self.root), *command],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return done

    def sbatch(self, *options: str, script: str = "true", user: str = "alice") -> str:
        """Submit; returns the job's number."""
        return self.run(
            "sbatch", "--parsable", "-D", "/tmp", "-o", "/tmp/%A_%a.out", *options, f"--wrap={script}", user=user
        ).stdout.strip()

    def scontrol(self, *words: str) -> None:
        self.run("scontrol", *words, user="lucid")

    @property
    def release(self) -> tuple[int, int]:
        """Slurm's, as (24, 11)."""
        major, minor, *_ = json.loads((self.root.parent / "testbed.json").read_text())["slurm"].split(".")
        return int(major), int(minor)

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Every job that Slurm remembers, by number. Beside Slurm's words: ``tag``, job_submit.lua's without the time
        until which it has parked the job, and ``waits``: is it held, or parked with a begin time ahead?"""
        jobs = json.loads(self.run("squeue", "--json", "-a").stdout)["jobs"]
        jobs += json.loads(self.run("scontrol", "show", "jobs", "--json").stdout)["jobs"]
        return {str(job["job_id"]): _kept(job) for job in jobs}

    def job(self, number: str) -> dict[str, Any]:
        return self.jobs()[number]

    def state(self, number: str) -> str:
        return str(self.job(number)["job_state"][0])

    def tag(self, number: str) -> str:
        return str(self.job(number)["tag"])

    def runs(self, *numbers: str) -> bool:
        """Do all of these?"""
        jobs = self.jobs()
        return all(jobs[number]["job_state"] == ["RUNNING"] for number in numbers)

    def priority(self, number: str) -> int:
        words = self.run("scontrol", "show", "job", number).stdout.split()
        return int(next(word for word in words if word.startswith("Priority=")).partition("=")[2])

    def refused(self, *command: str, user: str = "alice") -> str:
        """What a user reads; empty where Slurm took it."""
        done = self.run(*command, user=user, check=False)
        return " ".join((done.stderr or done.stdout).split()) if done.returncode else ""

    def output(self, number: str, task: str = "4294967294") -> str:
        return (self.root / "tmp" / f"{number}_{task}.out").read_text()

    def open_folder(self, name: str) -> Path:
        """A new one in the testbed, in which each user may have files of their own."""
        folder = self.root / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        folder.chmod(0o1777)
        return folder

    def wait(self, what: str, ready: Callable[[], bool], limit_s: float = 60.0) -> None:
        until = time.monotonic() + limit_s * PATIENCE
        while not ready():
            queue = f"\n{self.run('squeue', '-a').stdout}" if time.monotonic() >= until else ""
            assert not queue, f"{what}: not within {limit_s * PATIENCE:g} s{queue}"
            time.sleep(0.2)

    def wait_ended(self, *numbers: str, limit_s: float = 60.0) -> None:
        def ended() -> bool:
            jobs = self.jobs()
            return all(jobs[number]["job_state"][0] in OVER for number in numbers)

        self.wait(f"end of {numbers}", ended, limit_s)

    def beat(self, modes: Mapping[str, str] | None = None, *, age_s: float = 0, extra: str = "") -> None:
        """Write the daemon's heartbeat."""
        lines = [f"time {time.time() - age_s:.0f}"]
        lines += [f"mode {name} {mode}" for name, mode in (modes or {"vc-a": "pack"}).items()]
        self.write_heartbeat("\n".join(lines) + "\n" + extra)

    def write_heartbeat(self, text: str) -> None:
        path = self.root / "run/lucid/heartbeat"
        fresh = path.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(path)

    @contextmanager
    def unrefused(self, user: str) -> Iterator[None]:
        """Inside, job_submit.lua refuses this user nothing, nor lucid: with ``exempt`` lines it binds all others."""
        settings = self.root / "etc/slurm/lucid.plugin.conf"
        uids = [self.run("id", "-u", name).stdout.strip() for name in (user, "lucid")]
        with rewritten(settings, settings.read_text() + "".join(f"exempt {uid}\n" for uid in uids)):
            yield

    def stop_beating(self) -> None:
        (self.root / "run/lucid/heartbeat").unlink(missing_ok=True)

    def reason(self, number: str) -> str:
        """Why Slurm lets a job wait, in its word."""
        return str(self.job(number)["state_reason"])

    @contextmanager
    def reserved(self, nodes: str, users: str = "bob", *more: str, start: str = "now") -> Iterator[str]:
        """A reservation of whole nodes for some users, for an hour; gives its name and takes it away afterwards.
        ``more``: further words for scontrol, such as ``flags=maint``."""
        name = "held-for-" + users.replace(",", "-")
        words = [f"reservation={name}", f"nodes={nodes}", f"users={users}", f"starttime={start}", "duration=60"]
        self.run("scontrol", "create", *words, *more)
        try:
            yield name
        finally:
            self.run("scontrol", "delete", f"reservation={name}", check=False)

    @contextmanager
    def configured(self, more: str = "", **changed: object) -> Iterator[None]:
        """slurm.conf with other values of settings that stand there, each alone on its line, and with more lines."""
        conf = self.root / "etc/slurm/slurm.conf"
        text = conf.read_text()
        for name, value in changed.items():
            text, found = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
            assert found == 1, f"{name} stands {found} times in {conf}"
        try:
            with rewritten(conf, text + more):
                self.run("scontrol", "reconfigure")
                yield
        finally:
            self.run("scontrol", "reconfigure")

    def clear(self) -> None:
        """Cancel everything and wait until the nodes are free."""
        self.stop_beating()
        for user in ("alice", "bob", "carol", "root"):
            self.run("scancel", f"--user={user}", check=False)
        self.wait("an empty queue", lambda: not self.run("squeue", "-h", "-a").stdout.strip())


@contextmanager
def rewritten(path: Path, text: str) -> Iterator[None]:
    """The file has another text for so long."""
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)


def _kept(job: dict[str, Any]) -> dict[str, Any]:
    """See ``Box.jobs``."""
    tag = str(job["admin_comment"])
    parked = ";park=" in tag and job["eligible_time"]["number"] > time.time()
    waits = job["job_state"] == ["PENDING"] and bool(job.get("hold", job["priority"]["number"] == 0) or parked)
    return {**job, "tag": re.sub(r";park=\d+", "", tag), "waits": waits}
