"""``Owners``: the job of a process, by control groups and ancestors; and jobs announced to a sampler.

From 26.05 on Slurm names a job's control group under cgroup/v2 by the job's SLUID (``/s5H9M8071CEN00``) and not by
its number, unless ``CgroupJobIdPaths=yes`` (26.05.2). The slurmstepd in the same control group says which job it is.
An environment, into which its user may write anything, is read only where there is no slurmstepd, and in that group
only. A command line is its process's own to write, too. So a slurmstepd is believed only where its real user is root
and its executable is slurmstepd (as far as that can be read: who is not root cannot see what root's processes run).
Of several above a process the outermost counts, for what a job starts is below Slurm's own.

The prolog announces a job by a small file, which the epilog removes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from lucid.core.codec import from_others, to_json
from lucid.errors import ConfigError
from lucid.files import write_atomic

_CGROUP_JOB: Final = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_CGROUP_SLUID: Final = re.compile(r"/(s[0-9A-HJKMNP-TV-Z]{13})(?:/|$)", re.MULTILINE)
_STEP: Final = re.compile(r"slurmstepd: \[(\d+)\.")
_MPS_SERVER: Final = "nvidia-cuda-mps"
"""The name of the MPS server, of which the kernel keeps 15 characters."""
_DEEPEST: Final = 64
_MOST: Final = 8192


class Owners:
    """Finds jobs of processes, and remembers them, for processes do not change their job. ``proc`` and ``root``, the
    user that slurmstepd runs as, are for tests."""

    def __init__(self, proc: Path = Path("/proc"), root: int = 0) -> None:
        self._proc = proc
        self._root = root
        self._known: dict[tuple[int, str], str | None] = {}
        self._jobs: dict[str, str] = {}
        """Jobs by SLUID, which belongs to one job for ever."""

    def job_of(self, pid: int, given: Mapping[int, str]) -> str | None:
        """The job of a process, ``None`` if it has none or is gone.

        These are asked in turn: ``given`` (job by first process) along its ancestors; Slurm's control group, by job
        or by SLUID; a ``slurmstepd`` among its ancestors (where Slurm tracks processes without control groups)."""
        started = self._started(pid)
        if started is None:
            return given.get(pid)
        key = (pid, started)
        found = self._known.get(key)
        if key not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            group = self._read(pid, "cgroup")
            job, sluid = _CGROUP_JOB.search(group), _CGROUP_SLUID.search(group)
            found = job[1] if job else (self._by_sluid(sluid[1]) if sluid else None) or self._by_step(pid)
            if found or not sluid:  # a job whose first process is not seen yet is looked for again
                self._known[key] = found
        if given:
            for ancestor in self._line(pid):
                if ancestor in given:
                    return given[ancestor]
        return found

    def serves_mps(self, pid: int) -> bool:
        """Whether this is the server of MPS. Drivers charge it with what its clients do on the GPU."""
        return self._read(pid, "comm").startswith(_MPS_SERVER)

    def _read(self, pid: int, name: str) -> str:
        try:
            return (self._proc / str(pid) / name).read_bytes().decode("utf-8", "replace")
        except OSError:
            return ""

    def _stat(self, pid: int) -> list[str]:
        # the second field is the command in brackets, and may hold spaces and brackets itself
        return self._read(pid, "stat").rpartition(")")[2].split()

    def _started(self, pid: int) -> str | None:
        stat = self._stat(pid)
        return stat[19] if len(stat) > 19 else None

    def _is_step(self, pid: int) -> re.Match[str] | None:
        """The match of its command line, which only root could write, if this is a slurmstepd of Slurm's own; else
        ``None``."""
        found = _STEP.match(self._read(pid, "cmdline").replace("\0", " "))
        if found is None:
            return None
        # real and saved: a setuid program's real user is who started it, and slurmstepd is somebody else for moments
        uids = re.search(r"^Uid:\s+(\d+)\s+\d+\s+(\d+)", self._read(pid, "status"), re.MULTILINE)
        if uids is None or any(int(uid) != self._root for uid in uids.groups()):
            return None
        try:
            program = (self._proc / str(pid) / "exe").readlink().name.removesuffix(" (deleted)")
        except PermissionError:
            return found  # a sampler that is not root cannot see which program root's processes run
        except OSError:
            return None
        return found if program == "slurmstepd" else None

    def _line(self, pid: int) -> list[int]:
        """The process and its ancestors, nearest first."""
        line: list[int] = []
        while pid > 1 and len(line) < _DEEPEST:
            line.append(pid)
            stat = self._stat(pid)
            pid = int(stat[1]) if len(stat) > 1 else 0
        return line

    def _by_sluid(self, sluid: str) -> str | None:
        if sluid not in self._jobs:
            if len(self._jobs) >= _MOST:
                self._jobs.clear()
            if found := self._step_in(sluid) or self._environment_in(sluid):
                self._jobs[sluid] = found
        return self._jobs.get(sluid)

    def _step_in(self, sluid: str) -> str | None:
        """The job that the slurmstepd in this control group says it serves."""
        for pid in self._pids():
            found = self._is_step(pid) if self._is_in(pid, sluid) else None
            if found:
                return found[1]
        return None

    def _environment_in(self, sluid: str) -> str | None:
        """The job that the environment of a process in this control group names."""
        for pid in self._pids():
            if not self._is_in(pid, sluid):
                continue
            told = dict(item.partition("=")[::2] for item in self._read(pid, "environ").split("\0"))
            if told.get("SLURM_JOB_SLUID") == sluid and told.get("SLURM_JOB_ID", "").isdecimal():
                return told["SLURM_JOB_ID"]
        return None

    def _is_in(self, pid: int, sluid: str) -> bool:
        found = _CGROUP_SLUID.search(self._read(pid, "cgroup"))
        return found is not None and found[1] == sluid

    def _pids(self) -> list[int]:
        try:
            return sorted(int(entry.name) for entry in self._proc.iterdir() if entry.name.isdecimal())
        except OSError:
            return []

    def _by_step(self, pid: int) -> str | None:
        for ancestor in reversed(self._line(pid)):
            found = self._is_step(ancestor)
            if found:
                return found[1]
        return None


class JobSpec(Struct, frozen=True):
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
        OSError: the folder cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{spec.job}.json", json.dumps(to_json(spec)).encode())


def remove_job_spec(folder: Path, job: str) -> None:
    """Withdraw a job that has ended. Nothing happens if it was not announced."""
    (folder / f"{job}.json").unlink(missing_ok=True)


def read_job_specs(folder: Path) -> Iterator[JobSpec]:
    """All announced jobs; other files are passed over."""
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        if path.name.startswith("."):
            continue
        try:
            yield from_others(JobSpec, json.loads(path.read_bytes()))
        except (OSError, ValueError, ConfigError):
            continue
