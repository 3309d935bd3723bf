"""Runs a line on a testbed, and tells what its user got."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from box import OVER, Box

from sbatch_fuzz.lines import NAME, Case

_LOOK = "env -0 > /tmp/fuzz-$SLURM_JOB_ID.batch"
_TASK = "test $SLURM_PROCID != 0 || env -0 > /tmp/fuzz-$SLURM_JOB_ID.step; echo task"
_STEP = f"sh -c '{_TASK}'"
_INNER = {"none": "true", "step": f"srun {_STEP}", "one": f"srun -n1 {_STEP}", "fails": "exit 3"}
_FIRST: Mapping[str, Sequence[tuple[str, str]]] = {
    "nothing": [],
    "ends": [("--gres=gpu:1", "sleep 1")],
    "fails": [("--gres=gpu:1", "sleep 1; exit 3")],
    "meets": [("--gres=gpu:1", "sleep 4")],
    "busy": [
        (f"{where} --exclusive --gres=gpu:4 --comment=lucid:exclusive", "sleep 99") for where in ("-N2", "-pvc-b")
    ],
}
_STUCK = frozenset(
    [
        "BadConstraints", "PartitionConfig", "PartitionNodeLimit", "Resources", "Reservation", "Licenses",
        "DependencyNeverSatisfied",
    ]
)  # fmt: skip
_PATIENCE_S = 20.0
_SACCT = ("State", "ExitCode", "ReqTRES", "AllocTRES", "NTasks", "ElapsedRaw")


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
    number: str = ""
    sacct: Mapping[str, str] = field(default_factory=dict)
    """What sacct says of it, as "batch AllocTRES"."""


@dataclass(frozen=True)
class Got:
    """What became of a line. ``said``: what the command wrote on stderr, in Slurm's words. ``then``: the same of what
    was typed while the job waited."""

    code: int
    said: str
    runs: tuple[Run, ...] = ()
    then: tuple[tuple[int, str], ...] = ()


def run(box: Box, case: Case, patience_s: float = _PATIENCE_S) -> Got:
    """Type the line as alice, wait for its end (a job that waits for longer is cancelled), and look."""
    for left in (box.root / "tmp").glob("fuzz-*"):
        left.unlink()
    first = [box.sbatch(*options.split(), f"--job-name={NAME}", script=text) for options, text in _FIRST[case.first]]
    if case.first == "busy":
        box.wait("no free GPU", lambda: all(box.state(number) == "RUNNING" for number in first))
    case = replace(case, options=tuple(option.replace("FIRST", "".join(first[:1])) for option in case.options))
    done, numbers = _batch(box, case, patience_s) if case.command == "sbatch" else _at_once(box, case, patience_s)
    then = []
    for line in case.then if numbers else ():
        who, _, words = line.replace("JOB", numbers[0]).replace("FIRST", "".join(first[:1])).partition(": ")
        answer = box.run(*words.split(), user=who, check=False)
        then.append((answer.returncode, _plain(answer.stderr + answer.stdout)))
    if case.first == "busy":
        box.run("scancel", *first)
        box.wait("free GPUs", lambda: all(box.state(number) in OVER for number in first))
        first = []
    records = _ended(box, [*first, *numbers[:1]], patience_s)
    tasks = done.stdout.split().count("task")
    # Slurm may keep the waiting tasks of an array in one record, or not
    records = [job for job in records for _ in re.findall(r"\d+", str(job.get("array_task_string") or "")) or [0]]
    return Got(done.returncode, _plain(done.stderr), tuple(_seen(box, job, tasks) for job in records), tuple(then))


def _at_once(box: Box, case: Case, patience_s: float) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """srun or salloc, and the job's number."""
    shell = ["sh", "-c", _TASK if case.command == "srun" else f"{_LOOK}; {_INNER[case.inner]}"]
    before = _last(box)
    done = _typed(box, [case.command, *case.words, *shell], {}, patience_s)
    after = _last(box)
    return done, re.findall(r"(?:job|allocation) (\d+)", done.stderr) or ([] if after == before else after)


def _batch(box: Box, case: Case, patience_s: float) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """sbatch, and the job's number."""
    script = f"{_LOOK}; {_INNER[case.inner]}"
    words, environ, text = case.words, dict[str, str](), f"#!/bin/sh\n{script}\n"
    if case.how == "script":
        text = "#!/bin/sh\n" + "".join(f"#SBATCH {option}\n" for option in case.options) + script + "\n"
        words = []
    elif case.how == "variables":
        words, environ = _as_variables(words)
    (box.root / "tmp/fuzz.sh").write_text(text)
    line = ["sbatch", "--parsable", "-D", "/tmp", "-o", "/tmp/fuzz-%j.out", *words, "/tmp/fuzz.sh"]
    done = _typed(box, line, environ, patience_s)
    return done, done.stdout.split()[:1]


def accounted(box: Box, found: list[Got]) -> list[Got]:
    """With what sacct says, once slurmdbd has been told of the last.

    A job that waited in vain is not waited for: of a task that was changed by itself and cancelled before it started
    Slurm tells slurmdbd nothing.
    """
    numbers = [run.number for got in found for run in got.runs]
    ran = [run.number for got in found for run in got.runs if run.state != "PENDING"]
    said: dict[str, dict[str, str]] = {}

    def told() -> bool:
        line = ["sacct", "-nPa", "-o", ",".join(["JobIDRaw", *_SACCT]), "-j", ",".join(numbers)]
        said.clear()
        for row in box.run(*line).stdout.splitlines():
            number, *fields = row.split("|")
            job, _, step = number.partition(".")
            said.setdefault(job, {}).update({f"{step or 'job'} {k}": v for k, v in zip(_SACCT, fields, strict=True)})
        return all(said.get(number, {}).get("job State", "RUNNING") != "RUNNING" for number in ran)

    if numbers:
        time.sleep(2.0)
        try:
            box.wait("sacct's word on every job", told)
        except AssertionError as error:
            waits = [
                f"line {at} here: job {run.number}: {said.get(run.number, 'unknown to sacct')}"
                for at, got in enumerate(found)
                for run in got.runs
                if run.number in ran and said.get(run.number, {}).get("job State", "RUNNING") == "RUNNING"
            ]
            raise AssertionError("\n".join([str(error), *waits])) from None
    return [
        replace(got, runs=tuple(replace(run, sacct=said.get(run.number, {})) for run in got.runs)) for got in found
    ]


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
    waits = words[0] != "sbatch" or "--wait" in words
    stop = ["timeout", "-s", "INT", "-k", "3", f"{patience_s:.0f}"] if waits else []
    return box.run(*shell, *stop, *words, user="alice", check=False)


def _last(box: Box) -> list[str]:
    numbers = [int(number) for number in box.jobs()]
    return [str(max(numbers))] if numbers else []


def _records(box: Box, number: str) -> list[dict[str, Any]]:
    """Of a job; of its array's tasks; of its parts."""
    text = box.run("scontrol", "show", "job", number, "--json", check=False).stdout
    jobs: list[dict[str, Any]] = json.loads(text)["jobs"] if text else []
    return sorted(jobs, key=lambda job: (int(job["array_task_id"]["number"]), int(job["het_job_offset"]["number"])))


def _ended(box: Box, numbers: list[str], patience_s: float) -> list[dict[str, Any]]:
    """The records of these jobs, once they have ended or have waited in vain."""
    until, stuck = time.monotonic() + patience_s, 0
    while numbers:
        mine = [job for number in numbers for job in _records(box, number)]
        done = [job["job_state"][0] in OVER and "COMPLETING" not in job["job_state"] for job in mine]
        waits = [job["job_state"] == ["PENDING"] and job["state_reason"] in _STUCK for job in mine]
        stuck = stuck + 1 if any(waits) and all(a or b for a, b in zip(done, waits, strict=True)) else 0
        if all(done) or stuck > 25 or time.monotonic() > until:
            if not all(done):
                box.run("scancel", *numbers, check=False)
                box.wait("an empty queue", lambda: not box.run("squeue", "-h", "-a").stdout.strip())
            return mine
        time.sleep(0.1)
    return []


def _seen(box: Box, job: dict[str, Any], tasks: int) -> Run:
    held = str(job.get("tres_alloc_str") or "")
    number = str(job["job_id"])
    batch, step = (_environment(box, f"{number}.{part}") for part in ("batch", "step"))
    output = box.root / f"tmp/fuzz-{number}.out"
    tasks = output.read_text(errors="replace").split().count("task") if output.exists() else tasks
    visible = (batch or step).get("CUDA_VISIBLE_DEVICES", "")
    return Run(
        job["job_state"][0], job["exit_code"]["return_code"]["number"] or 0, int(_of(held, "node")),
        int(_of(held, "cpu")), _mib(held), len([gpu for gpu in visible.split(",") if gpu]), "gres/shard" in held,
        tasks, str(job.get("nodes") or ""), batch, step, number,
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
    lines = [re.sub(r"\bn\d+\b|allocation \d+|^\d+(?=_[\d-]+:)", "_", line) for line in text.splitlines()]
    return "\n".join(
        line
        for line in lines
        if not re.search("queued and waiting|has been (allocated|revoked)|Force Term|Pending job|Nodes", line)
    )
