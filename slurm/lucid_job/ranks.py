"""The processes of one node: their environment, signals, statuses. Used by lucid_run.py."""

import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import time
from pathlib import Path

from lucid_job import Refused, tell

GRACE_S = 30.0
"""Seconds that processes get after SIGTERM where one of them has failed."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STALE = ("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET", "SLURM_TRES_PER_TASK")
STALE += ("SLURM_GRES", "SLURM_NTASKS_PER_GPU", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE")
STALE += ("SLURM_DISTRIBUTION", "SLURM_HINT", "SLURM_GPU_BIND", "SLURM_TRES_BIND")
"""What sbatch wrote down of a job's size: not true of one that was resized, and an inner srun reads it."""
FOLDER = str(Path(__file__).resolve().parent.parent)
CHECKPOINTED = 128 + signal.SIGTERM


def number(environ, *names):
    """The first of these that is a whole number, else 0."""
    found = (environ.get(name) or "" for name in names)
    return next((int(text) for text in found if text.isdigit()), 0)


def gpus_here(environ):
    """Processes to start on this node: one for each of its GPUs, one where it has none."""
    visible = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return number(environ, "SLURM_GPUS_ON_NODE", "LUCID_GPUS_HERE") or len(visible) or 1


def chosen_batch(environ):
    """What lucidd chose for an elastic job that it resized, as "GPUS:SAMPLESxPASSES"; "" where it chose nothing."""
    job = environ.get("SLURM_JOB_ID", "")
    if not (environ.get("LUCID_ELASTIC") and job.isdigit()):
        return ""
    command = ["scontrol", "--oneliner", "show", "job", job]
    try:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(
        r"(?:^|\s)Extra=lucid-batch=(\d{1,6}:\d{1,9}x\d{1,6})(?:\s|$)", ran.stdout.decode("utf-8", "replace")
    )
    return found.group(1) if found else ""


def free_port():
    """A port that is free now, below those that the kernel gives to outgoing connections."""
    for port in random.SystemRandom().sample(range(20000, 30000), 200):
        with contextlib.closing(socket.socket()) as tried, contextlib.suppress(OSError):
            tried.bind(("", port))
            return port
    raise Refused("no port from 20000 to 29999 is free on this node")


def shell_status(code):
    """A process's status as a shell counts it."""
    return 128 - code if code < 0 else code


def together(statuses):
    """One status for all: the first that is bad, else 143 where one wrote a checkpoint, else 0."""
    bad = [status for status in statuses if status not in (0, CHECKPOINTED)]
    return bad[0] if bad else max(statuses)


class Signals:
    """Those that came, and a descriptor that is readable when one did or a process ended.

    ``told``: one of them asked the job to stop.
    """

    def __init__(self):
        self.came, self.told = [], False
        self.fd, write = os.pipe()
        for end in (self.fd, write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for one in PASSED_ON:
            signal.signal(one, lambda found, _: self.came.append(found))

    def taken(self):
        """The signals since the last call."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, 512):
                pass
        found, self.came = self.came, []
        self.told = self.told or signal.SIGTERM in found or signal.SIGINT in found
        return found


class Ranks:
    """The processes of this node."""

    def __init__(self):
        self.alive, self.statuses, self.kill_at, self._last = [], [], None, {}

    def start(self, command, environments):
        """One for each environment. None outlives lucid-run.

        Raises:
            Refused: the command cannot be started.
        """
        try:
            import ctypes

            prctl = ctypes.CDLL(None).prctl
        except (ImportError, AttributeError):  # a small Python: Slurm ends what it leaves behind
            prctl = None

        def die_with_parent():
            if prctl is not None:
                prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

        for environment in environments:
            try:
                one = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=die_with_parent)
            except OSError as error:
                self.kill()
                raise Refused(f"{command[0]} cannot be started: {error.strerror}") from None
            self.alive.append(one)

    def signal(self, which):
        """Pass a signal on; the same one, from Slurm and from the first node, only once."""
        now = time.monotonic()
        if now - self._last.get(which, -60.0) < 5.0:
            return
        self._last[which] = now
        for one in self.alive:
            one.send_signal(which)

    def stop(self):
        """End them: SIGTERM, and after GRACE_S SIGKILL."""
        self.signal(signal.SIGTERM)
        self.kill_at = self.kill_at or time.monotonic() + GRACE_S

    def kill(self):
        """End them, with all that they started."""
        for one in self.alive:
            with contextlib.suppress(OSError):
                os.killpg(one.pid, signal.SIGKILL)

    def look(self):
        """Take in those that have ended."""
        if self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.kill()
        for one in [one for one in self.alive if one.poll() is not None]:
            self.alive.remove(one)
            with contextlib.suppress(OSError):
                os.killpg(one.pid, signal.SIGKILL)  # what it has left behind
            status = shell_status(one.returncode)
            self.statuses.append(status)
            if status == CHECKPOINTED:
                self.signal(signal.SIGTERM)  # the others would wait for it for ever
            elif status:
                if self.kill_at is None:
                    tell(f"a process ended with status {status}; the others are stopped")
                self.stop()


def environments(place, command_line, base):
    """Of each process of this node; the endpoint of its agent, if it has one, is started later."""
    kept = {name: value for name, value in base.items() if name not in STALE and name != "LUCID_RUN_JOIN"}
    for local in range(place["here"]):
        rank = place["first"] + local
        made = {
            "MASTER_ADDR": place["master"], "MASTER_PORT": place["port"], "WORLD_SIZE": place["world"], "RANK": rank,
            "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": place["here"], "GROUP_RANK": place["node"],
            "NODE_RANK": place["node"], "GROUP_WORLD_SIZE": place["nodes"],
            "SLURM_NTASKS": place["world"], "SLURM_NPROCS": place["world"], "SLURM_PROCID": rank,
            "SLURM_LOCALID": local, "SLURM_NODEID": place["node"],
            "LUCID_GPUS": place["world"], "LUCID_GPUS_HERE": place["here"], "LUCID_NODES": place["nodes"],
            "LUCID_RESTART": place["restart"], "LUCID_BATCH": place.get("batch", ""),
            "LUCID_RUN": "{}:{}".format(base.get("SLURM_JOB_ID", ""), place["world"]),
        }  # fmt: skip
        own = dict(kept, **{name: str(value) for name, value in made.items()})
        # Last, so that it hides nothing of the program's: `import lucid_elastic` is found.
        own["PYTHONPATH"] = os.pathsep.join(filter(None, [base.get("PYTHONPATH"), FOLDER]))
        own.pop("LUCID_CHECKPOINTS", None)
        if place["checkpoints"]:
            own["LUCID_CHECKPOINTS"] = place["checkpoints"]
        if command_line.adaptdl:
            from lucid_job import adaptdl

            own = adaptdl.environment(own, place, local)
        yield own


def _obey(ranks, lines):
    for line in lines:
        ranks.stop() if line.get("stop") else ranks.signal(int(line.get("signal", signal.SIGTERM)))


def run_here(place, command_line, signals, control=None, said=()):
    """Start this node's processes and stay until they have ended; their status. ``said``: the first node's lines that
    came together with ``place``."""
    if place["checkpoints"] and not os.access(place["checkpoints"], os.W_OK):
        raise Refused("{} is not on this node: --checkpoints needs a file system that all nodes share".format(
            place["checkpoints"]))  # fmt: skip
    server = None
    if command_line.adaptdl:
        from lucid_job import adaptdl  # only for such jobs: small Pythons have no http.server

        server = adaptdl.Endpoint(place)
        place = dict(place, url=server.url)
    ranks = Ranks()
    signals.taken()
    if signals.told:
        return CHECKPOINTED  # told to stop before it began: nothing is lost
    ranks.start(command_line.command, environments(place, command_line, os.environ))
    if server is not None:
        server.start()
    _obey(ranks, said)
    while ranks.alive:
        ready = select.select([signals.fd, *([control] if control else [])], [], [], 1.0)[0]
        for which in signals.taken():
            ranks.signal(which)
        if control in ready:
            lines = control.lines()
            _obey(ranks, lines or ())
            if lines is None:
                tell("the first node is gone; this node's processes are stopped")
                control = None
                ranks.stop()
        ranks.look()
    return together(ranks.statuses)
