"""``UseMeter``: how long each of a job's GPUs worked and stood idle, from its samples.

Readings of idle time are kept as stretches, not as one sum: a pause between two epochs and an hour after the end of
training come to the same mean. Short stretches are pauses of ordinary work and are left out as they close, so the
account of a job of a month stays small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lucid.profiler.samples import GpuSample, Sample

WORKING_UTIL: Final = 1.0
"""A GPU above this share of time works, percent (NVML). An idle card reads 0; what watches cards (health checks,
persistence) shows as up to 1 for a moment."""
LEAST_IDLE_S: Final = 300.0
"""The least length of a stretch that is kept: start-up, loading of data, checkpoints and short evaluations are
shorter."""
_MOST_STRETCHES: Final = 16
"""Most stretches of a GPU; beyond that, the shortest goes. What is left out is never called idle."""
_BLIP_S, _BLIP_SHARE = 5.0, 0.005
"""The most work that does not end a stretch: a few seconds, or less than half a percent of the time. A loop that
touches the GPU now and then to keep its job alive is idle. A job that works for a second in every twenty is not: its
seconds add up within two minutes."""
_MOST_GAP_S: Final = 60.0
"""Over more seconds without a reading nothing is known; a slow driver, or a restarted sampler, takes less."""


@dataclass(frozen=True, slots=True)
class IdleStretch:
    """A time in which a GPU did nothing for its job, Unix seconds. ``empty_s``: the part of it in which no process of
    the job was on the GPU; 0 where the source lists no processes."""

    begin_s: float
    end_s: float
    empty_s: float = 0.0

    @property
    def length_s(self) -> float:
        """The length in seconds."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The use of one GPU by one job over one run. ``begin_s``, ``end_s``: of the first and after the last reading,
    Unix seconds. ``measured_s``: how long readings showed what the job did there; ``worked_s``: how long of that the
    GPU worked. ``idle``: stretches of at least `LEAST_IDLE_S`, in order. ``energy_j``: this job's part of the joules
    that the GPU used meanwhile; for a shared GPU its part by use, an estimate; ``None`` where no card counts.
    ``host_mib``: the most of the node's memory that its processes held (without caches), MiB."""

    gpu: str
    begin_s: float
    end_s: float
    measured_s: float = 0.0
    worked_s: float = 0.0
    idle: tuple[IdleStretch, ...] = ()
    energy_j: float | None = None
    host_mib: float | None = None


@dataclass(slots=True)
class _Meter:
    gpu: str
    begin_s: float
    last_s: float
    """The time of the last reading that showed anything."""
    measured_s: float = 0.0
    worked_s: float = 0.0
    idle: tuple[IdleStretch, ...] = ()
    since_s: float | None = None
    """When the stretch that goes on began."""
    idle_until_s: float = 0.0
    empty_s: float = 0.0
    blip_s: float = 0.0
    energy_j: float | None = None
    host_mib: float | None = None


class UseMeter:
    """Takes in a run's samples as they come. ``interval_s``: between two samples."""

    def __init__(self, interval_s: float = 1.0, earlier: Sequence[GpuUse] = ()) -> None:
        """``earlier``: the uses that an earlier sampler found in the same run."""
        self._interval_s = interval_s
        self._meters = {
            use.gpu: _Meter(
                use.gpu,
                use.begin_s,
                use.end_s,
                use.measured_s,
                use.worked_s,
                use.idle,
                energy_j=use.energy_j,
                host_mib=use.host_mib,
            )
            for use in earlier
        }

    def add(self, gpus: Sequence[str], sample: Sample) -> None:
        """Take in one sample of the job; ``gpus`` names its GPUs. A sample older than the last is passed over."""
        for gpu, part in zip(gpus, sample.gpus, strict=False):
            self._add(gpu, part, sample.at_s)

    def took(self, gpu: str, joules: float) -> None:
        """Add so much energy to this job's."""
        one = self._meters.get(gpu)
        if one is not None:
            one.energy_j = (one.energy_j or 0.0) + joules

    def held(self, host_mib: float) -> None:
        """Note that the job held so much of the node's memory."""
        for one in self._meters.values():
            one.host_mib = max(one.host_mib or 0.0, host_mib)

    @property
    def uses(self) -> tuple[GpuUse, ...]:
        """The use of each GPU so far, with the stretch that goes on."""
        return tuple(
            GpuUse(
                one.gpu, one.begin_s, one.last_s, one.measured_s, one.worked_s, _kept(one), one.energy_j, one.host_mib
            )
            for one in self._meters.values()
        )

    def _add(self, gpu: str, part: GpuSample, at_s: float) -> None:
        util = own_use(part)
        one = self._meters.get(gpu)
        if one is None:
            begin_s = at_s - self._interval_s
            one = self._meters[gpu] = _Meter(gpu, begin_s, begin_s)
        step_s = at_s - one.last_s
        if util is None or step_s <= 0.0:
            return
        if step_s > _MOST_GAP_S:
            _close(one)
            step_s = self._interval_s
        one.last_s = at_s
        one.measured_s += step_s
        if util > WORKING_UTIL:
            one.worked_s += step_s
            one.blip_s += step_s
            if one.blip_s > _BLIP_S:
                _close(one)
            return
        one.blip_s = max(one.blip_s - _BLIP_SHARE * step_s, 0.0)
        if one.since_s is None:
            _open(one, at_s - step_s)
        one.idle_until_s = at_s
        one.empty_s += step_s * (part.own_mib == 0.0)


def own_use(part: GpuSample) -> float | None:
    """The GPU's work for this job, percent; ``None`` where it cannot be told. A card that does nothing does nothing
    for any of its jobs."""
    if part.lost:
        return None
    return part.own_util if part.shared and part.gpu_util else part.gpu_util


def _open(one: _Meter, begin_s: float) -> None:
    last = one.idle[-1] if one.idle else None
    if last is not None and last.end_s == begin_s:  # the sampler was restarted within it
        one.idle = one.idle[:-1]
        one.since_s, one.empty_s = last.begin_s, last.empty_s
    else:
        one.since_s, one.empty_s = begin_s, 0.0


def _close(one: _Meter) -> None:
    one.idle = _kept(one)
    one.since_s, one.blip_s = None, 0.0


def _kept(one: _Meter) -> tuple[IdleStretch, ...]:
    """The stretches, with the one that goes on where it is long enough by now."""
    if one.since_s is None or one.idle_until_s - one.since_s < LEAST_IDLE_S:
        return one.idle
    found = (*one.idle, IdleStretch(one.since_s, one.idle_until_s, one.empty_s))
    if len(found) <= _MOST_STRETCHES:
        return found
    shortest = min(found, key=lambda stretch: stretch.length_s)
    return tuple(stretch for stretch in found if stretch is not shortest)
