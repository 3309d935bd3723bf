"""Job arrays through sbatch and squeue, behind the same prefix as every other Slurm command."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence

from lucid.errors import ActionRefused, ClusterUnavailable

__all__ = ["array_left", "submit_array"]

_TIMEOUT_S = 60.0
_OVER = ("invalid job id",)
"""squeue's words for a job that has left its memory."""


def submit_array(
    prefix: Sequence[str], elements: Sequence[int], command: Sequence[str], options: Sequence[str], log: str
) -> str:
    """Submit one job for each of ``elements``; each runs ``command`` with its number as one word more.

    Args:
        prefix: words before sbatch.
        elements: their numbers.
        command: what to run, word by word.
        options: more of sbatch's; they overrule ours.
        log: where output goes, ``%a`` standing for the number.

    Returns:
        The array's job id.

    Raises:
        ClusterUnavailable: sbatch does not answer.
        ActionRefused: it refused, in its own words.
    """
    numbers = ",".join(map(str, elements))
    words = ["sbatch", "--parsable", f"--array={numbers}", "--job-name=lucid-tune", f"--output={log}", *options]
    script = f'#!/bin/sh\nexec {shlex.join(command)} "$SLURM_ARRAY_TASK_ID"\n'
    done = _run(prefix, words, script)
    found = re.match(r"\d+", done.stdout.strip())
    if done.returncode or found is None:
        raise ActionRefused(f"sbatch: {(done.stderr or done.stdout).strip() or 'no answer'}")
    return found[0]


def array_left(prefix: Sequence[str], job_id: str) -> int:
    """How many elements of an array still wait or run; 0 once Slurm has forgotten it.

    Raises:
        ClusterUnavailable: squeue does not answer, or not to the point.
    """
    done = _run(prefix, ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={job_id}"], "")
    if done.returncode:
        said = done.stderr.strip()
        if any(words in said.lower() for words in _OVER):
            return 0
        raise ClusterUnavailable(f"squeue: {said or 'no answer'}")
    return len(done.stdout.split())


def _run(prefix: Sequence[str], words: Sequence[str], script: str) -> subprocess.CompletedProcess[str]:
    # ssh joins its words and gives them to a shell over there
    ssh = any(word.rpartition("/")[2] == "ssh" for word in prefix)
    try:
        return subprocess.run(
            [*prefix, *(map(shlex.quote, words) if ssh else words)],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterUnavailable(f"{words[0]}: no answer within {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise ClusterUnavailable(f"{words[0]}: cannot be run ({error.strerror}); check slurm.prefix") from None
