"""The campaign's judge on recorded timelines, and what its watch sees."""

from __future__ import annotations

from typing import Any

from campaign.facts import Broken, Order, Record, Task, runs_from
from campaign.judge import Finding, judge
from campaign.slurmctld_log import Told, told_by
from campaign.verdict import verdict
from campaign.victims import unchosen
from campaign.watch import HELD_S, WAITS_S, Look, Watch, free_gpus, yielding

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


FOLDER, BOUND_S = "/var/campaign", 45.0


def watch(**more: Any) -> Watch:
    return Watch({"j1-1": Order("j1-1", 0.0, "alice", (), "", partition="vc-a", gpus=2, **more)}, FOLDER, BOUND_S)


def job(state: str = "PENDING", **more: Any) -> dict[str, Any]:
    return {
        "job_id": 7, "job_state": [state], "standard_output": f"{FOLDER}/out/j1-1", "admin_comment": "",
        "comment": "",
        "priority": {"set": True, "number": 100}, "eligible_time": {"set": True, "number": 1}, "dependency": "",
    } | more  # fmt: skip


HELD = {"priority": {"set": True, "number": 0}, "admin_comment": "lucid:vc=vc-a;held=1"}


def seen(
    watch_: Watch, seconds: float, *jobs: dict[str, Any], free: int = 4, age_s: float = 1.0, **more: Any
) -> Watch:
    begin = more.pop("begin", 1000.0)
    broken = more.pop("broken", ())
    for step in range(int(seconds / 2.5) + 1):
        watch_.look(Look(begin + 2.5 * step, jobs, {"vc-a": [free, 0]}, age_s, broken, **more))
    return watch_


def test_held_by_nobody_is_stuck() -> None:
    assert seen(watch(), HELD_S + 10, job(**HELD), age_s=BOUND_S + 1, free=0).stuck.keys() == {"j1-1"}


def test_held_while_somebody_decides_or_slurm_cannot_be_told_is_not_stuck() -> None:
    assert not seen(watch(), HELD_S + 10, job(**HELD), age_s=5.0, free=0).stuck
    assert not seen(watch(), HELD_S + 10, job(**HELD), age_s=BOUND_S + 1, free=0, barred=True).stuck
    assert not seen(watch(), HELD_S - 10, job(**HELD), age_s=BOUND_S + 1, free=0).stuck
    own = HELD | {"admin_comment": ""}
    assert not seen(watch(release_after_s=5.0), HELD_S + 10, job(**own), age_s=BOUND_S + 1, free=0).stuck
    assert not seen(watch(), HELD_S + 10, job(**HELD, comment="lucid:held"), age_s=BOUND_S + 1, free=0).stuck


def test_a_job_that_waits_beside_free_gpus_for_too_long_is_stuck() -> None:
    assert seen(watch(), WAITS_S + 10, job()).stuck.keys() == {"j1-1"}
    assert not seen(watch(), WAITS_S + 10, job(), broken=("disk-full",)).stuck
    assert not seen(watch(), WAITS_S + 10, job(), free=1).stuck


def test_the_longest_standstill_is_told_with_and_without_faults() -> None:
    both = watch()
    seen(both, 20, job(), broken=("slurmctld-stop",))
    seen(both, 10, job(), begin=1022.5)
    assert (both.whole.longest_s, both.clear.longest_s) == (32.5, 12.5)
    assert both.whole.partition == "vc-a"
    assert both.whole.key == "j1-1"


def test_a_start_ends_a_standstill() -> None:
    both = Watch(
        {name: Order(name, 0.0, "a", (), "", partition="vc-a", gpus=1) for name in ("j1-1", "j1-2")}, FOLDER, BOUND_S
    )
    other = {"standard_output": f"{FOLDER}/out/j1-2", "job_id": 8}
    seen(both, 10, job(), job(**other))
    seen(both, 10, job(), job("RUNNING", **other), begin=1012.5)
    assert both.whole.longest_s == 10.0


def test_what_cannot_start_now_is_no_standstill() -> None:
    later = {"eligible_time": {"set": True, "number": 5000}}
    for more in (later, {"dependency": "afterok:3(unfulfilled)"}):
        assert seen(watch(), 20, job(**more)).whole.longest_s == 0
    assert seen(watch(nodes=2), 20, job()).whole.longest_s == 0, "the other node is full"


def test_tasks_of_an_array_are_told_apart_before_slurm_does() -> None:
    array = Watch({"j1-1": Order("j1-1", 0.0, "a", (), "", tasks=(0, 1, 2))}, FOLDER, BOUND_S)
    one = job("RUNNING", job_id=8, array_task_id={"set": True, "number": 0})
    rest = job(array_task_id={"set": False}, array_task_string="1-2%1")
    array.look(Look(1000.0, [one, rest], {}, 1.0, ()))
    assert {key: (r.job, r.state) for key, r in array.records.items()} == {
        "j1-1_0": ("8", "RUNNING"), "j1-1_1": ("7", "PENDING"), "j1-1_2": ("7", "PENDING"),
    }  # fmt: skip


def test_free_gpus_are_whole_ones_of_nodes_that_can_be_used() -> None:
    node = {
        "state": ["MIXED"], "partitions": ["vc-a"], "cpus": 16, "alloc_cpus": 2, "real_memory": 64000,
        "alloc_memory": 2000, "gres": "gpu:g0:1,gpu:g1:1,gpu:g2:1,shard:g0:2,shard:g1:2,shard:g2:2",
        "gres_used": "gpu:g0:1(IDX:0),gpu:g1:0(IDX:N/A),shard:g1:1(1/2),shard:g2:0(0/2)",
    }  # fmt: skip
    assert free_gpus([node], ["vc-a", "vc-b"]) == {"vc-a": [1], "vc-b": []}
    for more in (
        {"state": ["IDLE", "DRAIN"]},
        {"state": ["DOWN"]},
        {"alloc_cpus": 15},
        {"alloc_memory": 63000},
        {"state": ["IDLE", "RESERVED", "MAINTENANCE"]},
        {"state": ["IDLE", "REBOOT_ISSUED"]},
        {"state": ["MIXED", "REBOOT_REQUESTED"]},
        {"state": ["IDLE", "POWERING_DOWN"]},
    ):
        assert free_gpus([node | more], ["vc-a"]) == {"vc-a": []}
    asleep = node | {"state": ["IDLE", "POWERED_DOWN"]}
    assert free_gpus([asleep], ["vc-a"]) == {"vc-a": [1]}, "Slurm wakes it"


def test_gpus_of_those_that_give_way_are_free_for_who_may_preempt_them() -> None:
    jobs = [
        {"partition": "scav", "job_state": ["RUNNING"], "nodes": "n[1-2]",
         "gres_detail": ["gpu:g0:0(IDX:),gpu:g1:1(IDX:1)", "shard:g2:1(0/2,0/2,1/2,0/2)"]},
        {"partition": "vc-a", "job_state": ["RUNNING"], "nodes": "n2", "gres_detail": ["shard:g2:1(0/2,0/2,1/2)"]},
        {"partition": "scav", "job_state": ["PENDING"], "nodes": "", "gres_detail": []},
    ]  # fmt: skip
    assert yielding(jobs, "scav") == {"n1": {"g1"}, "n2": set()}
    node = {
        "name": "n1", "state": ["MIXED"], "partitions": ["vc-a"], "cpus": 16, "alloc_cpus": 2, "real_memory": 64000,
        "alloc_memory": 2000, "gres": "gpu:g0:1,gpu:g1:1", "gres_used": "gpu:g0:1(IDX:0),gpu:g1:1(IDX:1)",
    }  # fmt: skip
    assert free_gpus([node], ["vc-a"], {"n1": {"g1"}}) == {"vc-a": [1]}
