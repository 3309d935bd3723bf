"""The jobs of a campaign: drawn with its seed, so that the same seed asks for the same things at the same times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from sbatch_lines import Line, lines

from campaign.facts import Order

FOLDER = "/var/campaign"
"""In the testbed: a file for each job that counts its runs, and its output."""
USERS = ("alice", "bob", "carol")
PARTITIONS = {"vc-a": 2, "vc-b": 1}
"""With their number of nodes, of four GPUs each."""
SCAVENGERS = "scav"
"""A partition over their nodes, whose jobs they preempt."""
KNOWN = ("bert", "resnet", "gnn", "vit")
"""Programs that are submitted again and again; a name that is none of these is new to Lucid."""
GAPS_S = (1.6, 4.5)
"""Mean seconds between two orders, in turn for a minute each: a queue builds up and is worked off."""
_TURN_S = 60.0


def script(order: Order) -> str:
    """What sbatch is given: a line as the run begins, what it does, a line as it ends of itself.

    Two runs of the same job at the same time are noticed by a lock that each holds as long as one of its processes
    lives. Appending a line is whole or nothing, also while another run does. A run that was ended by a signal has not
    ended of itself.
    """
    return f"""#!/bin/bash
f={FOLDER}/runs/{order.token}${{SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}}
exec 9>>$f.lock
flock -n 9 && h=alone || h=beside
echo "BEGIN $EPOCHREALTIME $SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}} $SLURM_JOB_NODELIST $h" >> $f
( {order.body} )
c=$?
[ $c -gt 128 ] && exit $c
echo "END $EPOCHREALTIME $SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}} $c" >> $f
exit $c
"""


def orders(seed: int, until_s: float) -> Iterator[Order]:
    """In order of time, up to ``until_s`` seconds."""
    dice = random.Random(f"orders {seed}")
    drawn = iter([line for line in lines(4000, seed) if _fits(line)])
    at_s, count, before = 0.0, 0, ""
    while True:
        at_s += dice.expovariate(1 / GAPS_S[int(at_s / _TURN_S) % len(GAPS_S)])
        if at_s >= until_s:
            return
        for order in _some(dice, drawn, at_s, before):
            count += 1
            order = replace(order, token=f"j{seed}-{count:05d}")
            yield order
            before = order.token


def _fits(line: Line) -> bool:
    """Can it run on this cluster while nodes come and go? What plain Slurm refuses or never starts tells nothing."""
    words = " ".join(line.options)
    odd = any(
        word in words for word in ("gpu:5", "nosuch", "gpu:0", "--gpus=0", "--gpus=1 --gres=gpu:2", "--exclusive")
    )
    return not odd and not ("-xn2" in words and line.nodes) and "-N2" not in words and line.inner != "stops"


def _some(dice: random.Random, drawn: Iterator[Line], at_s: float, before: str) -> list[Order]:
    """One thing that a user does."""
    user, partition = dice.choice(USERS), dice.choice(["vc-a", "vc-a", "vc-b"])
    gpus = dice.choice([1, 1, 1, 2, 2, 4])
    known = dice.random() < 0.7
    name = dice.choice(KNOWN) if known else f"new{dice.randrange(10**6)}"
    seconds = min(max(dice.lognormvariate(2.3, 0.7), 1.0), 60.0)
    plain = _order(at_s, user, partition, name, gpus, seconds, dice)
    kind = dice.choices(list(_KINDS), list(_KINDS.values()))[0]
    match kind:
        case "pair":
            return [plain, replace(plain, options=(*plain.options[:-1], f"--job-name={name}b"))]
        case "array":
            tasks = tuple(range(dice.randint(2, 4)))
            limit = dice.choice(["", "", "%1"])
            more = (f"--array=0-{tasks[-1]}{limit}",)
            return [
                replace(plain, options=plain.options + more, tasks=tasks, gpus=0, body=f"sleep {seconds / 2:.1f}")
            ]
        case "line":
            return [_of_line(next(drawn), at_s, user)]
        case "begin":
            return [replace(plain, options=(*plain.options, f"--begin=now+{dice.randint(5, 40)}"))]
        case "after":
            how = dice.choice(["afterany", "afterany", "afterok"])
            ends = plain.ends | {"CANCELLED"} if how == "afterok" else plain.ends
            more = (f"--dependency={how}:{{after}}", "--kill-on-invalid-dep=yes")
            return [replace(plain, options=plain.options + more, after=before, ends=ends)] if before else [plain]
        case "off":
            return [_said(plain, "lucid:off")]
        case "exclusive":
            return [_said(plain, "lucid:exclusive")]
        case "hold":
            return [replace(plain, options=(*plain.options, "--hold"), release_after_s=dice.uniform(3, 20))]
        case "wide":
            words = ("-p", "vc-a", "-N2", f"--gpus-per-node={gpus}", f"--job-name={name}")
            return [replace(plain, options=words, partition="vc-a", nodes=2, restarts=False)]
        case "fails":
            return [replace(plain, body=f"sleep {seconds / 2:.1f}; exit 3", ends=frozenset({"FAILED"}))]
        case "overdue":
            words = (*plain.options, "-t1")
            return [replace(plain, options=words, body="sleep 300", ends=frozenset({"TIMEOUT"}))]
        case "bare":
            return [replace(plain, options=("-p", partition, f"--job-name={name}"), gpus=0, restarts=False)]
        case "twice":
            return [replace(plain, body=f"srun sleep {seconds / 3:.1f}; srun -n1 sleep {seconds / 3:.1f}")]
    return [plain]


_KINDS = {
    "plain": 30, "pair": 14, "array": 6, "line": 14, "begin": 4, "after": 5, "off": 3, "exclusive": 3, "hold": 3,
    "wide": 5, "fails": 4, "overdue": 1, "bare": 3, "twice": 5,
}  # fmt: skip
"""What users do, and how often."""


def _order(
    at_s: float, user: str, partition: str, name: str, gpus: int, seconds: float, dice: random.Random
) -> Order:
    form = dice.choice(
        [f"--gres=gpu:{gpus}", f"--gpus-per-node={gpus}", f"--gpus={gpus} -N1", f"--gres=gpu:a100:{gpus}"]
    )
    options: tuple[str, ...] = ("-p", partition, *form.split())
    again = dice.random()
    if again < 0.3:
        options += ("--requeue",) if again < 0.15 else ("--comment=lucid:restart",)
    elif again < 0.37:
        options += ("--no-requeue",)
    if dice.random() < 0.3:
        options += (f"-t{dice.choice([5, 10, 30])}",)
    return Order(
        token="",
        at_s=at_s,
        user=user,
        options=(*options, f"--job-name={name}"),
        body=f"sleep {seconds:.1f}",
        restarts=again < 0.3,
        cancel_after_s=dice.uniform(0.5, 30) if dice.random() < 0.07 else None,
        partition=partition,
        gpus=gpus,
    )


def _said(order: Order, words: str) -> Order:
    """With these words for its comment, in place of any other."""
    options = tuple(word for word in order.options if not word.startswith("--comment="))
    return replace(order, options=(*options, f"--comment={words}"), restarts="--requeue" in options)


def _of_line(line: Line, at_s: float, user: str) -> Order:
    """A command line drawn as the tests of such lines draw them. How it ends on plain Slurm is theirs to compare;
    here it may fail, but it must not vanish, run twice or wait for ever."""
    tasks = (0, 1) if "--array=0-1" in line.options else ()
    return Order(
        token="",
        at_s=at_s,
        user=user,
        options=tuple(word for option in line.options for word in option.split()),
        body=line.script.replace("env | ", "env 2>/dev/null | "),
        tasks=tasks,
        ends=frozenset({"COMPLETED", "FAILED"}),
        may_be_refused=True,
    )
