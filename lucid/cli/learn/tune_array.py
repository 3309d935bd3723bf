"""``lucidctl tune --slurm``: a search as a job array, looked after over several calls of the same command."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from lucid.adapters.slurm.clients.job_array import array_left, submit_array
from lucid.atomic import write_atomic
from lucid.cli.console import say
from lucid.cli.progress import progress
from lucid.errors import LucidError
from lucid.tuner.spread import Spread, gather, short_elements

__all__ = ["run_array"]

_LOOK_S = 5.0
_JOB = "array.json"


def run_array(folder: Path, spread: Spread, options: Sequence[str], on_node: Sequence[str], wait: bool) -> bool:
    """See to it that all trials get done. True once they are there, and gathered for the judgement.

    Raises:
        ClusterError: sbatch or squeue does not answer, or refuses.
        LucidError: an array that was waited for ended without all of its trials.
    """
    prefix = spread.scenario.settings.slurm.prefix
    left = short_elements(folder, spread)
    job_id = _known(folder)
    if left and not (job_id and array_left(prefix, job_id)):
        command = [*on_node, "tune", "element", str(folder.resolve())]
        job_id = submit_array(prefix, sorted(left), command, options, str(folder.resolve() / "element-%a.log"))
        write_atomic(folder / _JOB, json.dumps({"job_id": job_id}).encode())
        say(f"job array {job_id}: {len(left)} elements for {sum(left.values())} trials", err=True)
    if left and wait:
        with progress("waiting for the array") as report:
            while array_left(prefix, job_id):
                report(spread.trials - sum(short_elements(folder, spread).values()), spread.trials)
                time.sleep(_LOOK_S)
        left = short_elements(folder, spread)
        if left:
            lost = ", ".join(map(str, left))
            raise LucidError(
                f"job array {job_id} is over, and {sum(left.values())} trials of elements {lost} are missing; look "
                f"at {folder / 'element-*.log'}, then give the same command again"
            )
    if left:
        done = spread.trials - sum(left.values())
        say(f"{done} of {spread.trials} trials done; the same command again judges once all are", err=True)
        return False
    gather(folder, spread)
    return True


def _known(folder: Path) -> str:
    path = folder / _JOB
    return str(json.loads(path.read_text())["job_id"]) if path.exists() else ""
