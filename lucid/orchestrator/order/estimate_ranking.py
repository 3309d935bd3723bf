"""Do estimates rank jobs? Measured on the jobs that ended last: an order by estimates is worth what this says.

Ordered by estimate, jobs wait for less in all than in order of submission, as far as estimates put short jobs before
long ones. The gain is that saving, as a share of what true durations would have saved: 1 for estimates in the right
order, 0 for noise and for a constant, -1 for the reverse order. It is reckoned in logarithms of durations: in seconds
the two or three longest jobs of a window would decide. Noise has a gain of about 0 +- 1/sqrt(jobs), so a gain counts
only beyond that (docs/decisions/0053). Naive estimates are judged beside those given, and followed where they rank
better.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lucid.core.job import Running
from lucid.core.reason import Unranked

__all__ = ["HISTORY", "TrustBook", "gain_of"]

_WINDOW = 300
"""So many of the jobs that ended last are looked at."""
_VCS = 256
"""VCs that are remembered."""
_LEAST = 10
"""With fewer jobs nothing is concluded: estimates are trusted."""
_OWN = 100
"""A VC with so many jobs is judged by its own, others by those of the whole cluster."""
_EVERY = 10
"""Looked at again after so many more jobs have ended."""
_TO_TRUST, _TO_KEEP = 2.5, 1.0
"""Standard errors above chance at which estimates become trusted, and above which they stay so."""
_TOLD = 0.1
"""A gain that moved by less is not told anew: what is told goes into decisions."""
_FLOOR_S = 10.0
"""Added to durations: seconds do not matter."""

HISTORY = "history"
"""``Unranked.by`` of the naive estimates: what the last jobs of the same user took."""

_Estimates = tuple[float, float | None]
"""What was given, and naive ones where there are any, s."""
_Row = tuple[float, float | None, float]
"""Both estimates, and the real duration, s."""


def gain_of(rows: Sequence[tuple[float, float]]) -> float:
    """Of what true durations would save in waiting, the share that the estimates save; from -1 to 1. ``rows``:
    estimated and real durations, s. Equal estimates count as in random order."""
    if len(rows) < 2:
        return 0.0
    estimates, durations = np.array(rows).T
    value = np.log(durations + _FLOOR_S)
    value -= value.mean()
    best = float(value @ _ranks(durations))
    return round(float(value @ _ranks(estimates)) / best, 3) if best > 1e-9 else 0.0


def _ranks(values: Any) -> Any:
    """From 1; equals share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place]


class TrustBook:
    """The jobs that ended last, by VC and of the whole cluster, and what follows from them."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, deque[_Row]] = OrderedDict({"": deque(maxlen=_WINDOW)})
        self._fresh: dict[str, int] = {}
        """Jobs that ended since these were looked at."""
        self.looks = 0
        """How often it was looked at."""
        self.told: Mapping[str, Unranked] = {}
        """The comparison by VC, and that of the whole cluster as "". The same object as long as it says the same."""

    def ended(self, vc: str, given_s: float, naive_s: float | None, ran_s: float) -> None:
        """Learn of a job that has ended, and of what was estimated while it waited."""
        for name in dict.fromkeys(("", vc)):
            self._rows.setdefault(name, deque(maxlen=_WINDOW)).append((given_s, naive_s, ran_s))
            self._fresh[name] = self._fresh.get(name, 0) + 1
        self._rows.move_to_end(vc)
        if len(self._rows) > _VCS:
            gone = next(name for name in self._rows if name)
            del self._rows[gone]
            self._fresh.pop(gone, None)
            self.told = {name: one for name, one in self.told.items() if name != gone}

    @property
    def by(self) -> dict[str, str]:
        """Whose estimates ranked best (``Unranked.by``), by VC, and of the whole cluster as ""."""
        return {vc: one.by for vc, one in self.told.items()}

    @property
    def due(self) -> bool:
        """Have enough jobs ended to look again?"""
        return self._fresh.get("", 0) >= _EVERY

    def look(self, running: Iterable[Running], estimates_s: Mapping[str, _Estimates], now_s: float) -> None:
        """Look again at the cluster and at VCs of which enough jobs have ended. A job that still runs counts by what
        it has run, once that is more than half of the ended jobs took: windows of ended jobs alone lack the long
        ones. ``estimates_s``: of these jobs, by id."""
        self.looks += 1
        due = [name for name, fresh in self._fresh.items() if fresh >= _EVERY]
        going: dict[str, list[_Row]] = {}
        for entry in running:
            said = estimates_s.get(entry.job.id)
            if said is not None:
                row = *said, entry.ran_s + entry.elapsed_s(now_s)
                for name in ("", entry.job.vc):
                    going.setdefault(name, []).append(row)
        told = dict(self.told)
        for name in due:
            self._fresh[name] = 0
            before = told.get(name)
            found = self._found(name, going.get(name, ()), before if before is not None else told.get(""))
            if found is not None and (before is None or _differs(found, before)):
                told[name] = found
        if told != self.told:
            self.told = told

    def _found(self, name: str, going: Sequence[_Row], before: Unranked | None) -> Unranked | None:
        ended = list(self._rows[name])
        median_s = sorted(ran_s for *_, ran_s in ended)[len(ended) // 2]
        rows = ended + [row for row in going if row[-1] > median_s][-_WINDOW:]
        if len(rows) < (_OWN if name else _LEAST):
            return None
        chance, by = 1.0 / len(rows) ** 0.5, "" if before is None else before.by

        def judged(source: str, pairs: Sequence[tuple[float, float]]) -> Unranked:
            keeps = by == source and not before
            return Unranked(
                name, len(rows), gain_of(pairs), round((_TO_KEEP if keeps else _TO_TRUST) * chance, 3), source
            )

        given = judged("", [(said_s, ran_s) for said_s, _, ran_s in rows])
        besides = [(said_s, ran_s) for _, said_s, ran_s in rows if said_s is not None]
        if not besides:
            return given
        naive = judged(HISTORY, besides)
        if bool(given) != bool(naive):
            return naive if given else given
        margin = 0.0 if by else _TO_TRUST * chance  # between two that rank, or two that do not, it stays
        return naive if naive.gain > given.gain + margin else given

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        kept = self._rows.items()
        rows = {name: [[None if s is None else round(s, 1) for s in row] for row in rows] for name, rows in kept}
        told = [[one.vc, one.jobs, one.gain, one.needed, one.by] for one in self.told.values()]
        return {"rows": rows, "told": told}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrustBook:
        """The inverse, to a tenth of a second.

        Raises:
            KeyError, TypeError, ValueError: it is of another shape.
        """
        made, told = cls(), dict[str, Unranked]()
        for name, rows in data["rows"].items():
            made._rows[str(name)] = deque(
                ((float(given), None if naive is None else float(naive), float(ran)) for given, naive, ran in rows),
                maxlen=_WINDOW,
            )
        for vc, jobs, gain, needed, by in data["told"]:
            told[str(vc)] = Unranked(str(vc), int(jobs), float(gain), float(needed), str(by))
        made.told = told
        return made


def _differs(found: Unranked, before: Unranked) -> bool:
    return found.by != before.by or bool(found) != bool(before) or abs(found.gain - before.gain) > _TOLD
