"""sbatch command lines made at random: the campaign's jobs."""

from __future__ import annotations

import random
from dataclasses import dataclass

NAME = "prog"
"""Jobs of this name were measured before: they start in slots at once."""

LOOK = (
    "env | sed -n 's/^\\(SLURM_[A-Z_]*\\|CUDA_VISIBLE_DEVICES\\)=/batch \\1=/p'; "
    "echo took $SLURM_JOB_ID; sleep {sleep_s}; {inner}"
)
"""Its variables by name, so that no script of ours reads one that it could not have in slots."""

INNER = {
    "none": "true",
    "srun": "srun sh -c 'echo step $SLURM_PROCID of $SLURM_NTASKS: $CUDA_VISIBLE_DEVICES'",
    "srun one": "srun -n1 sh -c 'echo step: $CUDA_VISIBLE_DEVICES'",
    "two steps": "for i in 1 2; do srun -n1 -c1 --exact --mem=100 sleep 0.3 & done; wait; echo both",
    "asking": "srun -n1 --gres=gpu:1 sh -c 'echo step: $CUDA_VISIBLE_DEVICES'",
    "fails": "exit 3",
    "stops": "set -e; mkdir /tmp/once-$SLURM_JOB_ID; rmdir /tmp/once-$SLURM_JOB_ID; false; echo never",
}


@dataclass(frozen=True)
class Line:
    """One command line. ``nodes``: at least and at most so many, where its user left it open."""

    options: tuple[str, ...]
    inner: str
    sleep_s: float
    nodes: tuple[int, int] | None = None

    @property
    def script(self) -> str:
        return LOOK.format(sleep_s=self.sleep_s, inner=INNER[self.inner])


def lines(count: int, seed: int) -> list[Line]:
    """As many; the same for the same seed."""
    dice = random.Random(seed)
    return [_line(dice) for _ in range(count)]


def _line(dice: random.Random) -> Line:
    gpus = dice.choice([1, 1, 1, 1, 2, 2, 2, 3, 4])
    options: list[str] = []
    kind = "" if dice.random() < 0.85 else "a100:"
    form = dice.choice(
        ["gres", "gres", "gres", "gpus", "gpus", "node", "node", "task", "-G", "socket", "many", "odd"]
    )
    tasks = 1
    nodes: tuple[int, int] | None = None
    if form == "many":
        wide = dice.choice(["--gpus-per-node=1 -N2", "--gpus-per-node=2 -N2", "--gpus=4 -N1-2", "--gpus=3 -N2",
                            "-N2 --ntasks-per-node=2 --gpus-per-task=1", "--gres=gpu:1 -N1-2"])  # fmt: skip
        options += wide.split()
        nodes = (1, 2) if "-N1-2" in wide else (2, 2)
    elif form == "odd":
        odd = ["--gres=gpu:5", "--gpus=0", "--gres=gpu:0", "--gres=gpu:nosuch:1", "--gpus=1 --gres=gpu:2"]
        options += dice.choice(odd).split()
    elif form == "task":
        tasks = min(gpus, 3)
        options += [f"--gpus-per-task={kind}1", f"--ntasks={tasks}"]
    elif form == "socket":
        options += ["--gpus-per-socket=1", "--sockets-per-node=1", "-N1"]
    else:
        option = {"gres": "--gres=gpu:", "gpus": "--gpus=", "node": "--gpus-per-node=", "-G": "-G"}[form]
        options.append(f"{option}{kind}{gpus}")
    host = dice.choice(["", "", "--cpus-per-gpu=2", "--cpus-per-gpu=3", "-c2", "-c3", "--ntasks-per-gpu=2"])
    if form == "task" and host.startswith("--ntasks"):
        host = ""
    if host:
        options.append(host)
    if dice.random() < 0.35:
        memory = ["--mem-per-gpu=700", "--mem-per-gpu=2G", "--mem=3000", "--mem=4G", "--mem-per-cpu=300", "--mem=0"]
        options.append(dice.choice(memory))
    if form not in ("many", "task", "odd", "socket") and dice.random() < 0.2:
        more = dice.choice(["-n2", "-n3", "--ntasks-per-node=2", "-N1", "-N1 -n2"])
        options += more.split()
    for option, chance in (
        ("-t5", 0.2), ("--open-mode=append", 0.1), ("--comment=for-a-paper", 0.1), ("-Ca100", 0.1),
        ("--exclusive", 0.04), ("--gpu-bind=single:1", 0.05), ("--gres-flags=enforce-binding", 0.04),
        ("--no-requeue", 0.05), ("--export=NONE", 0.05), ("--array=0-1", 0.06), ("--hint=nomultithread", 0.04),
        ("--comment=lucid:exclusive", 0.03), ("-pvc-b", 0.2), ("--signal=B:USR1@30", 0.05), ("-xn2", 0.03),
        ("--nice=10", 0.05), ("--no-kill", 0.03), ("--mincpus=2", 0.04),
    ):  # fmt: skip
        if dice.random() < chance and not (option == "-pvc-b" and nodes):
            options.append(option)
    options.append(f"--job-name={NAME if dice.random() < 0.8 else f'new{dice.randrange(1000)}'}")
    inner = dice.choice([*INNER, "none", "srun", "srun one"])
    return Line(tuple(options), inner, dice.choice([1.0, 1.5, 2.0]), nodes)
