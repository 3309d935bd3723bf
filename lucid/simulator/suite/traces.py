"""The traces at hand, the cluster that each is replayed on, and what others have published about it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lucid.simulator.elastic.sets import elastic_trace
from lucid.simulator.estimates import read_estimates
from lucid.simulator.ground_truth import read_pairs
from lucid.simulator.layout import NodeShape, read_vcs, sized_vcs
from lucid.simulator.scenario import Scenario, Semantics
from lucid.simulator.traces import read_trace
from lucid.simulator.traces.synth import PRESETS, synthesise, vc_layout, with_workloads
from lucid.systems.elastic import draw_set

__all__ = ["Entry", "traces_at_hand"]

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One trace of the suite.

    ``name``: also that of its files. ``about``: what it is, and on which cluster. ``published``: average JCT by
    policy, s, from ``source``. ``simplified``: what its replay leaves out. ``files``: what it is read from. ``make``:
    reads it.
    """

    name: str
    about: str
    make: Callable[[], Scenario]
    files: tuple[Path, ...] = ()
    published: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    simplified: tuple[str, ...] = ()

    def digest(self) -> str:
        """Changes when the files do."""
        found = hashlib.sha256(self.name.encode())
        for path in self.files:
            found.update(path.read_bytes())
        return found.hexdigest()[:16]


_PARITY = "each policy pays what the published simulator charges it (--semantics published), not what it would pay"
_GENERATED = "a synthetic trace, generated here; nothing is published about it"


def traces_at_hand(folder: Path | None) -> list[Entry]:
    """The traces in ``folder`` (or in ``data`` below it); where there is none, those that Lucid generates itself."""
    found = [] if folder is None else list(_found(folder / "data" if (folder / "data").is_dir() else folder))
    return found or list(_generated())


def _found(data: Path) -> Iterator[Entry]:
    p0, p1, pairs = data / "packs" / "P0.csv", data / "packs" / "P1.csv", data / "pairs.csv"
    for path, published in ((p0, _P0), (p1, _P1)):
        vcs = path.with_name(f"{path.stem}_vc_config.csv")
        if path.is_file() and vcs.is_file() and pairs.is_file():
            estimates = {
                policy: file
                for policy, kind in (("qssf", "lgb"), ("lucid", "ebm"))
                if (file := path.with_name(f"{path.stem}_est_{kind}.csv")).is_file()
            }
            yield Entry(
                path.stem,
                f"pack of the Philly log, {'7' if path is p0 else '96'} nodes of 8 GPUs",
                _pack(path, vcs, pairs, estimates),
                (path, vcs, pairs, *estimates.values()),
                {policy: hours * _HOUR for policy, hours in published.items()},
                "published simulator of Lucid, run on this pack",
                (_PARITY, *(() if estimates else ("no estimates are kept for this pack: means over the past",))),
            )
    for number, seconds in _MURI.items():
        path = data / "muri" / f"trace{number}.csv"
        if path.is_file():
            yield Entry(
                f"muri-{number}",
                f"trace {number} of Muri, 8 nodes of 8 GPUs",
                _plain(path, 8, 8, Semantics.MURI),
                (path,),
                seconds,
                "published simulator of Muri, run on this trace",
                ("start costs at every event, and moving is free, as in Muri's simulator (--semantics muri)",),
            )
    path = data / "pollux" / "workload-6.csv"
    if path.is_file():
        yield Entry(
            "pollux-6",
            "workload 6 of Pollux, 16 nodes of 4 GPUs",
            _plain(path, 16, 4, Semantics.HONEST),
            (path,),
            {"tiresias": 3470.0, "optimus": 5302.0, "pollux": 2446.0},
            "results of Pollux's authors",
            ("every start and resize takes 30 s, whatever the application",),
        )
    if (path := data / "philly.csv").is_file():
        yield Entry(
            "philly",
            "the whole Philly log, sized so that all jobs run at once for 95 % of the time",
            _sized(path),
            (path,),
            simplified=("no GPU readings, so no job shares a GPU", "the size of the cluster is an assumption"),
        )


_P0 = {"fifo": 6.988, "sjf": 0.747, "srtf": 0.621, "qssf": 1.306, "tiresias": 0.652, "lucid": 0.742}
_P1 = {"fifo": 10.788, "sjf": 6.735, "srtf": 6.049, "qssf": 8.341, "tiresias": 6.300, "lucid": 5.951}
"""Average JCT, h."""
_MURI: dict[int, dict[str, float]] = {
    3: {
        "srtf": 193_082.0,
        "srsf": 185_022.0,
        "tiresias": 347_213.0,
        "muri-s": 83_242.0,
        "muri-s-no-unpack": 85_503.0,
        "muri-l": 88_687.0,
    },
    1: {"srtf": 1_370_603.0, "srsf": 980_141.0, "tiresias": 3_330_371.0},
}
"""Average JCT by trace, s."""


def _pack(path: Path, vcs: Path, pairs: Path, estimates: Mapping[str, Path]) -> Callable[[], Scenario]:
    def make() -> Scenario:
        trace = read_trace(path)
        given = {policy: read_estimates(file, trace) for policy, file in estimates.items()}
        return Scenario(
            trace,
            read_vcs(vcs),
            interference=read_pairs(pairs),
            durations_s=given,
            semantics=Semantics.PUBLISHED,
        )

    return make


def _plain(path: Path, nodes: int, gpus: int, semantics: Semantics) -> Callable[[], Scenario]:
    def make() -> Scenario:
        trace = read_trace(path)
        return Scenario(trace, sized_vcs(trace, gpus, nodes), NodeShape(gpus), semantics=semantics)

    return make


def _sized(path: Path) -> Callable[[], Scenario]:
    def make() -> Scenario:
        trace = read_trace(path)
        return Scenario(trace, sized_vcs(trace, 8, None))

    return make


def _generated() -> Iterator[Entry]:
    def month() -> Scenario:
        made, _ = with_workloads(synthesise(PRESETS["month-small"]), 1)
        return Scenario(made, vc_layout("month-small"))

    def elastic() -> Scenario:
        return Scenario(elastic_trace(draw_set("workload2", 10.0, 0)), {"cluster": 3}, NodeShape(gpus=4))

    yield Entry("month-small", "four weeks, 4,000 jobs, 26 nodes of 8 GPUs", month, simplified=(_GENERATED,))
    yield Entry(
        "elastic-set",
        "20 elastic jobs, 3 nodes of 4 GPUs",
        elastic,
        simplified=(_GENERATED, "the speeds of these jobs are invented tables"),
    )
