"""``Machine``: what ``lucidctl setup`` does here besides files: users, units, Slurm's commands.

Also a context that names the commands which release Lucid's jobs where ``lucidctl`` cannot."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lucid.config.live import SlurmSettings
from lucid.config.load import Settings
from lucid.errors import ClusterError, ClusterUnreadable, ConfigError, StoreError
from lucid.setup.backup import Journal
from lucid.setup.nodes import host_list
from lucid.setup.site import Site, limits_of
from lucid.slurm.client import Breaker, served
from lucid.slurm.pyslurm import make_client

USER = "lucid"
"""lucidd's user, as its unit has it."""
LINK = Path("/usr/local/bin/lucidctl")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE_S = 60.0
_REGISTER_S = 2.0


def see_running() -> Site:
    """Ask slurmctld for its present state, with Slurm's commands on this host; what only doctor reads is left out.

    Raises: ConfigError: Slurm does not answer here."""
    client = make_client(SlurmSettings(), Breaker(time.monotonic))
    try:
        return Site(
            served(client.version()),
            client.config(),
            client.nodes(),
            client.partitions(),
            client.jobs(),
            gpu_limits=limits_of(client)[0],
            preemption=client.preemption(),
            partition_settings=client.partition_settings(),
        )
    except ClusterUnreadable as error:
        raise ConfigError(str(error)) from None
    except ClusterError as error:
        raise ConfigError(
            f"Slurm does not answer on this host: {error}. Run it on slurmctld's host, as root, while slurmctld runs"
        ) from None


def program_link() -> Path | None:
    """This installation's lucidctl, where a shell does not find it by itself; else ``None``."""
    here = Path(sys.executable).parent / "lucidctl"
    found = shutil.which("lucidctl", path=_PATH)
    return here if found is None and here.exists() else None


@dataclass(slots=True)
class Machine:
    """Runs commands; *ran* has them in words."""

    ran: list[str] = field(default_factory=list)

    def run(self, *words: str, limit_s: float = 180.0) -> str:
        """Run a command that changes something, and must succeed; returns its output.

        Raises: ConfigError: it failed, or is not there."""
        told = self.asked(*words, limit_s=limit_s)
        self.ran.append(" ".join(words))
        return told

    def asked(self, *words: str, limit_s: float = 180.0) -> str:
        """Run a command that changes nothing, and must succeed; returns its output.

        Raises: ConfigError: it failed, or is not there."""
        done = self.tried(*words, limit_s=limit_s)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-800:]
            raise ConfigError(f"`{' '.join(words)}` failed: {said or f'exit status {done.returncode}'}")
        return done.stdout

    def tried(self, *words: str, limit_s: float = 180.0) -> subprocess.CompletedProcess[str]:
        """Run a command that may fail.

        Raises: ConfigError: it is not there, or does not end."""
        try:
            return subprocess.run(
                words, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=limit_s,
                stdin=subprocess.DEVNULL, env={**os.environ, "PATH": _PATH, "LC_ALL": "C.UTF-8"},
            )  # fmt: skip
        except FileNotFoundError:
            raise ConfigError(f"{words[0]} is not on this host, and setup needs it") from None
        except subprocess.TimeoutExpired:
            raise ConfigError(f"`{' '.join(words)}` did not end within {limit_s:g} s") from None

    def is_on(self, unit: str) -> bool:
        """Whether the unit runs now, and starts with the machine."""
        return not self.tried("systemctl", "is-active", "--quiet", unit).returncode and not (
            self.tried("systemctl", "is-enabled", "--quiet", unit).returncode
        )

    @staticmethod
    def has_user() -> bool:
        """Whether lucidd's user exists."""
        try:
            pwd.getpwnam(USER)
        except KeyError:
            return False
        return True

    def slurm_rights(self) -> str | None:
        """The AdminLevel of lucidd's user in small letters; empty: slurmdbd has no such user; ``None``: no slurmdbd
        answers."""
        done = self.tried("sacctmgr", "-nP", "show", "user", USER, "format=adminlevel")
        return None if done.returncode else done.stdout.strip().lower()

    def jobs_on(self, hosts: Sequence[str]) -> list[str]:
        """The jobs that hold something of these nodes."""
        jobs = self.asked("squeue", "-h", "-a", "-t", "R,S,CG,CF", "-w", host_list(hosts), "-o", "%A")
        return sorted(set(jobs.split()), key=int)

    def jobs_in(self, partition: str, states: str = "R,S,CG,CF") -> list[str]:
        """The jobs of a partition in these states; none where there is no such partition."""
        told = self.tried("squeue", "-h", "-a", "-t", states, "-p", partition, "-o", "%A").stdout
        return sorted({word for word in told.split() if word.isdecimal()}, key=int)

    def check_left(self, partition: str, *, drain: bool) -> None:
        """Check that no job runs in a partition that is to go, or that its end may be waited for. Slurm kills jobs
        whose partition goes.

        Raises: ConfigError: neither."""
        jobs = [] if drain else self.jobs_in(partition)
        if jobs:
            raise ConfigError(
                f"{len(jobs)} jobs run in partition {partition}, which is to go ({', '.join(jobs[:10])}). With "
                "--drain setup waits for the end of these; without it, run the same again once they have ended"
            )

    def leave(self, partition: str, say: Callable[[str], None]) -> None:
        """Let no job start in the partition, and wait until none is left in it.

        Raises:
            ConfigError: jobs wait there. Nobody but an administrator has put them there."""
        if self.tried("scontrol", "update", f"PartitionName={partition}", "State=INACTIVE").returncode:
            return  # it is gone
        self.ran.append(f"scontrol update PartitionName={partition} State=INACTIVE")
        self._wait(lambda: self.jobs_in(partition), f"in partition {partition}", say)
        waits = self.jobs_in(partition, "PD")
        if waits:
            raise ConfigError(
                f"jobs {', '.join(waits[:10])} wait in partition {partition}, which is to go: `scontrol update "
                f"job={waits[0]} partition=…` gives each another one; then run this again"
            )

    def _wait(self, left: Callable[[], list[str]], where: str, say: Callable[[str], None]) -> None:
        told = 0
        while jobs := left():
            if len(jobs) != told:
                say(f"waiting for {len(jobs)} jobs {where}: {', '.join(jobs[:10])}")
                told = len(jobs)
            time.sleep(1.0)

    def check_quiet(self, hosts: Sequence[str], *, drain: bool) -> None:
        """Check that no job holds anything of these nodes, or that they may be drained.

        Raises: ConfigError: neither."""
        jobs = self.jobs_on(hosts) if hosts and not drain else []
        if jobs:
            raise ConfigError(
                f"{len(jobs)} jobs run on {host_list(hosts)}, whose GPUs change ({', '.join(jobs[:10])}). Nothing "
                "was changed. With --drain setup lets no job start there, and waits for the end of these"
            )

    def quiet(self, journal: Journal, hosts: Sequence[str], say: Callable[[str], None]) -> None:
        """Let no job start on these nodes, and wait until none holds anything there."""
        for host in hosts:
            states = self.asked("sinfo", "-h", "-N", "-n", host, "-o", "%T").lower()
            if not re.search("drain|down", states):
                journal.note("drained", host)
                self.run("scontrol", "update", f"NodeName={host}", "State=DRAIN", "Reason=lucidctl setup")
        self._wait(lambda: self.jobs_on(hosts), f"on {host_list(hosts)}", say)

    def unfit_nodes(self, hosts: Sequence[str]) -> list[str]:
        """The nodes that after a while slurmctld does not take with the GPUs that its files give to them."""
        until = time.monotonic() + _PATIENCE_S
        time.sleep(_REGISTER_S if hosts else 0)
        while hosts:
            rows = [
                line.split()
                for line in self.asked("sinfo", "-h", "-N", "-n", host_list(hosts), "-o", "%N %T").splitlines()
            ]
            bad = sorted({name for name, state in rows if re.search("inval|unk", state.lower())})
            if not bad or time.monotonic() > until:
                return bad
            time.sleep(0.5)
        return []

    def answers(self) -> bool:
        """Whether slurmctld lives."""
        return not self.tried("scontrol", "ping").returncode

    def in_force(self, wanted: Mapping[str, str], there: str = "", gone: str = "") -> dict[str, str]:
        """The values of *wanted* (keys of ``scontrol show config``) that slurmctld still has otherwise after a while;
        also an entry if it lacks the partition *there* or has *gone*. If it does not answer at all, there is at least
        one entry."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                running = see_running()
            except ConfigError:
                left = {**wanted, "slurmctld": "answers"}
            else:
                left = {key: value for key, value in wanted.items() if running.config.get(key, "") != value}
                if there and there not in running.names:
                    left["PartitionName"] = there
                if gone in running.names:
                    left["PartitionName"] = f"no {gone}"
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.5)


_PACKAGED = Path("/usr/sbin/lucid-release")
RELEASE = _PACKAGED if _PACKAGED.exists() else Path("/etc/slurm/lucid/lucid-release")


@contextmanager
def by_hand_where(not_done: str, settings: Settings | None = None) -> Iterator[None]:
    """A context that adds, where the file of settings or the store fails in it, what was *not done* and which
    commands do it instead.

    Raises: ConfigError, StoreError: as it came, with these words added; its exit code stays."""
    try:
        yield
    except (ConfigError, StoreError) as error:
        prefix = () if settings is None else settings.slurm.prefix
        before = f"LUCID_SLURM_PREFIX={shlex.quote(' '.join(prefix))} " if prefix else ""
        raise type(error)(
            f"{error}\n{not_done} These commands release every job that Lucid holds, without lucid.toml and store:\n"
            "  systemctl stop lucidd    # lucidd uses the settings that it read at its start\n"
            f"  {before}{RELEASE} --all   # with squeue and scontrol alone"
        ) from None
