"""A testbed goes with the program that made it, however that ends.

- The program ends by itself, by an exception or by SIGTERM, SIGINT or SIGHUP: `kept` takes its testbed down.
- It is killed, or falls: a second process that does nothing but wait for its end (the watcher) does that.
- The watcher was killed, too: the next start clears what is left (`cli.down`, `cli.up`).

What the program started beside its testbeds ends with them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from testbed import cli
from testbed.owner import MARK, dead, end_marked, mark_of
from testbed.settings import Layout, layout_from

__all__ = ["SIGNALS", "Stopped", "kept", "watch", "watched"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EVERY_S = 0.3


class Stopped(SystemExit):
    """A signal ended the program. Nothing but the place that made the testbed has to know."""


@contextmanager
def kept(*layouts: Layout, stop: Callable[[int], None] | None = None) -> Iterator[None]:
    """These testbeds are down when the block has ended, whoever brings them up in it.

    Args:
        layouts: The testbeds.
        stop: Called with the number of a signal in place of raising ``Stopped``; it makes the block end.
    """
    watched(layouts[0].cache / "run")

    def told(number: int, _: FrameType | None) -> None:
        _not_again()
        if stop is not None:
            return stop(number)
        raise Stopped(128 + number)

    before = _on_signals(told)
    try:
        yield
    finally:
        _not_again()
        try:
            for layout in reversed(layouts):
                cli.down(layout)
            end_marked(os.environ[MARK])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def watched(runs: Path) -> None:
    """From now on a watcher waits for the end of this process. Testbeds that it makes are this process's. *runs*:
    the folder in which they lie."""
    mark = mark_of(os.getpid())
    if os.environ.get(MARK) == mark:
        return
    environ = {name: value for name, value in os.environ.items() if name != MARK}
    words = [sys.executable, str(Path(__file__).parent), "watch", mark, str(runs)]
    subprocess.run(  # a session of its own and init for a parent: what ends this program does not reach it
        ["setsid", "--fork", *words], env=environ, cwd="/", check=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.environ[MARK] = mark


def watch(mark: str, runs: Path) -> list[str]:
    """Wait for the end of this program, then end what it has left; returns what was done.

    Args:
        mark: Of the program.
        runs: The folder in which testbeds lie.
    """
    while not dead(mark):
        time.sleep(_EVERY_S)
    ended = end_marked(mark)
    done = [f"ended {ended} processes beside the testbeds"] if ended else []
    for home in sorted(runs.glob("*")):
        described = cli.described_in(home)
        if described is not None and described.get("owner") == mark:
            done += cli.down(_layout(described, home), owner=mark)
    return done


def _layout(described: dict[str, Any], home: Path) -> Layout:
    environ = {"LUCID_TESTBED": str(home.parent.parent), "LUCID_TESTBED_NAME": home.name}
    layout = layout_from({**environ, "LUCID_TESTBED_SUITE": described["suite"]})
    nodes = tuple(replace(layout.nodes[0], hosts=hosts) for hosts in described["gpus"])
    return replace(layout, nodes=nodes, cgroup=described.get("cgroup", "none"))


def _on_signals(do: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Returns what was done before. What is ignored stays so: by nohup, or by a shell for what runs beside it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, do)
    return before


def _not_again() -> None:
    """To take a testbed down takes seconds, and is not to be cut short. Programs started meanwhile hear signals."""
    _on_signals(lambda *_: None)
