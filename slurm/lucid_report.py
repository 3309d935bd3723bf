#!/usr/bin/env python3
"""lucid-report: tells Lucid how far an elastic job's training is. One file, no dependency; Python 3.6 or later.

A job whose comment says lucid:elastic=1-8 calls it after each epoch, from one process:

    python3 /etc/slurm/lucid/lucid_report.py --epochs 3 --epoch-s 41.5 --loss 0.21 --batch 256

or imports it:

    sys.path.insert(0, "/etc/slurm/lucid")
    import lucid_report
    lucid_report.report(epochs=3, epoch_s=41.5, loss=0.21, batch=256)

It replaces one small file, $LUCID_REPORTS/JOB.json (/var/spool/lucid/reports unless set), as a whole. It never fails
the job: what cannot be written is told on stderr, and the job goes on.
"""

import argparse
import contextlib
import json
import os
import sys
import threading
from pathlib import Path

FOLDER = "/var/spool/lucid/reports"
MOST = 200
"""Most losses kept: then every second one is dropped."""
MOST_PROFILE = 64
"""Most rows of step times kept; the oldest goes first."""
AGENT = ("batch_range", "atomic_range", "accumulation", "step_model", "gradient")
"""What an agent inside the job tells besides: replaced as a whole by its newest value."""


def gpus_here():
    """GPUs of this job: lucid_run's count of this start, or those of this node times its nodes."""
    try:
        job, _, ranks = os.environ.get("LUCID_RUN", "").partition(":")
        if job and job == os.environ.get("SLURM_JOB_ID"):  # another job's was inherited by sbatch
            return int(ranks)
        here = int(os.environ.get("LUCID_GPUS_HERE") or os.environ.get("SLURM_GPUS_ON_NODE") or 0)
        return here * int(os.environ.get("LUCID_NODES") or os.environ.get("SLURM_JOB_NUM_NODES") or 1)
    except ValueError:
        return 0


def path_of(folder=None, job=None):
    """The file of a job, this one unless said; None outside of a job."""
    job = str(job or os.environ.get("SLURM_JOB_ID") or "")
    folder = Path(folder or os.environ.get("LUCID_REPORTS") or FOLDER)
    return folder / (job + ".json") if job.isdigit() else None


def read(path):
    """What the job has reported so far."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return data if isinstance(data, dict) else {}
    except (OSError, ValueError):
        return {}


def merged(data, epochs, epoch_s=None, gpus=None, loss=None, batch=None, profile=(), **agent):
    """A report with what is new: epoch times by number of GPUs, losses by epochs, step times by kind of step."""
    unknown = sorted(set(agent) - set(AGENT))
    if unknown:
        raise TypeError("unknown: " + ", ".join(unknown) + "; known are " + ", ".join(AGENT))
    made = dict(data, epochs=float(epochs))
    gpus = int(gpus or gpus_here())
    if epoch_s is not None and gpus > 0:
        times = [pair for pair in data.get("epoch_s", []) if pair[0] != gpus]
        made["epoch_s"] = [*times, [gpus, float(epoch_s)]]
    if loss is not None:
        losses = [pair for pair in data.get("losses", []) if pair[0] < epochs] + [[float(epochs), float(loss)]]
        made["losses"] = losses if len(losses) <= MOST else losses[::2]
    if batch is not None:
        made["batch"] = int(batch)
    if profile:
        fresh = {tuple(row[:3]) for row in profile}
        rows = [row for row in data.get("profile", []) if tuple(row[:3]) not in fresh]
        made["profile"] = [*rows, *map(list, profile)][-MOST_PROFILE:]
    made.update((name, value) for name, value in agent.items() if value is not None)
    return made


def report(epochs, epoch_s=None, gpus=None, loss=None, batch=None, folder=None, job=None, **agent):
    """Report; True where that was written. ``epoch_s``: seconds of the last epoch, on ``gpus`` GPUs.

    ``agent``: ``profile``, rows [nodes, GPUs, samples a GPU a pass, seconds of a pass without a step, seconds of the
    last pass of a step]; ``batch_range``, [initial, largest] total batch; ``atomic_range``, [fewest, most] samples a
    GPU a pass; ``accumulation``, may several passes make a step; ``step_model``, Pollux's seven parameters;
    ``gradient``, [squared norm, variance] at the initial batch size.
    """
    path = path_of(folder, job)
    if path is None:
        return False
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        made = merged(read(path), epochs, epoch_s, gpus, loss, batch, **agent)
        text = json.dumps(made, allow_nan=False)
        with temporary.open("x") as file:  # never one that somebody else has put there
            file.write(text)
        temporary.chmod(0o644)
        temporary.replace(path)
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        sys.stderr.write(f"lucid-report: not reported: {error}\n")
        return False
    return True


def main(words=None):
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="lucid_report.py", description="Tell Lucid how far this job's training is.")
    parser.add_argument("--epochs", type=float, required=True, help="epochs done so far")
    parser.add_argument("--epoch-s", type=float, help="seconds that the last epoch took")
    parser.add_argument("--gpus", type=int, help="on so many GPUs (default: those of this job)")
    parser.add_argument("--loss", type=float, help="validation loss now")
    parser.add_argument("--batch", type=int, help="total batch size now, samples")
    said = parser.parse_args(words)
    return 0 if report(said.epochs, said.epoch_s, said.gpus, said.loss, said.batch) else 1


if __name__ == "__main__":
    sys.exit(main())
