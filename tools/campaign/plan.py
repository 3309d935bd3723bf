"""Which fault when: drawn with the seed before anything starts, so that a run can be had again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from campaign.fault import Fault

LANES = 2
"""So many faults at a time at the most."""
_FIRST_S, _LAST_S = 15.0, 25.0
"""Quiet before the first fault, and at least so much between the end of the last one and the end of the stream."""
_PAUSES_S = ((4.0, 14.0), (15.0, 40.0))
"""Between two faults of a lane."""


@dataclass(frozen=True)
class Due:
    """A fault to come; times in seconds from the start of the stream."""

    at_s: float
    until_s: float
    name: str
    lane: int
    seed: int
    """Of the dice by which the fault chooses what else there is to choose."""


def plan(faults: Mapping[str, type[Fault]], seed: int, length_s: float) -> list[Due]:
    """In order of time. Each kind comes once before any comes again, as far as those in force allow."""
    dice = random.Random(f"faults {seed}")
    deck: list[str] = []
    free_s = [_FIRST_S, _FIRST_S + dice.uniform(*_PAUSES_S[1])]
    due: list[Due] = []
    while faults:
        lane = min(range(LANES), key=lambda n: free_s[n])
        at_s = free_s[lane]
        if len(deck) < 3:
            more = sorted(faults)
            dice.shuffle(more)
            deck += more
        beside = [faults[d.name].touches for d in due if d.until_s > at_s]
        room_s = length_s - _LAST_S - at_s
        fits = [
            n
            for n, name in enumerate(deck)
            if faults[name].lasts_s[0] <= room_s and not any(faults[name].touches & taken for taken in beside)
        ]
        if room_s < 0:
            return sorted(due, key=lambda d: d.at_s)
        lasts_s = 0.0
        if fits:
            name = deck.pop(fits[0])
            least_s, most_s = faults[name].lasts_s
            lasts_s = dice.uniform(least_s, min(most_s, room_s))
            due.append(Due(at_s, at_s + lasts_s, name, lane, dice.randrange(2**32)))
        free_s[lane] = at_s + lasts_s + dice.uniform(*_PAUSES_S[lane])
    return []
