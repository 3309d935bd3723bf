"""The tables that the models train on: profiles.csv and pairs.csv, measured or synthetic, each row saying which.

Columns are those of ``lucid.models.packing.measured`` and ``lucid.simulator.cluster.truth``, and beside them
``source`` (``measured`` or ``synthetic``), ``sharing``, ``card``, ``driver`` and ``date``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from benchmarks.calibrate.suite import Workload, pairs_of, suite
from lucid.binder.contention import contention_speeds
from lucid.core.job import JobProfile
from lucid.errors import ConfigError
from lucid.models.packing.measured import read_pairs, read_profiles
from lucid.models.packing.share_score import fit_share, share_labels

__all__ = [
    "Alone",
    "Circumstances",
    "Together",
    "synthetic_share",
    "synthetic_tables",
    "tables",
    "write_tables",
]

_LEAST_MEM_MIB = 24576.0
_SYNTHETIC = "synthetic: contention model"


class Circumstances(Struct, frozen=True):
    """What a table was measured on, and how the pairs shared. All words; empty where unknown."""

    source: str
    sharing: str
    card: str = ""
    driver: str = ""
    date: str = ""


class Alone(Struct, frozen=True):
    """One workload alone: steps a second, and its profile."""

    workload: Workload
    speed: float
    profile: JobProfile


class Together(Struct, frozen=True):
    """Two workloads at once: speeds relative to alone, and the card's readings with both."""

    first: Workload
    second: Workload
    speed_first: float
    speed_second: float
    gpu_util: float | None = None
    mem_util: float | None = None
    mem_mib: float | None = None
    sm_active: float | None = None
    dram_active: float | None = None


def _label(workload: Workload, side: str = "") -> dict[str, Any]:
    return {
        f"model{side}": workload.model,
        f"dataset{side}": workload.dataset,
        f"batchsize{side}": workload.batchsize,
        f"amp{side}": int(workload.amp),
    }


def tables(alone: Iterable[Alone], together: Iterable[Together], about: Circumstances) -> dict[str, str]:
    """The two files' contents by name."""
    how = {name: getattr(about, name) for name in ("source", "card", "driver", "date")}
    profiles = [
        {
            **_label(one.workload),
            "speed": round(one.speed, 3),
            "gpu_util": round(one.profile.gpu_util, 2),
            "gmem_util": round(one.profile.mem_util, 2),
            "gmem": round(one.profile.gpu_mem_mib),
            "sm_active": _cell(one.profile.sm_active),
            "dram_active": _cell(one.profile.dram_active),
            **how,
        }
        for one in alone
    ]
    pairs = [
        {
            **_label(both.first, "1"),
            "speed1": round(both.speed_first, 4),
            **_label(both.second, "2"),
            "speed2": round(both.speed_second, 4),
            "gpu_util": _cell(both.gpu_util),
            "gmem_util": _cell(both.mem_util),
            "gmem": _cell(both.mem_mib),
            "sm_active": _cell(both.sm_active),
            "dram_active": _cell(both.dram_active),
            "sharing": about.sharing,
            **how,
        }
        for both in together
    ]
    return {"profiles.csv": _csv(profiles), "pairs.csv": _csv(pairs)}


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def synthetic_tables() -> dict[str, str]:
    """The tables of the whole suite by the contention model from nominal readings: no measurement, and each row
    says so. Pairs whose memory does not fit a card of 24 GiB are left out."""
    alone = [
        Alone(w, 0.0, JobProfile(w.nominal.gpu_util, w.nominal.mem_util, w.nominal.mem_mib, amp=w.amp))
        for w in suite(quick=False)
    ]
    by_key = {one.workload.key: one for one in alone}
    together = []
    for first, second in pairs_of([one.workload for one in alone]):
        a, b = by_key[first.key].profile, by_key[second.key].profile
        if a.gpu_mem_mib + b.gpu_mem_mib < _LEAST_MEM_MIB:
            together.append(Together(first, second, *contention_speeds(a, b)))
    return tables(alone, together, Circumstances(_SYNTHETIC, _SYNTHETIC))


def synthetic_share(profiles: Path, pairs: Path) -> str:
    """The share tree trained on these tables, as JSON: what a daemon without a library of models goes by.

    Raises:
        ModelError: a table cannot be read, or the libraries that train are not installed.
    """
    usages = read_profiles(profiles)
    labels = share_labels(usages, read_pairs(pairs, usages))
    known = [(usage, label) for usage, label in zip(usages, labels, strict=True) if label is not None]
    tree = fit_share([usage for usage, _ in known], [label for _, label in known])
    return json.dumps(tree.to_json(), indent=1) + "\n"


def write_tables(found: Mapping[str, str], out: Path) -> list[Path]:
    """Write them into ``out`` (created if need be).

    Raises:
        ConfigError: the folder cannot be written.
    """
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            path = out / name
            path.write_text(text, encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written ({error.strerror}); give --out a folder of yours") from None
    return written
