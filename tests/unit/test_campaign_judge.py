"""The campaign's judge on recorded timelines, what its watch sees, and that lucidd takes its settings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from campaign.facts import Broken, Order, Record, Task, runs_from
from campaign.judge import judge
from campaign.site import Site
from campaign.slurmctld_log import Told, told_by
from campaign.verdict import verdict
from campaign.victims import unchosen
from campaign.watch import HELD_S, WAITS_S, Look, Watch
from lucid.config.load import load_settings

BEGUN = "BEGIN 100.0 7 0 n1 alone\n"
ONCE = BEGUN + "END 105.0 7 0 0\n"
AGAIN = "BEGIN 130.0 7 1 n1 alone\nEND 135.0 7 1 0\n"
BESIDE = "BEGIN 102.0 7 1 n2 beside\nEND 107.0 7 1 0\n"
OVER = "BEGIN 90.0 7 0 n4 alone\nBEGIN 100.0 7 1 n1 alone\nEND 105.0 7 1 0\n"
CUT = "BEGIN 110.4 7 0 n1 alone\nBEGIN 140.0 7 1 n2 alone\nEND 145.0 7 1 0\n"
GAVE_WAY = "BEGIN 100.0 7 0 n1 alone\nBEGIN 150.0 7 1 n2 alone\nEND 200.0 7 1 0\n"
KILL = Broken("slurmctld-kill", 110.0, 120.0, {"saved_at": 104.0, "killed_at": 110.0})
SAVED_LATER = Broken("slurmctld-kill", 110.0, 120.0, {"saved_at": 107.0, "killed_at": 110.0})
LOST_NODE = Broken("node-lost", 102.0, 150.0, {"lost": ["n1"]})
NO_BOOT = Broken("sleep", 100.0, 190.0, {"boots_failed": ["n1"]})
NO_SLURMD = Broken("slurmd-kill", 101.0, 107.0, {"node": "n1"})
AWAY = Broken("slurmctld-restart", 105.0, 120.0)
NO_SLURM = "srun: error: Unable to confirm allocation for job 7: Unable to contact slurm controller"
HUNG = "srun: error: Unable to confirm allocation for job 7: Socket timed out on send/recv operation"
ORDERED = ("restarts", "gives_way", "may_be_refused", "release_after_s")


def task(lines: str = "", state: str = "COMPLETED", **more: Any) -> Task:
    of_order = {key: more.pop(key) for key in ORDERED if key in more}
    order = Order("j1-1", 0.0, "alice", (), "sleep 5", partition="vc-a", gpus=1, **of_order)
    record = Record("7", state, 0, more.pop("reason", ""), 200.0, "n1") if more.get("known", True) else None
    return Task(order, "j1-1", more.pop("at_s", 90.0), "7", runs=runs_from(lines), record=record, **more)


def victim(lines: str, state: str = "COMPLETED") -> Task:
    return task(lines, state, gives_way=True)


def released(after_s: float) -> Task:
    return task("", "PENDING", reason="JobHeldUser", release_after_s=after_s)


def found(*given: Any, **more: Any) -> list[tuple[str, bool]]:
    """Kind, and whether it is excused."""
    return [(finding.kind, bool(finding.excuse)) for finding in judge(*given, **more)]


AGAIN_ALLOWED = task(ONCE + AGAIN, restarts=True)
BEGUN_AGAIN = AGAIN.replace("7 1", "7 0")
LOST_BEFORE = Broken("node-lost", 20.0, 40.0, {"lost": ["n1"]})
MET_ITS_END, KNOWN_END = Told(requeued=[105.4]), Told(requeued=[105.4], completed=[105.2])
FINE: dict[str, tuple[Any, ...]] = {
    "it ran once": (task(ONCE), []),
    "its user allowed another start": (task(OVER, restarts=True), []),
    "its user cancelled it": (task(BEGUN, "CANCELLED", cancelled_s=101.0), []),
    "a victim that Slurm requeued": (victim(GAVE_WAY), [], Told(preempted=[120.0])),
    "a victim that may not be requeued": (victim(BEGUN, "PREEMPTED"), [], Told(preempted=[120.0])),
    "one that Slurm had not launched": (victim("", "CANCELLED"), [], Told(preempted=[120.0])),
}
FOUND: dict[str, tuple[Any, ...]] = {
    "started over unasked": ("killed", task(OVER), []),
    "run after it completed": ("doubled", AGAIN_ALLOWED, []),
    "two runs at the same time": ("doubled", task(BEGUN + BESIDE, restarts=True), []),
    "the same run begun twice": ("doubled", task(BEGUN + BEGUN_AGAIN, restarts=True), []),
    "forgotten, but its end had been saved": ("doubled", task(ONCE + BEGUN_AGAIN), [SAVED_LATER]),
    "another run's end": ("doubled", AGAIN_ALLOWED, [SAVED_LATER], Told(started=[107.0], completed=[109.5])),
    "a start that had been saved": ("killed", task(CUT), [KILL], Told(started=[102.0, 139.0])),
    "a requeue long after its end": ("doubled", AGAIN_ALLOWED, [], Told(requeued=[125.0])),
    "a requeue that its user did not allow": ("doubled", task(ONCE + AGAIN), [], MET_ITS_END),
    "a requeue of what was known to have ended": ("doubled", AGAIN_ALLOWED, [], KNOWN_END),
    "nobody knows it": ("lost", task(known=False), [KILL]),
    "cancelled by nobody before it ran": ("lost", task("", "CANCELLED"), []),
    "cancelled by nobody while it ran": ("killed", task(BEGUN, "CANCELLED"), []),
    "completed without its work": ("lost", task(BEGUN), []),
    "failed": ("killed", task(BEGUN, "FAILED"), []),
    "its node was lost before it ran": ("killed", task(BEGUN, "NODE_FAIL"), [LOST_BEFORE]),
    "it ran, and a boot failed": ("killed", task(BEGUN, "NODE_FAIL"), [NO_BOOT]),
    "its slurmd was killed long after": ("killed", task("", "NODE_FAIL"), [NO_SLURMD], Told(started=[70.0])),
    "runs at the end": ("stuck", task(BEGUN, "RUNNING"), []),
    "held after a run": ("stuck", task("", "PENDING"), [KILL], Told(started=[121.0], requeued=[125.0])),
    "refused though nobody drew that": ("stuck", task("", "PENDING", reason="BadConstraints"), []),
    "its user's release had been saved": ("stuck", released(5.0), [KILL]),
    "a step failed while slurmctld was away": ("killed", task(BEGUN, "FAILED", said="Segmentation fault"), [AWAY]),
    "preempted once, and cancelled as it ran": ("killed", victim(BEGUN, "CANCELLED"), [], Told(preempted=[90.0])),
    "its number still ran, and it waits": ("stuck", task("", "PENDING"), [KILL], Told(registered=[111.0])),
    "preempted, and gives way to nobody": ("killed", task(GAVE_WAY), [], Told(preempted=[120.0])),
}
EXCUSED: dict[str, tuple[Any, ...]] = {
    "its end was forgotten": ("doubled", task(ONCE + BEGUN_AGAIN), [KILL]),
    "its end cancelled it": ("killed", task(ONCE, "CANCELLED"), [KILL]),
    "its end was heard late": ("doubled", AGAIN_ALLOWED, [SAVED_LATER], Told(completed=[109.5])),
    "it came after the last save": ("lost", task(at_s=106.0, known=False), [KILL]),
    "its start was forgotten": ("killed", task(CUT), [KILL], Told(started=[109.0, 139.0])),
    "its requeue met its end": ("doubled", AGAIN_ALLOWED, [], MET_ITS_END),
    "its requeue met its end unheard": ("doubled", AGAIN_ALLOWED, [AWAY], Told(requeued=[118.0])),
    "its node was lost": ("killed", task(BEGUN, "NODE_FAIL"), [LOST_NODE]),
    "one of its nodes was lost": ("killed", task(BEGUN.replace("n1", "n[1-2]"), "NODE_FAIL"), [LOST_NODE]),
    "plain Slurm refuses it, too": ("stuck", task("", "PENDING", reason="BadConstraints", may_be_refused=True), []),
    "its user's release was forgotten": ("stuck", released(15.0), [KILL]),
    "slurmctld has no record of it": ("stuck", task("", "PENDING"), [KILL], Told(forgotten=[111.0])),
    "its node knew another of that number": ("stuck", released(0.0), [KILL], Told(started=[121.0], requeued=[121.1])),
    "slurmctld was away for its step": ("killed", task(BEGUN, "FAILED", said=NO_SLURM), [AWAY]),
    "slurmctld hung for its step": ("killed", task(BEGUN, "FAILED", said=HUNG), [AWAY]),
    "its boot failed": ("killed", task("", "NODE_FAIL"), [NO_BOOT]),
    "its number still ran": ("killed", task("", "FAILED"), [KILL], Told(registered=[111.0])),
    "killed at its launch": ("killed", task("", "NODE_FAIL"), [NO_SLURMD], Told(started=[99.0])),
}


@pytest.mark.parametrize("name", [*FINE, *FOUND, *EXCUSED])
def test_harm_is_found_and_excused_where_evidence_explains_it(name: str) -> None:
    if name in FINE:
        assert found(*FINE[name]) == []
    else:
        kind, *given = FOUND.get(name) or EXCUSED[name]
        assert found(*given) == [(kind, name in EXCUSED)]


def test_nothing_is_stuck_or_lost_before_all_is_quiet() -> None:
    assert found(task("", "PENDING"), [], finished=False) == found(task(known=False), [], finished=False) == []


def test_a_victim_gives_way_to_an_owner_that_came_to_its_node_or_before_it_ran_again() -> None:
    for at_s, node, kinds in ((121, "n1", []), (155, "n1", []), (165, "n1", ["killed"]), (121, "n3", ["killed"])):
        owners = runs_from(f"BEGIN {at_s}.0 9 0 {node} alone\n")
        assert [kind for kind, _ in found(victim(GAVE_WAY), [], owners=owners)] == kinds
    runs = runs_from("BEGIN 121.0 9 0 n1 alone\nEND 126.0 9 0 0\n")
    line = Order("j1-2", 0.0, "bob", ("-pvc-a",), "sleep 5", ends=frozenset({"COMPLETED"}))
    owner = Task(line, "j1-2", 110.0, "9", runs=runs, record=Record("9", "COMPLETED", 0, "", 200.0, "n1"))
    assert verdict([victim(GAVE_WAY), owner], "", [], {}, finished=True) == []
    assert len(verdict([victim(GAVE_WAY)], "", [], {}, finished=True)) == 1


def test_lines_that_were_cut_off_are_no_runs_and_no_end_is_passed_over() -> None:
    assert runs_from("BEGIN 100.0 7\n") == []
    (run,) = runs_from("END 105.0 7 0 3\n")
    assert (run.ended_s, run.code) == (105.0, 3)
    first, second = runs_from("BEGIN 1.0 7 0 n1 alone\nBEGIN 2.0 7 1 n1 beside\nEND 3.0 7 1 0\nEND 4.0 7 0 0\n")
    assert (first.ended_s, second.ended_s, second.beside) == (4.0, 3.0, True)


def test_a_job_that_waits_for_a_stuck_one_is_not_stuck_itself() -> None:
    def waits(token: str, after: str, reason: str) -> Task:
        order = Order(token, 0.0, "alice", (), "", after=after)
        return Task(order, token, 1.0, token, record=Record(token, "PENDING", 0, reason))

    for reason, excused in (("Dependency", True), ("Resources", False)):
        told = verdict([waits("1", "", "JobHeldAdmin"), waits("2", "1", reason)], "", [], {}, finished=True)
        assert [(one.key, bool(one.excuse)) for _, one in told] == [("1", False), ("2", excused)]


RECORDED = """\
[2026-11-25T01:23:46.899] _slurm_rpc_submit_batch_job: JobId=6 InitPrio=1000 usec=639
[2026-11-25T01:23:48.001] sched: Allocate JobId=6_1(9) NodeList=n4 #CPUs=1 Partition=prof
[2026-11-25T01:23:50.914] _job_complete: JobId=6_1(9) done
[2026-11-25T01:23:51.527] sched/backfill: _start_job: Started JobId=6_2(6) in prof on n4
[2026-11-25T01:23:52.314] _slurm_rpc_submit_batch_job: JobId=13 SLUID=s7JDM8KRX2T100 InitPrio=1000 usec=1098
[2026-11-25T01:23:52.528] sched/backfill: _start_job: Started JobId=13 in vc-a on n2
[2026-11-25T01:24:02.357] Purged files for defunct batch JobId=13
[2026-11-25T01:24:02.365] job_complete: invalid JobId=13
[2026-11-25T01:24:02.371] _slurm_rpc_submit_batch_job: JobId=13 InitPrio=600 usec=457
[2026-11-25T01:24:09.100] sched: Allocate JobId=13 NodeList=n1 #CPUs=1 Partition=vc-a
[2026-11-25T01:24:11.000] _job_complete: requeue JobId=13 per user/system request
[2026-11-25T01:24:12.001] _job_complete: JobId=13 done
[2026-11-25T01:24:13.000] error: Vestigial state files for JobId=17, but no job record. This may be
[2026-11-25T01:24:13.100] error: Registered PENDING JobId=18 StepId=18.batch on node n3
[2026-11-25T01:24:14.000] sched: Allocate JobId=20_1(9) NodeList=n4 #CPUs=1 Partition=prof
[2026-11-25T01:24:12.500] Requeuing JobId=24
[2026-11-25T01:24:14.500] Requeuing JobId=25
[2026-11-25T01:24:15.000] preempted JobId=21 has been requeued to reclaim resources for JobId=23
[2026-11-25T01:24:17.000] slurm_job_preempt: preempted JobId=22 had to be killed
"""
AT_S = 1795569826.0  # 01:23:46 of that log


@pytest.mark.parametrize(
    ("number", "after_s", "counts"),
    [
        ("13", 10, {"submitted": 1, "started": 1, "forgotten": 1}),
        ("13", 30, {"submitted": 1, "started": 1, "requeued": 1, "completed": 1}),  # given out again
        ("9", 5, {"started": 1, "completed": 1}),  # a task of array 6
        ("9", 30, {"started": 1}),  # one of array 20
        ("6", 30, {"submitted": 1, "started": 1}),  # the last task of an array keeps its number
        ("17", 30, {"forgotten": 1}),
        ("18", 30, {"registered": 1}),
        ("21", 30, {"preempted": 1}),
        ("22", 40, {"preempted": 1}),
        ("24", 30, {"requeued": 1}),  # too long before that
        ("25", 40, {"requeued": 1, "preempted": 1}),  # by Lucid, for the same job
    ],
)
def test_a_log_tells_the_owners_of_a_number_apart(number: str, after_s: float, counts: dict[str, int]) -> None:
    told = told_by(RECORDED).of(number, AT_S + after_s)
    kinds = ("submitted", "started", "requeued", "completed", "forgotten", "registered", "preempted")
    assert {kind: count for kind in kinds if (count := len(getattr(told, kind)))} == counts


def test_whom_slurm_preempted_and_lucid_had_not_chosen() -> None:
    log = """\
[2026-11-25T04:34:40.593] sched: _update_job: setting tres_per_node:gres/gpu:g0:1 for JobId=19
[2026-11-25T04:34:41.004] preempted JobId=16 has been requeued to reclaim resources for JobId=19
[2026-11-25T04:35:06.004] preempted JobId=33 has been requeued to reclaim resources for JobId=19
"""
    claims = [(1795581280.5, "19", frozenset({"10", "33"}))]
    assert unchosen(log, claims) == (2, ["job 16 for job 19, for which Lucid had chosen 10 33"])
    assert unchosen(log, []) == (0, [])


FOLDER, BOUND_S = "/var/campaign", 45.0


def watch(**more: Any) -> Watch:
    return Watch({"j1-1": Order("j1-1", 0.0, "alice", (), "", partition="vc-a", gpus=2, **more)}, FOLDER, BOUND_S)


def job(state: str = "PENDING", **more: Any) -> dict[str, Any]:
    return {
        "job_id": 7, "job_state": [state], "standard_output": f"{FOLDER}/out/j1-1", "comment": "", "dependency": "",
        "priority": {"set": True, "number": 100}, "eligible_time": {"set": True, "number": 1}, "admin_comment": "",
    } | more  # fmt: skip


HELD = {"priority": {"set": True, "number": 0}, "admin_comment": "lucid:vc=vc-a;held=1"}
LATE = {"age_s": BOUND_S + 1, "free": 0}
LATER = {"eligible_time": {"set": True, "number": 5000}}


def seen(
    watch_: Watch, seconds: float, *jobs: dict[str, Any], free: int = 4, age_s: float = 1.0, **more: Any
) -> Watch:
    begin, broken = more.pop("begin", 1000.0), more.pop("broken", ())
    for step in range(int(seconds / 2.5) + 1):
        watch_.look(Look(begin + 2.5 * step, jobs, {"vc-a": [free, 0]}, age_s, broken, **more))
    return watch_


@pytest.mark.parametrize(
    ("order", "more", "seconds", "how", "stuck"),
    [
        ({}, HELD, HELD_S + 10, LATE, True), ({}, HELD, HELD_S + 10, {"age_s": 5.0, "free": 0}, False),
        ({}, HELD, HELD_S + 10, LATE | {"barred": True}, False), ({}, HELD, HELD_S - 10, LATE, False),
        ({}, HELD | {"comment": "lucid:held"}, HELD_S + 10, LATE, False),
        ({"release_after_s": 5.0}, HELD | {"admin_comment": ""}, HELD_S + 10, LATE, False),
        ({}, {}, WAITS_S + 10, {}, True), ({}, {}, WAITS_S + 10, {"broken": ("disk-full",)}, False),
        ({}, {}, WAITS_S + 10, {"free": 1}, False),
    ],
)  # fmt: skip
def test_a_job_that_is_held_or_waits_for_too_long_is_stuck(
    order: dict[str, Any], more: dict[str, Any], seconds: float, how: dict[str, Any], stuck: bool
) -> None:
    assert bool(seen(watch(**order), seconds, job(**more), **how).stuck) is stuck


def test_the_longest_standstill_is_told_with_and_without_faults() -> None:
    both = watch()
    seen(both, 20, job(), broken=("slurmctld-stop",))
    seen(both, 10, job(), begin=1022.5)
    assert (both.whole.longest_s, both.clear.longest_s) == (32.5, 12.5)
    assert (both.whole.partition, both.whole.key) == ("vc-a", "j1-1")
    for order, more in (({}, LATER), ({}, {"dependency": "afterok:3(unfulfilled)"}), ({"nodes": 2}, {})):
        assert seen(watch(**order), 20, job(**more)).whole.longest_s == 0, "it cannot start now"
    seen(both, 5, job("RUNNING"), begin=1035.0)
    seen(both, 20, job(), begin=1042.5)
    assert both.whole.longest_s == 32.5, "a start ends a standstill"


def test_lucidd_takes_the_settings_that_the_campaign_writes(tmp_path: Path) -> None:
    """A setting that went once kept every campaign from its first heartbeat."""
    names = ("root", "state", "profiles", "heartbeat")
    site = SimpleNamespace(config=tmp_path / "lucid.toml", **{name: tmp_path / name for name in names})
    Site._settings(site)  # type: ignore[arg-type]
    found = load_settings(tmp_path / "lucid.toml", live=True).daemon.partitions
    assert found == dict.fromkeys(("vc-a", "vc-b", "scav"), "pack")
