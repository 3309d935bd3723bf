#!/usr/bin/env python3
"""lucid-run: starts one process for each GPU of a job, over all its nodes. No dependency; Python 3.6 or later.

The last line of a batch script:

    exec python3 /etc/slurm/lucid/lucid_run.py --checkpoints /shared/lucid/checkpoints python3 train.py

Each process has RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, counted anew at each start of the job, and
LUCID_CHECKPOINTS, a folder of this job alone that it finds again after a requeue. SIGTERM is passed on to all. Then
lucid-run ends with 143 where they wrote a checkpoint, and else with their status. With --adaptdl, jobs written for
AdaptDL run unchanged. docs/systems/lucid-run.md.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lucid_job import Refused, checkpoints, nodes, ranks, tell


def arguments(words):
    """Of the command line."""
    parser = argparse.ArgumentParser(
        prog="lucid_run.py", description="Start one process for each GPU of this job, over all its nodes."
    )
    parser.add_argument("--checkpoints", metavar="DIR", default=os.environ.get("LUCID_CHECKPOINT_ROOT"),
                        help="each job gets a folder of its own there (default: $LUCID_CHECKPOINT_ROOT)")  # fmt: skip
    parser.add_argument("--adaptdl", action="store_true", help="the program is written for AdaptDL")
    parser.add_argument("--clean", metavar="DAYS", type=float,
                        help="only remove your folders in DIR that are so old and whose job has ended")  # fmt: skip
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    said = parser.parse_args(words)
    said.command = said.command[1:] if said.command[:1] == ["--"] else said.command
    if (said.clean is None) == (not said.command):
        parser.error("name a program, or --clean")
    if said.clean is not None and not said.checkpoints:
        parser.error("--clean needs --checkpoints DIR")
    return said


def main(words=None):
    """Of the command line; its status."""
    said = arguments(words)
    try:
        if said.clean is not None:
            for path in checkpoints.clean(said.checkpoints, said.clean):
                print("removed", path)
            return 0
        signals = ranks.Signals()
        if nodes.JOIN in os.environ:
            return nodes.join(said, signals)
        return start(said, signals)
    except (Refused, checkpoints.Unsafe) as error:
        tell(str(error))
        return 2


def start(said, signals):
    """In the batch script."""
    count = ranks.number(os.environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "LUCID_NODES") or 1
    if count > 1 and not os.environ.get("SLURMD_NODENAME"):
        raise Refused("a job of several nodes is started from its batch script, which runs on its first node")
    folder = ""
    if said.checkpoints:
        path, says = checkpoints.folder_of(said.checkpoints, os.environ)
        folder = str(path)
        if says:
            tell(says)
    elif said.adaptdl:
        raise Refused("--adaptdl needs --checkpoints DIR, or LUCID_CHECKPOINT_ROOT: AdaptDL goes on from there")
    place = {
        "port": ranks.free_port(),
        "restart": ranks.number(os.environ, "SLURM_RESTART_COUNT"),
        "checkpoints": folder,
        "batch": ranks.chosen_batch(os.environ),
    }
    if said.adaptdl:
        try:
            from lucid_job import adaptdl  # only for such jobs: small Pythons have no http.server
        except ModuleNotFoundError as error:
            raise Refused(
                f"--adaptdl needs Python's whole standard library, and {sys.executable} has no {error.name}: call "
                "lucid_run.py with the Python of your training program, or ask for the whole python3 on the nodes"
            ) from None
        place.update(adaptdl.prepared(folder, place["restart"]))
    if count > 1:
        return nodes.over_nodes(place, said, signals, count, str(Path(__file__).resolve()))
    here = ranks.gpus_here(os.environ)
    place.update(node=0, nodes=1, first=0, here=here, world=here, master="127.0.0.1", hosts=["127.0.0.1"] * here)
    return ranks.run_here(place, said, signals)


if __name__ == "__main__":
    sys.exit(main())
