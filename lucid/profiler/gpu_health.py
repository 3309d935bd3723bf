"""Rules by which a sampler's readings show that a GPU is not well, and the table of NVIDIA's Xid errors.

A state counts once it has lasted; an event counts at once, and is kept. Where the driver as a whole does not answer,
or most GPUs of a node vanish at the same moment, nothing is said of single GPUs: that is the driver, or the sampler.

The table says whose fault each Xid is, and what ends it, after NVIDIA's own documents: "Xid Errors"
(https://docs.nvidia.com/deploy/xid-errors/), its listing of possible causes (hardware, driver, application) and its
catalog's "resolution buckets" (RESTART_APP, RESET_GPU, RESTART_BM), and "GPU Debug Guidelines"
(https://docs.nvidia.com/deploy/gpu-debug-guidelines/). NVIDIA says there that an Xid is a starting point: a program's
mistake may look like a fault of the hardware, and the other way round. So a GPU is left out only where the listing
names no application among the causes, and the resolution is more than a restart of the application. An unlisted
number is reported, and nothing is done. Compared on 26 November 2026 with the catalog's immediate actions (Ampere and
newer, state of October 2025): each number that is ``bad`` here has RESET_GPU or RESTART_BM there, but for 48, whose
action is a workflow, and 54, CHECK_MECHANICALS. 109 has RESET_GPU, too; it stays unclear here, since NVIDIA's device
plugin for Kubernetes counts it among the faults of applications."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from lucid.core.gpu import CardHealth, GpuCondition, GpuFault, NodeHealth


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid error. ``whose``: application, gpu, driver, or unclear. ``needs``: reset (of the GPU), reboot (of the
    node), or nothing. ``bad``: whether a GPU that reported it gets no new start."""

    number: int
    words: str
    whose: str
    needs: str = ""
    bad: bool = False


XIDS: Final = {
    one.number: one
    for one in (
        Xid(8, "GPU stopped processing", "unclear"),
        Xid(11, "invalid or corrupted push buffer stream", "unclear"),
        Xid(13, "graphics engine exception", "application"),
        Xid(31, "GPU memory page fault", "application"),
        Xid(32, "invalid or corrupted push buffer stream", "unclear"),
        Xid(38, "driver firmware error", "driver"),
        Xid(43, "GPU stopped processing for a program", "application"),
        Xid(44, "graphics engine fault during context switch", "unclear"),
        Xid(45, "cleanup after earlier errors, or a program that was ended", "application"),
        Xid(46, "GPU stopped processing", "gpu", "reset", True),
        Xid(48, "double bit ECC error", "gpu", "reset", True),
        Xid(54, "auxiliary power is not connected", "gpu", "reboot", True),
        Xid(61, "internal micro-controller warning", "unclear"),
        Xid(62, "internal micro-controller halt", "gpu", "reset", True),
        # the row waits for a reset at a time that suits: the reading of pending rows decides
        Xid(63, "page retirement or row remapping recorded", "gpu", "reset"),
        Xid(64, "page retirement or row remapping failed", "gpu", "reset", True),
        Xid(68, "video processor exception", "application"),
        Xid(69, "graphics engine class error", "application"),
        # seen at both ends of a link: which of the two is to blame it does not say
        Xid(74, "NVLink error", "unclear"),
        Xid(79, "fallen off the bus", "gpu", "reboot", True),
        Xid(92, "high rate of single bit ECC errors", "gpu"),
        # the program that was hit has ended, others go on: the reading of pending rows decides
        Xid(94, "contained ECC error", "gpu"),
        Xid(95, "uncontained ECC error", "gpu", "reset", True),
        Xid(109, "context switch timeout", "unclear"),
        Xid(110, "security fault", "gpu", "reset", True),
        Xid(119, "GSP does not answer", "driver", "reset", True),
        Xid(120, "GSP error", "driver", "reset", True),
        Xid(121, "corrected error of the link to the CPU", "gpu"),
        Xid(140, "unrecovered ECC error", "gpu", "reset", True),
        Xid(143, "GPU could not be initialised", "gpu", "reset", True),
    )
}


def xid(number: int) -> Xid:
    """The entry of this number; for an unlisted number, one that says so."""
    return XIDS.get(number) or Xid(number, "not in the table of Xids that Lucid has", "unclear")


POLL_S: Final = 3.0
"""Seconds between readings of all that is not an event: six calls of the driver for each GPU."""
_LOST_S: Final = 2.0
"""A GPU that the driver does not reach for so long, in at least two readings, is lost: one call may fail."""
_THROTTLE_S: Final = 600.0
"""Hardware that slows itself down for so long without a break of a minute has a fault of cooling or power: short
spells are usual where load comes and goes."""
_QUIET_S: Final = 60.0
"""The length of a break in such slowing down."""
_MOST_FAULTS: Final = 16
"""Most faults kept of one GPU: the newest."""
_THROTTLE: Final = {
    "thermal": "the hardware slows it down because of heat",
    "power": "the hardware slows it down because of its power supply (power brake)",
}


@dataclass(slots=True)
class _Card:
    index: int
    uuid: str
    name: str
    faults: list[GpuFault] = field(default_factory=list)
    uncorrected: int | None = None
    """The count of the previous reading; ``None`` before the first: what was counted until then is no news."""
    lost_since_s: float | None = None
    slow_since_s: dict[str, float] = field(default_factory=dict)
    slow_last_s: dict[str, float] = field(default_factory=dict)


class HealthWatch:
    """Watches the health of the GPUs of one node. Its callers pass the time, and each reading."""

    def __init__(self, node: str, boot: str = "", before: NodeHealth | None = None) -> None:
        """``before``: the health that an earlier sampler of this node left. States of an earlier boot are over, its
        events are kept."""
        self._node = node
        self._boot = boot
        self._silent_s = 0.0
        self._cards: dict[int, _Card] = {}
        self._order: tuple[int, ...] = ()
        same = before is not None and before.boot == boot
        self._since_s = before.since_s if before is not None and same else 0.0
        for card in before.cards if before is not None else ():
            faults = [fault if same else replace(fault, lasts=False) for fault in card.faults]
            count = card.uncorrected if same else 0
            self._cards[card.index] = _Card(card.index, card.uuid, card.name, faults, count)
        self._before = self._reported()

    def events(self, xids: Mapping[int, Iterable[int]], now_s: float) -> None:
        """Take in the Xids since the last call, by the index of the GPU."""
        for index, numbers in xids.items():
            card = self._cards.get(index)
            if card is None:
                continue
            for known in map(xid, numbers):
                happened = GpuFault("xid", known.words, now_s, now_s, now_s, known.number, whose=known.whose)
                _happened(card, replace(happened, needs=known.needs, bad=known.bad))

    def silent(self, now_s: float) -> None:
        """Note that the driver does not answer."""
        self._silent_s = self._silent_s or now_s
        for card in self._cards.values():
            card.lost_since_s = None
            card.slow_since_s.clear()

    def observe(self, seen: Sequence[GpuCondition], now_s: float) -> None:
        """Take in all GPUs that the driver names now. A GPU that it named before and does not name now is missing."""
        self._since_s = self._since_s or now_s
        there = {one.index: one for one in seen}
        for one in seen:
            card = self._cards.get(one.index)
            if card is None or (card.uuid != one.uuid and not one.lost):  # another card stands in its place
                self._cards[one.index] = _Card(one.index, one.uuid, one.name)
        away = [index for index in self._cards if index not in there or there[index].lost]
        if len(away) > 1 and 2 * len(away) > len(self._cards):
            self.silent(now_s)
            return
        self._silent_s = 0.0
        self._order = tuple(one.index for one in seen if not one.lost)
        for index, card in self._cards.items():
            now = there.get(index)
            self._lost(card, "it is not there any more" if now is None else now.lost, now_s)
            if now is not None and not now.lost:
                self._memory(card, now, now_s)
                for kind in _THROTTLE:
                    self._throttled(card, kind, kind in now.throttle, now_s)

    def _lost(self, card: _Card, words: str, now_s: float) -> None:
        if not words:
            card.lost_since_s = None
        elif card.lost_since_s is None:
            card.lost_since_s = now_s
        lost = card.lost_since_s is not None and now_s - card.lost_since_s >= _LOST_S
        _state(card, "lost", f"the driver does not reach it: {words}", lost, now_s, "reboot")

    def _memory(self, card: _Card, one: GpuCondition, now_s: float) -> None:
        count = one.uncorrected
        if count is not None:
            if card.uncorrected is not None and count > card.uncorrected:
                more = count - card.uncorrected
                words = (
                    f"{more} uncorrected memory error{'s' if more > 1 else ''}, {count} since the driver was loaded"
                )
                _happened(card, GpuFault("ecc", words, now_s, now_s, now_s, needs="reset"))
            card.uncorrected = count
        if one.remap_failed is not None or one.remap_pending is not None:
            words = "a row of its memory could not be remapped" if one.remap_failed else ""
            words = words or "a row of its memory waits for a reset to be remapped"
            _state(card, "row remap", words, bool(one.remap_failed or one.remap_pending), now_s, "reset")

    def _throttled(self, card: _Card, kind: str, slow: bool, now_s: float) -> None:
        if slow:
            card.slow_since_s.setdefault(kind, now_s)
            card.slow_last_s[kind] = now_s
        elif now_s - card.slow_last_s.get(kind, -_QUIET_S) >= _QUIET_S:
            card.slow_since_s.pop(kind, None)
        since_s = card.slow_since_s.get(kind)
        _state(card, kind, _THROTTLE[kind], since_s is not None and now_s - since_s >= _THROTTLE_S, now_s, "")

    def changed(self) -> bool:
        """Whether there is something new to report. (That a state still holds is no news.)"""
        now = self._reported()
        changed, self._before = now != self._before, now
        return changed

    def _reported(self) -> tuple[object, ...]:
        return (
            self._silent_s,
            self._order,
            tuple(
                (index, card.uuid, tuple((f.kind, f.code, f.lasts, f.times) for f in card.faults))
                for index, card in sorted(self._cards.items())
            ),
        )

    def report(self, now_s: float) -> NodeHealth:
        """The health of the node's GPUs."""
        cards = tuple(
            CardHealth(index, card.uuid, card.name, tuple(card.faults), card.uncorrected or 0)
            for index, card in sorted(self._cards.items())
        )
        return NodeHealth(self._node, now_s, self._boot, self._since_s, self._silent_s, cards, self._order)


def _happened(card: _Card, fault: GpuFault) -> None:
    """Note an event. A second one of its kind and code is counted, and moves to the end."""
    same = next((one for one in card.faults if (one.kind, one.code) == (fault.kind, fault.code)), None)
    if same is not None:
        card.faults.remove(same)
        fault = replace(fault, since_s=same.since_s, times=same.times + 1)
    card.faults = [*card.faults, fault][-_MOST_FAULTS:]


def _state(card: _Card, kind: str, words: str, holds: bool, now_s: float, needs: str) -> None:
    """Note whether a state holds."""
    same = next((one for one in card.faults if one.kind == kind), None)
    if holds and (same is None or not same.lasts):
        _happened(card, GpuFault(kind, words, now_s, now_s, now_s, lasts=True, needs=needs))
    elif same is not None and same.lasts:
        at = card.faults.index(same)
        card.faults[at] = replace(same, last_s=now_s, words=words if holds else same.words, lasts=holds)
