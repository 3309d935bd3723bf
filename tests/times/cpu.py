"""``python tests/times/cpu.py COMMAND…``: runs it; says its CPU time, and that as a multiple of a fixed loop's.

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
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("record.json")
_PR_SET_CHILD_SUBREAPER = 36
_EARLIER = 5


def main(command: list[str]) -> int:
    """The command's own exit code; 2 if there is none to run."""
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    sys.path.append(str(REPO))
    from benchmarks.fixed_loop import fixed_loop_s

    loop_s = fixed_loop_s()
    begin = time.monotonic()
    code = run(command)
    wall_s = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    loop_s = min(loop_s, fixed_loop_s())  # the machine may have been busier before than after
    name = " ".join(command)
    print(f"{name}: exit code {code}, {cpu_s:.1f} CPU s in {wall_s / 60:.1f} min", end="")
    print(f", {cpu_s / loop_s:.0f} times the fixed loop ({loop_s:.3f} s)")
    if command == ["make", "test"] and code == 0:
        _leave_for_the_guard(cpu_s / loop_s)
    for earlier in json.loads(RECORD.read_text(encoding="utf-8")).get(name, [])[-_EARLIER:]:
        print(f"  on record: {earlier['loops']} times, {earlier['cpu_s']} CPU s, {earlier['what']}")
    return code


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
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass  # nobody is left


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
