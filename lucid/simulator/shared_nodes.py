"""Rooms of a replay that have nodes in common: who is seen where, and which GPUs are in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lucid.core.job import Running
from lucid.core.node import Node
from lucid.core.placement import Placement
from lucid.simulator.preemption import PreemptFigures, Preemption
from lucid.simulator.state import Room

__all__ = ["Layers", "guest_rooms"]


def guest_rooms(rules: Preemption, own: Mapping[str, Room], nodes: Mapping[str, Iterable[Node]]) -> dict[str, Room]:
    """The rooms of groups that run on the nodes of others, highest tier first: on those of them that are in one of
    the rooms ``own``, after their own ``nodes``."""
    there = {node.name: node for room in own.values() if not room.profiling for node in room.nodes}
    found: dict[str, Room] = {}
    for name, group in sorted(rules.groups.items(), key=lambda item: -item[1].tier):
        mine = {node.name: node for node in nodes.get(name, ())}
        mine |= {node: there[node] for node in group.nodes if node in there}
        found[name] = Room(name, tuple(mine.values()), False)
    return found


class Layers:
    """Keeps the rooms up to date, each with the jobs of the others on its nodes, as the Slurm adapter shows them."""

    def __init__(self, rules: Preemption, rooms: Mapping[str, Room]) -> None:
        self.rules = rules
        self.figures = PreemptFigures(rules)
        self._rooms = rooms
        names = {name: {node.name for node in room.nodes} for name, room in rooms.items()}
        self._common = {
            name: [(rooms[other], names[other]) for other in rooms if other != name and names[name] & names[other]]
            for name in rooms
        }
        self._busy: dict[str, int] = {}
        self._leaving: list[tuple[float, Placement]] = []
        """GPUs whose last jobs are about to leave, and until when."""

    def show(self, view: Running, room: str) -> None:
        """A job runs in a room: the others on its nodes see it."""
        for other, names in self._common[room]:
            parts = tuple(part for part in view.placement if part.node in names)
            if parts:
                seen = replace(view, placement=parts, alone=True)
                other.guests[view.job.id] = self._as_seen(seen, room, other.name)
                other.changed()
            else:
                self._gone(view.job.id, other)

    def left(self, job_id: str, room: str) -> None:
        """It has left its GPUs."""
        for other, _ in self._common[room]:
            self._gone(job_id, other)

    @staticmethod
    def _gone(job_id: str, room: Room) -> None:
        if room.guests.pop(job_id, None) is not None:
            room.changed()

    def _as_seen(self, view: Running, lower: str, upper: str) -> Running:
        """A job of room ``lower``, as jobs of room ``upper`` see it."""
        group, other = self.rules.groups.get(lower), self.rules.groups.get(upper)
        if group is None or (other is not None and other.tier <= group.tier):
            return view
        return replace(view, yields=self.rules.yields(view, None))

    # -- which GPUs are in use -----------------------------------------------------------------------------

    def hold(self, placement: Placement) -> None:
        """These GPUs are in use from now on …"""
        for node, mask in placement:
            self._busy[node] = self._busy.get(node, 0) | mask

    def give_up(self, placement: Placement) -> None:
        """… or no longer."""
        for node, mask in placement:
            self._busy[node] &= ~mask

    def free(self, placement: Placement, going: Iterable[Placement]) -> bool:
        """Are these GPUs free once all that is on ``going`` has left?"""
        masks = {node: self._busy.get(node, 0) for node, _ in placement}
        for node, mask in (part for gone in going for part in gone):
            if node in masks:
                masks[node] &= ~mask
        return not any(masks[node] & mask for node, mask in placement)

    def leaves(self, placement: Placement, until_s: float) -> None:
        """A job that was preempted may use its grace time: who comes waits until then."""
        self._leaving.append((until_s, placement))

    def clears_s(self, placement: Placement, now_s: float) -> float:
        """How long it takes until those have gone that are about to leave these GPUs."""
        self._leaving = [item for item in self._leaving if item[0] > now_s]
        return max((at_s - now_s for at_s, parts in self._leaving if _meet(parts, placement)), default=0.0)


def _meet(one: Placement, other: Placement) -> bool:
    masks: dict[str, int] = {part.node: part.mask for part in one}
    return any(masks.get(node, 0) & mask for node, mask in other)
