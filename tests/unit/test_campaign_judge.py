"""The campaign's judge on recorded timelines: it finds each thing that may happen to a job, and excuses little."""

from __future__ import annotations

from campaign.facts import Broken, Order, Record, Task, runs_from
from campaign.judge import Finding, judge
from campaign.slurmctld_log import Told, told_by
from campaign.verdict import verdict
from campaign.victims import unchosen

ORDER = Order("j1-1", 0.0, "alice", (), "sleep 5", partition="vc-a", gpus=1)
ONCE = "BEGIN 100.0 7 0 n1 alone\nEND 105.0 7 0 0\n"
KILL = Broken("slurmctld-kill", 110.0, 120.0, {"saved_at": 104.0, "killed_at": 110.0})


def task(lines: str, state: str = "COMPLETED", *, restarts: bool = False, **more: object) -> Task:
    order = Order("j1-1", 0.0, "alice", (), "sleep 5", restarts=restarts, partition="vc-a", gpus=1)
    return Task(
        order, "j1-1", 90.0, "7", runs=runs_from(lines), record=Record("7", state, 0, "", 200.0, "n1"), **more
    )  # type: ignore[arg-type]


def found(*given: object, **more: object) -> list[tuple[str, bool]]:
    """Kind, and whether it is excused."""
    findings: list[Finding] = judge(*given, **more)  # type: ignore[arg-type]
    return [(finding.kind, bool(finding.excuse)) for finding in findings]


def test_a_job_that_ran_once_to_its_end_is_as_asked() -> None:
    assert found(task(ONCE), []) == []


def test_a_job_that_its_user_allowed_to_be_started_over_may_be() -> None:
    lines = "BEGIN 90.0 7 0 n4 alone\nBEGIN 100.0 7 1 n1 alone\nEND 105.0 7 1 0\n"
    assert found(task(lines, restarts=True), []) == []
    assert found(task(lines), []) == [("killed", False)]


def test_two_runs_at_the_same_time_are_found() -> None:
    lines = "BEGIN 100.0 7 0 n1 alone\nBEGIN 102.0 7 1 n2 beside\nEND 105.0 7 0 0\nEND 107.0 7 1 0\n"
    assert ("doubled", False) in found(task(lines, restarts=True), [])
    without_end = "BEGIN 100.0 7 0 n1 alone\nBEGIN 102.0 7 1 n2 beside\nEND 107.0 7 1 0\n"
    assert ("doubled", False) in found(task(without_end, restarts=True), [])


def test_a_run_after_a_completed_run_is_found() -> None:
    lines = ONCE + "BEGIN 130.0 7 1 n1 alone\nEND 135.0 7 1 0\n"
    assert found(task(lines, restarts=True), []) == [("doubled", False)]


def test_the_same_run_begun_twice_is_found() -> None:
    lines = "BEGIN 100.0 7 0 n1 alone\nBEGIN 130.0 7 0 n1 alone\nEND 135.0 7 0 0\n"
    assert found(task(lines, restarts=True), []) == [("doubled", False)]


def test_what_slurmctld_forgot_when_it_was_killed_is_told_apart_by_evidence_alone() -> None:
    again = "BEGIN 130.0 7 0 n1 alone\nEND 135.0 7 0 0\n"
    assert found(task(ONCE + again), [KILL]) == [("doubled", True)], "it ended after the last save"
    earlier = Broken("slurmctld-kill", 110.0, 120.0, {"saved_at": 107.0, "killed_at": 110.0})
    assert found(task(ONCE + again), [earlier]) == [("doubled", False)], "that end had been saved"
    assert found(task(ONCE + again), [Broken("slurmctld-stop", 104.0, 120.0)]) == [("doubled", False)]
    lost = Task(ORDER, "j1-1", 106.0, "7", known=False)
    assert found(lost, [KILL]) == [("lost", True)], "it was submitted after the last save"
    assert found(Task(ORDER, "j1-1", 90.0, "7", known=False), [KILL]) == [("lost", False)]


def test_a_start_that_slurmctld_forgot_is_known_by_its_log_where_the_job_was_slower() -> None:
    lines = "BEGIN 110.4 7 0 n1 alone\nBEGIN 140.0 7 1 n2 alone\nEND 145.0 7 1 0\n"
    assert found(task(lines), [KILL], Told(started=[109.0, 139.0])) == [("killed", True)]
    assert found(task(lines), [KILL], Told(started=[102.0, 139.0])) == [("killed", False)], "that start was saved"


def test_a_requeue_that_met_the_end_of_a_job_is_told_apart_where_its_user_allowed_one() -> None:
    lines = ONCE + "BEGIN 130.0 7 1 n1 alone\nEND 135.0 7 1 0\n"
    assert found(task(lines, restarts=True), [], Told(requeued=[105.4])) == [("doubled", True)]
    assert found(task(lines, restarts=True), [], Told(requeued=[125.0])) == [("doubled", False)]
    assert found(task(lines), [], Told(requeued=[105.4])) == [("doubled", False)]
    knew = Told(requeued=[105.4], completed=[105.2])
    assert found(task(lines, restarts=True), [], knew) == [("doubled", False)], "slurmctld had heard of its end"


def test_a_job_that_nobody_knows_is_lost() -> None:
    assert found(Task(ORDER, "j1-1", 90.0, "7", known=False), []) == [("lost", False)]
    assert found(Task(ORDER, "j1-1", 90.0, "7", known=False), [], finished=False) == [], "not before all is quiet"


def test_a_job_cancelled_by_nobody_is_lost_before_it_ran_and_killed_after() -> None:
    assert found(task("", "CANCELLED"), []) == [("lost", False)]
    assert found(task("BEGIN 100.0 7 0 n1 alone\n", "CANCELLED"), []) == [("killed", False)]
    assert found(task("BEGIN 100.0 7 0 n1 alone\n", "CANCELLED", cancelled_s=101.0), []) == []


def test_completed_without_having_done_its_work_is_lost() -> None:
    assert found(task("BEGIN 100.0 7 0 n1 alone\n"), []) == [("lost", False)]


def test_an_end_that_its_user_did_not_ask_for_is_a_kill_unless_its_node_was_lost() -> None:
    lines = "BEGIN 100.0 7 0 n1 alone\n"
    for state in ("FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"):
        assert found(task(lines, state), []) == [("killed", False)]
    lost = Broken("node-lost", 102.0, 150.0, {"lost": ["n1"]})
    assert found(task(lines, "NODE_FAIL"), [lost]) == [("killed", True)]
    wide = "BEGIN 100.0 7 0 n[1-2] alone\n"
    assert found(task(wide, "NODE_FAIL"), [Broken("node-lost", 102.0, 150.0, {"lost": ["n2"]})]) == [("killed", True)]
    other = Broken("node-lost", 102.0, 150.0, {"lost": ["n2"]})
    assert found(task(lines, "NODE_FAIL"), [other]) == [("killed", False)]
    earlier = Broken("node-lost", 20.0, 40.0, {"lost": ["n1"]})
    assert found(task(lines, "NODE_FAIL"), [earlier]) == [("killed", False)]


def test_a_job_that_has_not_ended_at_the_end_is_stuck() -> None:
    assert found(task("", "PENDING"), []) == [("stuck", False)]
    assert found(task("BEGIN 100.0 7 0 n1 alone\n", "RUNNING"), []) == [("stuck", False)]
    assert found(task("", "PENDING"), [], finished=False) == []
    never = Record("7", "PENDING", reason="BadConstraints")
    drawn = Order("j1-1", 0.0, "alice", ("--gpus-per-socket=1",), "", may_be_refused=True)
    assert found(Task(drawn, "j1-1", 90.0, "7", record=never), []) == [("stuck", True)], "as plain Slurm refuses it"
    assert found(Task(ORDER, "j1-1", 90.0, "7", record=never), []) == [("stuck", False)]


def test_lines_that_were_cut_off_are_no_runs_and_no_end_is_passed_over() -> None:
    assert runs_from("BEGIN 100.0 7\n") == []
    (run,) = runs_from("END 105.0 7 0 3\n")
    assert (run.ended_s, run.code) == (105.0, 3)
    first, second = runs_from("BEGIN 1.0 7 0 n1 alone\nBEGIN 2.0 7 1 n1 beside\nEND 3.0 7 1 0\nEND 4.0 7 0 0\n")
    assert (first.ended_s, second.ended_s, second.beside) == (4.0, 3.0, True)


def test_a_job_of_which_slurmctld_has_no_record_any_more_is_told_apart_by_its_log() -> None:
    waits = task("", "PENDING")
    assert found(waits, [KILL], Told()) == [("stuck", False)]
    assert found(waits, [KILL], Told(forgotten=[111.0])) == [("stuck", True)]


def test_a_step_that_slurmctld_was_not_there_for_is_told_apart_by_the_jobs_own_words() -> None:
    cut = "BEGIN 100.0 7 0 n1 alone\n"
    words = (
        "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller (connect failure)"
    )
    away = Broken("slurmctld-restart", 105.0, 120.0)
    assert found(task(cut, "FAILED", said=words), [away]) == [("killed", True)]
    assert found(task(cut, "FAILED", said="Segmentation fault"), [away]) == [("killed", False)]
    assert found(task(cut, "FAILED", said=words), [Broken("slurmdbd-kill", 105.0, 120.0)]) == [("killed", False)]


SCAV = Order("p1-1", 0.0, "alice", (), "sleep 50", partition="scav", gpus=4, gives_way=True)
OVER = "BEGIN 100.0 7 0 n1 alone\nBEGIN 150.0 7 1 n2 alone\nEND 200.0 7 1 0\n"


def victim(lines: str, state: str = "COMPLETED") -> Task:
    return Task(SCAV, "p1-1", 90.0, "7", runs=runs_from(lines), record=Record("7", state, 1, "", 210.0, "n1"))


def test_a_victim_that_slurm_or_lucid_requeued_for_its_owners_is_as_asked() -> None:
    assert found(victim(OVER), [], Told(preempted=[120.0])) == []
    owner = runs_from("BEGIN 121.0 9 0 n1 alone\n")
    assert found(victim(OVER), [], owners=owner) == [], "an owner's job came to its node"
    late = runs_from("BEGIN 155.0 9 0 n1 alone\n")
    assert found(victim(OVER), [], owners=late) == [], "it ran again elsewhere when its GPUs were empty"
    assert found(victim(OVER), [], owners=runs_from("BEGIN 165.0 9 0 n1 alone\n")) == [("killed", False)]
    assert found(victim(OVER), []) == [("killed", False)], "for nobody"
    elsewhere = runs_from("BEGIN 121.0 9 0 n3 alone\nBEGIN 90.0 9 0 n1 alone\n")
    assert found(victim(OVER), [], owners=elsewhere) == [("killed", False)]
    assert found(task(OVER), [], Told(preempted=[120.0])) == [("killed", False)], "who gives way to nobody"


def test_a_victim_that_may_not_be_requeued_ends_preempted() -> None:
    cut = "BEGIN 100.0 7 0 n1 alone\n"
    assert found(victim(cut, "PREEMPTED"), [], Told(preempted=[120.0])) == []
    assert found(victim(cut, "PREEMPTED"), []) == [("killed", False)]
    assert found(task(cut, "PREEMPTED"), [], Told(preempted=[120.0])) == [("killed", False)]


def test_a_victim_runs_once_at_a_time_and_not_again_after_its_end() -> None:
    twice = "BEGIN 100.0 7 0 n1 alone\nBEGIN 150.0 7 1 n2 beside\nEND 200.0 7 1 0\n"
    assert found(victim(twice), [], Told(preempted=[120.0])) == [("doubled", False)]
    again = "BEGIN 100.0 7 0 n1 alone\nEND 120.0 7 0 0\nBEGIN 150.0 7 1 n2 alone\nEND 200.0 7 1 0\n"
    assert found(victim(again), [], Told(preempted=[140.0])) == [("doubled", False)]
    assert found(victim(again), [], Told(preempted=[120.4], requeued=[120.4])) == [("doubled", True)]


def test_a_job_that_may_not_be_requeued_ends_with_the_boot_that_failed() -> None:
    failed = Broken("sleep", 100.0, 190.0, {"boots_failed": ["n1"]})
    assert found(task("", "NODE_FAIL"), [failed]) == [("killed", True)]
    assert found(task("", "BOOT_FAIL"), [failed]) == [("killed", True)]
    assert found(task("BEGIN 100.0 7 0 n1 alone\n", "NODE_FAIL"), [failed]) == [("killed", False)], "it ran"
    assert found(task("", "NODE_FAIL"), [Broken("sleep", 100.0, 190.0, {"boots_failed": ["n2"]})]) == [
        ("killed", False)
    ]


def test_slurmctlds_log_names_victims() -> None:
    log = told_by(
        "[2026-11-25T03:13:38.010] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=1000 usec=1197\n"
        "[2026-11-25T03:13:38.959] slurm_job_preempt: preempted JobId=2 had to be killed\n"
        "[2026-11-25T03:13:38.960] preempted JobId=1 has been requeued to reclaim resources for JobId=3\n"
        "[2026-11-25T03:13:39.960] preempted JobId=5_1(7) has been requeued to reclaim resources for JobId=3\n"
    )
    for number in "127":
        told = log.of(number, 1e12)
        assert told is not None
        assert len(told.preempted) == 1
    assert log.of("3", 1e12) is None


def test_every_job_that_is_no_scavenger_is_an_owner_whatever_its_line_says() -> None:
    line = Order("j1-2", 0.0, "bob", ("-pvc-a",), "sleep 5", ends=frozenset({"COMPLETED"}))
    record = Record("9", "COMPLETED", 0, "", 200.0, "n1")
    owner = Task(
        line, "j1-2", 110.0, "9", runs=runs_from("BEGIN 121.0 9 0 n1 alone\nEND 126.0 9 0 0\n"), record=record
    )
    assert verdict([victim(OVER), owner], "", [], {}, finished=True) == []
    assert len(verdict([victim(OVER)], "", [], {}, finished=True)) == 1


def test_whom_slurm_preempted_and_lucid_had_not_chosen() -> None:
    log = """\
[2026-11-25T04:34:40.593] sched: _update_job: setting tres_per_node:gres/gpu:g0:1 for JobId=19
[2026-11-25T04:34:40.593] sched: _update_job: setting tres_per_node:gres/gpu:2 for JobId=20
[2026-11-25T04:34:41.004] preempted JobId=16 has been requeued to reclaim resources for JobId=19
[2026-11-25T04:34:41.004] preempted JobId=17 has been requeued to reclaim resources for JobId=20
[2026-11-25T04:35:06.004] preempted JobId=33 has been requeued to reclaim resources for JobId=19
[2026-11-25T04:36:07.747] preempted JobId=58_1(74) has been requeued to reclaim resources for JobId=58_3(58)
"""
    told_s = 1795581280.5
    claims = [(told_s - 300, "19", frozenset({"33"})), (told_s, "19", frozenset({"10", "33"}))]
    found = ["job 16 for job 19, for which Lucid had chosen 10 33"]
    assert unchosen(log, claims) == (2, found)
    assert unchosen(log, []) == (0, [])
