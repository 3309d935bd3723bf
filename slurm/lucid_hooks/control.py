"""Talking to a user's MPS control daemon, starting it and ending it.

The daemon runs as the user, so its answers are the user's words: they are cut at 64 KiB and at a few seconds, and
nothing is signalled by them. Which processes belong to a daemon, /proc says (``processes``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

from lucid_hooks.plan import SERVER, Limits, commands_to_join, namespace_of, render
from lucid_hooks.processes import (
    Answer,
    Deadline,
    Process,
    alive,
    below,
    program_at,
    run_as,
    seen,
    signal_as,
    spawn_as,
)
from lucid_hooks.state import GpuSet, State, write

__all__ = ["Control"]

_STEP_S = 2.0
"""For one question to a daemon, and for it to end when told so."""
_START_S = 5.0
_LIST = "server list --format=csv,noheader"


class Control:
    """``nvidia-cuda-mps-control`` of this node. ``program``: where it is. ``protocol``: 2 or 3, or 0 for the newest
    that it knows."""

    def __init__(self, state: State, program: str, protocol: int = 0) -> None:
        self._state = state
        self.program = program_at(program)
        self._protocol = protocol

    def protocols(self, uid: int, deadline: Deadline) -> list[int]:
        """Versions of MPS to try, best first. The program of version 3 says so in its help; it is run as the user
        and away from any daemon, for it follows the protocol of one that runs."""
        if self._protocol:
            return [self._protocol] if self._protocol == 2 else [3, 2]
        said = self._call(uid, ["-p", "3", "-h"], {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}, deadline.part(_STEP_S))
        words = said.text.lower()
        knows = said.code == 0 and "--apply" in words and "namespace" in words
        return [3, 2] if knows else [2]

    def _call(
        self, uid: int, words: list[str], environ: dict[str, str], deadline: Deadline, told: str = ""
    ) -> Answer:
        assert self.program is not None
        return run_as(
            uid, [self.program, *words], {"PATH": os.environ.get("PATH", os.defpath), **environ}, deadline, told
        )

    def _environ(self, of: GpuSet) -> dict[str, str]:
        return {"CUDA_MPS_PIPE_DIRECTORY": str(of.pipe), "CUDA_MPS_LOG_DIRECTORY": str(of.log)}

    def ask(self, of: GpuSet, words: str, deadline: Deadline) -> str | None:
        """What the set's daemon answers: under version 2 to a line, under 3 to a command. ``None``: none in time."""
        environ, part = self._environ(of), deadline.part(_STEP_S)
        if of.protocol == 3:
            answer = self._call(of.uid, words.split(), environ, part)
        else:
            answer = self._call(of.uid, [], environ, part, words + "\n")
        return answer.text if answer.code == 0 else None

    def answers(self, of: GpuSet, deadline: Deadline) -> bool:
        """Does the daemon run, and talk?"""
        if of.daemon is None:
            return False
        return (
            self.ask(of, "server list --format=csv,noheader" if of.protocol == 3 else "get_server_list", deadline)
            is not None
        )

    def broken(self, of: GpuSet, deadline: Deadline) -> str:
        """The number of a server that the daemon calls broken; empty where there is none. For telling only."""
        if of.protocol == 3:
            for line in (self.ask(of, _LIST, deadline) or "").splitlines()[:16]:
                fields = line.split(",")  # name, uid, pid, status, …
                if len(fields) > 3 and "fault" in fields[3].lower():
                    return (
                        fields[2] if fields[2].isascii() and fields[2].isdecimal() and len(fields[2]) <= 10 else "?"
                    )
            return ""
        for server in (self.ask(of, "get_server_list", deadline) or "").split()[:16]:
            known = server.isascii() and server.isdecimal() and len(server) <= 10
            if known and "FAULT" in (self.ask(of, f"get_server_status {server}", deadline) or ""):
                return server
        return ""

    def launch(self, of: GpuSet, job: str, limits: Limits, deadline: Deadline) -> str:
        """Start the set's daemon, in the newest version that comes up. Returns why none did, or nothing."""
        why = "it took too long"
        for protocol in self.protocols(of.uid, deadline):
            why = self._launch(of, protocol, job, limits, deadline.part(_START_S))
            if not why:
                return ""
            self.finish(of, deadline)
        return why

    def _launch(self, of: GpuSet, protocol: int, job: str, limits: Limits, deadline: Deadline) -> str:
        self._state.fresh_folders(of)
        words = [str(self.program), "-f"]
        if protocol == 3:
            write(of.path / "plan.toml", render(of.gpus, of.uid, job, limits))
            words += ["-p", "3", "-a", str(of.path / "plan.toml")]
        environ = {"PATH": os.environ.get("PATH", os.defpath), "CUDA_VISIBLE_DEVICES": ",".join(of.gpus)}
        entry, exit_ = os.pipe()
        try:
            # What it says after it has started goes nowhere: a file of root's would let it fill a disk, and a pipe
            # whose reader has left must not end it, so SIGPIPE stays ignored.
            child = spawn_as(
                of.uid,
                words,
                {**environ, **self._environ(of)},
                stdin=subprocess.DEVNULL,
                stdout=exit_,
                stderr=exit_,
                restore_signals=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(entry)
            return str(error)[:200]
        finally:
            os.close(exit_)
        os.set_blocking(entry, False)
        said = bytearray()
        try:
            while deadline.left():
                of.started(seen(child.pid), protocol)  # again: a wrapper becomes the program meanwhile
                with suppress(BlockingIOError):
                    said += os.read(entry, 4096)
                del said[4096:]
                if child.poll() is not None:
                    return " ".join(said.decode("utf-8", "replace").split())[:200] or "it ended at once"
                if self.answers(of, deadline):
                    of.started(seen(child.pid), protocol)
                    if protocol == 3 and not self._has_namespace(of, job, deadline):
                        return "its server did not come up"
                    return ""
                time.sleep(0.05)
            return "no answer"
        finally:
            os.close(entry)

    def _has_namespace(self, of: GpuSet, job: str, deadline: Deadline) -> bool:
        # A server that exits leaves its clients without MPS and without limits, and nothing else says so.
        listed = self.ask(of, f"namespace list {namespace_of(job)} --server={SERVER} --format=csv,noheader", deadline)
        return namespace_of(job) in (listed or "")

    def admit(self, of: GpuSet, job: str, limits: Limits, deadline: Deadline) -> bool:
        """Let a further job in: under version 3 it gets a namespace. Was that possible?"""
        if of.protocol != 3 or self._has_namespace(of, job, deadline):
            return True
        for words in commands_to_join(job, limits):
            self.ask(of, " ".join(words), deadline)
        return self._has_namespace(of, job, deadline)

    def dismiss(self, of: GpuSet, job: str, deadline: Deadline) -> None:
        """A job leaves while others stay: its namespace goes."""
        if of.protocol == 3 and of.daemon is not None:
            self.ask(of, f"namespace delete {namespace_of(job)} --server={SERVER} --force", deadline)

    def drop(self, of: GpuSet, server: str, deadline: Deadline) -> None:
        """Tell the daemon to end a broken server whoever is on it, before the daemon itself is ended."""
        words = f"server delete {SERVER} --force" if of.protocol == 3 else f"shutdown_server {server} -f"
        self.ask(of, words, deadline)

    def finish(self, of: GpuSet, deadline: Deadline) -> bool:
        """End the set's daemon and its servers: by asking, SIGTERM and SIGKILL, as their user. Are they gone?"""
        last = of.last_daemon
        if last is None:
            return True
        daemon = of.daemon
        servers = below(last, "nvidia-cuda-mps-server")
        if daemon is not None:
            if of.protocol == 3:
                self._call(of.uid, ["-q"], self._environ(of), deadline.part(_STEP_S))
            else:
                self.ask(of, "quit -t 1", deadline)
            for number in (signal.SIGTERM, signal.SIGKILL):
                if _wait_gone(daemon, deadline.part(_STEP_S)):
                    break
                servers += [other for other in below(last, "nvidia-cuda-mps-server") if other not in servers]
                signal_as(daemon, number)
            _wait_gone(daemon, deadline.part(_STEP_S))
        # a server that outlives its control daemon would keep the GPU
        servers += [other for other in below(last, "nvidia-cuda-mps-server") if other not in servers]
        for server in servers:
            signal_as(server, signal.SIGKILL)
        gone = all(_wait_gone(server, deadline.part(_STEP_S)) for server in servers)
        return gone and not alive(last)


def _wait_gone(process: Process, deadline: Deadline) -> bool:
    while alive(process):
        with suppress(ChildProcessError):  # one that this very command started is ours to bury
            os.waitpid(process.pid, os.WNOHANG)
        if not deadline.left():
            return not alive(process)
        time.sleep(0.02)
    return True
