"""README typed as a newcomer types it: its own lines and those of the pages that it links to, as processes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from box import Box
from test_install_guide import blocks
from testbeds import PATH

import typed

REPO = Path(__file__).resolve().parents[2]
_LIMIT_S = 300.0
_ENVIRON = {"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/tmp", "COLUMNS": "160", "TERM": "dumb"}


def lines_of(page: str, heading: str) -> list[str]:
    """What the page lets its reader type below this heading, one command a line."""
    text = (REPO / page).read_text(encoding="utf-8")
    found = [block.lines for block in blocks(text) if block.heading == heading]
    assert found, f"{page} has nothing to type below {heading}"
    return [line for line in map(typed.uncommented, "".join(found).splitlines()) if line]


def named_in(page: str, heading: str) -> list[str]:
    """The commands that the sentences of the page name below this heading."""
    part = (REPO / page).read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [shlex.join(command.words) for command in typed.commands_of(part) if command.mention]


class Reader:
    """The newcomer, at a machine with the checkout, and on a site. ``steps``: what was typed so far."""

    def __init__(self, box: Box, home: Path) -> None:
        self.box, self.home, self.steps = box, home, list[str]()
        self._since_s = time.monotonic()
        self._shells: dict[str, subprocess.Popen[str]] = {}
        # In place of what `make` and `pip install` would make: the programs of this checkout, by the Python that
        # runs this test. (`make typed` installs the wheel.)
        self._program("lucidctl", f"exec {sys.executable} -m lucid.cli.main")
        self._program("pip", f"exec {sys.executable} -m pip")
        self._program("make", f"exec /usr/bin/make -o .venv/.installed BIN={home}")

    def _program(self, name: str, does: str) -> None:
        path = self.home / name
        path.write_text(f'#!/bin/sh\n{does} "$@"\n')
        path.chmod(0o755)

    def _step(self, line: str) -> None:
        self.steps.append(line)
        print(f"{len(self.steps):3} ({time.monotonic() - self._since_s:.0f} s)  {line}")

    @contextmanager
    def here(self, line: str, **environ: str) -> Iterator[Path]:
        """One line, typed in the checkout. It runs beside the block, and has to end well; gives what it prints to."""
        self._step(line)
        said = self.home / f"said-{len(self.steps)}"
        path = f"{self.home}:{os.environ['PATH']}"
        with said.open("w") as printed:
            child = subprocess.Popen(
                ["sh", "-c", line], cwd=REPO, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": path, "PYTHONPATH": str(REPO), "COLUMNS": "200", **environ},
            )  # fmt: skip
        try:
            yield said
            status = child.wait(300)
        finally:
            child.kill()
            child.wait()
        assert status == 0, f"{line}:\n{said.read_text()[-3000:]}"

    def first_page(self, line: str) -> str:
        """What is served by a command that serves pages until it is ended."""
        self._step(line)
        program, *words = shlex.split(line)
        return typed.first_page([str(self.home / program), *words, "--port", "0"], _LIMIT_S)

    def answer(self, line: str, *answers: str) -> str:
        """One line, typed on the site by root at a terminal, and the answers to what it asks."""
        self._step(line)
        words = shlex.join(["chroot", str(self.box.root), "sh", "-c", line])
        done = subprocess.run(
            ["script", "-qec", words, "/dev/null"], input="".join(f"{answer}\n" for answer in answers),
            capture_output=True, text=True, check=False, cwd="/", timeout=_LIMIT_S, env=_ENVIRON,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}:\n{done.stdout[-3000:]}"
        return done.stdout

    def type(self, *lines: str, user: str = "root") -> str:
        """Lines, typed on the site into the one shell of this user; returns what they print."""
        said = ""
        for line in lines:
            self._step(line)
            said += self.printed(line, user)
        return said

    def printed(self, line: str, user: str) -> str:
        """What a line prints in the shell of this user; it is no step."""
        if user not in self._shells:
            self._shells[user] = subprocess.Popen(
                ["chroot", f"--userspec={user}", str(self.box.root), "sh", "-eu"], cwd="/", env=_ENVIRON, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        shell, said = self._shells[user], ""
        assert shell.stdin
        assert shell.stdout
        limit = threading.Timer(_LIMIT_S, shell.kill)
        limit.start()
        shell.stdin.write(f"{line}\necho ::typed\n")
        shell.stdin.flush()
        while (printed := shell.stdout.readline()) != "::typed\n":
            assert printed, f"{line}:\n{said[-3000:]}"  # the shell has ended
            said += printed
        limit.cancel()
        return said

    def close(self) -> None:
        for shell in self._shells.values():
            shell.kill()
            shell.communicate()
