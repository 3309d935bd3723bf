"""The testbed of a campaign, with all that stands beside Slurm on its host and nodes; and what may be done to it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from box import Box
from testbeds import install_mps

from campaign.stream import FOLDER
from testbed import cli, controllers, daemons, host
from testbed.settings import Layout, TestbedError

REPO = Path(__file__).resolve().parents[2]
_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_CAPS = "+sys_chroot,+dac_read_search"
STATE_MIB = 48
NOTICED_S = 30
"""slurmctld gives a silent node up after so long, here."""
BOOT_S = 30
"""After so long without a sign of it a boot has failed."""
_SCAVENGERS = """PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=scav Nodes=n[1-3] PriorityTier=1
"""
STALE_S, BOUND_S, TIMER_S = 20, 45, 5
"""After so long without a heartbeat the plugin leaves jobs alone, the timer lets them go; how often it looks. As
installed these are 60, 300 and 60 s."""
_THROUGH = """#!/bin/sh
# Every Slurm command of lucidd goes through this: what is written in the file befalls it.
f=/run/campaign/wound
[ -e $f ] || exec "$@"
read -r kind much < $f || exec "$@"
case $kind in
    hang) exec sleep "$much" ;;
    fail) echo "slurm_load_jobs error: Unexpected message received" >&2; exit 1 ;;
    odd) echo "slurm_load_jobs error: Something nobody has seen yet" >&2; exit 217 ;;
    empty) exit 0 ;;
    cut) "$@" | head -c "$much"; exit 0 ;;
    late) "$@" > /dev/null 2>&1; echo "slurm_update error: Socket timed out on send/recv operation" >&2; exit 1 ;;
    bytes) "$@" | tr "$much" '\\377\\000\\200x' ;;
    slow) sleep "$much"; exec "$@" ;;
    *) exec "$@" ;;
esac
"""


class Site:
    """One testbed. Nothing here raises over a Slurm that does not answer: callers look at exit codes."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.root = layout, layout.root
        self.state = self.root / "var/lib/lucid"
        self.heartbeat = self.root / "run/lucid/heartbeat"
        self.jump = layout.home / "jump"
        self.config = layout.home / "lucid.toml"
        self.profiles = self.state / "profiles"
        self.wound = self.root / "run/campaign/wound"

    # -- up and down -----------------------------------------------------------------------------------------

    def up(self, say: Callable[[str], None]) -> None:
        """An empty cluster with Lucid on it; lucidd is not started yet.

        Raises:
            TestbedError: it cannot be made here.
        """
        cli.down(self.layout)
        cli.up(self.layout, say)
        for name, mode in (("runs", 0o1777), ("out", 0o1777)):
            folder = self.root / FOLDER.lstrip("/") / name
            folder.mkdir(parents=True)
            folder.chmod(mode)
        self._state_disk()
        self.profiles.mkdir()
        os.chown(self.profiles, 2000, 2000)
        self.wound.parent.mkdir()
        through = self.root / "opt/campaign/through"
        through.parent.mkdir(parents=True)
        through.write_text(_THROUGH)
        through.chmod(0o755)
        self._systemctl()
        install_mps(Box(self.root))
        (self.root / "etc/slurm/lucid/node.conf").write_text("mps /etc/slurm/lucid/mps\nlimit 15\n")
        self._settings()
        conf = self.root / "etc/slurm/slurm.conf"
        text = conf.read_text().replace("SlurmdTimeout=60", f"SlurmdTimeout={NOTICED_S}")
        conf.write_text(text.replace("ResumeTimeout=40", f"ResumeTimeout={BOOT_S}") + _SCAVENGERS)
        vcs = self.root / "etc/slurm/lucid.slurm.conf"
        vcs.write_text(re.sub(r"^(PartitionName=vc-.*)", r"\1 PriorityTier=10", vcs.read_text(), flags=re.M))
        plugin = self.root / "etc/slurm/lucid.plugin.conf"
        plugin.write_text(plugin.read_text() + f"stale {STALE_S}\n")
        self.run("scontrol", "reconfigure")

    def _state_disk(self) -> None:
        """A small disk for lucidd's state, which both hosts see: they are switched on again after it is there."""
        self.state.mkdir(exist_ok=True)
        options = f"size={STATE_MIB}m,uid=2000,gid=2000,mode=700"
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.state)], check=False).returncode:
            raise TestbedError(f"{self.state}: a small disk of its own cannot be mounted")
        self.end("slurmctld", number=signal.SIGTERM)
        for name in self.layout.controllers:
            controllers.power_off(self.layout, name)
        daemons.start_slurmctld(self.layout)

    def on(self, name: str) -> list[str]:
        """Words that run a command on this host for slurmctld and lucidd.

        Raises:
            TestbedError: it is switched off.
        """
        return controllers.command(self.layout, name)

    def acting(self) -> str:
        """The host of the lucidd that wrote the last heartbeat; the first one where nobody did."""
        try:
            lines = self.heartbeat.read_text(errors="replace")[:4000].splitlines()
        except OSError:
            lines = []
        named = [line.partition(" ")[2] for line in lines if line.startswith("host ")]
        return next((name for name in named if name in self.layout.controllers), self.layout.controllers[0])

    def _systemctl(self) -> None:
        """The one word that lucid-release asks of systemd: is lucidd being restarted on this host?"""
        stand_in = self.root / "usr/local/bin/systemctl"
        stand_in.write_text(
            "#!/bin/sh\ncase $* in *list-jobs*) ;; *) exit 1 ;; esac\n"
            '[ ! -e "/run/campaign/restarts.$(hostname)" ] || echo "7 lucidd.service start waiting"\n'
        )
        stand_in.chmod(0o755)

    def restarting(self, name: str) -> Path:
        """A file that is there while systemd stops lucidd of this host only to start it again."""
        return self.root / f"run/campaign/restarts.{name}"

    def _settings(self) -> None:
        self.config.write_text(
            "[policy.profiling]\nt_prof_s = 4\nmax_wait_s = 30\n"
            "[policy.packing]\nleast_partner_remaining_s = 0\n"
            f'[slurm]\nprefix = ["chroot", {json.dumps(str(self.root))}, "/opt/campaign/through"]\n'
            "nodes_every_s = 5\npoll_busy_s = 1.5\npoll_idle_s = 6\nstart_grace_s = 10\ntimeout_s = 8\n"
            f'[daemon]\nstate_dir = "{self.state}"\nprofiles_dir = "{self.profiles}"\n'
            f'heartbeat = "{self.heartbeat}"\n'
            'profiling_partition = "prof"\nfirst_guess_s = 60\nlease_s = 6\nrecord_mib = 4\n'
            '[daemon.partitions]\nvc-a = "pack"\nvc-b = "pack"\nscav = "pack"\n'
        )

    # -- commands --------------------------------------------------------------------------------------------

    def run(
        self,
        *command: str,
        user: str = "root",
        limit_s: float = 30.0,
        feed: str | None = None,
        on: str = "",
        **environ: str,
    ) -> subprocess.CompletedProcess[str]:
        """A command in the testbed, or on one of its hosts (``on``); 124 is the exit code of one that had to be
        ended.

        Raises:
            TestbedError: that host is switched off.
        """
        words = [*(self.on(on) if on else []), "chroot", f"--userspec={user}", str(self.root), *command]
        return self._run(words, limit_s, feed, {**_PATH, **environ})

    def ctl(self, *words: str, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """lucidctl, as the administrator runs it."""
        command = [*self.python(), "-m", "lucid.cli.main", *words, "--config", str(self.config)]
        return self._run(command, limit_s, None, {**os.environ, "COLUMNS": "160"})

    def python(self) -> list[str]:
        """The interpreter that Lucid is installed for."""
        return [str(REPO / ".venv/bin/python")]

    def as_lucid(self, *command: str) -> list[str]:
        """Words that run a command of this machine as lucidd's own user, who may enter the testbed, read its files,
        and write only what belongs to that user. It ends with the one who started it."""
        return [
            "setpriv", "--reuid=2000", "--regid=2000", "--clear-groups", "--securebits=+no_setuid_fixup",
            f"--inh-caps={_CAPS}", f"--ambient-caps={_CAPS}", "--pdeathsig=KILL", *command,
        ]  # fmt: skip

    def _run(
        self, words: list[str], limit_s: float, feed: str | None, environ: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words, capture_output=True, text=True, errors="replace", check=False, cwd=REPO, env=environ,
                timeout=limit_s, **({"stdin": subprocess.DEVNULL} if feed is None else {"input": feed}),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(words, 124, "", f"no answer within {limit_s:g} s")

    # -- processes -------------------------------------------------------------------------------------------

    def pids(self, name: str, word: str = "") -> list[int]:
        """Processes of the testbed of this name, with this word in their command line."""
        running = host.processes_in(self.root).items()
        return [pid for pid, comm in running if comm == name and word in f" {_command_line(pid)} "]

    def send(self, number: signal.Signals, pids: Iterable[int]) -> int:
        """To each of them; returns to how many."""
        count = 0
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                count += 1
        return count

    def end(self, name: str, word: str = "", number: signal.Signals = signal.SIGKILL, limit_s: float = 20.0) -> int:
        """Signal them and wait until they are gone; returns how many there were."""
        pids = self.pids(name, word)
        self.send(number, pids)
        until = time.monotonic() + limit_s
        while any(Path(f"/proc/{pid}/exe").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)
        self.send(signal.SIGKILL, [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()])
        return len(pids)

    def end_node(self, name: str) -> int:
        """The slurmd of a node, and everything that ran there: what is left when a machine loses power. Returns how
        many processes that were."""
        mine = set(self.pids("slurmd", f" -N {name} "))
        steps = {pid: _command_line(pid) for pid in self.pids("slurmstepd")}
        for job in self.jobs() or []:
            if job["nodes"] == name:
                mine |= {pid for pid, line in steps.items() if f"[{job['job_id']}." in line}
        for pid in host.processes_in(self.root):
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"SLURMD_NODENAME={name}".encode() in environ:
                mine |= {pid} | ({_parent(pid)} & steps.keys())
        return self.send(signal.SIGKILL, sorted(mine))

    def start_munged(self) -> None:
        """Start munged, also after it was killed."""
        if self.pids("munged"):
            return
        words = ["setsid", "--fork", "chroot", "--userspec=munge", str(self.root), "/usr/sbin/munged", "--foreground"]
        subprocess.run(
            [*words, "--force"], check=True, cwd="/", env=_PATH,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def mend(self) -> list[str]:
        """Start what of Slurm's daemons does not run, and bring back nodes that were given up; returns what was."""
        done = daemons.start_missing(self.layout)
        self.cancel_hostile()
        return done + self.resume_nodes()

    def cancel_hostile(self) -> int:
        """Cancel hostile jobs, which alone have no output: not by number, which a slurmctld that was killed gives out
        again. Returns how many there were."""
        lines = self.run("squeue", "-h", "-O", "JobID:20,STDOUT:20", limit_s=20).stdout.splitlines()
        numbers = sorted({words[0] for line in lines if (words := line.split())[-1:] == ["/dev/null"]})
        if numbers:
            self.run("scancel", *numbers, limit_s=20)
        return len(numbers)

    def ask_node(self, node: str) -> None:
        """Start its slurmd anew; jobs run on. It then tells slurmctld what runs there."""
        self.end("slurmd", f" -N {node} ", signal.SIGTERM)
        daemons.start_slurmd(self.layout, node)

    def resume_nodes(self) -> list[str]:
        """As an administrator does with nodes that Slurm has drained, or given up though their slurmd runs."""
        done = []
        for line in self.run("sinfo", "-h", "-N", "-o", "%N %T", limit_s=15).stdout.splitlines():
            node, _, state = line.partition(" ")
            if state.startswith(("drain", "down")) and self.pids("slurmd", f" -N {node} "):
                self.run("scontrol", "update", f"nodename={node}", "state=resume", limit_s=15)
                done.append(f"{node} was {state}")
        return sorted(set(done))

    def stopped(self, pids: Iterable[int]) -> dict[str, float]:
        """Stop slurmctld before it is killed; returns when it last completed its file of jobs, and when it is killed,
        seconds since the epoch."""
        self.send(signal.SIGSTOP, pids)
        try:
            saved_s = (self.root / "var/spool/slurmctld/job_state").stat().st_mtime
        except OSError:
            saved_s = 0.0
        return {"saved_at": round(saved_s, 2), "killed_at": round(time.time(), 2)}

    def log(self) -> str:
        """slurmctld's."""
        try:
            return (self.root / "var/log/slurm/slurmctld.log").read_text(errors="replace")
        except OSError:
            return ""

    def jobs(self) -> list[dict[str, Any]] | None:
        """Every job that Slurm remembers; ``None`` where it does not answer."""
        done = self.run("squeue", "--json", "-a", "-t", "all", limit_s=10)
        try:
            return list(json.loads(done.stdout)["jobs"]) if done.returncode == 0 else None
        except (ValueError, KeyError):
            return None


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0
