"""``python tools/times/cpu.py COMMAND…``: runs it; says its CPU time, and that as a multiple of a fixed loop's.

The loop is the guard's of plain Python. It runs every few seconds beside the command, so that what slows the machine
slows both.

The CPU time of every process below the command counts, of daemons that left their parents, too: this process takes
them in (prctl(2), PR_SET_CHILD_SUBREAPER) and waits for them. Those that outlive the command are not in it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from threading import Event, Thread

REPO = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER = 36
_EVERY_S = 5.0
_AT_ONCE = 3
"""The least of so many loops counts: the first finds the caches as others have left them."""


def main(command: list[str]) -> int:
    """The command's own exit code; 2 if there is none to run."""
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    loops_s, done = list[float](), Event()
    beside = Thread(target=_beside, args=(loops_s, done))
    begin = time.monotonic()
    beside.start()
    code = run(command)
    wall_s = time.monotonic() - begin
    done.set()
    beside.join()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, loop_s = used.ru_utime + used.ru_stime, fmean(loops_s)
    took = f"{cpu_s:.1f} CPU s in {wall_s / 60:.1f} min, {cpu_s / loop_s:.0f} times the fixed loop"
    print(f"{' '.join(command)}: exit code {code}, {took} ({1000 * loop_s:.1f} ms)")
    if command == ["make", "test"] and code == 0:
        _leave_for_the_guard(cpu_s / loop_s)
    return code


def _beside(loops_s: list[float], done: Event) -> None:
    """CPU seconds of the loop, now and every few seconds until it is done."""
    sys.path.append(str(REPO))
    from benchmarks.guard.loops import LOOPS

    loop = LOOPS["python"]
    loop()  # it makes what it works on
    while True:
        spent = []
        for _ in range(_AT_ONCE):
            began = time.thread_time()
            loop()
            spent.append(time.thread_time() - began)
        loops_s.append(min(spent))
        if done.wait(_EVERY_S):
            return


def _leave_for_the_guard(loops: float) -> None:
    """``make guard`` reads it, as long as the commit is the same."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True, check=False)
    (REPO / "out").mkdir(exist_ok=True)
    told = {"commit": head.stdout.strip(), "loops": round(loops)}
    (REPO / "out/make_test.json").write_text(json.dumps(told) + "\n", encoding="utf-8")


def run(command: list[str]) -> int:
    """The command's exit code, once it and the orphans that died with it are waited for."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours = os.spawnvp(os.P_NOWAIT, command[0], command)
    while True:
        ended, status = os.wait()
        if ended == ours:
            _take_in_the_dead()
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _take_in_the_dead() -> None:
    with suppress(ChildProcessError):  # nobody is left
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
