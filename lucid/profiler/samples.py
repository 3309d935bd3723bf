"""One sample of a job's GPUs (all readings of one moment), and its record of fixed size on disk.

A record is 12 bytes of head and 12 a GPU, little-endian, so that a day of a job on 8 GPUs at 1 Hz is 8.9 MiB; one cut
short by a crash is known by its length or its checksum."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

_HEAD: Final = struct.Struct("<III")
"""Checksum of the rest, sequence number, milliseconds since the base of its file (enough for 49 days)."""
_GPU: Final = struct.Struct("<BBBBBBBBHH")
_SHARES: Final = ("gpu_util", "mem_util", "own_util", "own_mem_util", "sm_active", "sm_occupancy", "dram_active")
"""The shares of a GPU in the order of its record, before flags and memory."""
_UNKNOWN, _UNKNOWN_MIB = 255, 65535
_STEP_MIB: Final = 4
"""Step in which memory is kept, rounded up: up to 256 GiB in two bytes."""
_SHARED, _LOST = 1, 2
_FINE: Final = 2.0
"""Steps of shares per percent: half a percent each, 0-200 in a byte."""


class GpuSample(Struct, frozen=True):
    """One of a job's GPUs at one moment: the card's readings, and the job's own part where it can be told.

    Shares in percent (to half a percent), memory in MiB; ``None`` where unknown. ``own_util`` and
    ``own_mem_util`` are the job's processes' share of time, ``own_mib`` their memory. ``shared``: another job
    was on this GPU. ``lost``: the GPU could not be read."""

    gpu_util: float | None = None
    mem_util: float | None = None
    mem_mib: float | None = None
    own_util: float | None = None
    own_mem_util: float | None = None
    own_mib: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    shared: bool = False
    lost: bool = False


class Sample(Struct, frozen=True):
    """All GPUs of a job at one moment. ``seq`` counts a job's samples on a node from 0, without a gap."""

    seq: int
    at_s: float
    gpus: tuple[GpuSample, ...]


def record_size(gpus: int) -> int:
    """Bytes of one record of a job with this many GPUs on the node."""
    return _HEAD.size + _GPU.size * gpus


def pack(sample: Sample, base_s: float) -> bytes:
    """The record of one sample, ``record_size(len(sample.gpus))`` bytes; its time is kept from ``base_s`` on."""
    body = b"".join(_pack_gpu(gpu) for gpu in sample.gpus)
    since_ms = min(max(round((sample.at_s - base_s) * 1000), 0), 0xFFFFFFFF)
    rest = _HEAD.pack(0, sample.seq, since_ms)[4:] + body
    return zlib.crc32(rest).to_bytes(4, "little") + rest


def unpack(record: bytes, gpus: int, base_s: float) -> Sample | None:
    """The sample of a record; ``None`` for a record that was cut short or damaged."""
    if len(record) != record_size(gpus) or zlib.crc32(record[4:]).to_bytes(4, "little") != record[:4]:
        return None
    _, seq, since_ms = _HEAD.unpack_from(record)
    return Sample(
        seq, base_s + since_ms / 1000, tuple(_unpack_gpu(part) for part in _GPU.iter_unpack(record[_HEAD.size :]))
    )


def _share(value: float | None) -> int:
    return _UNKNOWN if value is None else round(min(max(value, 0.0), 100.0) * _FINE)


def _mib(value: float | None) -> int:
    return _UNKNOWN_MIB if value is None else min(max(math.ceil(value / _STEP_MIB), 0), _UNKNOWN_MIB - 1)


def _pack_gpu(gpu: GpuSample) -> bytes:
    return _GPU.pack(
        *(_share(getattr(gpu, name)) for name in _SHARES),
        _SHARED * gpu.shared | _LOST * gpu.lost,
        _mib(gpu.mem_mib),
        _mib(gpu.own_mib),
    )


def _unpack_gpu(part: Sequence[float]) -> GpuSample:
    values = zip(_SHARES, part, strict=False)
    shares = {name: None if value == _UNKNOWN else value / _FINE for name, value in values}
    flags = int(part[7])
    mem_mib, own_mib = (None if value == _UNKNOWN_MIB else float(value * _STEP_MIB) for value in part[8:])
    lost, shared = bool(flags & _LOST), bool(flags & _SHARED)
    return GpuSample(mem_mib=mem_mib, own_mib=own_mib, shared=shared, lost=lost, **shares)
