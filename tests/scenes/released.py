"""slurm/lucid-release, the real script, over a slurmctld in memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fake_slurm import FakeSlurm
from lucid.slurm.client import Changes

SCRIPT = Path(__file__).resolve().parents[2] / "slurm/lucid-release"
_SLURM = """#!/bin/sh
[ "$1" != env ] || shift 2
case "$1 $*" in
squeue*%k*) ;;
squeue*) sed "s/ / $(echo "$*" | grep -o 'row-[0-9a-f]*') /" {0}/rows ;;
scontrol*) echo "$*" >> {0}/calls ;;
esac
"""
_FIELDS = {
    "TresPerNode": "tres_per_node", "TresPerJob": "tres_per_job", "TresPerTask": "tres_per_task",
    "ReqNodeList": "req_nodes", "Partition": "partition", "Extra": "extra",
}  # fmt: skip


def lucid_release(slurm: FakeSlurm, folder: Path, state: Path, *options: str) -> None:
    """Runs it with *folder* for itself, and does to *slurm* what it writes. The ids of jobs are numbers."""
    program, calls = folder / "slurm", folder / "calls"
    if not program.exists():
        program.write_text(_SLURM.format(folder))
        program.chmod(0o755)
    calls.write_text("")
    (folder / "rows").write_text(
        "".join(
            f"{job.id} {0 if job.held else job.priority} {job.partition} {job.restarts} {int(job.eligible_s)} "
            f"{job.request.tres_per_node or 'N/A'} {job.id} {max(job.uid, 0)} {int(job.submit_s)} "
            f"{job.admin_comment}\n"
            for job in slurm.records.values()
            if job.pending
        )
    )
    environ = {
        "PATH": "/usr/bin:/bin", "LUCID_HEARTBEAT": str(folder / "none"), "LUCID_SLURM_PREFIX": str(program),
        "LUCID_STATE": str(state),
    }  # fmt: skip
    subprocess.run(["/bin/sh", str(SCRIPT), *options], env=environ, check=True, timeout=60)
    for line in calls.read_text().splitlines():
        _, verb, *words = line.split(" ")
        if verb == "release":
            for job in words[0].split(","):
                slurm.release(job)
            continue
        given = dict(word.split("=", 1) for word in words)
        changes = {_FIELDS[key]: value for key, value in given.items() if key in _FIELDS}
        for job in given["JobId"].split(","):
            slurm.update(job, Changes(start_now="StartTime" in given, **changes))
