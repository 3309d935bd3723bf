"""Elastic jobs that do odd things, and users and clusters that do odd things to jobs that are being resized."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from box import OVER, Box
from breakage import Breakage
from daemon_box import Lucidd
from elastic_box import Elastics, a_resize, lucidd_fixture, well
from test_fail_open import release

pytestmark = pytest.mark.slow


lucidd = lucidd_fixture()


@pytest.mark.parametrize("how", ["polite", "cross"])
def test_whatever_status_it_stops_with_it_goes_on(box: Box, lucidd: Lucidd, how: str) -> None:
    jobs = Elastics(box)
    number = a_resize(box, jobs, how)
    after = box.sbatch("-p", "vc-b", "--gres=gpu:1", f"--dependency=afterok:{number}", script="echo AFTER")
    box.wait("it goes on", lambda: box.state(number) == "RUNNING", 40)
    assert box.state(after) == "PENDING", "the stop for a resize is no end"
    box.wait_ended(number, after, limit_s=90)
    well(box, jobs, number, 400)
    assert box.state(after) == "COMPLETED"


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


def test_nobody_is_held_for_ever_when_lucidd_dies_in_a_resize(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    number = a_resize(box, jobs)
    lucidd.kill()
    box.beat(age_s=400)

    def let_go() -> bool:
        """As the timer would: at each call it lets go what waits by then."""
        assert release(box).returncode == 0
        return box.state(number) == "RUNNING"

    box.wait("it is let go", let_go, 60)
    box.wait_ended(number, limit_s=90)
    well(box, jobs, number, 400)


@pytest.mark.parametrize("policy", ["fifo", "lucid"])
def test_a_resize_is_ended_under_another_policy(box: Box, lucidd: Lucidd, tmp_path: Path, policy: str) -> None:
    jobs = Elastics(box)
    number = a_resize(box, jobs)
    lucidd.kill()
    config = lucidd.folder / "lucid.toml"
    config.write_text(config.read_text().replace('policy = "elastic"', f'policy = "{policy}"'))
    lucidd.start()
    box.wait_ended(number, limit_s=90)
    print(jobs.sizes(number), lucidd.ctl("explain", number))
    well(box, jobs, number, 400)


def test_the_cluster_changes_in_mid_resize(box: Box, lucidd: Lucidd) -> None:
    """The node on which a job is to go on is drained; slurmctld is started anew under another."""
    jobs, broken = Elastics(box), Breakage(box)
    first = a_resize(box, jobs)
    story = lucidd.ctl("explain", first)
    node = re.findall(r"goes on from a checkpoint on (n\d)", story)[-1]
    box.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=odd")
    box.wait_ended(first, limit_s=120)
    print(node, jobs.sizes(first), lucidd.ctl("explain", first))
    box.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    well(box, jobs, first, 400)
    second = a_resize(box, jobs)
    box.run("scontrol", "shutdown", "slurmctld")  # killed, it would forget what it did last, with Lucid or without
    box.wait("it has ended", lambda: not broken.pids("slurmctld"), 30)
    broken.start_slurmctld()
    box.wait_ended(second, limit_s=120)
    well(box, jobs, second, 400)


def test_a_job_whose_nodes_have_different_numbers_of_gpus_knows_how_many_it_has(box: Box, lucidd: Lucidd) -> None:
    """Five GPUs on two nodes of four: its report would say eight, were they counted by its first node."""
    rigid = [box.sbatch("-p", "vc-a", "--gres=gpu:3", script="sleep 1000")]
    box.wait("it runs", lambda: box.state(rigid[0]) == "RUNNING", 30)
    jobs = Elastics(box)
    number = jobs.submit("-p", "vc-a", epochs=40, size="1-5")
    box.wait("it has all that is left", lambda: jobs.sizes(number)[-1:] == [5] or box.state(number) in OVER, 60)
    print(lucidd.ctl("explain", number), jobs.sizes(number))
    assert box.job(number)["node_count"]["number"] == 2
    reports = box.root / "run/lucid-reports"
    box.wait("it reports", lambda: any(reports.glob(f"u*/{number}.json")), 60)
    (told,) = reports.glob(f"u*/{number}.json")
    box.wait("it has reported", lambda: 5 in {gpus for gpus, _ in json.loads(told.read_text())["epoch_s"]}, 60)
    box.run("scancel", *rigid)
    box.wait_ended(number, limit_s=150)
    assert box.state(number) == "COMPLETED"
    assert {gpus for gpus, _ in json.loads(told.read_text())["epoch_s"]} <= set(range(1, 6))
    own_s = jobs.gpu_s(number)
    print("sizes", jobs.sizes(number), "GPU-seconds by its own clock", own_s)


def test_who_asks_for_one_node_is_never_on_two(box: Box, lucidd: Lucidd) -> None:
    """By ``-N``, or by its comment; two nodes of four GPUs are free, and each may have eight."""
    jobs = Elastics(box)
    numbers = [
        jobs.submit("-p", "vc-a", "-N1", epochs=40, size="1-8"),
        jobs.submit("-p", "vc-a", epochs=40, size="1-8,nodes=1"),
    ]
    box.wait("each has a node", lambda: all(jobs.sizes(number)[-1:] == [4] for number in numbers), 90)
    print([(jobs.sizes(number), lucidd.ctl("explain", number)[-200:]) for number in numbers])
    assert all("on 1 node at the most" in lucidd.ctl("explain", number) for number in numbers)
    box.run("scancel", numbers[1])
    box.wait_ended(*numbers, limit_s=90)
    assert max(jobs.sizes(numbers[0])) == 4, "nor when the other node is free"
    well(box, jobs, numbers[0], 800)


ODD = {
    "lucid:elastic=8-1": "cannot be read",
    "lucid:elastic=1-99999": "cannot be read",
    "lucid:elastic=0-4": "cannot be read",
    "lucid:elastic=": "cannot be read",
    "lucid:elastic=1-8,1-4": "",
    "LUCID:ELASTIC=1-8": "",
    "lucid:elastic=١-٨": "cannot be read",
    "lucid:elastic = 1-8": "",
    "lucid:elastic=1-4,epochs=-3": "cannot be read",
    "lucid:elastic=2-4": "not within 2-4",
}


def test_odd_comments_leave_jobs_as_they_were_written(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    numbers = {comment: jobs.submit("-p", "vc-a", f"--comment={comment}", epochs=2, size="") for comment in ODD}
    told: dict[str, str] = {}
    for comment, words in ODD.items():
        if words:
            box.wait(comment, lambda c=comment, w=words: w in lucidd.ctl("explain", numbers[c]), 40)  # type: ignore[misc]
        told[comment] = lucidd.ctl("explain", numbers[comment])
    box.wait_ended(*numbers.values(), limit_s=90)
    for comment, number in numbers.items():
        assert "Traceback" not in told[comment]
        assert box.state(number) == "COMPLETED", comment
    assert {number: jobs.sizes(number) for number in numbers.values()} == {n: [1] for n in numbers.values()}


OPTIONS = (
    ("--exclusive",), ("--no-requeue",), ("--begin=now+5",), ("--signal=B:USR1@60", "--time=10"),
    ("--open-mode=truncate",), ("--array=0-1",), ("--deadline=now+2hours", "--time=30"), ("--constraint=a100",),
    ("--time=1",),
)  # fmt: skip


def test_with_all_kinds_of_options_nobody_loses_a_job(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    numbers = {words: jobs.submit("-p", "vc-a", *words, epochs=6, size="1-4") for words in OPTIONS}
    box.wait_ended(*numbers.values(), limit_s=240)
    for words, number in numbers.items():
        print(words, box.state(number), jobs.sizes(number) if words[0] != "--array=0-1" else "", flush=True)
        assert "Traceback" not in lucidd.ctl("explain", number)
    assert {words: box.state(number) for words, number in numbers.items()} == dict.fromkeys(OPTIONS, "COMPLETED")
