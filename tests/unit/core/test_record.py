"""Records, reasons and shapes: frozen, compared, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from lucid.core.codec import from_json
from lucid.core.decision import Action, Decision, EndProfiling, Hold, PartitionPlan, Plan, Requeue, Start
from lucid.core.job import Job, JobProfile
from lucid.core.reason import REASONS, Reason
from lucid.core.reasons.profiling import ProfileTime
from lucid.core.reasons.queue import BehindHead, Borrows, FreeGpus, NextRound, Preempted
from lucid.core.reasons.sharing import SameGpus
from lucid.errors import TraceError
from lucid.explain.reasons import reason_text
from lucid.simulator.record import DecisionLog, load_decisions, write_decisions
from scenes.jobs import LIGHT, VC, at, nodes, runs, waits
from scenes.plans import decide, guess, part, reason, snap

FULL = FreeGpus(1, 0, 0, False)


def note(log: DecisionLog, now_s: float, **decisions: Decision) -> None:
    """One cycle with these decisions in the VC."""
    acting = (Start, Requeue, EndProfiling)
    actions = tuple(Action(job, VC, d) for job, d in decisions.items() if isinstance(d, acting))
    plan = Plan(now_s, {VC: PartitionPlan(decisions, actions)})
    log.record(snap(now_s, part(nodes(1), [waits(job) for job in decisions])), plan, ())


def test_a_hold_is_noted_after_an_action_and_when_the_kinds_of_its_reasons_change() -> None:
    log, full = DecisionLog(), Hold((FULL,))
    made = [
        full, Hold((FreeGpus(1, 0, 3, False),)), Hold((BehindHead("h"),)), full,
        Start(at("n1:0"), (FreeGpus(1, 8, 8, True),)), Requeue((Preempted(1, 0),)), full,
    ]  # fmt: skip
    for now_s, decision in enumerate(made):
        note(log, float(now_s), j=decision)
    verbs = {0: "hold", 2: "hold", 3: "hold", 4: "start", 5: "requeue", 6: "hold"}
    assert [(entry.at_s, entry.verb) for entry in log.decisions_of("j")] == [*verbs.items()]


def test_a_plan_handed_out_again_is_passed_over_and_of_many_changes_the_first_and_the_last_are_kept() -> None:
    log, kept = DecisionLog(), PartitionPlan({"k": Start(at("n1:0"), (FULL,))})
    for now_s in (0.0, 1.0):
        log.record(snap(now_s), Plan(now_s, {VC: kept}), ())
    assert [entry.at_s for entry in log.decisions_of("k")] == [0.0]
    for i in range(200):
        note(log, float(i), j=Hold((FULL,) if i % 2 else (NextRound(60.0),)))
    times = [entry.at_s for entry in log.decisions_of("j")]
    assert (len(times), times[:20], times[-1]) == (40, [float(i) for i in range(20)], 199.0)
    assert times == sorted(times)


def test_decisions_are_read_again_as_they_were(tmp_path: Path) -> None:
    log = DecisionLog()
    note(log, 0.5, **{'quote"and-ä': Hold((FULL, BehindHead("h"))), "j": EndProfiling((ProfileTime(80.0, 80.0),))})
    note(log, 1.5, **{'quote"and-ä': Start(at("n1:0,2-3"), (FreeGpus(3, 8, 8, True),), "j")})
    note(log, 2.5, j=Requeue((Preempted(1, 0),), part=True))
    path = tmp_path / "decisions.jsonl"
    write_decisions(path, log)
    for job in log.jobs:
        assert load_decisions(path, job)[0] == log.decisions_of(job)
    last = load_decisions(path, 'quote"and-ä')[0][-1]
    assert (last.verb, last.placement, last.beside) == ("start", "n1:0,2-3", "j")
    assert load_decisions(path, "j")[0][-1].verb == "part"
    assert all(json.loads(line)["job"] in log.jobs for line in path.read_text().splitlines())


def test_an_unknown_job_or_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    write_decisions(path, DecisionLog())
    with pytest.raises(TraceError, match=r"no job 'j'; the job ids are in the first column of jobs.csv"):
        load_decisions(path, "j")
    with pytest.raises(TraceError, match=r"cannot be read .*; give --run the folder"):
        load_decisions(tmp_path / "none", "j")


def test_all_that_is_decided_is_frozen() -> None:
    kinds: list[Any] = [*get_args(Decision), *REASONS.values()]
    assert [kind.__name__ for kind in kinds if not kind.__struct_config__.frozen] == []


def test_what_is_not_there_has_its_default_what_is_not_known_is_passed_over_another_shape_refused() -> None:
    least = {"gpu_util": 1.0, "mem_util": 2.0, "gpu_mem_mib": 3.0, "of_later_versions": 4}
    assert from_json(JobProfile, least) == JobProfile(1.0, 2.0, 3.0)
    for data in (5, [], {"id": "1"}, {"id": "1", "vc": "v", "gpus": 1, "submit_s": 0.0, "elastic": 3}):
        with pytest.raises((TypeError, ValueError)):
            from_json(Job, data)


def test_a_large_job_that_borrows_is_read_as_b7b0384e_stored_it() -> None:
    stored = {"kind": "LargeBorrows", "job_gpus": 16, "above": 8, "waited_s": 9.0, "lenders": ["b"], "gpus": 4}
    assert reason_text(Reason.from_json(stored)) == "borrows 4 GPUs of VC b until it ends"
    stored = {"kind": "Borrows", "estimate_s": 600.0, "longest_s": None, "lenders": ["b"], "gpus": 4, "holds": True}
    assert Reason.from_json(stored) == Borrows(600.0, ("b",), 4)


BARE = {"enabled": False}
ASKED = {"profiling": {**BARE, "restarts": "asked"}, "packing": {"unparted_harm": 0.0}}
ALLOWED = {"profiling": {**BARE, "restarts": "allowed"}, "packing": {"unparted_harm": 0.0}}
HELD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "parted before": ({"alone": True}, {}),
    "not shareable": ({"shareable": False}, {}),
    "not measured": ({"profile": None}, {}),
    "unstable": ({"profile": replace(LIGHT, unstable=True)}, {}),
    "too much GPU memory": ({"profile": replace(LIGHT, gpu_mem_mib=22000.0)}, {}),
    "too many CPUs": ({"cpus": 4}, {}),
    "too much host memory": ({"mem_mib": 4000}, {}),
    "another user": ({"user": "bob"}, {"packing": {"same_user_only": True}}),
    "not to be started over": ({"restart_asked": False}, ASKED),
    "never requeued": ({"requeueable": False}, ALLOWED),
    "two nodes": ({"gpus": 2, "min_nodes": 2}, {"reservation": BARE}),
}


@pytest.mark.parametrize(("differs", "rules"), HELD.values(), ids=HELD)
def test_a_job_is_not_held_by_what_stopped_one_that_differs(differs: dict[str, Any], rules: dict[str, Any]) -> None:
    """Both would stand beside the only running job; the first in the queue may not, the next one may. The one that
    wants two nodes has a like one behind it that wants one."""
    here: dict[str, Any] = {"user": "ann", "cpus": 1, "mem_mib": 1000}
    usual, gpus = {**here, "profile": LIGHT, "restart_asked": True}, differs.get("gpus", 1)
    host = runs("host", f"n1:0-{gpus - 1}", profile=LIGHT, job={**here, "requeueable": False})
    line = [waits("first", **{**usual, **differs}), waits("second", gpus, 1.0, **usual)]
    room = part(nodes(1, gpus, cpus=4, mem_mib=4000), line, [host])
    known = {"host": guess(9000.0, 0)}
    made = decide("lucid", snap(100.0, room, predictions=known), **{"profiling": BARE, **rules}).decisions
    assert isinstance(made["first"], Hold)
    assert reason(made["second"], SameGpus, Start)
    assert made["second"].beside == "host"
