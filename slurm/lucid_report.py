#!/usr/bin/env python3
"""lucid-report: tells Lucid how far an elastic job's training is. Python 3.6 or later, no dependency; lucid_job/ lies
beside it.

A job whose comment says lucid:elastic=1-8 calls it after each epoch, from one process:

    python3 /etc/slurm/lucid/lucid_report.py --epochs 3 --epoch-s 41.5 --loss 0.21 --batch 256

or imports it:

    sys.path.insert(0, "/etc/slurm/lucid")
    import lucid_report
    lucid_report.report(epochs=3, epoch_s=41.5, loss=0.21, batch=256)

It replaces one small file, $LUCID_REPORTS/uUID/JOB.json (/var/spool/lucid/reports unless set), as a whole. It never
fails the job: what cannot be written is told on stderr, and the job goes on. What stands there and is not a small
file of this user counts as nothing.
"""

import argparse
import contextlib
import json
import os
import sys
import threading
from pathlib import Path

if __name__ == "__main__":  # python3 -I does not look beside the program
    sys.path.insert(0, str(Path(__file__).resolve().parent))
from lucid_job import untrusted

FOLDER = "/var/spool/lucid/reports"
MOST = 200
"""Most losses kept: then every second one is dropped."""
MOST_PROFILE = 64
"""Most rows of step times kept; the oldest goes first."""
STAGES = ("storage", "cpu", "gpu", "network", "iteration")
"""Of one iteration alone, in seconds; lucid_turns.py measures them."""
AGENT = ("batch_range", "atomic_range", "accumulation", "step_model", "gradient", "in_turns")
"""What an agent inside the job tells besides: replaced as a whole by its newest value."""


def gpus_here():
    """GPUs of this job: lucid_run's count of this start, or the task prolog's, or those of this node times its
    nodes."""
    try:
        job, _, ranks = os.environ.get("LUCID_RUN", "").partition(":")
        if job and job == os.environ.get("SLURM_JOB_ID"):  # another job's was inherited by sbatch
            return int(ranks)
        if os.environ.get("LUCID_GPUS"):
            return int(os.environ["LUCID_GPUS"])
        here = int(os.environ.get("LUCID_GPUS_HERE") or os.environ.get("SLURM_GPUS_ON_NODE") or 0)
        return here * int(os.environ.get("LUCID_NODES") or os.environ.get("SLURM_JOB_NUM_NODES") or 1)
    except ValueError:
        return 0


def job_of(job=None):
    """The number of a job, this one unless said; "" outside of a job."""
    job = str(job or os.environ.get("SLURM_JOB_ID") or "")
    return job if job.isdigit() else ""


def path_of(folder, job):
    """The file of a job in its user's folder, which is made. Raises OSError."""
    root = str(folder or os.environ.get("LUCID_REPORTS") or FOLDER)
    return Path(untrusted.place(root, job + ".json"))


def merged(data, epochs=None, epoch_s=None, gpus=None, loss=None, batch=None, profile=(), stages=None, **agent):
    """A report with what is new: epoch times by number of GPUs, losses by epochs, step times by kind of step. Without
    ``epochs`` those that stand there hold, 0 at first."""
    unknown = sorted(set(agent) - set(AGENT))
    if unknown:
        raise TypeError("unknown: " + ", ".join(unknown) + "; known are " + ", ".join(AGENT))
    if epochs is None:
        epochs = data.get("epochs", 0)
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
    if stages is not None:
        if not set(stages) <= set(STAGES) or any(not 0 <= float(value) < float("inf") for value in stages.values()):
            raise ValueError("stages: seconds from 0 up, of " + ", ".join(STAGES))
        made["stages"] = {name: float(stages.get(name, 0)) for name in STAGES}
    made.update((name, value) for name, value in agent.items() if value is not None)
    return made


def report(epochs=None, epoch_s=None, gpus=None, loss=None, batch=None, folder=None, job=None, **agent):
    """Report; True where that was written. ``epoch_s``: seconds of the last epoch, on ``gpus`` GPUs. ``stages``:
    seconds of one iteration alone, ``{"storage": s, "cpu": s, "gpu": s, "network": s, "iteration": s}``.

    ``agent``: ``profile``, rows [nodes, GPUs, samples a GPU a pass, seconds of a pass without a step, seconds of the
    last pass of a step]; ``batch_range``, [initial, largest] total batch; ``atomic_range``, [fewest, most] samples a
    GPU a pass; ``accumulation``, may several passes make a step; ``step_model``, Pollux's seven parameters;
    ``gradient``, [squared norm, variance] at the initial batch size; ``in_turns``, [seconds of an iteration beside
    others, jobs that take turns], empty where there are none.
    """
    job, temporary = job_of(job), None
    if not job:
        return False
    try:
        path = path_of(folder, job)
        new = epochs, epoch_s, gpus, loss, batch
        try:
            text = json.dumps(merged(untrusted.json_of(str(path), os.geteuid()), *new, **agent), allow_nan=False)
        except Exception:  # what stands there, or what is new, cannot be: without the former it shows
            text = json.dumps(merged({}, *new, **agent), allow_nan=False)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        with temporary.open("x") as file:  # never one that somebody else has put there
            file.write(text)
        temporary.chmod(0o644)
        temporary.replace(path)
    except Exception as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        sys.stderr.write(f"lucid-report: not reported: {error}\n")
        return False
    return True


def main(words=None):
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="lucid_report.py", description="Tell Lucid how far this job's training is.")
    parser.add_argument("--epochs", type=float, help="epochs done so far")
    parser.add_argument("--epoch-s", type=float, help="seconds that the last epoch took")
    parser.add_argument("--gpus", type=int, help="on so many GPUs (default: those of this job)")
    parser.add_argument("--loss", type=float, help="validation loss now")
    parser.add_argument("--batch", type=int, help="total batch size now, samples")
    parser.add_argument("--stages", type=_stages, help="seconds of an iteration: storage=0.1,gpu=0.5,iteration=0.6")
    said = parser.parse_args(words)
    if said.epochs is None and said.stages is None:
        parser.error("say --epochs, or --stages")
    told = {} if said.stages is None else {"stages": said.stages}
    return 0 if report(said.epochs, said.epoch_s, said.gpus, said.loss, said.batch, **told) else 1


def _stages(text):
    try:
        return {name: float(seconds) for name, _, seconds in (part.partition("=") for part in text.split(","))}
    except ValueError:
        words = f"{text!r}: write seconds by name, as in gpu=0.5,iteration=0.7"
        raise argparse.ArgumentTypeError(words) from None


if __name__ == "__main__":
    sys.exit(main())
