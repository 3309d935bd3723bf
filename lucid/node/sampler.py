"""``Sampler``: reads the GPUs of the jobs on this node once a second, and writes their samples and summaries.

It reads the driver and /proc, and writes its own files; it never touches a job. One process serves all jobs of the
node, for a GPU that two jobs share must be read once and divided."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from lucid.core.gpu import GpuLost, GpuProcess, GpuReading
from lucid.core.job import JobProfile
from lucid.core.ports import GpuMetrics
from lucid.errors import MetricsError
from lucid.node.host_use import Host
from lucid.node.processes import JobSpec, Owners
from lucid.node.reports import read_summary, write_summary
from lucid.node.spool import SampleWriter
from lucid.profiler.gpu_health import xid
from lucid.profiler.pair_watch import watched as with_partner
from lucid.profiler.samples import GpuSample
from lucid.profiler.summary import Series, Summary, point_of, summarise
from lucid.profiler.use import UseMeter, own_use


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


_OFTEN_S, _SELDOM_S, _YOUNG_S = 10.0, 60.0, 900.0
"""A summary every 10 s in a job's first quarter of an hour (its profiling run is over by then), then every minute."""
_MOST_NOTES: Final = 20
_LONGEST_NOTE: Final = 200
_MOST_PIDS: Final = 16
"""Most processes of a job by which its control group is looked for."""
_MPS_DIR: Final = Path(os.environ.get("LUCID_MPS_DIR", "/run/lucid-mps"))
"""Where slurm/mps keeps its state."""


@dataclass(slots=True)
class _Watched:
    spec: JobSpec
    writer: SampleWriter
    series: Series
    begun_s: float
    meter: UseMeter
    gpus: tuple[str, ...] = ()
    due_s: float = 0.0
    partner: str | None = None
    partners: tuple[str, ...] = ()
    """Present partners, or the last ones: measurements beside them are kept."""
    partner_since_s: float = 0.0
    alone: JobProfile | None = None
    """The job's profile alone, of this run or an earlier one."""
    notes: dict[str, None] = field(default_factory=dict)
    """Notes in order, each once."""

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes[text] = None


class Sampler:
    """Samples all jobs of one node. Nothing here waits or asks for the time: ``tick`` gets it."""

    def __init__(
        self,
        metrics: GpuMetrics,
        spool: Path,
        profiles: Path,
        node: str,
        *,
        interval_s: float = 1.0,
        owners: Owners | None = None,
        log: Callable[[str], None] = lambda _: None,
        mps: Path = _MPS_DIR,
        host: Host | None = None,
    ) -> None:
        self._metrics = metrics
        self._spool = spool
        self._profiles = profiles
        self._node = node
        self._interval_s = interval_s
        self._owners = owners or Owners()
        self._log = log
        self._mps = mps
        self._host = host or Host()
        self._watched: dict[str, _Watched] = {}
        self._by_number: dict[str, str] = {}
        self._energy_j: dict[str, float] = {}
        """The energy counted at the last reading, by card."""

    @property
    def jobs(self) -> Sequence[str]:
        """The jobs that are being sampled."""
        return tuple(self._watched)

    def tick(self, specs: Mapping[str, JobSpec], now_s: float) -> None:
        """One round: begin with jobs that are new, end those that are gone, sample the others."""
        for job in [job for job in self._watched if job not in specs]:
            self.end(job)
        for job, spec in specs.items():
            watched = self._watched.get(job)
            if watched is None:
                self._begin(spec, now_s)
            elif watched.spec != spec:
                watched.spec = spec
        self._host.forget_all_but(self._watched)
        if self._watched:
            self._sample(now_s)
        for watched in self._watched.values():
            if now_s >= watched.due_s:
                self._summarise(watched)
                young = now_s - watched.begun_s < _YOUNG_S
                watched.due_s = now_s + (_OFTEN_S if young else _SELDOM_S)

    def end(self, job: str) -> None:
        """End a job: write a last summary, and delete its samples."""
        watched = self._watched.pop(job, None)
        if watched is not None:
            self._summarise(watched)
            watched.writer.end()

    def close(self) -> None:
        """Stop sampling; the jobs go on, and the next sampler takes up where this one left."""
        for watched in self._watched.values():
            self._summarise(watched)
            watched.writer.close()
        self._watched.clear()
        self._metrics.close()

    def _begin(self, spec: JobSpec, now_s: float) -> None:
        try:
            writer = SampleWriter(self._spool, spec.job, self._node, now_s)
        except (MetricsError, OSError) as error:
            self._log(f"job {spec.job} is not sampled: {error}")
            return
        earlier = self._earlier(spec)
        alone = next((found.profile for found in earlier if found.profile is not None), None)
        # samples that still lie there are of this run; without any, an earlier summary is of the run before
        same = next((found for found in earlier if found.node == self._node), None) if writer.recovered else None
        meter = UseMeter(self._interval_s, () if same is None else same.use)
        watched = _Watched(spec, writer, Series(), now_s, meter, alone=alone)
        for gpus, sample in writer.recovered:
            watched.gpus, watched.begun_s = gpus, min(watched.begun_s, sample.at_s)
            watched.meter.add(gpus, sample)
            point = point_of(sample, self._interval_s)
            if point is not None:
                watched.series.add(point)
        if writer.recovered:
            watched.note(f"sampling was interrupted after sample {writer.next_seq - 1}")
            writer.recovered = []
        self._watched[spec.job] = watched

    def _earlier(self, spec: JobSpec) -> list[Summary]:
        """Summaries that an earlier run of the job left (its profiling run, on whatever node), or this one, sampled
        before."""
        found = []
        for name in (f"{spec.job}.json", f"{spec.job}@{self._node}.json"):
            with contextlib.suppress(MetricsError, FileNotFoundError):
                found.append(read_summary(self._profiles / name))
        return found

    def _sample(self, now_s: float) -> None:
        wanted = self._wanted()
        readings: Mapping[str, GpuReading | GpuLost]
        try:
            readings = self._metrics.read(wanted) if wanted else {}
        except MetricsError as error:
            readings = {uuid: GpuLost(uuid, str(error)) for uuid in wanted}
            self._log(str(error))
        owned = self._owned(readings)
        for job, watched in self._watched.items():
            if not watched.spec.gpus:  # announced without GPUs, it has those where its processes were seen
                seen = [uuid for uuid, owner in owned if owner == job and uuid not in watched.gpus]
                watched.gpus += tuple(sorted(seen))
        sharing: dict[str, list[str]] = {}
        for job, watched in self._watched.items():
            for uuid in watched.gpus:
                sharing.setdefault(uuid, []).append(job)
        used: dict[str, dict[str, float]] = {}
        for job, watched in self._watched.items():
            if not watched.gpus:
                continue  # not on any GPU yet
            partners = tuple(other for other in sharing[watched.gpus[0]] if other != job)
            if partners and partners != watched.partners:
                watched.partners, watched.partner_since_s = partners, now_s
            watched.partner = partners[0] if partners else None
            parts = [
                self._part(watched, readings.get(uuid), owned.get((uuid, job), ()), len(sharing[uuid]) > 1)
                for uuid in watched.gpus
            ]
            try:
                sample = watched.writer.write(now_s, watched.gpus, parts)
            except MetricsError as error:
                watched.note("samples were lost, because they could not be written to disk")
                self._log(str(error))
                continue
            watched.meter.add(watched.gpus, sample)
            for uuid, part in zip(watched.gpus, parts, strict=True):
                used.setdefault(uuid, {})[job] = own_use(part) or 0.0
            pids = [p.pid for uuid in watched.gpus for p in owned.get((uuid, job), ())]
            number = watched.spec.slurm_id or job
            host = self._host.use(job, number, [*watched.spec.pids, *pids][:_MOST_PIDS], now_s)
            held_mib = self._host.held_mib(job)
            if held_mib is not None:
                watched.meter.held(held_mib)
            point = point_of(sample, self._interval_s, host)
            if point is not None:
                watched.series.add(point)
        self._split_energy(readings, used)

    def _split_energy(
        self, readings: Mapping[str, GpuReading | GpuLost], used: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Divide the energy of each card since the last reading among its jobs, by how much they used it; in equal
        parts where none did, or nobody can tell."""
        before, self._energy_j = self._energy_j, {}
        for uuid, reading in readings.items():
            if isinstance(reading, GpuLost) or reading.energy_j is None:
                continue
            self._energy_j[uuid] = reading.energy_j
            jobs, took_j = used.get(uuid, {}), reading.energy_j - before.get(uuid, reading.energy_j)
            if not jobs or took_j <= 0.0:
                continue  # nobody's, or the driver was loaded anew
            whole = sum(jobs.values())
            for job, util in jobs.items():
                self._watched[job].meter.took(uuid, took_j * (util / whole if whole else 1.0 / len(jobs)))

    def _wanted(self) -> list[str]:
        """UUIDs to read: all cards while some job's GPUs are not known yet."""
        open_jobs = False
        uuids: dict[str, None] = {}
        for watched in self._watched.values():
            given = watched.spec.gpus
            if given:
                watched.gpus = tuple(uuid for uuid in map(self._resolve, given) if uuid) or watched.gpus
            open_jobs = open_jobs or not given
            uuids.update(dict.fromkeys(watched.gpus))
        if open_jobs:
            try:
                uuids.update((card.uuid, None) for card in self._metrics.cards())
            except MetricsError as error:
                self._log(str(error))
        return list(uuids)

    def _resolve(self, gpu: str) -> str | None:
        """The UUID of the GPU whose device file has this number; ``None`` while the driver does not say."""
        if not gpu.isdecimal():
            return gpu
        if gpu not in self._by_number:
            try:
                self._by_number = {str(card.number): card.uuid for card in self._metrics.cards()}
            except MetricsError as error:
                self._log(str(error))
        return self._by_number.get(gpu)

    def _owned(self, readings: Mapping[str, GpuReading | GpuLost]) -> dict[tuple[str, str], list[GpuProcess]]:
        given = {pid: w.spec.job for w in self._watched.values() for pid in w.spec.pids}
        names = {w.spec.slurm_id or w.spec.job: w.spec.job for w in self._watched.values()}
        owned: dict[tuple[str, str], list[GpuProcess]] = {}
        for uuid, reading in readings.items():
            for process in () if isinstance(reading, GpuLost) else reading.processes or ():
                found = self._owners.job_of(process.pid, given)
                job = None if found is None else names.get(found, found)
                if job is not None:
                    owned.setdefault((uuid, job), []).append(process)
        return owned

    def _part(
        self, watched: _Watched, reading: GpuReading | GpuLost | None, own: Sequence[GpuProcess], shared: bool
    ) -> GpuSample:
        if reading is None or isinstance(reading, GpuLost):
            if reading is not None:
                watched.note(f"{reading.uuid} was lost: {reading.why}")
            return GpuSample(shared=shared, lost=True)
        if reading.xid is not None:
            watched.note(f"Xid {reading.xid} ({xid(reading.xid).words}) on {reading.uuid}")
        processes = reading.processes
        # NVML lists only processes that were at work of late: beside those, one not listed did nothing
        working = [p for p in processes or () if p.sm_util is not None]
        told = bool(working) and not any(self._owners.serves_mps(p.pid) for p in working)
        idle = processes is not None and (not own or reading.gpu_util == 0)
        return GpuSample(
            reading.gpu_util,
            reading.mem_util,
            reading.mem_mib,
            min(sum(p.sm_util or 0.0 for p in own), 100.0) if told else 0.0 if idle else None,
            min(sum(p.mem_util or 0.0 for p in own), 100.0) if told else 0.0 if idle else None,
            None if processes is None else _sum(p.mem_mib for p in own) if own else 0.0,
            reading.sm_active,
            reading.sm_occupancy,
            reading.dram_active,
            shared,
        )

    def summary(self, job: str) -> Summary:
        """The present summary of a job that is being sampled."""
        return self._summary(self._watched[job])

    def _summary(self, watched: _Watched) -> Summary:
        notes = list(watched.notes)
        shares = self._shares(watched.spec)
        if shares:
            notes.append(shares)
        found = summarise(
            watched.series,
            watched.spec.job,
            self._node,
            watched.gpus,
            watched.writer.next_seq,
            partner=watched.partner,
            partner_since_s=watched.partner_since_s,
            promised=watched.spec.promised,
            notes=notes,
            amp=watched.spec.amp,
            workload=watched.spec.workload,
        )
        watched.alone = found.profile or watched.alone
        # beside two others, a card's readings do not tell how fast anybody runs
        beside = self._watched.get(watched.partner or "") if len(watched.partners) == 1 else None
        found = with_partner(found, watched.alone, None if beside is None else beside.alone)
        return replace(found, use=watched.meter.uses)

    def _shares(self, spec: JobSpec) -> str:
        """How a job that may share does it, and why it is not under MPS, as slurm/mps/start found; empty where no
        start was tried."""
        job = spec.slurm_id or spec.job
        slicing, under = self._mps_lines("slicing", job), self._mps_lines("sharing", job)
        if slicing:
            return f"shares by time-slicing: {' '.join(slicing[1:])}"[:_LONGEST_NOTE]
        return f"may share by {under[0]}"[:_LONGEST_NOTE] if under else ""

    def _mps_lines(self, folder: str, job: str) -> list[str]:
        try:
            return (self._mps / folder / job).read_text(errors="replace").splitlines()
        except OSError:
            return []

    def _summarise(self, watched: _Watched) -> None:
        try:
            write_summary(self._profiles, self._summary(watched), several_nodes=watched.spec.several_nodes)
        except MetricsError as error:
            self._log(str(error))
