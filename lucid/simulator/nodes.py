"""The nodes of the simulated cluster over time: when they close, are down, and how much of them is held."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lucid.core.node import Node, Window
from lucid.core.placement import Placement
from lucid.simulator.outages import Outages
from lucid.simulator.state import Room

__all__ = ["BEFORE_S", "NodeBook", "WindowFigures"]

BEFORE_S = 86400.0
"""GPU-hours left unused are counted for so long before a window."""
_SHOWN = 4
"""Of the windows that are to come, policies see so many of each node: one that repeats daily has hundreds."""


@dataclass(slots=True)
class WindowFigures:
    """What windows and failing nodes did to a replay."""

    windows: int = 0
    """That began, those of several nodes at the same time counted once."""
    unused_gpu_s: float = 0.0
    """GPU-seconds that nobody held in the 24 h before a window, on the nodes that it closes."""
    there_gpu_s: float = 0.0
    """All GPU-seconds of these nodes in that time."""
    cut: int = 0
    """Runs that were still there when a window began, since they had outlived their time limit."""
    left: int = 0
    """Runs that were started to leave before a window, and did (``Start.until_s``)."""
    lost_gpu_s: float = 0.0
    """GPU-seconds of all these whose work was lost."""
    failed: int = 0
    """Runs that ended because a node went down."""


@dataclass(slots=True)
class _State:
    room: str
    place: int
    """Its place among the nodes of its room."""
    node: Node
    windows: list[Window]
    """Those that are not over."""
    downs: list[Window]
    held: int = 0
    """GPUs in use."""
    since_s: float = 0.0
    """When ``held`` last changed, or was counted."""
    closes: list[float] = field(default_factory=list)
    """Times at which it closes, the next last."""


class NodeBook:
    """Keeps the nodes of the rooms up to date: a partition is new whenever one of its nodes is."""

    def __init__(self, rooms: Mapping[str, Room], outages: Outages) -> None:
        self._rooms = rooms
        self._states: dict[str, _State] = {}
        self.figures = WindowFigures()
        edges: set[float] = set()
        for name, room in rooms.items():
            for i, node in enumerate(room.nodes):
                windows, downs = outages.windows.get(node.name, ()), outages.downs.get(node.name, ())
                closes = sorted({w.from_s for w in windows}, reverse=True)
                self._states[node.name] = _State(name, i, node, [*windows], [*downs], closes=closes)
                edges.update(edge for w in (*windows, *downs) for edge in (w.from_s, w.end_s) if edge < math.inf)
        self.figures.windows = len({edge for state in self._states.values() for edge in state.closes})
        self._edges = sorted(edges, reverse=True)
        """Times at which a node changes by itself, the next one last."""
        self._turn(0.0, self._states.values())

    def next_s(self) -> float:
        """When a node next changes by itself; infinite if none does."""
        return self._edges[-1] if self._edges else math.inf

    def advance(self, now_s: float) -> tuple[set[str], set[str]]:
        """Let the edges up to now happen.

        Returns:
            Names of the nodes that are closed from now on, and of those that are down.
        """
        if not self._edges or self._edges[-1] > now_s:
            return set(), set()
        while self._edges and self._edges[-1] <= now_s:
            self._edges.pop()
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
        """GPUs are held from now on (``sign`` 1), or no longer (-1)."""
        for name, mask in placement:
            state = self._states[name]
            self._count(state, now_s)
            state.held += sign * mask.bit_count()

    def _count(self, state: _State, now_s: float) -> None:
        """What was held since the last change, so far as a window was to begin within a day."""
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
