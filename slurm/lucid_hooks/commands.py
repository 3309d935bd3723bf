"""The commands that prolog, epilog and an administrator call, as root.

    start --job ID --uid UID --gpus UUID,UUID… [--mem-limit MIB] [--threads PERCENT]
    stop --job ID
    check
    unseal --job ID --restarts N --node NAME --gpus 0,1 [--daemon USER]     (the job's Extra on standard input)
    site-prolog|site-epilog NODE.CONF     (the environment of the caller when it began)

``start`` prints ``sharing=…``; it always exits 0 unless it is called wrongly (2), for a failing prolog would drain
the node. ``unseal`` prints ``gpus=…`` (device numbers) ``mem=… speed=… turns=1 mps=0``, or nothing and why not.
``site-…`` exits as the site's scripts do.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import syslog
import time
from collections.abc import Sequence
from pathlib import Path

from lucid_hooks import seal, sharing, site
from lucid_hooks.control import Control
from lucid_hooks.plan import Limits
from lucid_hooks.processes import Deadline
from lucid_hooks.state import Busy, State, Unsafe

__all__ = ["main"]

_LONGEST_EXTRA = 4096


def _that(pattern: str, says: str) -> type[str]:
    def checked(text: str) -> str:
        if re.fullmatch(pattern, text, re.ASCII) is None:
            raise argparse.ArgumentTypeError(f"{text!r} {says}")
        return text

    return checked  # type: ignore[return-value]


def _percentage(text: str) -> int:
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= 100:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no percentage")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lucid_hooks", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    job = _that("[A-Za-z0-9_+-]{1,64}", "is no job id")
    number = _that("[0-9]{1,10}", "is no number")
    gpus = _that(
        r"(GPU|MIG)-[0-9A-Za-z-]+(,(GPU|MIG)-[0-9A-Za-z-]+)*",
        "names no GPUs: give UUIDs (nvidia-smi -L); a daemon renumbers indices for its clients",
    )
    start = verbs.add_parser("start", allow_abbrev=False)
    start.add_argument("--job", required=True, type=job)
    start.add_argument("--uid", required=True, type=_that("[0-9]{1,10}", "is no user id"))
    start.add_argument("--gpus", required=True, type=gpus)
    start.add_argument("--mem-limit", default="", type=_that("[0-9]{0,9}", "is no number of MiB"))
    start.add_argument("--threads", type=_percentage)
    stop = verbs.add_parser("stop", allow_abbrev=False)
    stop.add_argument("--job", required=True, type=job)
    looks = verbs.add_parser("check", allow_abbrev=False)
    for verb in (start, stop, looks):
        verb.add_argument("--dir", type=Path, default=Path("/run/lucid-mps"), help="root's own folder (%(default)s)")
        verb.add_argument("--control", default="nvidia-cuda-mps-control", help="NVIDIA's program (%(default)s)")
        verb.add_argument("--protocol", type=int, choices=(0, 2, 3), default=0, help="of MPS; 0: the newest known")
        verb.add_argument("--within", type=float, default=12.0, metavar="S", help="time for all of it (%(default)s)")
    unseal = verbs.add_parser("unseal", allow_abbrev=False)
    unseal.add_argument("--job", required=True, type=number)
    unseal.add_argument("--restarts", required=True, type=number)
    unseal.add_argument("--node", required=True)
    unseal.add_argument("--gpus", required=True, help="as in SLURM_JOB_GPUS")
    unseal.add_argument("--daemon", default="lucid", help="lucidd's user, by name or number (%(default)s)")
    for name in ("site-prolog", "site-epilog"):
        verbs.add_parser(name, allow_abbrev=False).add_argument("conf", type=Path)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one verb; returns the exit code."""
    given = _parser().parse_args(arguments)
    if given.verb.startswith("site-"):
        return site.run_scripts(given.verb, given.conf)
    if not hasattr(os, "pidfd_open"):
        sys.stderr.write("lucid_hooks: Python 3.9 or later is needed, on Linux 5.3 or later; MPS is not started\n")
        return 0
    os.umask(0o022)  # who reaches what is said by each mode, whatever slurmd's umask is
    path = os.environ.get("PATH", os.defpath)
    try:
        lines = _unseal(given, path) if given.verb == "unseal" else _mps(given, path)
    except (Unsafe, Busy, OSError) as error:
        lines = ["sharing=time-slicing", f"reason={error}"] if given.verb == "start" else []
        sys.stderr.write(f"lucid_hooks: {error}\n")
    except seal.Refused as error:
        syslog.syslog(syslog.LOG_AUTHPRIV | syslog.LOG_NOTICE, f"lucid: job {given.job} gets no MPS: {error}")
        sys.stderr.write(f"lucid_hooks: job {given.job} gets no MPS: {error}\n")
        return 0
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _mps(given: argparse.Namespace, path: str) -> list[str]:
    deadline = Deadline(given.within)
    state = State(given.dir)
    state.prepare()
    control = Control(state, given.control, given.protocol)
    if given.verb == "stop":
        return sharing.end(state, control, given.job, deadline)
    if given.verb == "check":
        return sharing.check(state, control, deadline)
    limits = Limits(int(given.mem_limit) if given.mem_limit else None, given.threads)
    job = sharing.Job(given.job, int(given.uid), given.gpus.split(","), limits)
    return sharing.begin(state, control, job, path, deadline)


def _unseal(given: argparse.Namespace, path: str) -> list[str]:
    extra = sys.stdin.buffer.read(_LONGEST_EXTRA).decode("ascii", "replace")
    places = [int(text) for text in re.findall(r"[0-9]{1,3}", given.gpus, re.ASCII)]
    text = seal.opened(extra, given.daemon, path, time.time(), Deadline(4.0))
    sealed = seal.read(text, given.job, int(given.restarts), given.node, places)
    items = f"gpus={','.join(map(str, sealed.gpus))} mem={sealed.mem} speed={sealed.speed}"
    return [items + " turns=1" * sealed.turns + " mps=0" * (not sealed.mps)]
