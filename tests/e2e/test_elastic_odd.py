"""Users, limits, nodes and daemons that do odd things to jobs in a resize: nobody loses a job, or waits for ever."""

from __future__ import annotations

import re

import pytest
from box import OVER, Box
from breakage import Breakage
from daemon_box import Lucidd
from elastic_box import Elastics, a_resize, lucidd_fixture, well

pytestmark = pytest.mark.slow


lucidd = lucidd_fixture()


def test_other_jobs_wait_for_its_end_and_not_for_its_stops(box: Box, lucidd: Lucidd) -> None:
    """It stops with another exit code than 0."""
    jobs = Elastics(box)
    number = jobs.submit("-p", "vc-a", "-J", "one", epochs=20, how="cross", size="1-4")
    waiting = {
        kind: box.sbatch("-p", "vc-b", "--gres=gpu:1", "-J", "one" if kind == "singleton" else kind,
                         f"--dependency={kind if kind == 'singleton' else f'{kind}:{number}'}")
        for kind in ("afterok", "afterany", "afternotok", "singleton")
    }  # fmt: skip
    box.wait("it goes on", lambda: len(jobs.sizes(number)) > 1, 60)
    assert box.state(number) == "RUNNING"
    assert {kind: box.state(waiter) for kind, waiter in waiting.items()} == dict.fromkeys(waiting, "PENDING")
    never = waiting.pop("afternotok")
    box.wait_ended(number, *waiting.values(), limit_s=90)
    well(box, jobs, number, 400)
    assert box.state(never) in ("PENDING", "CANCELLED")


def test_its_users_word_holds_while_it_is_resized(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    cancelled = a_resize(box, jobs)
    box.run("scancel", cancelled, user="alice")
    box.wait_ended(cancelled, limit_s=30)
    assert box.state(cancelled) == "CANCELLED"
    held = a_resize(box, jobs)
    box.run("scontrol", "hold", held, user="alice")
    box.wait("it has left its node", lambda: box.state(held) == "PENDING", 30)
    box.run("sleep", "8")
    assert box.state(held) == "PENDING", "its user held it"
    print(lucidd.ctl("explain", held), lucidd.ctl("queue"))
    box.run("scontrol", "release", held, user="alice")
    changed = a_resize(box, jobs)
    for change in ("TimeLimit=20", "Comment=lucid:elastic=8-1", "JobName=other"):
        box.run("scontrol", "update", f"JobId={changed}", change, user="alice")
    requeued = a_resize(box, jobs)
    box.run("scontrol", "requeue", requeued, user="alice", check=False)
    numbers = (held, changed, requeued)
    box.wait_ended(*numbers, limit_s=150)
    print([jobs.sizes(number) for number in numbers], lucidd.ctl("explain", changed))
    for number in numbers:
        well(box, jobs, number, 400)
    assert len(jobs.sizes(cancelled)) == 1


def test_the_cluster_changes_in_mid_resize(box: Box, lucidd: Lucidd) -> None:
    """The node on which a job is to go on is drained, or reserved; slurmctld is started anew under another."""
    jobs, broken = Elastics(box), Breakage(box)
    first = a_resize(box, jobs)
    node = goes_on(lucidd, first)
    box.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=odd")
    box.wait_ended(first, limit_s=120)
    print(node, jobs.sizes(first), lucidd.ctl("explain", first))
    box.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    second = a_resize(box, jobs)
    with box.reserved(goes_on(lucidd, second), "root", "flags=maint,ignore_jobs"):
        box.wait("it goes on elsewhere, or again", lambda: box.state(second) in ("RUNNING", *OVER), 60)
    box.wait_ended(second, limit_s=90)
    third = a_resize(box, jobs)
    box.run("scontrol", "shutdown", "slurmctld")  # killed, it would forget what it did last, with Lucid or without
    box.wait("it has ended", lambda: not broken.pids("slurmctld"), 30)
    broken.start_slurmctld()
    box.wait_ended(third, limit_s=120)
    for number in (first, second, third):
        well(box, jobs, number, 400)


def goes_on(lucidd: Lucidd, number: str) -> str:
    """The node that was chosen for it."""
    return re.findall(r"goes on from a checkpoint on (n\d)", lucidd.ctl("explain", number))[-1]


def test_the_node_that_it_leaves_dies(box: Box, lucidd: Lucidd) -> None:
    jobs, broken = Elastics(box), Breakage(box)
    number = a_resize(box, jobs)
    node = box.job(number)["nodes"] or "n1"
    broken.lose_node(node)
    try:
        box.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=died")
        box.wait("it goes on elsewhere", lambda: box.state(number) in ("RUNNING", *OVER), 60)
        print(node, jobs.sizes(number), lucidd.ctl("explain", number))
    finally:
        broken.start_node(node)
    box.wait_ended(number, limit_s=90)
    assert box.state(number) == "COMPLETED"


def test_a_job_whose_nodes_have_different_numbers_of_gpus_knows_how_many_it_has(box: Box, lucidd: Lucidd) -> None:
    """Five GPUs on two nodes of four."""
    rigid = box.sbatch("-p", "vc-a", "--gres=gpu:3", script="sleep 1000")
    box.wait("it runs", lambda: box.state(rigid) == "RUNNING", 30)
    jobs = Elastics(box)
    number = jobs.submit("-p", "vc-a", epochs=40, size="1-5")
    box.wait("it has all that is left", lambda: jobs.sizes(number)[-1:] == [5] or box.state(number) in OVER, 60)
    print(lucidd.ctl("explain", number), jobs.sizes(number))
    assert (jobs.sizes(number)[-1], box.job(number)["node_count"]["number"]) == (5, 2)
    box.run("scancel", rigid, number)


OPTIONS = (
    ("--exclusive",), ("--no-requeue",), ("--begin=now+5",), ("--signal=B:USR1@60", "--time=10"),
    ("--open-mode=truncate",), ("--array=0-1",), ("--deadline=now+2hours", "--time=30"), ("--constraint=a100",),
    ("--time=1",), ("-n2",), ("--ntasks-per-node=2",), ("--mem=2000",), ("--cpus-per-task=2",),
    ("-N1", "--ntasks-per-node=1"), ("--nodes=1-2",), ("--mem-per-gpu=1000",), ("--cpus-per-gpu=1",),
    ("--spread-job",), ("--nice=100",), ("--mincpus=2",), ("--gpus-per-task=1", "-n1"), ("--ntasks-per-gpu=1",),
    ("--exclude=n2",),
)  # fmt: skip


def test_with_all_kinds_of_options_nobody_loses_a_job(box: Box, lucidd: Lucidd) -> None:
    """A few at a time, so that they grow."""
    jobs = Elastics(box)
    for first in range(0, len(OPTIONS), 4):
        some = OPTIONS[first : first + 4]
        numbers = {words: jobs.submit("-p", "vc-a", *words, epochs=6, size="1-8") for words in some}
        box.wait_ended(*numbers.values(), limit_s=120)
        for words, number in numbers.items():
            story = lucidd.ctl("explain", number)
            print(words, box.state(number), jobs.sizes(number) if words[0] != "--array=0-1" else "", flush=True)
            assert "Traceback" not in story
            assert box.state(number) == "COMPLETED", story
