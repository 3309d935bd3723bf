"""Nodes of the simulated cluster that sleep while nobody uses them, and what their being awake costs."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lucid.config import SleepSettings
from lucid.core.node import Node

__all__ = ["SETTLE_S", "Power", "PowerBook", "PowerFigures"]

SETTLE_S = 60.0
"""Beyond those that are kept ready a node sleeps once it has been free for this long, s."""


@dataclass(frozen=True, slots=True)
class Power:
    """How nodes sleep. ``suspend_s``: after so long without a job (Slurm's SuspendTime). ``boot_s``: how long a boot
    takes. ``idle_w``: what a node draws without a job, watts. ``ready``: the settings by which Lucid says how many
    free nodes stay awake; ``suspend_s`` does not matter then."""

    suspend_s: float
    boot_s: float = 240.0
    idle_w: float = 500.0
    ready: SleepSettings | None = None


@dataclass(frozen=True, slots=True)
class PowerFigures:
    """Node-seconds up to the end of the last job: ``awake_s`` of nodes that do not sleep, ``idle_s`` of those of them
    that hold no job, boots among them."""

    awake_s: float
    idle_s: float
    boots: int
    idle_w: float


@dataclass(slots=True)
class _Sleep:
    asleep: bool = False
    boots_since_s: float | None = None
    idle_since_s: float | None = 0.0
    """``None`` while it holds a job, sleeps or boots."""
    held: bool = False
    since_s: float = 0.0
    """Up to when it is counted."""


class PowerBook:
    """Who is awake. Nodes begin awake and idle."""

    def __init__(self, names: Sequence[str], rules: Power) -> None:
        self.rules = rules
        self._sleeps: Mapping[str, _Sleep] = {name: _Sleep() for name in names}
        self._timers: list[tuple[float, str]] = []
        self._awake_s = self._idle_s = 0.0
        self._boots = 0
        for name in names:
            self._idle(name, 0.0)

    def shown(self, node: Node) -> tuple[float, float | None]:
        """``boot_s`` and ``boots_since_s`` of a node."""
        sleep = self._sleeps[node.name]
        return (self.rules.boot_s if sleep.asleep or sleep.boots_since_s is not None else 0.0), sleep.boots_since_s

    def next_s(self) -> float:
        """When a node next changes by itself; infinite if none does."""
        while self._timers and not self._due(*self._timers[0]):
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else math.inf

    def _due(self, at_s: float, name: str) -> bool:
        """Does this timer still mean something?"""
        sleep = self._sleeps[name]
        if sleep.boots_since_s is not None:
            return at_s == sleep.boots_since_s + self.rules.boot_s
        return sleep.idle_since_s is not None and at_s == sleep.idle_since_s + self._patience_s

    @property
    def _patience_s(self) -> float:
        return self.rules.suspend_s if self.rules.ready is None else SETTLE_S

    def advance(self, now_s: float) -> list[str]:
        """Boots end, and nodes that are idle fall asleep, unless Lucid says which do; names of those that changed."""
        changed = []
        while self.next_s() <= now_s:
            _, name = heapq.heappop(self._timers)
            sleep = self._sleeps[name]
            if sleep.boots_since_s is not None:
                self._count(sleep, now_s)
                sleep.boots_since_s = None
                if not sleep.held:
                    self._idle(name, now_s)
                changed.append(name)
            elif self.rules.ready is None:
                self.suspend(name, now_s)
                changed.append(name)
        return changed

    def hold(self, name: str, held: bool, now_s: float) -> bool:
        """The node has jobs from now on, or none any more; has that changed what is shown of it?"""
        sleep = self._sleeps[name]
        if sleep.held == held:
            return False
        self._count(sleep, now_s)
        sleep.held = held
        if held:
            sleep.idle_since_s = None
            return self.wake(name, now_s) if sleep.asleep else False
        if sleep.boots_since_s is None:
            self._idle(name, now_s)
        return False

    def wake(self, name: str, now_s: float) -> bool:
        """Boot a node that sleeps."""
        sleep = self._sleeps[name]
        self._count(sleep, now_s)
        sleep.asleep, sleep.boots_since_s = False, now_s
        self._boots += 1
        heapq.heappush(self._timers, (now_s + self.rules.boot_s, name))
        return True

    def suspend(self, name: str, now_s: float) -> None:
        """Put an idle node to sleep."""
        sleep = self._sleeps[name]
        self._count(sleep, now_s)
        sleep.asleep, sleep.idle_since_s = True, None

    def rests_s(self, name: str, now_s: float) -> float:
        """For how long a node that is awake has been idle, seconds; negative where it is not idle."""
        since_s = self._sleeps[name].idle_since_s
        return -1.0 if since_s is None else now_s - since_s

    def figures(self, now_s: float) -> PowerFigures:
        """What there was up to now."""
        for sleep in self._sleeps.values():
            self._count(sleep, now_s)
        return PowerFigures(self._awake_s, self._idle_s, self._boots, self.rules.idle_w)

    def _idle(self, name: str, now_s: float) -> None:
        self._sleeps[name].idle_since_s = now_s
        heapq.heappush(self._timers, (now_s + self._patience_s, name))

    def _count(self, sleep: _Sleep, now_s: float) -> None:
        if not sleep.asleep:
            span_s = now_s - sleep.since_s
            self._awake_s += span_s
            self._idle_s += 0.0 if sleep.held and sleep.boots_since_s is None else span_s
        sleep.since_s = now_s
