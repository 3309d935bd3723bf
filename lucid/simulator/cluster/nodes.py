"""Nodes of the simulated cluster over time: closed, down or up, by a file of events; and how much is held."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from lucid.accounting.log_rows import table_rows
from lucid.config.policy import BackfillSettings
from lucid.core.node import Node, Window
from lucid.core.placement import Placement, hosts_in
from lucid.errors import ConfigError, TraceError, did_you_mean
from lucid.simulator.cluster.state import Room
from lucid.simulator.traces.record import Trace

_COLUMNS = ("event", "nodes", "from", "until", "every", "name")
_NEEDED = ("event", "nodes", "from")
_EVERY_S = {"": 0.0, "day": 86400.0, "week": 7 * 86400.0}
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::(\d\d))?")


@dataclass(frozen=True, slots=True)
class Outages:
    """Windows and failures by name of a node, in order of time and in seconds of the trace. ``windows`` are known to
    the scheduler from the first second on, ``downs`` only when they happen."""

    windows: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    downs: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)


def read_events(path: Path, trace: Trace, layout: Mapping[str, Sequence[Node]]) -> Outages:
    """The events of a CSV file. A recurring event comes again up to the last submission of the trace.

    Raises: TraceError: naming file, line, column and value."""
    last_s = max((item.job.submit_s for item in trace.jobs), default=0.0)
    found: dict[str, defaultdict[str, list[Window]]] = {"window": defaultdict(list), "down": defaultdict(list)}
    columns = ",".join(_COLUMNS)
    for line, row in table_rows(path, _NEEDED, f"give --events a CSV of {columns} (the last three may be left out)"):
        where = f"{path}: line {line}"
        if not set(row) <= {*_COLUMNS}:
            raise TraceError(
                f'{where}: more values than columns; quote a list of nodes: "a-000,a-001" (columns: {columns})'
            )
        values = {name: (row.get(name) or "").strip() for name in _COLUMNS}
        kind = values["event"]
        if kind not in found:
            raise TraceError(f"{where}: column event: {kind!r} is neither 'window' nor 'down'")
        times = list(_times(values, where, trace.epoch_s, last_s))
        for node in _named_nodes(values["nodes"], where, layout):
            found[kind][node] += times
    if not any(found.values()):
        raise TraceError(f"{path}: names no event; write a line for each below the header {columns}")
    by_node = {
        kind: {node: tuple(sorted(times, key=lambda w: (w.from_s, w.end_s))) for node, times in nodes.items()}
        for kind, nodes in found.items()
    }
    return Outages(by_node["window"], by_node["down"])


def _times(values: Mapping[str, str], where: str, epoch_s: float | None, last_s: float) -> Iterator[Window]:
    from_s = _seconds(values["from"], "from", where, epoch_s)
    until_s = _seconds(values["until"], "until", where, epoch_s) if values["until"] else None
    if until_s is not None and until_s <= from_s:
        raise TraceError(f"{where}: column until: {values['until']!r} is not after {values['from']!r}")
    if values["every"] not in _EVERY_S:
        raise TraceError(f"{where}: column every: {values['every']!r} is neither 'day' nor 'week' nor empty")
    name = values["name"] or ("closed" if values["event"] == "window" else "down")
    yield Window(from_s, until_s, name)
    every_s = _EVERY_S[values["every"]]
    if not every_s:
        return
    if until_s is None or until_s - from_s >= every_s:
        raise TraceError(
            f"{where}: column until: an event of every {values['every']} must end before the next begins"
        )
    for k in range(1, math.floor((last_s - from_s) / every_s) + 1):
        yield Window(from_s + k * every_s, until_s + k * every_s, name)


def _seconds(text: str, column: str, where: str, epoch_s: float | None) -> float:
    """Seconds of the trace, from a number of them, Slurm's [DAYS-]HH:MM[:SS], or a date where the trace has dates."""
    found_s = _slurm_seconds(text)
    if found_s is not None:
        return found_s
    try:
        at_s = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        pass
    else:
        if epoch_s is None:
            raise TraceError(
                f"{where}: column {column}: {text!r} is a date, and the trace has none; write seconds of the "
                "trace, or 3-18:00 for day 3"
            ) from None
        return at_s - epoch_s
    raise TraceError(
        f"{where}: column {column}: {text!r} is no time; write seconds of the trace, 3-18:00 (day 3, counted from "
        "0), or 2024-03-05T18:00"
    )


def _slurm_seconds(text: str) -> float | None:
    """A time: seconds, or Slurm's [DAYS-]HH:MM[:SS]; ``None`` if it is neither."""
    try:
        value = float(text)
    except ValueError:
        found = _SLURM_TIME.fullmatch(text)
        if found is None:
            return None
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return days * 86400.0 + hours * 3600.0 + minutes * 60.0 + seconds
    return value if math.isfinite(value) and value >= 0 else None


def _named_nodes(text: str, where: str, layout: Mapping[str, Sequence[Node]]) -> list[str]:
    """Names of the nodes that the column ``nodes`` names: all (``*``), those of VCs, or those of a host list.

    Raises: TraceError: there is no such node. The message begins with ``where``."""
    every = {vc: [node.name for node in nodes] for vc, nodes in layout.items()}
    if text == "*":
        return [name for names in every.values() for name in names]
    known = {name for names in every.values() for name in names}
    found: list[str] = []
    for word in [text] if text in every else _hosts(text, where):
        if word not in every and word not in known:
            vcs = ", ".join(f"{vc} ({names[0]} to {names[-1]})" for vc, names in every.items() if names)
            hint = did_you_mean(word, [*every, *known])
            raise TraceError(
                f"{where}: column nodes: there is no VC or node {word!r}{hint}; write *, or of these: {vcs}"
            )
        found += every.get(word, [word])
    return list(dict.fromkeys(found))


def _hosts(text: str, where: str) -> list[str]:
    try:
        return hosts_in(text)
    except ConfigError as error:
        raise TraceError(f"{where}: column nodes: {error}") from None


def with_limits(trace: Trace, settings: BackfillSettings) -> tuple[Trace, int]:
    """The trace with a made-up time limit for each job that has none, and how many those are. The limit is so many
    times its run time alone, as in ``policy.backfill``: a job without a limit could start before no window."""
    count = sum(item.job.time_limit_s is None for item in trace.jobs)
    jobs = [
        item
        if item.job.time_limit_s is not None
        else replace(
            item,
            job=replace(item.job, time_limit_s=max(item.duration_s * settings.limit_factor, settings.least_limit_s)),
        )
        for item in trace.jobs
    ]
    return replace(trace, jobs=tuple(jobs)), count


BEFORE_S = 86400.0
"""How long before a window unused GPU-hours are counted."""
_SHOWN = 4
"""How many coming windows of each node policies see: a daily one has hundreds."""


@dataclass(slots=True)
class WindowFigures:
    """The effects of windows and failing nodes on a replay."""

    windows: int = 0
    """How many windows began; those of several nodes at the same time count once."""
    unused_gpu_s: float = 0.0
    """GPU-seconds that nobody held in the 24 h before a window, on the nodes that it closes."""
    there_gpu_s: float = 0.0
    """All GPU-seconds of these nodes in these 24 h."""
    cut: int = 0
    """Runs that were still there when a window began, since they had outlived their time limit."""
    lost_gpu_s: float = 0.0
    """GPU-seconds whose work was lost in all these runs."""
    failed: int = 0
    """Runs that ended because a node went down."""


@dataclass(slots=True)
class _State:
    room: str
    place: int
    """The node's place among those of its room."""
    node: Node
    windows: list[Window]
    """Windows that are not over."""
    downs: list[Window]
    held: int = 0
    """GPUs in use."""
    since_s: float = 0.0
    """When ``held`` last changed, or was counted."""
    closes: list[float] = field(default_factory=list)
    """Times at which the node closes, the next one last."""


class NodeBook:
    """Keeps the nodes that have events up to date: a partition is new whenever one of its nodes is."""

    def __init__(self, rooms: Mapping[str, Room], outages: Outages) -> None:
        self._rooms = rooms
        self._states: dict[str, _State] = {}
        self.figures = WindowFigures()
        edges: set[float] = set()
        for name, room in rooms.items():
            for i, node in enumerate(room.nodes):
                windows, downs = outages.windows.get(node.name, ()), outages.downs.get(node.name, ())
                if not windows and not downs:
                    continue
                closes = sorted({w.from_s for w in windows}, reverse=True)
                self._states[node.name] = _State(name, i, node, [*windows], [*downs], closes=closes)
                edges.update(edge for w in (*windows, *downs) for edge in (w.from_s, w.end_s) if edge < math.inf)
        self.figures.windows = len({edge for state in self._states.values() for edge in state.closes})
        self._edges = sorted(edges, reverse=True)
        """Times at which a node changes by itself, the next one last."""
        self._turn(0.0, self._states.values())
        self.next_s = self._edges[-1] if self._edges else math.inf
        """When a node next changes by itself; infinite if none does."""

    def advance(self, now_s: float) -> tuple[set[str], set[str]]:
        """Let the edges up to now happen.

        Returns:
            Names of the nodes that are closed from now on, and of those that are down."""
        while self._edges and self._edges[-1] <= now_s:
            self._edges.pop()
        self.next_s = self._edges[-1] if self._edges else math.inf
        before = {name: state.node for name, state in self._states.items()}
        self._turn(now_s, self._states.values())
        closed: set[str] = set()
        down: set[str] = set()
        for name, state in self._states.items():
            if before[name].available and not state.node.available:
                (closed if state.node.shut is not None else down).add(name)
            elif before[name].shut is not None and state.node.shut is None and not state.node.available:
                down.add(name)
        return closed, down

    def _turn(self, now_s: float, states: Iterable[_State]) -> None:
        changed: defaultdict[str, list[tuple[int, Node]]] = defaultdict(list)
        for state in states:
            if state.closes and state.closes[-1] <= now_s:
                self._count(state, now_s)
                while state.closes and state.closes[-1] <= now_s:
                    state.closes.pop()
            node = _as_of(now_s, state)
            if node is not state.node:
                state.node = node
                changed[state.room].append((state.place, node))
        for name, members in changed.items():
            room = self._rooms[name]
            nodes = list(room.nodes)
            for at, node in members:
                nodes[at] = node
            room.nodes = tuple(nodes)
            room.changed()

    # -- who holds what ------------------------------------------------------------------------------------

    def hold(self, placement: Placement, sign: int, now_s: float) -> None:
        """Count GPUs that are held from now on (``sign`` 1), or no longer (-1)."""
        for name, mask in placement:
            state = self._states.get(name)
            if state is not None:
                self._count(state, now_s)
                state.held += sign * mask.bit_count()

    def _count(self, state: _State, now_s: float) -> None:
        """Count the GPUs held since the last change, in so far as a window was to begin within a day."""
        if state.closes:
            closes_s = state.closes[-1]
            span_s = min(now_s, closes_s) - max(state.since_s, closes_s - BEFORE_S)
            if span_s > 0 and state.node.available:
                self.figures.unused_gpu_s += span_s * (state.node.gpus - state.held)
                self.figures.there_gpu_s += span_s * state.node.gpus
        state.since_s = now_s


def _as_of(now_s: float, state: _State) -> Node:
    """The node as it is at a time: the same object where nothing has changed."""
    state.downs = [down for down in state.downs if down.end_s > now_s]
    node = replace(state.node, windows=tuple(state.windows))
    if not node.available and node.shut is None:
        node = replace(node, available=True, out="")
    node = node.at(now_s)
    state.windows = [window for window in state.windows if window.end_s > now_s]
    node = replace(node, windows=tuple(state.windows[:_SHOWN]))
    down = next((down for down in state.downs if down.from_s <= now_s), None)
    if down is not None:
        node = replace(node, available=False, out=down.why, shut=None)
    return state.node if node == state.node else node
