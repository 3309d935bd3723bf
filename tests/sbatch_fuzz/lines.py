"""Command lines drawn by a seed, over what people type: sbatch, salloc and srun, and what none of them can have."""

from __future__ import annotations

import random
import shlex
from dataclasses import dataclass, replace

__all__ = ["NAME", "Case", "cases", "parse"]

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
_REST = (
    "-t5", "-t5 --time-min=1", "--exclusive", "--oversubscribe", "-wn1", "-wn2", "-xn1", "-xn2", "-Ca100", "-Cib",
    "--gpu-bind=single:1", "--gpu-bind=none", "--gres-flags=enforce-binding", "--no-requeue", "--requeue",
    "--export=NONE", "--export=ALL,MINE=7", "--signal=B:USR1@30", "--nice=10", "--no-kill", "--hint=nomultithread",
    "-pvc-b", "-pvc-a", "-pvc-a,vc-b", "--begin=now+6", "--deadline=now+20minutes -t1", "--comment=for-a-paper",
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


@dataclass(frozen=True)
class Case:
    """One line. ``options``: each with what belongs to it, so that any may be left out. ``how``: they stand on the
    line, in the script or in variables. ``inner``: what the script does beside looking around."""

    command: str
    options: tuple[str, ...]
    how: str = "line"
    inner: str = "none"

    @property
    def words(self) -> list[str]:
        """The options, word by word."""
        return [word for option in self.options for word in option.split()]

    def __str__(self) -> str:
        return shlex.join([self.command, *self.words]) + f"  # {self.how}, {self.inner}"

    def without(self, at: int) -> Case:
        """The same without one option."""
        return replace(self, options=self.options[:at] + self.options[at + 1 :])


def parse(line: str) -> Case:
    """The inverse of ``str``."""
    text, _, rest = line.partition("  # ")
    command, *options = shlex.split(text)
    how, _, inner = rest.partition(", ")
    return Case(command, tuple(options), how or "line", inner or "none")


def cases(count: int, seed: int) -> list[Case]:
    """As many; the same for the same seed."""
    dice = random.Random(seed)
    return [_case(dice) for _ in range(count)]


def _case(dice: random.Random) -> Case:
    options = [dice.choice(_GPUS).format(n=dice.choice([1, 1, 1, 2, 2, 3, 4]))]
    options += dice.sample(_SIZES, dice.choice([0, 0, 1, 1, 1, 2, 2, 3]))
    options += dice.sample(_REST, dice.choice([0, 0, 1, 1, 2, 3]))
    if dice.random() < 0.2:
        options.append(dice.choice(_NEVER))
    command = dice.choice(["sbatch"] * 8 + ["srun", "salloc"])
    options.append(f"--job-name={NAME if dice.random() < 0.8 else 'new'}")
    if command == "sbatch" and dice.random() < 0.06:
        options.append("--array=0-1")
    how = dice.choice(["line", "line", "line", "script", "variables"]) if command == "sbatch" else "line"
    dice.shuffle(options)
    return Case(command, tuple(options), how, dice.choice(_INNER) if command == "sbatch" else "none")
