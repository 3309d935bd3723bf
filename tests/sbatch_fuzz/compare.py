"""What differs between two outcomes of one line, and which of that docs/differences.md names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lucid.adapters.slurm.text import hosts
from sbatch_fuzz.lines import NAME, Case
from sbatch_fuzz.watch import Got, Run

__all__ = ["ALLOWED", "compared", "differences", "named", "unnamed"]

ALLOWED: Mapping[str, str] = {
    "immediate": r".*Lucid: jobs that want GPUs queue here, so --immediate.*",
    "profiling-partition": r"not measured: (batch|step) SLURM_JOB_PARTITION=prof; .*",
    "slots-environment": r"(batch|step) (CUDA_MPS_\w+|SLURM_SHARDS_\w+|LUCID_\w+)=.*",
}
"""By the id of a row of docs/differences.md: a pattern for the difference."""

_ITSELF = re.compile(
    "SLURM_(JOB_ID|JOBID|ARRAY_JOB_ID|STEP_ID|STEPID|JOB_START_TIME|JOB_END_TIME|TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|"
    "SRUN_COMM_HOST|LAUNCH_NODE_IPADDR|GTIDS|CPU_BIND\\w*|TOPOLOGY_ADDR|NODELIST|JOB_NODELIST|STEP_NODELIST|NODE_ALIASES|"
    "SUBMIT_HOST|JOB_SLUID|NODEID|JOB_GPUS|STEP_GPUS|WORKING_CLUSTER|UMASK)|SLURMD_NODENAME|TMPDIR|PWD|OLDPWD|_|SHLVL|"
    "HOSTNAME|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK"
)
"""Variables that differ between two runs of one line on plain Slurm: numbers, times, the node, the port, which GPU.
How many GPUs a job sees is compared apart."""


def strays(case: Case, got: Got) -> list[str]:
    """Nodes that a job had against its user's list."""
    found = []
    for word in case.words:
        named = set(hosts(word[2:])) if word[:2] in ("-w", "-x") else set()
        for run in got.runs:
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
    if plain.code and plain.said != lucid.said:
        return [f"says {lucid.said!r}; plain {plain.said!r}"]
    if len(plain.runs) != len(lucid.runs):
        return [f"{len(lucid.runs)} runs; plain {len(plain.runs)}"]
    found: list[str] = []
    for before, after in zip(plain.runs, lucid.runs, strict=True):
        found += _of_run(before, after)
    return [f"not measured: {words}" if not measured and "_JOB_PARTITION" in words else words for words in found]


def compared(case: Case, plain: Got, lucid: Got) -> list[str]:
    """Both of one line. A measured program, and one whose user chose nodes, has no business in the profiling
    partition."""
    bound = any(word[:2] in ("-w", "-x") for word in case.words)
    measured = bound or f"--job-name={NAME}" in case.words
    return differences(plain, lucid, measured) + strays(case, lucid)


def _of_run(before: Run, after: Run) -> Iterable[str]:
    for key in ("state", "code", "nodes", "cpus", "mem_mib", "gpus", "tasks"):
        if getattr(before, key) != getattr(after, key):
            yield f"{key} {getattr(after, key)}; plain {getattr(before, key)}"
    if before.nodes != after.nodes:
        return  # what else differs follows from that
    for part, a, b in (("batch", before.batch, after.batch), ("step", before.step, after.step)):
        for name in sorted(a.keys() | b.keys()):
            if a.get(name) != b.get(name) and not _ITSELF.fullmatch(name):
                yield f"{part} {name}={b.get(name, '(unset)')}; plain {a.get(name, '(unset)')}"


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
