"""A job's samples as one series of points, one a moment over all its GPUs, of bounded length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lucid.core.frozen import dataclass
from lucid.core.job import TimeShares
from lucid.profiler.samples import GpuSample, Sample
from lucid.profiler.shares import HostUse, mean_shares, shares_in

__all__ = ["Point", "Series", "mean_of", "point_of"]


@dataclass(frozen=True, slots=True)
class Point:
    """A job at one moment: means over its GPUs in percent, ``mem_mib`` the most on one GPU.

    ``gpu_util``, ``mem_util`` and ``mem_mib`` are the job's own where it shares its GPUs (``None`` where that
    cannot be told), the card's where it is alone; the fields named ``card`` and the two last are the cards'.
    ``step_s``: the time that the point stands for. ``shares``: what the job did with it, where it was alone and its
    node tells.
    """

    at_s: float
    step_s: float
    gpu_util: float | None
    mem_util: float | None
    mem_mib: float | None
    shared: bool
    card_util: float | None = None
    card_mem_util: float | None = None
    card_mib: float | None = None
    sm_active: float | None = None
    dram_active: float | None = None
    shares: TimeShares | None = None


def mean_of(values: Iterable[float | None]) -> float | None:
    """Mean of the known values; ``None`` if no value is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def point_of(sample: Sample, step_s: float = 1.0, host: HostUse | None = None) -> Point | None:
    """The point of one sample; ``None`` where no GPU of the job could be read. ``host``: what the job did on its node
    in the meantime, where that is known."""
    seen = [gpu for gpu in sample.gpus if not gpu.lost]
    if not seen:
        return None
    # the GPU that worked most: a pipeline is at work on its GPUs as long as it is on any
    most = _most(gpu.gpu_util for gpu in seen)
    shares = None
    if host is not None and most is not None and not any(gpu.shared for gpu in seen):
        shares = shares_in(host, most / 100.0)
    return Point(
        sample.at_s,
        step_s,
        mean_of(gpu.own_util if gpu.shared else gpu.gpu_util for gpu in seen),
        mean_of(gpu.own_mem_util if gpu.shared else gpu.mem_util for gpu in seen),
        _most(_own_mib(gpu) for gpu in seen),
        any(gpu.shared for gpu in seen),
        mean_of(gpu.gpu_util for gpu in seen),
        mean_of(gpu.mem_util for gpu in seen),
        _most(gpu.mem_mib for gpu in seen),
        mean_of(gpu.sm_active for gpu in seen),
        mean_of(gpu.dram_active for gpu in seen),
        shares,
    )


def _own_mib(gpu: GpuSample) -> float | None:
    # Alone, the card's figure is the safer one: it has the context and what no process is charged with.
    return gpu.own_mib if gpu.shared else gpu.mem_mib


def _joined(first: Point, second: Point) -> Point:
    pair = (first, second)
    return Point(
        first.at_s,
        first.step_s + second.step_s,
        mean_of(p.gpu_util for p in pair),
        mean_of(p.mem_util for p in pair),
        _most(p.mem_mib for p in pair),
        second.shared,
        mean_of(p.card_util for p in pair),
        mean_of(p.card_mem_util for p in pair),
        _most(p.card_mib for p in pair),
        mean_of(p.sm_active for p in pair),
        mean_of(p.dram_active for p in pair),
        mean_shares([(p.step_s, p.shares) for p in pair]),
    )


class Series:
    """The points of one job, at most ``limit`` of them: when full, neighbours are joined two by two (means;
    the most of memory), so a long job keeps its whole past at a coarser step. A point alone and one shared are
    never joined."""

    def __init__(self, limit: int = 2048) -> None:
        self._limit = limit
        self._points: list[Point] = []
        self._step_s = 0.0
        self._open: Point | None = None

    def __len__(self) -> int:
        return len(self._points) + (self._open is not None)

    def __iter__(self) -> Iterator[Point]:
        yield from self._points
        if self._open is not None:
            yield self._open

    @property
    def points(self) -> Sequence[Point]:
        """All points, oldest first."""
        return list(self)

    def add(self, point: Point) -> None:
        """Append one; points come in order of time."""
        if self._open is not None and (
            self._open.shared != point.shared or self._open.step_s + point.step_s > self._step_s
        ):
            self._points.append(self._open)
            self._open = None
        self._open = point if self._open is None else _joined(self._open, point)
        if len(self._points) >= self._limit:
            self._halve()

    def _halve(self) -> None:
        kept: list[Point] = []
        widest = max(point.step_s for point in self._points)
        for point in self._points:
            last = kept[-1] if kept else None
            if last is not None and last.shared == point.shared and last.step_s + point.step_s <= 2 * widest:
                kept[-1] = _joined(last, point)
            else:
                kept.append(point)
        self._points = kept
        self._step_s = 2 * widest
