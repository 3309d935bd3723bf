"""What a run leaves behind: decisions kept only when their reasons change, and read again as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders import VC, Tape, a_trace, at, by, nodes, part, replay, snap, waits
from lucid.core.decision import Action, Decision, EndProfiling, Hold, PartitionPlan, Plan, Requeue, Start
from lucid.core.reasons.profiling import ProfileTime
from lucid.core.reasons.queue import BehindHead, FreeGpus, NextRound, Preempted
from lucid.errors import TraceError
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
    assert [(entry.at_s, entry.reasons[0].kind) for entry in log.of("j")] == [
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
    assert [entry.verb for entry in log.of("j")] == ["hold", "start", "requeue", "hold"]


def test_a_plan_that_is_handed_out_again_is_passed_over() -> None:
    log = DecisionLog()
    kept = PartitionPlan({"j": Start(at("n1:0"), (FULL,))})
    for now_s in (0.0, 1.0):
        log.record(snap(now_s), Plan(now_s, {VC: kept}), ())
    assert [entry.at_s for entry in log.of("j")] == [0.0]


def test_of_very_many_changes_the_first_and_the_last_are_kept() -> None:
    log = DecisionLog()
    for i in range(200):
        note(log, float(i), j=Hold((FULL,) if i % 2 else (NextRound(60.0),)))
    times = [entry.at_s for entry in log.of("j")]
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
        assert load_decisions(path, job) == log.of(job)
    last = load_decisions(path, 'quote"and-ä')[-1]
    assert (last.verb, last.placement, last.beside) == ("start", "n1:0,2-3", "j")
    assert load_decisions(path, "j")[-1].verb == "part"
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
        assert log.of(job)[-1].verb == "start"
        assert log.of(job)[-1].at_s == outcome.start_s
