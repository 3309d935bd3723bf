"""What differs between two outcomes of one line, and which of that docs/differences.md names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lucid.slurm.records.fields import hosts
from sbatch_fuzz.lines import NAME, Case
from sbatch_fuzz.watch import Got, Run

ALLOWED: Mapping[str, str] = {
    "immediate": r".*Lucid: jobs that want GPUs queue here, so --immediate.*",
    "profiling-partition": r"not measured: (batch|step) SLURM_JOB_PARTITION=prof; .*",
    "slots-environment": r"(batch|step) (CUDA_MPS_\w+|SLURM_SHARDS_\w+|LUCID_\w+)=.*",
    "gpu-model": r"(batch|step) SLURM_\w+=(?P<what>[\w/:=]*?)(?P<count>\d+); plain (?P=what)a100:(?P=count)",
    "gpu-model-misspelled": r"(says '.*with and without type identification.*; plain .*not available'"
    r"|line \d typed then: 0, ''; plain 1, '.*with and without type identification.*)",
    "deadline-judged-late": r"with a deadline: (exit code (0|124) .*; plain 1 |says '\w+: Job is in held state, ).*",
    "step-distribution": r"one task: step SLURM_DISTRIBUTION=(block; plain cyclic|cyclic; plain block)",
    "changed-memory": r"memory changed then: (batch|step) SLURM_MEM_PER_NODE=\(unset\); .*",
    "changed-gpus": r"line \d typed then: 1, .*Lucid: a waiting job's GPUs cannot be changed here\..*",
    "changed-partition": r"line \d typed then: 1, .*Lucid: (a job waits in one partition|this job has no place) .*",
    "changed-priority": r"line \d typed then: 1, '(Access/permission|Job is in held).*; plain .*priority.*",
    "task-accounting": r"a task that never started is unknown to sacct",
    "slots-accounting": r"sacct \S+ (Req|Alloc)TRES has slots in place of GPUs",
}
"""By the id of a row of docs/differences.md: a pattern for the difference."""

_COUNTED = (
    "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)  # fmt: skip
"""Which GPUs a job has is its own affair, how many is compared."""
LEFT_OUT = (
    *_COUNTED,
    "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "SLURM_HET_JOB_ID", "SLURM_STEP_ID", "SLURM_STEPID",
    "SLURM_JOB_SLUID", "SLURM_JOB_DEPENDENCY", "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME", "SLURM_TASK_PID",
    "SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT", "SLURM_TOPOLOGY_ADDR", "SLURM_NODELIST",
    "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST", "SLURMD_NODENAME", "HOSTNAME",
)  # fmt: skip
"""Variables that differ between two runs of one line on plain Slurm: that they are there is compared. A part of a
heterogeneous job has each of them once more, with _HET_GROUP_ and its number at the end."""
_ELAPSED_S = 20
"""Two runs of one line take as long as each other, but for a busy machine."""

_LISTS = {"-w": r"\b(Req)?NodeList=", "-x": r"\bExc(lude)?NodeList="}
"""How ``scontrol update`` changes the list of an option."""


def strays(case: Case, got: Got) -> list[str]:
    """Nodes that a job had against its user's list; the job before it has none. A later line may change the list."""
    found = []
    then = " ".join(case.then)
    own = got.runs[1:] if case.first in ("ends", "fails", "meets") else got.runs
    for word in {word[:2]: word for word in case.words}.values():  # of two the last counts
        changed = re.search(_LISTS[word[:2]], then) if word[:2] in _LISTS else None
        named = set(hosts(word[2:])) if word[:2] in _LISTS and not changed else set()
        for run in own:
            had = set(hosts(run.hosts))
            if had and named and (named & had if word[:2] == "-x" else not named <= had):
                found.append(f"ran on {run.hosts}, against {word}")
    return found


def differences(plain: Got, lucid: Got, measured: bool = True) -> list[str]:
    """What Lucid changed for the user, in words; nothing where it is all the same. ``measured``: Lucid knows the
    program."""
    if plain.code != lucid.code:
        return [
            f"exit code {lucid.code} ({lucid.said or 'nothing said'}); plain {plain.code} ({plain.said or 'nothing'})"
        ]
    said = [sorted(got.said.splitlines()) for got in (plain, lucid)]  # several tasks write in no order
    found = [f"says {lucid.said!r}; plain {plain.said!r}"] if said[0] != said[1] else []
    if plain.code and found:
        return found
    for at, (before, after) in enumerate(zip(plain.then, lucid.then, strict=False)):
        if before != after:
            found.append(f"line {at + 1} typed then: {after[0]}, {after[1]!r}; plain {before[0]}, {before[1]!r}")
    if found:
        return found  # the rest follows from that
    if len(plain.runs) != len(lucid.runs):
        return [f"{len(lucid.runs)} runs; plain {len(plain.runs)}"]
    for one, other in zip(plain.runs, lucid.runs, strict=True):
        found += _of_run(one, other)
    return [f"not measured: {words}" if not measured and "_JOB_PARTITION" in words else words for words in found]


def compared(case: Case, plain: Got, lucid: Got) -> list[str]:
    """Both of one line. A measured program, and one whose user chose nodes, has no business in the profiling
    partition."""
    bound = any(word[:2] in ("-w", "-x") for word in case.words)
    measured = bound or f"--job-name={NAME}" in case.words
    found = differences(plain, lucid, measured)
    if any("--deadline" in word for word in case.words):
        found = [f"with a deadline: {words}" if words.startswith(("exit", "says")) else words for words in found]
    if any("MinMemory" in line for line in case.then):
        found = [f"memory changed then: {words}" if "_MEM_PER_NODE" in words else words for words in found]
    if any("--mem-per-gpu" in word for word in case.words) and all(
        run.step["SLURM_NTASKS"] == "1" for run in plain.runs if "SLURM_NTASKS" in run.step
    ):
        way = "step SLURM_DISTRIBUTION="
        found = [f"one task: {words}" if words.startswith(way) else words for words in found]
    if any("--array" in word for word in case.words):
        found = [f"a task that {words}" if words.startswith("never started") else words for words in found]
    if case.command == "srun" and ":" in case.words:  # its parts are started at once, with each other's variables
        found = [words for words in found if not words.startswith("step ")]
    return found + ([] if ":" in case.words else strays(case, lucid))


def _of_run(before: Run, after: Run) -> Iterable[str]:
    for key in ("state", "code", "nodes", "cpus", "mem_mib", "gpus", "tasks"):
        if getattr(before, key) != getattr(after, key):
            yield f"{key} {getattr(after, key)}; plain {getattr(before, key)}"
    if before.nodes != after.nodes:
        return  # what else differs follows from that
    for part, a, b in (("batch", before.batch, after.batch), ("step", before.step, after.step)):
        for name in sorted(a.keys() | b.keys()):
            if a.get(name) != b.get(name) and not (name in a and name in b and left_out(name)):
                yield f"{part} {name}={b.get(name, '(unset)')}; plain {a.get(name, '(unset)')}"
        for name in _COUNTED:
            counts = [len(one[name].split(",")) if name in one else None for one in (b, a)]
            if counts[0] != counts[1]:
                yield f"{part} {name} names {counts[0]}; plain {counts[1]}"
    if before.sacct and not after.sacct and after.state == "PENDING":
        yield "never started is unknown to sacct"
        return
    for name in sorted(before.sacct.keys() | after.sacct.keys()):
        was, is_ = before.sacct.get(name, "(nothing)"), after.sacct.get(name, "(nothing)")
        if name.endswith("ElapsedRaw") and was.isdigit() and is_.isdigit():
            was = is_ if abs(int(was) - int(is_)) <= _ELAPSED_S else was
        if was != is_ and "shard" in is_ and sorted(is_.replace("shard", "gpu").split(",")) == sorted(was.split(",")):
            yield f"sacct {name} has slots in place of GPUs"
        elif was != is_:
            yield f"sacct {name} {is_}; plain {was}"


def left_out(name: str) -> str | None:
    """A variable as LEFT_OUT has it."""
    name = re.sub(r"_(HET|PACK)_GROUP_\d+$", "", name)
    return name if name in LEFT_OUT else None


def named(words: Iterable[str]) -> dict[str, str]:
    """Of these differences the ones that docs/differences.md names: its row's id by difference."""
    found = {}
    for difference in words:
        for row, pattern in ALLOWED.items():
            if re.fullmatch(pattern, difference, re.DOTALL):
                found[difference] = row
    return found


def unnamed(words: list[str]) -> list[str]:
    """The rest."""
    known = named(words)
    return [difference for difference in words if difference not in known]
