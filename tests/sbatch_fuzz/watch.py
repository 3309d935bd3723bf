"""Runs a line on a testbed, and tells what its user got."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from box import OVER, Box

from sbatch_fuzz.lines import Case

__all__ = ["Got", "Run", "run"]

_LOOK = "env -0 > /tmp/fuzz-$SLURM_JOB_ID.batch"
_STEP = "sh -c 'test $SLURM_PROCID != 0 || env -0 > /tmp/fuzz-$SLURM_JOB_ID.step; echo task'"
_INNER = {"none": "true", "step": f"srun {_STEP}", "one": f"srun -n1 {_STEP}", "fails": "exit 3"}
_STUCK = frozenset(
    ["BadConstraints", "PartitionConfig", "PartitionNodeLimit", "Resources", "Reservation", "Licenses"]
)
_PATIENCE_S = 12.0


@dataclass(frozen=True)
class Run:
    """One job, or one task of an array: how it ended and what it held. ``nodes`` by number, ``mem`` in MiB."""

    state: str
    code: int
    nodes: int = 0
    cpus: int = 0
    mem_mib: int = 0
    gpus: int = 0
    slots: bool = False
    tasks: int = 0
    """Lines that its step's tasks wrote."""
    hosts: str = ""
    """The nodes by name, as Slurm lists them."""
    batch: Mapping[str, str] = field(default_factory=dict)
    step: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Got:
    """What became of a line. ``said``: what the command wrote on stderr, in Slurm's words."""

    code: int
    said: str
    runs: tuple[Run, ...] = ()


def run(box: Box, case: Case, patience_s: float = _PATIENCE_S) -> Got:
    """Type the line as alice, wait for its end (a job that waits for longer is cancelled), and look."""
    for left in (box.root / "tmp").glob("fuzz-*"):
        left.unlink()
    script = f"{_LOOK}; {_INNER[case.inner]}"
    if case.command != "sbatch":
        shell = ["sh", "-c", _LOOK] if case.command == "salloc" else ["sh", "-c", _STEP.partition("'")[2][:-1]]
        before = _last(box)
        done = _typed(box, [case.command, *case.words, *shell], {}, patience_s)
        numbers = re.findall(r"(?:job|allocation) (\d+)", done.stderr) or ([] if _last(box) == before else _last(box))
    else:
        words, environ, text = case.words, dict[str, str](), f"#!/bin/sh\n{script}\n"
        if case.how == "script":
            text = "#!/bin/sh\n" + "".join(f"#SBATCH {option}\n" for option in case.options) + script + "\n"
            words = []
        elif case.how == "variables":
            words, environ = _as_variables(words)
        (box.root / "tmp/fuzz.sh").write_text(text)
        line = ["sbatch", "--parsable", "-D", "/tmp", "-o", "/tmp/fuzz-%j.out", *words, "/tmp/fuzz.sh"]
        done = _typed(box, line, environ, patience_s)
        numbers = [done.stdout.strip()] if done.returncode == 0 else []
    records = _ended(box, set(numbers[:1]), patience_s)
    runs = tuple(_seen(box, record) for record in records)
    return Got(done.returncode, _plain(done.stderr), runs)


_NAMED = {"-n": "NTASKS", "-N": "NODES", "-c": "CPUS_PER_TASK", "-t": "TIMELIMIT", "-p": "PARTITION", "-G": "GPUS"}
_VARIABLES = frozenset(
    [
        "gres", "gpus", "gpus-per-node", "gpus-per-task", "mem-per-cpu", "mem-per-gpu", "cpus-per-gpu", "exclusive",
        "partition", "requeue", "no-requeue", "hint", "signal", "job-name", "gpu-bind", "gres-flags",
    ]
)  # fmt: skip


def _as_variables(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Those that sbatch reads of the environment as variables, and the rest."""
    rest, environ = [], {}
    for word in words:
        name, _, value = word.partition("=")
        short = _NAMED.get(word[:2]) if not word.startswith("--") else None
        if short in ("PARTITION", "GPUS", "TIMELIMIT"):
            environ[f"SBATCH_{short}"] = word[2:]
        elif name[2:] in _VARIABLES:
            environ["SBATCH_" + name[2:].upper().replace("-", "_")] = value or "1"
        else:
            rest.append(word)
    return rest, environ


def _typed(
    box: Box, words: list[str], environ: Mapping[str, str], patience_s: float
) -> subprocess.CompletedProcess[str]:
    shell = ["env", *(f"{key}={value}" for key, value in environ.items())]
    stop = ["timeout", "-s", "INT", "-k", "3", f"{patience_s:.0f}"] if words[0] != "sbatch" else []
    return box.run(*shell, *stop, *words, user="alice", check=False)


def _last(box: Box) -> list[str]:
    numbers = [int(number) for number in box.jobs()]
    return [str(max(numbers))] if numbers else []


def _ended(box: Box, numbers: set[str], patience_s: float) -> list[dict[str, Any]]:
    """The records of a job, or of its array's tasks, once they have ended or have waited in vain."""
    until, stuck = time.monotonic() + patience_s, 0
    while numbers:
        number = next(iter(numbers))
        text = box.run("scontrol", "show", "job", number, "--json", check=False).stdout
        mine: list[dict[str, Any]] = json.loads(text)["jobs"] if text else []
        done = [job["job_state"][0] in OVER and "COMPLETING" not in job["job_state"] for job in mine]
        waits = [job["job_state"] == ["PENDING"] and job["state_reason"] in _STUCK for job in mine]
        stuck = stuck + 1 if any(waits) and all(a or b for a, b in zip(done, waits, strict=True)) else 0
        if all(done) or stuck > 25 or time.monotonic() > until:
            if not all(done):
                box.run("scancel", number, check=False)
                box.wait("an empty queue", lambda: not box.run("squeue", "-h", "-a").stdout.strip())
            return sorted(mine, key=lambda job: int(job["array_task_id"]["number"]))
        time.sleep(0.1)
    return []


def _seen(box: Box, job: dict[str, Any]) -> Run:
    held = str(job.get("tres_alloc_str") or "")
    number = str(job["job_id"])
    batch, step = (_environment(box, f"{number}.{part}") for part in ("batch", "step"))
    output = box.root / f"tmp/fuzz-{number}.out"
    tasks = output.read_text(errors="replace").split().count("task") if output.exists() else 0
    visible = (batch or step).get("CUDA_VISIBLE_DEVICES", "")
    return Run(
        job["job_state"][0], job["exit_code"]["return_code"]["number"] or 0, int(_of(held, "node")),
        int(_of(held, "cpu")), _mib(held), len([gpu for gpu in visible.split(",") if gpu]), "gres/shard" in held,
        tasks, str(job.get("nodes") or ""), batch, step,
    )  # fmt: skip


def _environment(box: Box, name: str) -> dict[str, str]:
    path = box.root / f"tmp/fuzz-{name}"
    if not path.exists():
        return {}
    items = path.read_bytes().decode(errors="replace").split("\0")
    return dict(item.partition("=")[::2] for item in items if item)  # type: ignore[arg-type]


def _of(tres: str, key: str) -> float:
    found = re.search(rf"(?:^|,){key}=([\d.]+)", tres)
    return float(found[1]) if found else 0.0


def _mib(tres: str) -> int:
    found = re.search(r"(?:^|,)mem=([\d.]+)([MGT]?)", tres)
    return round(float(found[1]) * {"M": 1, "G": 1024, "T": 1024**2, "": 1 / 1024**2}[found[2]]) if found else 0


def _plain(text: str) -> str:
    """Without numbers of jobs and names of nodes."""
    text = re.sub(r"\b[Jj]ob(Id=| allocation | )\d+", "job _", text)
    lines = [re.sub(r"\bn\d+\b|allocation \d+", "_", line) for line in text.splitlines()]
    return "\n".join(
        line for line in lines if not re.search("queued and waiting|has been allocated|Pending job|Nodes", line)
    )
