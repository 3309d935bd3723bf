"""Records, reasons and shapes: frozen, compared, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from builders import LIGHT, VC, Tape, a_trace, at, by, decide, guess, nodes, part, replay, runs, snap, waits
from lucid.core.codec import from_json
from lucid.core.decision import Action, Decision, EndProfiling, Hold, PartitionPlan, Plan, Requeue, Start
from lucid.core.job import Job, JobProfile
from lucid.core.reason import REASONS, Reason
from lucid.core.reasons.profiling import ProfileTime
from lucid.core.reasons.queue import BehindHead, Borrows, FreeGpus, NextRound, Preempted
from lucid.errors import TraceError
from lucid.explain.reasons import reason_text
from lucid.simulator.record import DecisionLog, load_decisions, write_decisions

FULL = FreeGpus(1, 0, 0, False)


def note(log: DecisionLog, now_s: float, **decisions: Decision) -> None:
    """One cycle with these decisions in the VC."""
    acting = (Start, Requeue, EndProfiling)
    actions = tuple(Action(job, VC, d) for job, d in decisions.items() if isinstance(d, acting))
    plan = Plan(now_s, {VC: PartitionPlan(decisions, actions)})
    log.record(snap(now_s, part(nodes(1), [waits(job) for job in decisions])), plan, ())


def test_a_hold_is_noted_when_the_kinds_of_its_reasons_change() -> None:
    log = DecisionLog()
    note(log, 0.0, j=Hold((FULL,)))
    note(log, 1.0, j=Hold((FreeGpus(1, 0, 3, False),)))
    note(log, 2.0, j=Hold((BehindHead("h"),)))
    note(log, 3.0, j=Hold((FULL,)))
    assert [(entry.at_s, entry.reasons[0].kind) for entry in log.decisions_of("j")] == [
        (0.0, "FreeGpus"),
        (2.0, "BehindHead"),
        (3.0, "FreeGpus"),
    ]


def test_a_hold_after_an_action_is_noted_again() -> None:
    log = DecisionLog()
    note(log, 0.0, j=Hold((FULL,)))
    note(log, 1.0, j=Start(at("n1:0"), (FreeGpus(1, 8, 8, True),)))
    note(log, 2.0, j=Requeue((Preempted(1, 0),)))
    note(log, 3.0, j=Hold((FULL,)))
    assert [entry.verb for entry in log.decisions_of("j")] == ["hold", "start", "requeue", "hold"]


def test_a_plan_that_is_handed_out_again_is_passed_over() -> None:
    log = DecisionLog()
    kept = PartitionPlan({"j": Start(at("n1:0"), (FULL,))})
    for now_s in (0.0, 1.0):
        log.record(snap(now_s), Plan(now_s, {VC: kept}), ())
    assert [entry.at_s for entry in log.decisions_of("j")] == [0.0]


def test_of_very_many_changes_the_first_and_the_last_are_kept() -> None:
    log = DecisionLog()
    for i in range(200):
        note(log, float(i), j=Hold((FULL,) if i % 2 else (NextRound(60.0),)))
    times = [entry.at_s for entry in log.decisions_of("j")]
    assert len(times) == 40
    assert times[:20] == [float(i) for i in range(20)]
    assert times[-1] == 199.0
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


def test_every_job_of_a_run_has_its_decisions_and_its_start_among_them() -> None:
    tape, log = Tape(), DecisionLog()
    outcomes, tape = replay("fifo", a_trace(*(by(f"j{i}", 8, 50.0) for i in range(4))))
    for snapshot, plan, applied in tape.cycles:
        log.record(snapshot, plan, applied)
    assert set(log.jobs) == set(outcomes)
    for job, outcome in outcomes.items():
        assert log.decisions_of(job)[-1].verb == "start"
        assert log.decisions_of(job)[-1].at_s == outcome.start_s


def test_all_that_is_decided_is_frozen() -> None:
    kinds: list[Any] = [*get_args(Decision), *REASONS.values()]
    assert [kind.__name__ for kind in kinds if not kind.__struct_config__.frozen] == []


def test_what_is_not_there_has_its_default_and_what_is_not_known_is_passed_over() -> None:
    least = {"gpu_util": 1.0, "mem_util": 2.0, "gpu_mem_mib": 3.0, "of_later_versions": 4}
    assert from_json(JobProfile, least) == JobProfile(1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    "data", [5, [], {"id": "1"}, {"id": "1", "vc": "v", "gpus": 1, "submit_s": 0.0, "elastic": 3}]
)
def test_another_shape_is_refused(data: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        from_json(Job, data)


def test_a_large_job_that_borrows_is_read_as_b7b0384e_stored_it() -> None:
    stored = {"kind": "LargeBorrows", "job_gpus": 16, "above": 8, "waited_s": 9.0, "lenders": ["b"], "gpus": 4}
    assert reason_text(Reason.from_json(stored)) == "borrows 4 GPUs of VC b until it ends"
    stored = {"kind": "Borrows", "estimate_s": 600.0, "longest_s": None, "lenders": ["b"], "gpus": 4, "holds": True}
    assert Reason.from_json(stored) == Borrows(600.0, ("b",), 4)


ASKED = {"profiling": {"enabled": False, "restarts": "asked"}, "packing": {"unparted_harm": 0.0}}
ALLOWED = {"profiling": {"enabled": False, "restarts": "allowed"}, "packing": {"unparted_harm": 0.0}}
ONE_USER = {"packing": {"same_user_only": True}}

HELD: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("parted before", {"alone": True}, {}),
    ("not shareable", {"shareable": False}, {}),
    ("not measured", {"profile": None}, {}),
    ("unstable", {"profile": replace(LIGHT, unstable=True)}, {}),
    ("too much GPU memory", {"profile": replace(LIGHT, gpu_mem_mib=22000.0)}, {}),
    ("too many CPUs", {"cpus": 4}, {}),
    ("too much host memory", {"mem_mib": 4000}, {}),
    ("another user", {"user": "bob"}, ONE_USER),
    ("not to be started over", {"restart_asked": False}, ASKED),
    ("never requeued", {"requeueable": False}, ALLOWED),
]


@pytest.mark.parametrize(("differs", "rules"), [item[1:] for item in HELD], ids=[item[0] for item in HELD])
def test_a_job_is_not_held_by_what_stopped_one_that_differs(differs: dict[str, Any], rules: dict[str, Any]) -> None:
    """Both would stand beside the only running job; the first in the queue may not, the next one may."""
    usual: dict[str, Any] = {"user": "ann", "profile": LIGHT, "restart_asked": True, "cpus": 1, "mem_mib": 1000}
    host = runs("host", "n1:0", profile=LIGHT, job={"user": "ann", "requeueable": False, "cpus": 1, "mem_mib": 1000})
    first = waits("first", **{**usual, **differs})
    second = waits("second", submit_s=1.0, **usual)
    known = {"host": guess(9000.0, 0), "first": guess(1000.0, 0), "second": guess(1000.0, 0)}
    if first.profile is None:
        known["first"] = guess(1000.0)
    sections = {"profiling": {"enabled": False}, **rules}
    partition = part(nodes(1, 1, cpus=4, mem_mib=4000), [first, second], [host])
    made = decide("lucid", snap(100.0, partition, predictions=known), **sections)
    assert isinstance(made.decisions["first"], Hold)
    beside = made.decisions["second"]
    assert isinstance(beside, Start), beside.reasons
    assert beside.beside == "host"


def test_a_share_score_that_fits_is_not_held_by_one_that_does_not() -> None:
    host = runs("host", "n1:0", profile=LIGHT)
    line = [waits("first", profile=LIGHT), waits("second", submit_s=1.0, profile=LIGHT)]
    known = {"host": guess(9000.0, 1), "first": guess(1000.0, 2), "second": guess(1000.0, 0)}
    snapshot = snap(100.0, part(nodes(1, 1), line, [host]), predictions=known)
    made = decide("lucid", snapshot, profiling={"enabled": False})
    assert isinstance(made.decisions["first"], Hold)
    assert isinstance(made.decisions["second"], Start)


def test_one_node_suffices_for_a_job_behind_one_that_wants_two() -> None:
    line = [waits("first", 2, min_nodes=2), waits("second", 2, submit_s=1.0)]
    snapshot = snap(100.0, part(nodes(2, 2), line, [runs("rigid", "n2:0-1")]))
    made = decide("lucid", snapshot, profiling={"enabled": False}, reservation={"enabled": False})
    assert isinstance(made.decisions["first"], Hold)
    assert isinstance(made.decisions["second"], Start)
