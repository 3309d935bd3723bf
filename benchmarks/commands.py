"""What the commands that people type all day cost: CPU time of the whole process, beside ``lucidctl --help``. The two
take turns, and the least of several tries counts."""

from __future__ import annotations

import os
import pty
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.figure import Figure
from benchmarks.stored import stored

__all__ = ["COMMANDS", "cpu_s", "figures", "large"]

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "status": (),
    "queue": (),
    "explain": ("WAITING",),
    "why-not": ("WAITING",),
    "when": ("--gpus", "4"),
    "history": (),
    "efficiency": (),
}
"""With a job that waits in the place of WAITING."""
_TRIES = 5
_MOST, _MOST_TOP, _MOST_HELP = 2.5, 4.4, 1.3
"""Times the CPU time of ``lucidctl --help``: where that takes 0.16 s, 0.4, 0.7 and 0.2 s."""
_START = "from lucid.cli.main import main; main()"
_HELP = ("--help",)


def figures(runs: int) -> Iterator[Figure]:
    """Each command over a small picture, and its help."""
    tries = max(runs, _TRIES)
    yield from _over(40, 40, 12, tries, _MOST, _MOST_TOP)
    yield from _told({f"{name} --help": (name, *_HELP) for name in (*COMMANDS, "top")}, "", tries, _MOST_HELP)


def large(runs: int) -> Iterator[Figure]:
    """Each command over a large picture."""
    yield from _over(10_000, 4_000, 1_050, runs)


def _over(
    pending: int, running: int, nodes: int, tries: int, most: float | None = None, most_top: float | None = None
) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lucid-bench-commands-") as name:
        folder = Path(name)
        waiting, _ = stored(folder, pending, running, nodes, decisions=4 * pending, ended=pending)
        config, picture = ("--config", str(folder / "lucid.toml")), f"{pending:,} waiting, {running:,} running"
        asked = {
            command: (command, *(waiting if word == "WAITING" else word for word in rest), *config)
            for command, rest in COMMANDS.items()
        }
        yield from _told(asked, picture, tries, most)
        yield from _top(config, picture, tries, most_top)


def _told(asked: Mapping[str, Sequence[str]], picture: str, tries: int, most: float | None) -> Iterator[Figure]:
    least: dict[str, float] = {}
    for _ in range(tries):
        for name, words in {"": _HELP, **asked}.items():
            least[name] = min(least.get(name, float("inf")), cpu_s(words))
    for name in asked:
        yield _figure(name, picture, least[name], least[""], tries, most)


def _top(config: Sequence[str], picture: str, tries: int, most: float | None) -> Iterator[Figure]:
    beside, spent = (
        min(found) for found in zip(*((cpu_s(_HELP), _top_s(config)) for _ in range(tries)), strict=True)
    )
    yield _figure("top, first look", picture, spent, beside, tries, most)


def _figure(name: str, picture: str, spent: float, beside: float, tries: int, most: float | None) -> Figure:
    limit = None if most is None else round(1000.0 * most * beside, 1)
    return Figure(
        f"lucidctl {name}", 1000.0 * spent, "ms", tries, 1000.0 * beside, "lucidctl --help", limit, note=picture
    )


def cpu_s(words: Sequence[str]) -> float:
    """CPU seconds of one ``lucidctl`` with these words, its children and threads in it.

    Raises:
        RuntimeError: it failed.
    """
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    pid = os.posix_spawn(sys.executable, _command(words), _environment(), file_actions=nowhere)
    return _spent(pid, words)


def _top_s(config: Sequence[str]) -> float:
    """CPU seconds of ``lucidctl top`` in a terminal. The key q ends it once it has shown its first screen."""
    pid, terminal = pty.fork()
    if not pid:
        os.execve(sys.executable, _command(("top", "--every", "3600", *config)), _environment())
    seen, until = b"", time.monotonic() + 60.0
    while b"held;" not in seen and time.monotonic() < until:
        seen += os.read(terminal, 1 << 16)
    os.write(terminal, b"q")
    try:
        while os.read(terminal, 1 << 16):
            pass
    except OSError:  # what Linux says of a terminal that nobody writes to any more
        pass
    spent = _spent(pid, ("top",))
    os.close(terminal)
    return spent


def _spent(pid: int, words: Sequence[str]) -> float:
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"lucidctl {' '.join(words)} failed: {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", _START, *words]


def _environment() -> dict[str, str]:
    """As a user's, whose Lucid is compiled."""
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}, "TERM": "xterm-256color"}
