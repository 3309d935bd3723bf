"""``make clients``: each program of people.py on plain Slurm and in pack mode, with free GPUs and while others hold
all. Exit code 1 where its words, or the order of its jobs' states, their exit codes or restarts, differ."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("tools", "tests", "tests/e2e", "slurm"))]

from box import OVER, Box  # noqa: E402
from testbeds import MountedPython, python_in  # noqa: E402

from sbatch_fuzz.site import knowing, up  # noqa: E402

CLIENTS = "by_submitit,by_dask,by_parsl,by_snakemake,as_lightning,as_nextflow"
_HOME = "opt/clients"
_BUSY_S = 20.0
"""So long after the program's start others hold all GPUs."""


@contextmanager
def _held(box: Box) -> Iterator[None]:
    """All GPUs of vc-a, and those of the profiling node, are others' for a while."""
    whole = ["--exclusive", "--gres=gpu:4", "--comment=lucid:exclusive"]
    full = [box.sbatch("-N2", *whole, script="sleep 900", user="bob")]
    full.append(box.sbatch("-pprof", *whole, script="sleep 900", user="root"))
    box.wait("no free GPU", lambda: all(box.state(number) == "RUNNING" for number in full))
    end = threading.Timer(_BUSY_S, lambda: box.run("scancel", *full))
    end.start()
    yield
    end.join()


def _look(box: Box, found: dict[str, list[str]]) -> None:
    """Note the states of alice's jobs, in order."""
    for number, job in box.jobs().items():
        if job["user_name"] == "alice":
            states = found.setdefault(number, ["PENDING"])
            state = next((one for one in job["job_state"] if one in OVER | {"PENDING", "RUNNING"}), states[-1])
            ran = state in ("COMPLETED", "FAILED") and states[-1] == "PENDING"
            states += ["RUNNING"] * ran + [state] * (state != states[-1])


def saw(box: Box, python: MountedPython, client: str, busy: bool) -> list[str]:
    """What one client printed on one side, and a line of each of its jobs."""
    folder = f"/tmp/{client}-{busy}"
    box.run("mkdir", folder, user="alice")
    line = f"cd {folder}; export HOME={folder} USER=alice {python.environment}; "
    line += f"{python.program} /{_HOME}/people.py {client} 2>errors"
    before, found = box.jobs(), dict[str, list[str]]()
    with _held(box) if busy else ExitStack():
        done = subprocess.Popen(
            ["chroot", "--userspec=alice", str(box.root), "sh", "-c", line],
            stdout=subprocess.PIPE, text=True, cwd="/", stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        while done.poll() is None:
            _look(box, found)
            time.sleep(0.3)
    if done.returncode:
        box.run("scancel", "--user=alice", check=False)
        print(*(box.root / folder[1:] / "errors").read_text().splitlines()[-9:], sep="\n", file=sys.stderr)
    box.wait("the end of all", lambda: _look(box, found) or not box.run("squeue", "-h", "-a").stdout.strip())
    jobs = []
    for number in found.keys() - before.keys():
        job = box.job(number)
        name = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\.\d[\d.]*", "_", str(job["name"]))
        code = job["exit_code"]["return_code"]["number"] or 0
        jobs.append(f"{name}: {' '.join(found[number])}, exit code {code}, {job['restart_cnt']} restarts")
    assert done.stdout
    return [f"exit code {done.returncode}: {done.stdout.read().strip()}", *sorted(jobs)]


def main() -> int:
    """0: every client is the same on both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="an interpreter that has the clients")
    parser.add_argument("--only", default=CLIENTS)
    asked = parser.parse_args()
    rows = list[str]()
    with ExitStack() as stack:
        boxes = stack.enter_context(up({"LUCID_TESTBED_NAME": "clients", **os.environ}))
        pythons = [stack.enter_context(python_in(box, asked.python, _HOME)) for box in boxes]
        for box in boxes:
            (box.root / _HOME / "people.py").write_bytes((ROOT / "tools/clients/people.py").read_bytes())
        stack.enter_context(knowing(boxes[1], restarts=""))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        for client in asked.only.split(","):
            for busy, when in ((False, "free GPUs"), (True, "all GPUs held")):
                sides = [pool.submit(saw, *side, client, busy) for side in zip(boxes, pythons, strict=True)]
                plain, lucid = (side.result() for side in sides)
                word = "the same" if plain == lucid else "DIFFERS"
                word = word if plain[0].startswith("exit code 0") else f"FAILS without Lucid, {word}"
                rows.append(f"{client[3:]:<10}  {when:<13}  {len(plain) - 1:>2} jobs  {word}")
                print(rows[-1], file=sys.stderr, flush=True)
                if word != "the same":
                    print("  plain", *plain, "  pack", *lucid, sep="\n    ", file=sys.stderr, flush=True)
        print(f"Slurm {'.'.join(map(str, boxes[0].release))}", *rows, sep="\n")
    return 0 if all(row.endswith("  the same") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
