"""``lucid-sampler``: the commands that prolog, epilog and systemd call. Plain argparse keeps it small."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lucid.errors import LucidError
from lucid.node.processes import JobSpec
from lucid.node.service import NodePaths, become, run, running_pid, start, stop

_PATHS = NodePaths()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lucid-sampler", description="Samples the GPUs of the jobs on this node, from outside the jobs."
    )
    parser.add_argument("--run-dir", type=Path, default=_PATHS.run, help="announced jobs, lock, log (%(default)s)")
    parser.add_argument("--spool", type=Path, default=_PATHS.spool, help="samples (%(default)s)")
    parser.add_argument("--profiles", type=Path, default=_PATHS.profiles, help="summaries (%(default)s)")
    parser.add_argument("--source", default="nvml", help="nvml, or a dcgm-exporter's page (%(default)s)")
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="S", help="seconds between samples (%(default)s)"
    )
    parser.add_argument(
        "--node", default=socket.gethostname().partition(".")[0], help="this node's name (%(default)s)"
    )
    parser.add_argument("--as-user", metavar="USER", help="if root starts it: continue as this user")
    verbs = parser.add_subparsers(dest="verb", required=True)
    begin = verbs.add_parser("start", help="a job begins (prolog): announce it, start a sampler if none runs")
    begin.add_argument("--job", required=True, help="the job's name in Lucid: 123, or 123_4 for a task of an array")
    begin.add_argument(
        "--gpus",
        default="",
        help="its GPUs' UUIDs or device numbers, with commas (default: those that its processes use)",
    )
    begin.add_argument("--slurm-id", default="", help="the job's number in Slurm's cgroups, if it is not --job")
    begin.add_argument("--pids", default="", help="ids of its first processes, if there is no Slurm")
    begin.add_argument("--nodes", type=int, default=1, help="how many nodes the job has (%(default)s)")
    begin.add_argument("--amp", choices=("yes", "no"), help="whether it trains in mixed precision, if known")
    begin.add_argument("--workload", default="", help="label that like jobs share")
    begin.add_argument("--promised", type=float, help="normalised speed expected with its partner, if it joins one")
    begin.add_argument("--no-launch", action="store_true", help="only announce the job: a service samples it")
    finish = verbs.add_parser("stop", help="a job has ended (epilog)")
    finish.add_argument("--job", required=True)
    service = verbs.add_parser("run", help="run the sampler in the foreground")
    service.add_argument("--stay", action="store_true", help="keep running when there is no job (for systemd)")
    service.add_argument("--samples", type=int, help="end after so many rounds")
    service.add_argument("--log-file", action="store_true", help="log to the run folder instead of standard error")
    verbs.add_parser("status", help="whether a sampler runs")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    given = _parser().parse_args(arguments)
    paths = NodePaths(given.run_dir, given.spool, given.profiles)
    try:
        if given.as_user:
            become(given.as_user)
        return _verb(given, paths)
    except LucidError as error:
        sys.stderr.write(f"lucid-sampler: {error}\n")
        return error.exit_code


def _verb(given: argparse.Namespace, paths: NodePaths) -> int:
    if given.verb == "run":
        alone = run(
            paths,
            given.source,
            interval_s=given.interval,
            stay=given.stay,
            samples=given.samples,
            node=given.node,
            log_to_file=given.log_file,
        )
        return 0 if alone or not given.stay else 1
    if given.verb == "start":
        spec = JobSpec(
            given.job,
            tuple(filter(None, given.gpus.split(","))),
            given.slurm_id,
            tuple(int(pid) for pid in given.pids.split(",") if pid),
            given.nodes > 1,
            None if given.amp is None else given.amp == "yes",
            given.workload,
            given.promised,
        )
        start(paths, spec, (lambda: None) if given.no_launch else lambda: _launch(given, paths))
        return 0
    if given.verb == "stop":
        stop(paths, given.job, given.node)
        return 0
    pid = running_pid(paths)
    sys.stdout.write("no sampler runs\n" if pid is None else f"sampler {pid} runs\n")
    return 0 if pid is not None else 1


def _launch(given: argparse.Namespace, paths: NodePaths) -> None:
    """Start a sampler that outlives this command, in a session of its own and with none of its files open."""
    options = ["--run-dir", paths.run, "--spool", paths.spool, "--profiles", paths.profiles, "--source", given.source]
    options += ["--interval", str(given.interval), "--node", given.node]
    subprocess.Popen(
        [sys.executable, "-m", "lucid.node", *map(str, options), "run", "--log-file"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "CUDA_"))},
    )
