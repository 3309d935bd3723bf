"""Which jobs a node's sampler is to look at: one small file each, written by the prolog, removed by the epilog."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from lucid.atomic import write_atomic
from lucid.errors import ConfigError

__all__ = ["JobSpec", "read_job_specs", "remove_job_spec", "write_job_spec"]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job on this node. ``gpus`` are UUIDs or numbers of device files; empty: whatever GPUs its processes are
    found on. ``slurm_id`` is the number that Slurm's cgroups carry (the job's own name for most; for a task of an
    array the task's raw number). ``pids``: ids of its first processes, if there is no Slurm to ask."""

    job: str
    gpus: tuple[str, ...] = ()
    slurm_id: str = ""
    pids: tuple[int, ...] = ()
    several_nodes: bool = False
    amp: bool | None = None
    workload: str = ""
    promised: float | None = None
    """Normalised speed expected beside its partner, where it begins beside one."""

    def __post_init__(self) -> None:
        if not self.job or self.job.startswith(".") or set(self.job) & set("/@\0"):
            raise ConfigError(f"job {self.job!r}: cannot name a file; give Slurm's job id")


def write_job_spec(folder: Path, spec: JobSpec) -> None:
    """Announce a job.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{spec.job}.json", json.dumps(asdict(spec)).encode())


def remove_job_spec(folder: Path, job: str) -> None:
    """The job has ended. Nothing happens if it was not announced."""
    (folder / f"{job}.json").unlink(missing_ok=True)


def read_job_specs(folder: Path) -> Iterator[JobSpec]:
    """All jobs announced; a file that is none is passed over (it is not this program's)."""
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        if path.name.startswith("."):
            continue
        try:
            data = json.loads(path.read_bytes())
            known = {f.name: data[f.name] for f in fields(JobSpec) if f.name in data}
            known["gpus"] = tuple(str(gpu) for gpu in known.get("gpus", ()))
            known["pids"] = tuple(int(pid) for pid in known.get("pids", ()))
            yield JobSpec(**known)
        except (OSError, ValueError, TypeError, AttributeError, ConfigError):
            continue
