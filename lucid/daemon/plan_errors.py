"""``PlanErrors``: partitions that cannot be planned: error, since when, whether held jobs are released.

The turn does not fail, and the other partitions are planned (``orchestrator.planner``). Held jobs of the partition
wait for as long as they would for a lucidd without a sign of life, and are then released: Lucid only observes there
until a plan succeeds. If the error returns soon after that, the jobs are released at once, for as long again."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from lucid.core.codec import from_json, to_json
from lucid.core.decision import Plan
from lucid.places import HELD_AT_MOST_S

_LOG = logging.getLogger("lucidd")


class PlanError(Struct, frozen=True):
    """The error of one partition. ``why``: the last exception, in words. ``since_s``, ``let_go_s``: Unix time of the
    first error, and of the release of its held jobs; 0 before that. ``back_s``: the jobs are not taken back before
    this time."""

    why: str
    since_s: float
    let_go_s: float = 0.0
    back_s: float = 0.0


def words_of_plan_errors(status: Mapping[str, Any]) -> list[str]:
    """A sentence for each partition that cannot be planned. ``status``: lucidd's status."""
    found = []
    for name, one in plan_errors_of(status).items():
        since = time.strftime("%F %T", time.localtime(one.since_s))
        after = "its held jobs are released, and Slurm starts them" if one.let_go_s else "its jobs wait"
        found.append(f"partition {name} cannot be planned since {since} ({one.why}): {after}")
    return found


def plan_errors_of(status: Mapping[str, Any]) -> dict[str, PlanError]:
    """The errors by partition, from lucidd's status, whatever it holds."""
    try:
        return {str(name): from_json(PlanError, told) for name, told in (status.get("plan_errors") or {}).items()}
    except (TypeError, ValueError, KeyError, AttributeError):
        return {}  # another version wrote it


class PlanErrors:
    """The plan errors of one daemon."""

    def __init__(self, before: Mapping[str, PlanError] | None = None) -> None:
        """``before``: the errors that the previous daemon left."""
        self.now: dict[str, PlanError] = dict(before or {})
        """Errors by partition that cannot be planned, or whose jobs have not been taken back yet."""
        self._over: dict[str, tuple[PlanError, float]] = {}
        """Errors of partitions whose jobs were released and have been taken back, and when."""
        self._traces: dict[str, str] = {}
        self._together = ""

    @property
    def released(self) -> frozenset[str]:
        """Partitions whose held jobs are released."""
        return frozenset(name for name, one in self.now.items() if one.let_go_s)

    def failed(self, name: str, error: Exception) -> None:
        """Note that no plan could be made of a partition. An empty name: a policy fails with several together, and
        with none alone."""
        trace = "".join(traceback.format_exception(error, limit=-12))
        if name:
            self._traces[name] = trace
        elif self._together != type(error).__name__:
            self._together = type(error).__name__
            what = "a policy fails with several partitions together: each is planned by itself"
            _LOG.error(what, extra={"facts": {"traceback": trace}})

    def observe(self, plan: Plan) -> None:
        """Note that a plan was made."""
        for name in self.now.keys() - plan.partitions.keys():
            del self.now[name]
        for name, part in plan.partitions.items():
            if part.error:
                self._bad(name, part.error, plan.now_s)
            elif name in self.now:
                self._good(name, plan.now_s)
        self._traces.clear()

    def _bad(self, name: str, why: str, now_s: float) -> None:
        known = self.now.get(name)
        if known is None:
            known = self._again(name, why, now_s)
        if self.now.get(name) is None or _kind(known.why) != _kind(why):
            facts = {"partition": name, "why": why, "traceback": self._traces.get(name, "")}
            _LOG.error("no plan of a partition can be made: its jobs wait", extra={"facts": facts})
        known = replace(known, why=why, since_s=min(known.since_s, now_s))  # the clock may have been set back
        if not known.let_go_s and now_s - known.since_s >= HELD_AT_MOST_S:
            known = replace(known, let_go_s=now_s)
            what = "no plan of a partition can be made: its held jobs are released"
            _LOG.error(what, extra={"facts": {"partition": name, "why": why, "since_s": known.since_s}})
        self.now[name] = known

    def _again(self, name: str, why: str, now_s: float) -> PlanError:
        """A new error, or the previous one where the jobs had just been taken back."""
        before, at_s = self._over.pop(name, (None, 0.0))
        if before is None or not 0 <= now_s - at_s < HELD_AT_MOST_S:
            return PlanError(why, now_s)
        return replace(before, back_s=now_s + HELD_AT_MOST_S)

    def _good(self, name: str, now_s: float) -> None:
        known = self.now[name]
        if known.let_go_s and now_s < known.back_s <= now_s + HELD_AT_MOST_S:
            return
        del self.now[name]
        if known.let_go_s:
            self._over[name] = known, now_s
        _LOG.info("a partition is planned again", extra={"facts": {"partition": name, "was": known.why}})

    def to_dict(self) -> dict[str, Any]:
        """The errors for lucidd's status."""
        return {name: to_json(one) for name, one in self.now.items()}


def _kind(why: str) -> str:
    """The kind of an error: its words before the numbers and names that may differ each time."""
    return why.partition(":")[0]
