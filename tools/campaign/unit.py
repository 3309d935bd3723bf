"""What systemd does for Lucid on its host: lucidd kept alive and watched, the release timer.

It goes by ``slurm/systemd/lucidd.service``: what is to be done after a stop, and so on. Only the times are shorter,
so that minutes show what else takes hours.
"""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from campaign.site import BOUND_S, REPO, TIMER_S, Site
from testbed.settings import TestbedError

WATCHDOG_S = 30.0
"""120 s as installed."""
RESTART_S = 2.0
"""5 s as installed."""
_STOP_S = 25.0


class Unit:
    """``lucidd.service``. One thread starts lucidd and stays its parent: lucidd ends when that thread does."""

    def __init__(self, site: Site, host: str, log: Path, note: Callable[..., None]) -> None:
        self._site, self.host, self._log, self._note = site, host, log, partial(note, host=host)
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.died: list[str] = []
        """Ends that nobody brought about."""
        self._lock = threading.RLock()
        self._expected = False
        self._orders: list[tuple[Callable[[], Any], threading.Event]] = []
        self._stopping = threading.Event()
        self._not_before = 0.0
        self._wanted = True
        self._power = True
        self._alive_s = 0.0
        self._thread = threading.Thread(target=self._live, name="systemd", daemon=True)
        self._thread.start()

    # -- what may be asked of it -----------------------------------------------------------------------------

    def send(self, number: signal.Signals) -> int:
        """To lucidd itself; returns its number, 0 where none runs."""
        with self._lock:
            if self.process is None or self.process.poll() is not None:
                return 0
            self._expected = self._expected or number == signal.SIGKILL
            self.process.send_signal(number)
            return self.process.pid

    def keep_down(self) -> None:
        """As when systemd has given up on it: it is killed, and nothing is started."""
        self._wanted = False
        self.send(signal.SIGKILL)

    def lose_power(self) -> None:
        """Its host goes: nobody does anything there until it is let up again. Call this before the host is ended."""
        self._power = self._wanted = False
        self.send(signal.SIGKILL)

    def let_up(self) -> None:
        """It is started again, if it is not up. Its host is on."""
        self._power = self._wanted = True

    def restart(self, limit_s: float = 90.0) -> bool:
        """``systemctl restart``; says whether it came about in time."""
        return self._ask(self._restart, limit_s)

    def spare(self, limit_s: float = 30.0) -> subprocess.Popen[bytes] | None:
        """A second lucidd, that nobody watches."""
        box: list[subprocess.Popen[bytes]] = []
        self._ask(lambda: box.append(self._spawn({})), limit_s)
        return box[0] if box else None

    def close(self) -> None:
        """End it, and whatever it started."""
        self._stopping.set()
        self._thread.join(60)

    def _ask(self, do: Callable[[], Any], limit_s: float) -> bool:
        done = threading.Event()
        with self._lock:
            self._orders.append((do, done))
        return done.wait(limit_s)

    # -- its life --------------------------------------------------------------------------------------------

    def _live(self) -> None:
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._address = f"lucid-campaign-{self._site.layout.name}-{self.host}-{os.getpid()}"
        self._ear.bind(f"\0{self._address}")
        self._ear.settimeout(0.2)
        while not self._stopping.is_set():
            self._hear()
            self._look()
            while self._orders:
                do, done = self._orders.pop(0)
                do()
                done.set()
        self._stop()
        self._ear.close()

    def _hear(self) -> None:
        try:
            said = self._ear.recv(4096)
        except TimeoutError:
            return
        if b"READY=1" in said or b"WATCHDOG=1" in said:
            self._alive_s = time.monotonic()

    def _look(self) -> None:
        process = self.process
        if process is None:
            if self._wanted and time.monotonic() >= self._not_before:
                self._start()
            return
        code = process.poll()
        if code is None:
            if time.monotonic() - self._alive_s > WATCHDOG_S:
                self._note("watchdog", pid=process.pid, silent_s=round(time.monotonic() - self._alive_s))
                self._expected = True
                process.send_signal(signal.SIGABRT)
                try:
                    process.wait(3)
                except subprocess.TimeoutExpired:
                    process.kill()
                self._alive_s = time.monotonic()
            return
        with self._lock:
            self.process, expected, self._expected = None, self._expected, False
        if not expected:
            self.died.append(f"{time.strftime('%H:%M:%S', time.gmtime())} exit code {code}")
        self._note("lucidd ended", code=code, expected=expected)
        self._after("success" if code == 0 else "signal" if code < 0 else "exit-code")
        self._not_before = time.monotonic() + RESTART_S

    def _start(self) -> None:
        self._after("", "ExecStartPre")
        with self._lock:
            self._alive_s, self._expected = time.monotonic() + 60, False  # until it is ready it has longer
            self.process = self._spawn({"NOTIFY_SOCKET": f"@{self._address}"})
            self.starts += 1
        self._note("lucidd started", pid=self.process.pid)

    def _spawn(self, more: dict[str, str]) -> subprocess.Popen[bytes]:
        program = [
            *self._site.python(),
            str(REPO / "tests/e2e/jumping_lucidd.py"),
            "--config",
            str(self._site.config),
        ]
        environ = {**os.environ, "JUMP_FILE": str(self._site.jump), "PYTHONPATH": str(REPO), **more}
        words = [*self._site.on(self.host), *self._site.as_lucid(*program)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPO, env=environ, start_new_session=True
            )

    def _restart(self) -> None:
        if self._power:
            self._site.restarting(self.host).touch()
            self._stop()
            self._site.restarting(self.host).unlink(missing_ok=True)
            self._start()

    def _stop(self) -> None:
        """Politely, as ``systemctl stop`` does, and then what the unit says is to follow."""
        with self._lock:
            process, self.process = self.process, None
        if process is None:
            return
        self._after("success", "ExecStop")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        result = "success"
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._note("lucidd did not stop", pid=process.pid)
            process.kill()
            process.wait(10)
            result = "timeout"
        if not self._stopping.is_set():
            self._after(result)

    def _after(self, result: str, key: str = "ExecStopPost") -> None:
        """The lines of this name in the unit. ``+`` is root, ``-`` is whatever comes of it."""
        if not self._power:
            return
        for words in _lines(key):
            marks = words[0][: len(words[0]) - len(words[0].lstrip("+-:!@"))]
            program, *rest = [words[0][len(marks) :], *words[1:]]
            user = "root" if "+" in marks else "lucid"
            environ = {"SERVICE_RESULT": result, **released(self._site)}
            if Path(program).name == "lucidctl":
                done = self._site.ctl(*[word for word in rest if not word.startswith("--config")], limit_s=60)
            else:
                done = self._site.run(program, *rest, user=user, limit_s=60, on=self.host, **environ)
            if done.returncode and "-" not in marks:
                self._note(key, command=Path(program).name, code=done.returncode, said=done.stderr.strip()[-200:])


class ReleaseTimer:
    """``lucid-release.timer`` of both hosts: the real script, as lucidd's user, now and then."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._turn, name="timer", daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        names = itertools.cycle(self._site.layout.controllers)
        while not self._stop.wait(TIMER_S / len(self._site.layout.controllers)):
            with suppress(TestbedError):  # a host that is off has no timer
                release(self._site, on=next(names))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(70)


def release(site: Site, *words: str, on: str) -> subprocess.CompletedProcess[str]:
    """One run of ``lucid-release``.

    Raises:
        TestbedError: the host is switched off.
    """
    return site.run("/etc/slurm/lucid/lucid-release", *words, user="lucid", limit_s=60, on=on, **released(site))


def released(site: Site) -> dict[str, str]:
    """What stands in /etc/lucid/release.env."""
    return {"LUCID_BOUND_S": str(BOUND_S), "LUCID_HEARTBEAT": "/run/lucid/heartbeat"}


def _lines(key: str) -> list[list[str]]:
    text = (REPO / "slurm/systemd/lucidd.service").read_text()
    return [shlex.split(line.partition("=")[2]) for line in text.splitlines() if line.startswith(f"{key}=")]
