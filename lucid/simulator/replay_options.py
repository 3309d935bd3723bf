"""``ReplayOptions``: what simulate, compare, tune and ``lucid.replay`` ask of one replay, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lucid.errors import ConfigError
from lucid.simulator.layout import NodeShape, read_vcs, sized_to_load, sized_vcs
from lucid.simulator.traces.record import Trace
from lucid.simulator.traces.window import POOL


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The options by the names of their parameters on the command line, whose help says what each means.

    Raises: ConfigError: two of them contradict each other."""

    fmt: str | None = None
    applications: Path | None = None
    skip_bad: bool = False
    begin: str | None = None
    days: float | None = None
    workloads: str = "trace"
    seed: int = 1
    vcs: Path | None = None
    nodes: int | None = None
    load: float | None = None
    pool: bool = False
    gpus_per_node: int = 8
    gpu_mem_mib: int = 24576
    cpus_per_node: int = 0
    mem_mib_per_node: int = 0
    profiling_nodes: int | None = None
    events: Path | None = None
    config: Path | None = None
    lending: str | None = None
    predictor: str = "history"
    estimate_specs: Sequence[str] = ()
    profiles: Path | None = None
    pairs: Path | None = None
    semantics: str | None = None
    as_live: bool = False
    remember_pairs: bool = True

    def __post_init__(self) -> None:
        given = {"--vcs": self.vcs, "--nodes": self.nodes, "--load": self.load}
        said = [name for name, value in given.items() if value is not None]
        if len(said) > 1:
            raise ConfigError(f"{' and '.join(said)} each say how many nodes there are; give one of them")
        if self.pool and (self.lending or "off") != "off":
            raise ConfigError("--pool leaves one VC, and --lending is of several; leave one of them out")

    @property
    def shape(self) -> NodeShape:
        """The shape of every node."""
        return NodeShape(self.gpus_per_node, self.gpu_mem_mib, self.cpus_per_node, self.mem_mib_per_node)

    def nodes_of(self, trace: Trace, walled: Trace | None = None) -> dict[str, int]:
        """Nodes by VC for a trace; ``walled``: the trace with its VCs, where ``trace`` was pooled.

        Raises: ConfigError: the nodes cannot hold the largest jobs, or `sized_to_load`. TraceError: the file of VCs
        cannot be read."""
        if self.vcs is not None:
            found = read_vcs(self.vcs)
        elif self.load is not None:
            found = sized_to_load(trace, self.gpus_per_node, self.load, self.profiling_nodes)
        else:
            # sized to the trace, a pool has the nodes of its VCs: only the walls go
            found = sized_vcs(trace if self.nodes or walled is None else walled, self.gpus_per_node, self.nodes)
        return {POOL: sum(found.values())} if self.pool else found

    def sizing_notes(self, load: float | None) -> list[str]:
        """How the nodes were chosen, where nobody gave them; ``load``: the load that they came to."""
        found = ["--pool: all jobs are in one VC, which has the nodes of all VCs"] if self.pool else []
        if self.load is not None:
            found.append(f"the nodes were chosen for a load of {self.load:g}; on whole nodes it is {load or 0.0:.3f}")
        elif self.vcs is None and self.nodes is None:
            found.append("no --vcs or --nodes: VCs were sized to run all jobs at once for 95 % of the time")
        return found
