"""How long jobs really run for, as far as estimates came true: by this, planning ahead lets jobs end.

Of many jobs that run at once some end long before their estimates, and the first that ends makes room. So each job
is given a quantile of its own of the errors that were seen: those of its user's latest jobs, mixed with those of all
users' (a user of whom little is known is taken for an average one). The quantiles of one planned path are spread
evenly (multiples of the golden ratio), so that few paths are enough, and nothing is random.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Mapping
from itertools import accumulate
from math import exp, log
from typing import Any

from lucid.core.job import Job
from lucid.core.prediction import Prediction

_FLOOR_S = 10.0
"""Added to both durations before they are divided: seconds do not matter."""
_OF_USER, _OF_ALL, _USERS = 20, 200, 200
"""Jobs that are remembered of each user and of all users, and users that are remembered."""
_SHRINK = 3.0
"""The jobs of all users together weigh as much as so many of the user's own."""
_ENOUGH = 10
"""With fewer jobs that ran for longer than this one has, the estimate is taken as it is."""
_GOLDEN = 0.6180339887498949


class RunTimes:
    """Errors of the estimates of the jobs that ended last: logarithms of real over estimated run time."""

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=_OF_ALL)
        self._users: OrderedDict[str, deque[float]] = OrderedDict()
        self._sorted: dict[str, tuple[list[float], list[float]]] = {}
        """By user: errors in order, and the weight of all up to each."""

    def ended(self, user: str, ran_s: float, estimate_s: float) -> None:
        """Learn of a job that has ended. ``estimate_s``: as it was before the job began."""
        error = log(max(ran_s, 0.0) + _FLOOR_S) - log(max(estimate_s, 0.0) + _FLOOR_S)
        self._all.append(error)
        self._users.setdefault(user, deque(maxlen=_OF_USER)).append(error)
        self._users.move_to_end(user)
        if len(self._users) > _USERS:
            self._users.popitem(last=False)
        self._sorted.clear()

    def remaining_s(self, job: Job, said: Prediction, ran_s: float, share: float) -> float:
        """Seconds within which the job ends in ``share`` of all cases, given that it has run for ``ran_s``."""
        base = said.duration_s + _FLOOR_S
        known = self._sorted.get(job.user)
        if known is None:
            known = self._sorted[job.user] = self._mixed(job.user)
        errors, weights = known
        first = bisect_right(errors, log((ran_s + _FLOOR_S) / base))
        if len(errors) - first < _ENOUGH:
            return said.remaining_s(ran_s)
        below = weights[first - 1] if first else 0.0
        at = bisect_left(weights, below + share * (weights[-1] - below), first, len(weights) - 1)
        ends_s = base * exp(errors[at]) - _FLOOR_S
        if job.time_limit_s is not None:
            ends_s = min(ends_s, job.time_limit_s)
        return max(ends_s - ran_s, 1.0)

    def _mixed(self, user: str) -> tuple[list[float], list[float]]:
        every = [(error, _SHRINK / len(self._all)) for error in self._all]
        every += [(error, 1.0) for error in self._users.get(user, ())]
        every.sort()
        return [error for error, _ in every], list(accumulate(weight for _, weight in every))

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        users = {user: [round(error, 3) for error in errors] for user, errors in self._users.items()}
        return {"all": [round(error, 3) for error in self._all], "users": users}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunTimes:
        """The inverse of ``to_dict``, to a thousandth.

        Raises:
            KeyError, TypeError, ValueError: it is of another shape.
        """
        made = cls()
        made._all.extend(float(error) for error in data["all"])
        for user, errors in data["users"].items():
            made._users[str(user)] = deque((float(error) for error in errors), maxlen=_OF_USER)
        return made


class Draws:
    """The quantile of each job in one planned path. ``first``: that of the first job that is asked for, 0 to 1."""

    def __init__(self, times: RunTimes, predictions: Mapping[str, Prediction], first: float = 0.5) -> None:
        self._times = times
        self._predictions = predictions
        self._first = first
        self._shares: dict[str, float] = {}

    def remaining_s(self, job: Job, ran_s: float) -> float:
        """Seconds for which the job goes on in this path after ``ran_s``."""
        share = self._shares.setdefault(job.id, (self._first + _GOLDEN * len(self._shares)) % 1.0)
        return self._times.remaining_s(job, self._predictions[job.id], ran_s, share)
