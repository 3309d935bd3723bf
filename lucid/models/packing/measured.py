"""Tables of measured workloads: configurations profiled alone, and pairs of them run together on one GPU set.

The two CSV files are what an administrator measures once (or Lucid collects from packed jobs over time).
`read_profiles` wants the columns model, dataset, batchsize, amp, gpu_util (%), gmem_util (%), gmem (MiB) and
optionally label (0 Tiny, 1 Medium, 2 Jumbo); `read_pairs` wants model1, dataset1, batchsize1, amp1, speed1 and the
same for side 2, speeds normalised by the speed alone. Other columns are ignored: readings of a pair together are
unknown when the decision is taken.

Tables that come with Lucid serve a site that has measured none: ``profiles.csv``, ``pairs.csv``, ``share.json``. They
are synthetic, and each row says so: nominal readings through the contention model. They are made by ``python -m
benchmarks.calibrate --synthetic --out lucid/models/packing/synthetic``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path

from msgspec import Struct

from lucid.accounting.log_rows import number, table_rows
from lucid.errors import TraceError

_NAMED = ("model", "dataset", "batchsize", "amp")


class Usage(Struct, frozen=True):
    """What a job used of its GPUs while it ran alone: all that is known when packing is decided.

    `workload` is the family whose jobs behave alike (a model's name, a bucket of job names), `config` the
    exact configuration; both may be None or unknown to a model, which then says nothing about them."""

    gpu_util: float  # %, 0 to 100: share of time in which a kernel ran
    gmem_util: float  # %, 0 to 100: share of time in which GPU memory was read or written
    gmem_mib: float
    amp: bool | None = None
    workload: str | None = None
    config: str | None = None
    label: int | None = None  # share score given by the measurer, if any


class Pairing(Struct, frozen=True):
    """Two configurations measured together; speeds are relative to running alone (1 = unharmed)."""

    first: Usage
    second: Usage
    speed_first: float
    speed_second: float

    @property
    def slower(self) -> float:
        """The normalised speed of the side that suffers more."""
        return min(self.speed_first, self.speed_second)


def read_profiles(path: Path) -> list[Usage]:
    """Every configuration of a profiles file, in its order.

    Raises:
        TraceError: the file cannot be read, a column is absent, a value is not a number or is out of range, or a
            configuration is in the table twice."""
    usages: list[Usage] = []
    known: dict[str, int] = {}
    columns = (*_NAMED, "gpu_util", "gmem_util", "gmem")
    for line, row in table_rows(path, columns, "give a CSV of configurations measured alone"):
        where = f"{path}, line {line}"
        config = _config(row, "")
        if config in known:
            raise TraceError(f"{where}: configuration {config} is already in line {known[config]}; keep one")
        known[config] = line
        usages.append(
            Usage(
                gpu_util=_number(row, "gpu_util", where, 0.0, 100.0),
                gmem_util=_number(row, "gmem_util", where, 0.0, 100.0),
                gmem_mib=_number(row, "gmem", where, 0.0),
                amp=bool(_number(row, "amp", where, 0.0, 1.0)),
                workload=row["model"],
                config=config,
                label=int(_number(row, "label", where, 0.0, 2.0)) if row.get("label") else None,
            )
        )
    return usages


def read_pairs(path: Path, profiles: Iterable[Usage]) -> list[Pairing]:
    """Every measured pair, its sides joined with their profiles.

    Raises:
        TraceError: as `read_profiles`, or a side's configuration has no profile."""
    by_config = {usage.config: usage for usage in profiles}
    columns = [f"{name}{side}" for side in "12" for name in (*_NAMED, "speed")]
    pairings = []
    for line, row in table_rows(path, columns, "give a CSV of pairs measured together"):
        where = f"{path}, line {line}"
        sides = []
        for side in "12":
            config = _config(row, side)
            if config not in by_config:
                raise TraceError(f"{where}: configuration {config} has no profile; measure it alone first")
            sides.append(by_config[config])
        speeds = [_number(row, f"speed{side}", where, 0.0) for side in "12"]
        pairings.append(Pairing(sides[0], sides[1], speeds[0], speeds[1]))
    return pairings


def _config(row: Mapping[str, str], side: str) -> str:
    return "/".join(row[name + side] for name in _NAMED)


def _number(row: Mapping[str, str], name: str, where: str, low: float, high: float = math.inf) -> float:
    value = number(row[name])
    if not (math.isfinite(value) and low <= value <= high):
        raise TraceError(f"{where}: {name} is {row[name]!r}, not a number between {low:g} and {high:g}")
    return value


def shipped(name: str) -> Path:
    """Path of a file that comes with the package."""
    return Path(str(files("lucid.models.packing"))) / "synthetic" / name
