"""Command lines drawn by a seed, over what people type: sbatch, salloc and srun, what none of them can have, and what
is typed while a job waits."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

NAME = "prog"
"""Jobs of this name were measured before, so that Lucid starts them in slots at once."""

_GPUS = (
    "--gres=gpu:{n}", "--gres=gpu:a100:{n}", "--gpus={n}", "-G{n}", "-Ga100:{n}", "--gpus-per-node={n}",
    "--gpus-per-node=a100:{n}", "--gpus-per-task=1 -n{n}", "--tres-per-task=gres/gpu:1 -n{n}",
    "--gpus-per-socket=1 --sockets-per-node=1 -N1", "--gpus={n} -N1-2", "--gpus-per-node=1 -N2", "--gres=gpu:1 -N1,2",
)  # fmt: skip
_SIZES = (
    "-n1", "-n2", "-n3", "-n4", "-N1", "-N2", "-N1 -n2", "-N2 -n4", "--ntasks-per-node=2", "-n4 --ntasks-per-node=2",
    "--ntasks-per-gpu=1", "--ntasks-per-gpu=2", "-c2", "-c3", "--cpus-per-gpu=2", "--cpus-per-gpu=3", "--mincpus=2",
    "--mincpus=5", "--mem=3000", "--mem=4G", "--mem=0", "--mem-per-cpu=300", "--mem-per-gpu=700", "--mem-per-gpu=2G",
    "--mem-per-gpu=20G", "--tmp=10",
)  # fmt: skip
# No limit of a minute: Slurm sends --signal up to a minute early, so that some such jobs end at once on plain Slurm,
# too. Its backfilling gives the least limit of --time-min, its main scheduler the whole one.
_REST = (
    "-t5", "-t5 --time-min=3", "--exclusive", "--oversubscribe", "-wn1", "-wn2", "-xn1", "-xn2", "-Ca100", "-Cib",
    "--gpu-bind=single:1", "--gpu-bind=none", "--gres-flags=enforce-binding", "--no-requeue", "--requeue",
    "--export=NONE", "--export=ALL,MINE=7", "--signal=B:USR1@30", "--nice=10", "--no-kill", "--hint=nomultithread",
    "-pvc-b", "-pvc-a", "-pvc-a,vc-b", "--begin=now+6", "--deadline=now+20minutes -t3", "--comment=for-a-paper",
    "--use-min-nodes", "--immediate", "--distribution=cyclic", "--cpus-per-task=1", "--wait-all-nodes=1",
    "--threads-per-core=1",
)  # fmt: skip
_NEVER = (
    "--mem=10T", "-N50", "-n4000", "--gpus=500", "--mincpus=999999", "--tmp=100T", "-c17", "-xn[1-6]", "-wn3",
    "-wn9", "--gres=gpu:5", "--gres=gpu:nosuch:1", "--gpus=0", "--gres=gpu:0",
    "--gpus-per-task=1 --gpus-per-node=1 -n2 -N1", "-pnosuch", "--qos=nosuch", "--account=nosuch",
    "--reservation=nosuch", "--licenses=nosuch", "-Cnosuch",
    "--deadline=now+1minute -t60", "-t-5x", "-nx", "--gres=gpu:-1", "--mem-per-gpu=500G", "--cpus-per-gpu=40",
)  # fmt: skip
_INNER = ("none", "none", "step", "step", "one", "fails")
_DEPENDENCIES = ("afterok:FIRST", "afterany:FIRST", "afternotok:FIRST", "after:FIRST", "singleton")
_CHANGES = (
    "scontrol update JobId=JOB TimeLimit=3", "scontrol update JobId=JOB TimeLimit=+5", "scontrol hold JOB",
    "scontrol update JobId=JOB NumNodes=1",
    "scontrol update JobId=JOB NumNodes=2", "scontrol update JobId=JOB ReqNodeList=n2",
    "scontrol update JobId=JOB ReqNodeList=n3", "scontrol update JobId=JOB ExcNodeList=n1",
    "scontrol update JobId=JOB TresPerNode=gres/gpu:2", "scontrol update JobId=JOB TresPerNode=gpu:1",
    "scontrol update JobId=JOB TresPerJob=gres/gpu:2", "scontrol update JobId=JOB Gres=gpu:3",
    "scontrol update JobId=JOB NumTasks=2", "scontrol update JobId=JOB NumCPUs=3",
    "scontrol update JobId=JOB MinMemoryNode=2000", "scontrol update JobId=JOB MinMemoryNode=900000",
    "scontrol update JobId=JOB MinCPUsNode=3", "scontrol update JobId=JOB Partition=vc-b",
    "scontrol update JobId=JOB Partition=vc-a,vc-b", "scontrol update JobId=JOB Partition=nosuch",
    "scontrol update JobId=JOB Dependency=afterany:FIRST", "scontrol update JobId=JOB Dependency=afternotok:FIRST",
    "scontrol update JobId=JOB Features=ib", "scontrol update JobId=JOB Features=nosuch",
    "scontrol update JobId=JOB Nice=50", "scontrol update JobId=JOB Nice=-50", "scontrol update JobId=JOB Priority=7",
    "scontrol update JobId=JOB StartTime=now", "scontrol update JobId=JOB StartTime=now+4",
    "scontrol update JobId=JOB Comment=mine", "scontrol update JobId=JOB OverSubscribe=no",
    "scontrol update JobId=JOB Requeue=0", "scontrol update JobId=JOB QOS=four-gpus",
    "scontrol update JobId=JOB Account=capped", "scontrol update JobId=JOB Licenses=matlab:1",
    "scontrol release JOB", "scontrol requeue JOB", "scontrol suspend JOB", "scontrol top JOB", "scancel JOB",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One line. ``options``: each with what belongs to it, so that any may be left out. ``how``: they stand on the
    line, in the script or in variables. ``inner``: what the script does beside looking around. ``first``: a job that
    came before, FIRST in an option: "ends" or "fails" after a while, "meets" this one, or is "busy" with all GPUs
    until all of ``then`` is typed: lines such as ``alice: scontrol hold JOB``."""

    command: str
    options: tuple[str, ...]
    how: str = "line"
    inner: str = "none"
    first: str = "nothing"
    then: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The options, word by word."""
        return [word for option in self.options for word in option.split()]

    def __str__(self) -> str:
        line = shlex.join([self.command, *self.words])
        return "; ".join([f"{line}  # {self.how}, {self.inner}, {self.first}", *self.then])

    def shorter(self) -> Iterator[Case]:
        """The same without one option, or without one of the lines typed then."""
        for at in range(len(self.options)):
            yield replace(self, options=self.options[:at] + self.options[at + 1 :])
        for at in range(len(self.then)):
            yield replace(self, then=self.then[:at] + self.then[at + 1 :])


def parse(text: str) -> Case:
    """The inverse of ``str``."""
    line, *then = text.split("; ")
    line, _, rest = line.partition("  # ")
    command, *options = shlex.split(line)
    how, inner, first = rest.split(", ") if rest else ("line", "none", "nothing")
    return Case(command, tuple(options), how, inner, first, tuple(then))


def cases(count: int, seed: int) -> list[Case]:
    """As many; the same for the same seed."""
    dice = random.Random(seed)
    return [_case(dice) for _ in range(count)]


def _case(dice: random.Random) -> Case:
    kind = dice.choices(["alone", "waits", "het", "depends", "meets", "changed"], [60, 4, 4, 8, 6, 18])[0]
    options = _options(dice, kind == "alone")
    name = options[-1]
    if kind == "alone":
        command = dice.choice(["sbatch"] * 8 + ["srun", "salloc"])
    else:
        command = dice.choice(["sbatch", "sbatch", "srun", "salloc"]) if kind == "het" else "sbatch"
    if command == "sbatch" and dice.random() < 0.06:
        options.append("--array=0-1")
    if kind == "changed":
        # plain Slurm works tasks by GPU out anew then, and otherwise; a range of nodes takes what is just free
        options = [option for option in options if not re.search("ntasks-per-gpu|N1[-,]2", option)]
    if kind == "waits":
        options.append("--wait")
    elif kind == "depends":
        options.append(f"--dependency={dice.choice(_DEPENDENCIES)}")
    dice.shuffle(options)
    if kind == "het":
        options += [":", *_options(dice, False)[:-1], name]  # of two names either may win, on plain Slurm as well
    how = dice.choice(["line", "line", "line", "script", "variables"]) if command == "sbatch" else "line"
    inner = dice.choice(_INNER if command == "sbatch" else _INNER[:4] if command == "salloc" else _INNER[:1])
    first = {"depends": dice.choice(["ends", "fails"]), "meets": "meets", "changed": "busy"}.get(kind, "nothing")
    then = []
    for change in dice.sample(_CHANGES, dice.choice([1, 1, 2])) if kind == "changed" else ():
        who = dice.choice(["alice", "alice", "root"])
        then.append(f"{who}: {change}")
        if change == "scontrol hold JOB":
            then.append(f"{dice.choice(['alice', 'root'])}: scontrol release JOB")
    return Case(command, tuple(options), "line" if kind == "het" else how, inner, first, tuple(then))


def _options(dice: random.Random, any_at_all: bool) -> list[str]:
    """What is asked for: GPUs, and more of it where the job is ``alone``."""
    options = [dice.choice(_GPUS).format(n=dice.choice([1, 1, 1, 2, 2, 3, 4]))]
    options += dice.sample(_SIZES, dice.choice([0, 0, 1, 1, 1, 2, 2, 3] if any_at_all else [0, 0, 1]))
    options += dice.sample(_REST, dice.choice([0, 0, 1, 1, 2, 3] if any_at_all else [0, 0, 1]))
    if any_at_all and dice.random() < 0.07:
        options.append(dice.choice(_NEVER))
    return [*options, f"--job-name={NAME if dice.random() < 0.85 else 'new'}"]
