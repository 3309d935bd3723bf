"""``TrustBook``: how well estimates rank jobs by length, measured on the jobs that ended last.

Ordered by estimate, jobs wait for less in sum than in order of submission, as far as estimates put short jobs before
long ones. The gain is that saving, as a share of what true durations would have saved: 1 for the right order, 0 for
noise and for a constant, -1 for the reverse order. It is reckoned in logarithms of durations: in seconds the two or
three longest jobs of a window would decide. Noise has a gain of about 0 +- 1/sqrt(jobs), so only a gain beyond that
counts (docs/decisions/0053). Naive estimates are measured beside the given ones, and used where they rank better."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import isnan
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lucid.core.reasons.queue import Unranked
from lucid.models.ranking import gain_of, ranks_of

_WINDOW = 300
"""How many of the jobs that ended last are used."""
_VCS = 256
"""How many VCs are remembered."""
_LEAST = 10
"""With fewer ended jobs nothing is concluded, and estimates are trusted."""
_OWN = 100
"""A VC with so many ended jobs is judged by its own, others by those of the whole cluster."""
_EVERY = 10
"""The gain is measured again after so many more jobs have ended."""
_TO_TRUST, _TO_KEEP = 2.5, 1.0
"""Standard errors above chance at which estimates become trusted, and above which they stay so."""
_WORTH_REPORTING = 0.1
"""A gain that moved by less is not published anew: published gains go into decisions."""

HISTORY = "history"
"""``Unranked.by`` of the naive estimates: what the last jobs of the same user took."""

_Column: TypeAlias = npt.NDArray[np.float64]
_Running: TypeAlias = Callable[[str, float], Iterator[tuple[float, float | None, float]]]
"""See ``Annotator._running``."""
_NONE = float("nan")
"""Stands for a naive estimate that is missing."""


class _Window:
    """The jobs that ended last, one a row: both estimates, and the real duration, s."""

    __slots__ = ("_end", "_kept")

    def __init__(self) -> None:
        self._kept, self._end = np.empty((2 * _WINDOW, 3)), 0

    def add(self, given_s: float, naive_s: float | None, ran_s: float) -> None:
        if self._end == len(self._kept):
            self._kept[: _WINDOW - 1], self._end = self._kept[1 - _WINDOW :], _WINDOW - 1
        self._kept[self._end] = given_s, _NONE if naive_s is None else naive_s, ran_s
        self._end += 1

    @property
    def rows(self) -> _Column:
        return self._kept[max(self._end - _WINDOW, 0) : self._end]


class TrustBook:
    """The jobs that ended last, by VC and of the whole cluster, and how well estimates ranked them."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, _Window] = OrderedDict({"": _Window()})
        self._fresh: dict[str, int] = {}
        """Jobs that ended since the last measurement, by VC."""
        self.checks = 0
        """How often the gain was measured."""
        self.unranked: Mapping[str, Unranked] = {}
        """The published comparison by VC, and that of the whole cluster as "". The same object as long as it is
        equal."""

    def ended(self, vc: str, given_s: float, naive_s: float | None, ran_s: float) -> None:
        """Learn from a job that has ended, and from the estimates while it waited."""
        for name in dict.fromkeys(("", vc)):
            if name not in self._rows:
                self._rows[name] = _Window()
            self._rows[name].add(given_s, naive_s, ran_s)
            self._fresh[name] = self._fresh.get(name, 0) + 1
        self._rows.move_to_end(vc)
        if len(self._rows) > _VCS:
            gone = next(name for name in self._rows if name)
            del self._rows[gone]
            self._fresh.pop(gone, None)
            self.unranked = {name: one for name, one in self.unranked.items() if name != gone}

    @property
    def by(self) -> dict[str, str]:
        """The source of the estimates that ranked best (``Unranked.by``), by VC, and of the whole cluster as ""."""
        return {vc: one.by for vc, one in self.unranked.items()}

    @property
    def due(self) -> bool:
        """Whether enough jobs have ended to measure again."""
        return self._fresh.get("", 0) >= _EVERY

    def check(self, running: _Running) -> None:
        """Measure again for the cluster, and for VCs of which enough jobs have ended. A running job counts by the
        time that it has run so far once that is longer than half of the ended jobs took: windows of ended jobs alone
        lack the long ones. The last 300 of these count, so ``running`` is not asked for all."""
        self.checks += 1
        told = dict(self.unranked)
        for name in [name for name, fresh in self._fresh.items() if fresh >= _EVERY]:
            self._fresh[name] = 0
            before = told.get(name)
            found = self._found(name, running, before if before is not None else told.get(""))
            if found is not None and (before is None or _differs(found, before)):
                told[name] = found
        if told != self.unranked:
            self.unranked = told

    def _found(self, name: str, running: _Running, before: Unranked | None) -> Unranked | None:
        ended = self._rows[name].rows
        median_s = float(np.sort(ended[:, 2])[len(ended) // 2])
        going = [*islice(running(name, median_s), _WINDOW)][::-1]
        rows = np.concatenate((ended, np.array(going, float))) if going else ended
        if len(rows) < (_OWN if name else _LEAST):
            return None
        given_s, naive_s, ran_s = rows.T.copy()
        chance, by = 1.0 / len(rows) ** 0.5, "" if before is None else before.by

        def judged(source: str, gain: float) -> Unranked:
            keeps = by == source and not before
            return Unranked(name, len(rows), gain, round((_TO_KEEP if keeps else _TO_TRUST) * chance, 3), source)

        ranks = ranks_of(ran_s)
        given = judged("", gain_of(given_s, ran_s, ranks))
        besides = ~np.isnan(naive_s)
        if not besides.any():
            return given
        if besides.all():
            naive = judged(HISTORY, gain_of(naive_s, ran_s, ranks))
        else:
            naive = judged(HISTORY, gain_of(naive_s[besides], ran_s[besides]))
        if bool(given) != bool(naive):
            return naive if given else given
        margin = 0.0 if by else _TO_TRUST * chance  # between two that rank, or two that do not, it stays
        return naive if naive.gain > given.gain + margin else given

    def to_dict(self) -> dict[str, Any]:
        """The jobs and comparisons as JSON."""
        kept = {name: window.rows.tolist() for name, window in self._rows.items()}
        rows = {
            name: [[None if isnan(s) else round(s, 1) for s in row] for row in rows] for name, rows in kept.items()
        }
        told = [[one.vc, one.jobs, one.gain, one.needed, one.by] for one in self.unranked.values()]
        return {"rows": rows, "told": told}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrustBook:
        """The trust book that ``to_dict`` wrote, to a tenth of a second.

        Raises: KeyError, TypeError, ValueError: the data has another shape."""
        made, told = cls(), dict[str, Unranked]()
        for name, rows in data["rows"].items():
            window = made._rows[str(name)] = _Window()
            for given, naive, ran in rows:
                window.add(float(given), None if naive is None else float(naive), float(ran))
        for vc, jobs, gain, needed, by in data["told"]:
            told[str(vc)] = Unranked(str(vc), int(jobs), float(gain), float(needed), str(by))
        made.unranked = told
        return made


def _differs(found: Unranked, before: Unranked) -> bool:
    return found.by != before.by or bool(found) != bool(before) or abs(found.gain - before.gain) > _WORTH_REPORTING
