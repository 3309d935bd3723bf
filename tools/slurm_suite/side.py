"""One side of the comparison: a testbed with Slurm's tests in it, with or without Lucid."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from box import Box
from breakage import Warden
from daemon_box import Lucidd
from testbeds import PATH

from slurm_suite.choice import GPU, Test, result_of, why_of
from slurm_suite.difference import Result
from slurm_suite.needs import with_needs
from testbed import cli, host, tree
from testbed.lifetime import kept
from testbed.settings import Layout

_HOME = "home/alice/slurm-suite/testsuite"
_CONF = """SlurmSourceDir=/home/alice/slurm-suite
SlurmBuildDir=/nonexistent
SlurmInstallDir=/usr
SlurmConfigDir=/etc/slurm
"""
_GLOBALS = 'set slurm_dir "/usr"\nset max_job_delay 60\nset testsuite_colorize 0\nset testsuite_user carol\n'
_MARK = "LUCID_SLURM_SUITE"
"""In the environment of every process of a test, of its jobs too."""
_LUCID_TOML = """[slurm]
prefix = {prefix}
[daemon]
state_dir = "{folder}"
profiles_dir = "{folder}/profiles"
heartbeat = "{root}/run/lucid/heartbeat"
profiling_partition = "prof"
[daemon.partitions]
vc-a = "pack"
vc-b = "pack"
"""
"""As a site has it: everything else is lucidd's default."""


@contextmanager
def standing(layout: Layout, source: Path, *, lucid: bool, say: tree.Say) -> Iterator[Side]:
    """The testbed is up; it is down again afterwards."""
    layout = with_needs(layout)
    with kept(layout), ExitStack() as stack:
        cli.down(layout)
        cli.up(layout, say)
        box = Box(layout.root)
        _put_in(box, source)
        lucidd: Lucidd | None = None
        if lucid:
            folder = layout.home / "lucidd"
            lucidd = Lucidd(box, folder)
            stack.callback(lucidd.close)
            settings = {"prefix": json.dumps(["chroot", "--userspec=lucid", str(box.root)]), "root": str(box.root)}
            (folder / "lucid.toml").write_text(_LUCID_TOML.format(folder=folder, **settings))
            lucidd.start()
        yield Side(layout, box, lucidd)


def _put_in(box: Box, source: Path) -> None:
    """The tests, in a folder of alice's: they write into it."""
    folder = box.root / _HOME
    shutil.copytree(source / "testsuite", folder, symlinks=True)
    (folder / "testsuite.conf").write_text(_CONF)
    (folder / "expect/globals.local").write_text(_GLOBALS)
    box.run("chown", "-R", "alice:alice", "/home/alice")


class Side:
    """Runs one test after the other; none leaves anything for the next."""

    def __init__(self, layout: Layout, box: Box, lucidd: Lucidd | None) -> None:
        self.layout, self.box, self.lucidd = layout, box, lucidd
        self._warden = Warden(box, layout)

    def run(self, test: Test, limit_s: float) -> tuple[Result, str]:
        """One test; gives its result, and what it printed."""
        if self.lucidd is not None and (self.lucidd.process is None or self.lucidd.process.poll() is not None):
            self.lucidd.start()
        folder, file = f"/{_HOME}/{test.file.partition('/')[0]}", test.file.partition("/")[2]
        command = ["expect", file]
        if test.python:
            command = ["python3", "-m", "pytest", "-p", "no:cacheprovider", "--local-config", "--no-color", file]
        log = self.layout.home / "test.log"
        began_s = time.monotonic()
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["chroot", f"--userspec={test.user}", str(self.box.root), "env", "-C", folder, *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", start_new_session=True,
                env=self._environment(test),
            )  # fmt: skip
            try:
                code: int | None = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            seconds = time.monotonic() - began_s
            if code is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        text = log.read_text(errors="replace")
        left = self._tidy()
        return Result(result_of(test, code, text), round(seconds, 1), why_of(text), left), text

    def _environment(self, test: Test) -> dict[str, str]:
        home = "/root" if test.user == "root" else f"/home/{test.user}"
        who = {"HOME": home, "USER": test.user, "LOGNAME": test.user, "SHELL": "/bin/bash", "TERM": "dumb"}
        return {"PATH": PATH, "LC_ALL": "C.UTF-8", **who, _MARK: test.name, **(GPU if test.gpu else {})}

    def _tidy(self) -> str:
        """Nothing of the test before is left; gives in words what was."""
        listed = self.box.run("squeue", "-h", "-a", "-o", "%A %T", check=False).stdout.splitlines()
        jobs = [line.split()[0] for line in listed if not line.endswith("COMPLETING")]  # which ends by itself
        if jobs:
            self.box.run("scancel", *set(jobs), check=False)
        mark = f"{_MARK}=".encode()
        for pid in host.processes_in(self.box.root):
            try:
                if mark in Path(f"/proc/{pid}/environ").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        left = [f"{len(set(jobs))} jobs"] if jobs else []
        try:
            self._warden.mend()
            if listed:
                self.box.wait("an empty queue", lambda: not self._queue(), 15)
        except AssertionError as error:
            left.append(str(error).splitlines()[0])
        return ", ".join([*left, *filter(None, [self._warden.blame()])])

    def _queue(self) -> str:
        return self.box.run("squeue", "-h", "-a", check=False).stdout.strip()
