"""When jobs are expected to start, as lucidd wrote it: commands read it, and plan only where it does not hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from builders import VC, nodes, part, snap, waits
from daemon_site import Site
from lucid.core.decision import Action, PartitionPlan, Plan
from lucid.daemon.reporting import replan as last_plan
from lucid.daemon.reporting.starts import STARTS, Span, StartsAhead, told_starts
from scenes.hostile import start


def told(at_s: float, starting: tuple[str, ...] = (), **starts: Span | None) -> dict[str, Span | None] | None:
    """What is told at 100 s of the jobs a and b, where it was foreseen at ``at_s``; through JSON."""
    snapshot = snap(100.0, part(nodes(1, 8), [waits("a", 8, 0.0), waits("b", 8, 1.0)]))
    written = json.loads(json.dumps(StartsAhead(at_s, starts).to_dict()))
    actions = tuple(Action(job_id, VC, start("n1:0-7")) for job_id in starting)
    plan = Plan(100.0, {VC: PartitionPlan({action.job_id: action.decision for action in actions}, actions)})
    found = told_starts(written, snapshot, plan)
    return None if found is None else dict(found.starts_in_s)


def test_what_was_foreseen_of_this_picture_is_told_as_it_is() -> None:
    assert told(100.0, a=(5, 10, 20), b=None) == {"a": (5, 10, 20), "b": None}


def test_what_was_foreseen_before_comes_nearer() -> None:
    assert told(90.0, a=(5, 15, 20), b=(100, 110, 120)) == {"a": (1, 5, 10), "b": (90, 100, 110)}


def test_now_is_told_of_the_jobs_that_the_plan_starts_and_of_no_other() -> None:
    assert told(95.0, ("a",), a=(5, 15, 20), b=(1, 1, 1)) == {"a": (0, 0, 0), "b": (1, 1, 1)}
    assert told(95.0, a=(0, 0, 0), b=None) is None, "it was to start, and waits still: Slurm refused it, say"


def test_it_does_not_hold_where_it_is_old_or_knows_not_all_who_wait() -> None:
    assert told(39.0, a=None, b=None) is None
    assert told(100.0, a=(5, 10, 20)) is None


@pytest.mark.parametrize("written", [None, {}, [], {"at_s": "x", "starts": {}, "own_ahead_s": {}, "ahead_s": 1.0}])
def test_what_another_version_wrote_is_passed_over(written: Any) -> None:
    assert told_starts(written, snap(100.0, part(nodes(1, 8), [])), Plan(100.0, {})) is None


def test_how_far_was_planned_ahead_is_kept() -> None:
    written = StartsAhead(1.0, {}, 50.0, {"a": 20.0, "b": math.inf})
    assert StartsAhead.from_dict(json.loads(json.dumps(written.to_dict()))) == written


def test_commands_plan_nothing_where_lucidd_has_foreseen_the_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    for number in range(4):
        site.submit(f"{number}", 4, mark="lucid:vc=vc;share=0", run_s=5000.0)
    site.turns(400.0, every_s=10.0)
    (waiting, *_) = site.store.view(STARTS)["starts"]
    planned = {name: json.loads(site.ctl(*words, "--json")) for name, words in _asked(waiting).items()}
    calls: list[object] = []
    ahead = last_plan.LastPlan.ahead
    monkeypatch.setattr(last_plan.LastPlan, "ahead", lambda *given: calls.append(given) or ahead(*given))
    assert {name: json.loads(site.ctl(*words, "--json")) for name, words in _asked(waiting).items()} == planned
    assert not calls
    site.store.put_view(STARTS, None)  # of the first cycle there is none
    again = {name: json.loads(site.ctl(*words, "--json")) for name, words in _asked(waiting).items()}
    assert len(calls) == len(again)
    assert again == planned


def _asked(waiting: str) -> dict[str, tuple[str, ...]]:
    return {"queue": ("queue",), "explain": ("explain", waiting), "why-not": ("why-not", waiting)}
