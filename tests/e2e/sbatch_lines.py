"""sbatch command lines made at random, what a job of one saw, and what two of them may differ in."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs/users.md"

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

_OWN = re.compile(
    "SLURM_(JOB_ID|JOBID|NODELIST|JOB_NODELIST|NODEID|SUBMIT_|JOB_START_TIME|JOB_END_TIME|JOB_GPUS|STEP_|TASK_PID|"
    "ARRAY_|TOPOLOGY|LAUNCH|SRUN|CONF|CLUSTER|WORKING|PRIO|SCRIPT_CONTEXT|OOM|JOB_SLUID|JOB_LICENSES|SHARDS_ON_NODE|"
    "JOB_PARTITION|JOB_NAME|JOB_UID|JOB_GID|JOB_USER|JOB_ACCOUNT|JOB_QOS|JOB_GROUP|JOB_CPUS_PER_NODE_PACK|GTIDS|"
    "LOCALID|PROCID|JOB_COMMENT|TRES_FREQ)"
)
"""What tells one run from another even on plain Slurm, or is not part of what was asked for."""


_WAITS = re.compile("Step created for|step creation temporarily disabled|step creation still disabled")
"""Of two steps the one that has to wait for the other says so, on plain Slurm as well."""


@dataclass(frozen=True)
class Line:
    """One command line. ``nodes``: at least and at most so many, where its user left it open."""

    options: tuple[str, ...]
    inner: str
    sleep_s: float
    nodes: tuple[int, int] | None = None
    free_nodes: bool = False
    """Tasks without a number of nodes: how many there are is Slurm's choice, by what is free."""
    loose: bool = False
    """What each node gives is Slurm's choice as well, by what is free there."""

    @property
    def script(self) -> str:
        return LOOK.format(sleep_s=self.sleep_s, inner=INNER[self.inner])

    def __str__(self) -> str:
        return f"sbatch {' '.join(self.options)} [{self.inner}]"


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
    free_nodes = form == "task"
    loose = form == "socket" or "--gpus=3" in options
    host = dice.choice(["", "", "--cpus-per-gpu=2", "--cpus-per-gpu=3", "-c2", "-c3", "--ntasks-per-gpu=2"])
    if form == "task" and host.startswith("--ntasks"):
        host = ""
    if host:
        options.append(host)
        free_nodes |= host.startswith(("--ntasks", "-c"))
    if dice.random() < 0.35:
        memory = ["--mem-per-gpu=700", "--mem-per-gpu=2G", "--mem=3000", "--mem=4G", "--mem-per-cpu=300", "--mem=0"]
        options.append(dice.choice(memory))
    if form not in ("many", "task", "odd", "socket") and dice.random() < 0.2:
        more = dice.choice(["-n2", "-n3", "--ntasks-per-node=2", "-N1", "-N1 -n2"])
        options += more.split()
        free_nodes = more in ("-n2", "-n3", "--ntasks-per-node=2")
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
    loose |= "--gres-flags=enforce-binding" in options
    inner = dice.choice([*INNER, "none", "srun", "srun one"])
    return Line(tuple(options), inner, dice.choice([1.0, 1.5, 2.0]), nodes, free_nodes, loose)


@dataclass(frozen=True)
class Outcome:
    """What became of one line: for each of its tasks what it was given, saw and said."""

    refused: bool
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True)
class Run:
    """One job, or one task of an array."""

    state: str
    code: int
    nodes: int
    cpus: int
    mem_mib: int
    gpus: int
    variables: tuple[tuple[str, str], ...]
    said: tuple[str, ...]
    slots: bool


def seen(record: dict[str, Any], output: str) -> Run:
    """From Slurm's record of a job that has ended, and what it wrote."""
    held = str(record.get("tres_alloc_str") or "")
    variables, said = {}, []
    for line in output.splitlines():
        found = re.match(r"batch (\w+)=(.*)", line)
        if found:
            variables[found[1]] = found[2]
        elif not line.startswith("took ") and not _WAITS.search(line):
            said.append(_plain(line))
    visible = variables.pop("CUDA_VISIBLE_DEVICES", "")
    return Run(
        record["job_state"][0],
        record["exit_code"]["return_code"]["number"] or 0,
        int(_of(held, "node")),
        int(_of(held, "cpu")),
        _mib(held),
        len([gpu for gpu in visible.split(",") if gpu]),
        tuple(sorted((key, value) for key, value in variables.items() if not _OWN.match(key))),
        tuple(sorted(said)),
        "gres/shard" in held,
    )


def _of(tres: str, key: str) -> float:
    found = re.search(rf"(?:^|,){key}=([\d.]+)", tres)
    return float(found[1]) if found else 0


def _mib(tres: str) -> int:
    found = re.search(r"(?:^|,)mem=([\d.]+)([MGT]?)", tres)
    return round(float(found[1]) * {"M": 1, "G": 1024, "T": 1024**2, "": 1 / 1024**2}[found[2]]) if found else 0


def _plain(line: str) -> str:
    """Without numbers of jobs, names of nodes and times; GPUs by their count."""
    line = re.sub(r"(?<=: )\d+(,\d+)*$", lambda gpus: f"{gpus.group().count(',') + 1} GPUs", line)
    line = re.sub(
        r"\bn\d+\b|\d{4}-\d\d-\d\dT\S+|JobId=\d+|StepId=\S+|once-\d+|job \d+|step creation for job \d+", "_", line
    )
    return re.sub(r"slurm_script: line \d+", "", line)


def excepted() -> frozenset[str]:
    """Variables that docs/users.md says differ in slots: the rows of its table of SLURM_ names."""
    return frozenset(re.findall(r"`(SLURM_[A-Z_]+)`", DOCS.read_text().partition("In slots")[2]))


def differences(line: Line, plain: Outcome, lucid: Outcome) -> list[str]:
    """What Lucid changed for the user, in words; nothing where it is all the same."""
    if plain.refused and line.loose and all(run.state in ("PENDING", "CANCELLED") for run in lucid.runs):
        return []  # Slurm does not look whether a held job could ever run; it waits, and its story says why
    if lucid.refused and {"--ntasks-per-gpu=2", "-N1-2"} <= set(line.options):
        return []  # by a rule that docs/users.md names; Slurm 24.11 refuses such a line itself
    if plain.refused != lucid.refused:
        return [f"sbatch {'refuses' if lucid.refused else 'takes'} it with Lucid"]
    if len(plain.runs) != len(lucid.runs):
        return [f"{len(lucid.runs)} runs, {len(plain.runs)} on plain Slurm"]
    found = []
    for before, after in zip(plain.runs, lucid.runs, strict=True):
        if before.state in ("PENDING", "CANCELLED"):
            if after.state not in ("PENDING", "CANCELLED"):
                found.append(f"ends as {after.state}, waits for ever on plain Slurm")
            continue
        if line.nodes is not None and line.nodes[0] != line.nodes[1]:
            if not line.nodes[0] <= after.nodes <= line.nodes[1]:
                found.append(f"{after.nodes} nodes")
            continue
        if line.free_nodes and before.nodes != after.nodes:
            continue
        for key in ("state", "code") if line.loose else ("state", "code", "nodes", "cpus", "mem_mib", "gpus", "said"):
            if getattr(before, key) != getattr(after, key):
                found.append(f"{key}: {getattr(after, key)}, on plain Slurm {getattr(before, key)}")
        if not line.loose:
            found += _variables(dict(before.variables), dict(after.variables), after.slots)
    return found


def _variables(before: dict[str, str], after: dict[str, str], slots: bool) -> list[str]:
    found = []
    allowed = excepted() if slots else frozenset()
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key) and key not in allowed:
            found.append(f"{key}={after.get(key)!r}, on plain Slurm {before.get(key)!r}")
    return found
