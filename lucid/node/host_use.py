"""Jobs' use of a node beside its GPUs: CPU time, waiting for storage, and memory, from their control groups.

A job's control group is found through its processes, as Slurm names it (``…/job_N``, or by the job's SLUID under
cgroup/v2). These are read there:

- CPU time every second: ``cpu.stat`` (v2), ``cpuacct.usage`` (v1), else the CPU time of the processes in the group.
- Waiting for storage every second, by the first of these that the kernel offers: ``io.pressure`` of the group (v2
  with PSI), time in which some task of it waited for I/O; delays of block I/O of its processes (/proc/PID/stat,
  field 42), where ``kernel.task_delayacct`` is on; or samples of its processes: in how many of them one was in
  uninterruptible sleep (state D). One sample tells little; the mean over a profile is right within some points.
- Memory every ten seconds: ``anon`` (v2) or ``total_rss`` (v1) of ``memory.stat``, without caches, which the kernel
  takes back before it ends anybody.

Bytes of I/O are not read: nobody knows how many of them a second would be all that the storage gives. Everything here
is what anybody on the node may read. What cannot be read is unknown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lucid.profiler.shape import HostUse

_GROUP: Final = re.compile(r"/(?:job_(\d+)|(s[0-9A-HJKMNP-TV-Z]{13}))(?=/|$)")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_AGAIN_S: Final = 10.0
"""How often the processes and cores of a job are looked up."""
_POLL_S: Final = 2.0
"""The time between two samples of a job's processes, where its group does not tell all. These samples cost most."""
_MOST_GAP_S: Final = 10.0
"""A longer time between two readings is passed over: the GPU's work in all of it is unknown."""
_MOST_PROCESSES, _MOST_FOLDERS = 64, 64
"""Most processes and folders of a job that are read."""
_LARGEST: Final = 1 << 16
_DELAYS, _STATES = "delays of block I/O", "states of processes"
_CPU, _ACCOUNTS, _PRESSURE, _CPUSET = "cpu.stat", "cpuacct.usage", "io.pressure", "cpuset.cpus"
_MEMORY: Final = "memory.stat"
_HELD = re.compile(r"^(?:anon|total_rss) (\d{1,19})$", re.MULTILINE)
"""The line of memory.stat with memory that is no cache, under cgroup/v2 and v1."""


@dataclass(slots=True)
class _Processes:
    """The state of a job's processes at one sample: CPU seconds and seconds of waiting for storage, each by process.
    ``busy``, ``storage``: cores that were busy since the sample before, and the share of waiting; ``None`` where
    unknown."""

    cpu_s: dict[int, float] = field(default_factory=dict)
    delay_s: dict[int, float] = field(default_factory=dict)
    busy: float | None = None
    storage: float | None = None


@dataclass(slots=True)
class _Job:
    """One job's control group. ``top``: its folder with the processes; ``files``: the files read there, by name."""

    top: Path
    files: dict[str, Path]
    cores: int = 1
    pids: tuple[int, ...] = ()
    polled_s: float = float("-inf")
    at_s: float = float("-inf")
    cpu_s: float | None = None
    stalled_s: float | None = None
    seen: _Processes = field(default_factory=_Processes)
    seen_s: float = float("-inf")
    held_mib: float | None = None


class Host:
    """Readings of the jobs of this node, one after the other. ``proc`` and ``groups`` (where control groups are
    mounted) are for tests."""

    def __init__(self, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._groups = proc, groups
        self._jobs: dict[str, _Job] = {}
        self._missed: dict[str, float] = {}
        """When a job's control group was last looked for in vain."""
        self._delays = self._has_delays()

    def forget_all_but(self, alive: Iterable[str]) -> None:
        """Forget the jobs that have ended."""
        kept = set(alive)
        self._jobs = {name: job for name, job in self._jobs.items() if name in kept}
        self._missed = {name: at_s for name, at_s in self._missed.items() if name in kept}

    def use(self, job: str, number: str, pids: Sequence[int], now_s: float) -> HostUse | None:
        """What a job did since the last call for it; ``None`` at the first, where it has no control group of its own,
        and where its counters cannot be read or went backwards.

        Args:
            number: its number in the names of Slurm's control groups.
            pids: processes that are known to be its own.
            now_s: any clock."""
        known = self._jobs.get(job)
        if known is None:
            if not pids or 0.0 <= now_s - self._missed.get(job, float("-inf")) < _AGAIN_S:
                return None
            groups = (self._group_of(pid, number) for pid in dict.fromkeys(pids))
            known = next((job for job in groups if job is not None), None)
            if known is None:
                self._missed[job] = now_s
                return None
            self._jobs[job] = known
        if not known.top.is_dir():  # its steps have ended, or it was started over
            del self._jobs[job]
            return None
        if not 0.0 <= now_s - known.polled_s < _AGAIN_S:
            known.polled_s = now_s
            known.cores = self._cores(known, pids)
            known.pids = self._processes(known)
            found = _HELD.search(_text(known.files[_MEMORY]) or "") if _MEMORY in known.files else None
            known.held_mib = None if found is None else int(found[1]) / (1 << 20)
        return self._since(known, now_s)

    def held_mib(self, job: str) -> float | None:
        """The node's memory that the job's processes held when last read; ``None``: unknown."""
        known = self._jobs.get(job)
        return None if known is None else known.held_mib

    # -- finding it ------------------------------------------------------------------------------------------------

    def _group_of(self, pid: int, number: str) -> _Job | None:
        """The control group that a process is in, if it is that of the job with this number: the process id may be
        another's by now."""
        tops: dict[str, Path] = {}
        for line in (_text(self._proc / str(pid) / "cgroup") or "").splitlines():
            _, _, rest = line.partition(":")
            kinds, _, path = rest.partition(":")
            match = _GROUP.search(path)
            if match is None or ".." in path or (match[1] is not None and match[1] != number):
                continue
            inside = path[: match.end()].lstrip("/")
            for base in (self._groups / kinds,) if kinds else (self._groups, self._groups / "unified"):
                top = base / inside
                if top.is_dir():
                    tops.update(dict.fromkeys(kinds.split(","), top))
                    break
        if not tops:
            return None
        unified = tops.get("")
        folders = {
            _CPU: unified,
            _PRESSURE: unified,
            _ACCOUNTS: tops.get("cpuacct"),
            _CPUSET: tops.get("cpuset"),
            _MEMORY: unified or tops.get("memory"),
        }
        files = {name: top / name for name, top in folders.items() if top is not None and (top / name).is_file()}
        if unified is not None and (unified / "cpuset.cpus.effective").is_file():
            files[_CPUSET] = unified / "cpuset.cpus.effective"
        found = _Job(unified or tops.get("freezer") or next(iter(tops.values())), files)
        if _stalled_s(found) is None:  # a kernel without PSI, or one that was told not to measure it
            files.pop(_PRESSURE, None)
        return found

    def _cores(self, job: _Job, pids: Sequence[int]) -> int:
        """How many cores the job has: by its cpuset, else by what its processes may run on."""
        count = _listed(_text(job.files[_CPUSET]) or "") if _CPUSET in job.files else 0
        for pid in pids:
            if count:
                break
            found = re.search(r"^Cpus_allowed_list:\s*(\S+)", _text(self._proc / str(pid) / "status") or "", re.M)
            count = _listed(found[1]) if found else 0
        return count or os.cpu_count() or 1

    def _processes(self, job: _Job) -> tuple[int, ...]:
        """The processes in the group and below it, as far as anything of them is read."""
        if {_CPU, _PRESSURE} <= job.files.keys():
            return ()
        found: set[int] = set()
        for at, (folder, _, _) in enumerate(os.walk(job.top)):
            if at >= _MOST_FOLDERS or len(found) >= _MOST_PROCESSES:
                break
            found.update(
                int(word)
                for word in (_text(Path(folder) / "cgroup.procs") or "").split()
                if word.isdecimal() and len(word) < 10
            )
        return tuple(sorted(found)[:_MOST_PROCESSES])

    def _has_delays(self) -> bool:
        """Whether the kernel counts delays of block I/O. An older one does not say; where it does, the first process
        has some."""
        told = _text(self._proc / "sys/kernel/task_delayacct")
        if told is not None:
            return told.strip() == "1"
        first = _stat(self._proc / "1")
        return len(first) > 39 and first[39].isdecimal() and int(first[39]) > 0

    # -- reading it ------------------------------------------------------------------------------------------------

    def _since(self, job: _Job, now_s: float) -> HostUse | None:
        step_s, job.at_s = now_s - job.at_s, now_s
        if job.pids and not 0.0 <= now_s - job.seen_s < _POLL_S:
            self._poll(job, now_s)
        cpu_s, job.cpu_s = job.cpu_s, self._cpu_s(job)
        stalled_s, job.stalled_s = job.stalled_s, _stalled_s(job)
        if not 0.0 < step_s <= _MOST_GAP_S:
            return None
        if _CPU not in job.files and _ACCOUNTS not in job.files:
            busy = job.seen.busy
        elif cpu_s is None or job.cpu_s is None or job.cpu_s < cpu_s:
            busy = None  # unreadable, or it counts anew
        else:
            busy = (job.cpu_s - cpu_s) / step_s
        if busy is None:
            return None
        if _PRESSURE in job.files:
            if stalled_s is None or job.stalled_s is None or job.stalled_s < stalled_s:
                return HostUse(busy, job.cores)
            return HostUse(busy, job.cores, min((job.stalled_s - stalled_s) / step_s, 1.0), _PRESSURE)
        if not job.pids or job.seen.storage is None:
            return HostUse(busy, job.cores)
        return HostUse(busy, job.cores, job.seen.storage, _DELAYS if self._delays else _STATES)

    def _poll(self, job: _Job, now_s: float) -> None:
        """Sample a job's processes; what they did since the last sample stands until the next."""
        step_s, job.seen_s = now_s - job.seen_s, now_s
        before, seen = job.seen, _Processes()
        waiting = False
        for pid in job.pids:
            stat = _stat(self._proc / str(pid))
            if len(stat) > 39 and stat[11].isdecimal() and stat[12].isdecimal() and stat[39].isdecimal():
                waiting = waiting or stat[0] == "D"
                seen.cpu_s[pid] = (int(stat[11]) + int(stat[12])) / _TICKS
                seen.delay_s[pid] = int(stat[39]) / _TICKS
        since = 0.0 < step_s <= _MOST_GAP_S
        seen.busy = _grown(seen.cpu_s, before.cpu_s) / step_s if since else None
        if not self._delays:
            seen.storage = float(waiting)
        elif since:
            seen.storage = min(_grown(seen.delay_s, before.delay_s) / step_s, 1.0)
        job.seen = seen

    def _cpu_s(self, job: _Job) -> float | None:
        if _CPU in job.files:
            found = re.search(r"^usage_usec (\d+)$", _text(job.files[_CPU]) or "", re.M)
            return None if found is None else int(found[1]) / 1e6
        if _ACCOUNTS in job.files:
            told = (_text(job.files[_ACCOUNTS]) or "").strip()
            return int(told) / 1e9 if told.isdecimal() else None
        return None


def _grown(now: dict[int, float], before: dict[int, float]) -> float:
    """How much the counters have grown of those processes that were there before, too."""
    return sum(max(value - before[pid], 0.0) for pid, value in now.items() if pid in before)


def _stalled_s(job: _Job) -> float | None:
    path = job.files.get(_PRESSURE)
    found = None if path is None else re.search(r"^some .*\btotal=(\d+)$", _text(path) or "", re.M)
    return None if found is None else int(found[1]) / 1e6


def _stat(folder: Path) -> list[str]:
    # the second field is the command in brackets, and may hold spaces and brackets itself
    return (_text(folder / "stat") or "").rpartition(")")[2].split()


def _text(path: Path) -> str | None:
    """The text of a small file of the kernel's; ``None`` where it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        return os.read(fd, _LARGEST).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(fd)


def _listed(text: str) -> int:
    """How many cores a list such as ``0-3,8`` names; 0 if it is not such a list."""
    count = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()) or len(part) > 12:
            return 0
        count += max(int(last or first) - int(first) + 1, 0)
    return count
