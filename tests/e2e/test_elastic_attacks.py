"""Elastic jobs against limits, dependencies, dying nodes and lying reports: nobody loses a job, or waits for ever."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import OVER, Box
from breakage import Breakage
from daemon_box import Lucidd
from elastic_box import REPORTS, Elastics, a_resize, elastic_lucidd, in_between, lucidd_fixture, well
from test_fail_open import release

pytestmark = pytest.mark.slow


lucidd = lucidd_fixture()


@contextlib.contextmanager
def a_qos(box: Box, *limits: str) -> Iterator[str]:
    """A QOS with these limits, which alice may use."""
    box.run("sacctmgr", "-i", "add", "qos", "few", "set", *limits)
    box.run("sacctmgr", "-i", "modify", "user", "alice", "set", "qos+=few")
    try:
        yield "few"
    finally:
        box.run("scancel", "--user=alice", check=False)
        box.run("sacctmgr", "-i", "modify", "user", "alice", "set", "qos-=few")
        box.run("sacctmgr", "-i", "delete", "qos", "few")


@pytest.mark.parametrize("limit", ["MaxTRESPerJob=gres/gpu=2", "MaxTRESPerUser=gres/gpu=2", "GrpTRES=gres/gpu=2"])
def test_a_limit_below_its_largest_size_stops_no_job(box: Box, lucidd: Lucidd, limit: str) -> None:
    jobs = Elastics(box)
    with a_qos(box, limit) as qos:
        number = jobs.submit("-p", "vc-a", f"--qos={qos}", epochs=20, size="1-8")
        box.wait_ended(number, limit_s=60)
        print(limit, jobs.sizes(number), lucidd.ctl("explain", number))
        well(box, jobs, number, 400)
        assert len(jobs.sizes(number)) <= 6, "it is not stopped again and again for what the limit does not give"


def test_other_jobs_wait_for_its_end_and_not_for_its_stops(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    number = jobs.submit("-p", "vc-a", "-J", "one", epochs=20, how="cross", size="1-4")
    waiting = {
        kind: box.sbatch("-p", "vc-b", "--gres=gpu:1", "-J", "one" if kind == "singleton" else kind,
                         f"--dependency={kind if kind == 'singleton' else f'{kind}:{number}'}")
        for kind in ("afterany", "afternotok", "singleton")
    }  # fmt: skip
    box.wait("it goes on", lambda: len(jobs.sizes(number)) > 1, 60)
    assert box.state(number) == "RUNNING"
    assert {kind: box.state(waiter) for kind, waiter in waiting.items()} == dict.fromkeys(waiting, "PENDING")
    box.wait_ended(number, waiting["afterany"], waiting["singleton"], limit_s=90)
    well(box, jobs, number, 400)
    assert box.state(waiting["afternotok"]) in ("PENDING", "CANCELLED")


REQUESTS = (
    ("-n2",), ("--ntasks-per-node=2",), ("--mem=2000",), ("--cpus-per-task=2",), ("-N1", "--ntasks-per-node=1"),
    ("--nodes=1-2",), ("--mem-per-gpu=1000",), ("--cpus-per-gpu=1",), ("--spread-job",), ("--nice=100",),
    ("--mincpus=2",), ("--gpus-per-task=1", "-n1"), ("--ntasks-per-gpu=1",), ("--exclude=n2",),
)  # fmt: skip


def test_whatever_else_it_asks_for_it_ends(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    for first in range(0, len(REQUESTS), 3):  # a few at a time, so that they grow
        numbers = {words: jobs.submit("-p", "vc-a", *words, epochs=12, size="1-8")
                   for words in REQUESTS[first : first + 3]}  # fmt: skip
        with contextlib.suppress(AssertionError):
            box.wait_ended(*numbers.values(), limit_s=30)
        for words, number in numbers.items():
            print(words, number, box.state(number), jobs.sizes(number), flush=True)
            story = lucidd.ctl("explain", number)
            assert "Traceback" not in story
            assert box.state(number) == "COMPLETED", story


def test_a_partition_that_its_user_chooses_in_mid_resize(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    number = a_resize(box, jobs)
    box.run("scontrol", "update", f"JobId={number}", "Partition=vc-b", user="alice")
    box.wait_ended(number, limit_s=90)
    print(jobs.sizes(number), lucidd.ctl("explain", number))
    well(box, jobs, number, 400)


def test_maintenance_of_the_node_on_which_it_was_to_go_on(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    number = a_resize(box, jobs)
    node = re.findall(r"goes on from a checkpoint on (n\d)", lucidd.ctl("explain", number))[-1]
    with box.reserved(node, "root", "flags=maint,ignore_jobs"):
        box.wait("it goes on elsewhere, or again", lambda: box.state(number) in ("RUNNING", *OVER), 60)
        print(node, jobs.sizes(number), lucidd.ctl("explain", number))
    box.wait_ended(number, limit_s=90)
    well(box, jobs, number, 400)


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


def test_let_go_after_its_second_resize_while_its_node_is_gone(box: Box, lucidd: Lucidd) -> None:
    """lucidd is dead, and the node that Lucid wrote into the job's request is drained."""
    jobs = Elastics(box)
    number = jobs.submit("-p", "vc-a", epochs=40, how="slow", size="1-4")
    box.wait("it has grown", lambda: len(jobs.sizes(number)) > 1, 60)
    node = str(box.job(number)["nodes"])
    rigid = box.sbatch("-p", "vc-a", "--gres=gpu:4", "-N1", script="sleep 5")
    other = box.sbatch("-p", "vc-a", "--gres=gpu:3", "-N1", script="sleep 5")
    box.wait("it is told to stop", lambda: box.job(number)["restart_cnt"] >= 2 and in_between(box, number), 60)
    lucidd.kill()
    print(box.run("scontrol", "show", "job", number).stdout)
    box.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=odd")
    box.beat(age_s=400)

    def let_go() -> bool:
        assert release(box).returncode == 0
        return box.state(number) == "RUNNING"

    try:
        box.wait("it is let go", let_go, 20)
    finally:
        print(box.run("scontrol", "show", "job", number).stdout)
        box.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
    box.wait_ended(number, rigid, other, limit_s=90)
    well(box, jobs, number, 800)


def test_uninstalled_in_mid_resize(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    number = a_resize(box, jobs)
    box.wait("it is held", lambda: box.state(number) == "PENDING", 30)
    lucidd.kill()
    said = lucidd.ctl("uninstall")
    assert "Traceback" not in said
    box.stop_beating()
    print(said, box.run("scontrol", "show", "job", number).stdout)
    box.wait_ended(number, limit_s=60)
    assert box.state(number) == "COMPLETED"
    assert jobs.steps(number) == list(range(1, 401))


def test_thirty_jobs_of_one_name_at_once_most_of_them_greedy(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    greedy = [jobs.submit("-p", "vc-a", "-J", "same", epochs=4, steps=10, size="4-4096", gpus=4) for _ in range(20)]
    modest = [jobs.submit("-p", "vc-a", "-J", "same", epochs=4, steps=10, size="1-2") for _ in range(10)]
    told = [lucidd.ctl(*words) for words in (["queue"], ["status"], ["when", "--gpus", "8"])]
    box.wait_ended(*greedy, *modest, limit_s=120)
    assert not any("Traceback" in text for text in (*told, lucidd.log()))
    for number in (*greedy, *modest):
        assert box.state(number) == "COMPLETED", lucidd.ctl("explain", number)
        assert jobs.steps(number) == list(range(1, 41))


LIES = r"""
import json, os, signal, sys, time
how, job = sys.argv[1], os.environ["SLURM_JOB_ID"]
home = "/REPORTS/u%d" % os.getuid()
os.makedirs(home, exist_ok=True)
path = home + "/%s.json" % job
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("RUN", os.environ.get("LUCID_GPUS_HERE"), "lie", flush=True)
def put(text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)
end = time.time() + (25 if how != "square" else 600)
n = 0
if how in ("fifo", "folder", "link"):
    try:
        {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda p: os.symlink("/etc/passwd", p)}[how](path)
    except FileExistsError:
        pass
while time.time() < end:
    n += 1
    if how == "fast7":
        put(json.dumps({"epochs": 0, "epoch_s": [[g, 1e-6 if g == 7 else 100.0 / g] for g in range(1, 9)]}))
    elif how == "square":
        put(json.dumps({"epochs": 0.1, "epoch_s": [[g, 1000.0 / g ** 2] for g in range(1, 9)]}))
    elif how == "back":
        put(json.dumps({"epochs": max(0, 20 - n), "epoch_s": [[1, 5.0]]}))
    elif how == "beyond":
        put(json.dumps({"epochs": 999999, "epoch_s": [[1, 5.0]]}))
    elif how == "huge":
        put('{"epochs": 1e308}')
    elif how == "minus":
        put(json.dumps({"epochs": 1, "epoch_s": [[1, -5.0]]}))
    elif how == "big":
        put('{"epochs": 1, "x": "%s"}' % ("y" * (10 << 20)))
    elif how == "shut":
        put('{"epochs": 1}')
        os.chmod(path, 0)
    elif how == "half":
        put('{"epochs": 1, "epoch_s": [[1,')
    time.sleep(0.5)
print("DONE", flush=True)
"""
LIARS = ("fast7", "back", "beyond", "huge", "minus", "big", "shut", "half", "fifo", "folder", "link")


@pytest.mark.parametrize("policy", ["elastic", "pollux", "optimus-fitted", "muri-l"])
def test_liars_are_nobodys_trouble(box: Box, tmp_path: Path, policy: str) -> None:
    daemon = elastic_lucidd(box, tmp_path / "state", policy, round_s=0 if policy in ("elastic", "muri-l") else 5.0)
    jobs = Elastics(box)
    (box.root / "opt/elastic/lie.py").write_text(LIES.replace("/REPORTS", f"/{REPORTS}"))
    daemon.start()
    try:
        liars = {how: box.sbatch("-p", "vc-a", "--gres=gpu:1", "--requeue", "--open-mode=append",
                                 "--comment=lucid:elastic=1-8,epochs=20,batch=32:1024",
                                 script=f"exec python3 /opt/elastic/lie.py {how}") for how in LIARS}  # fmt: skip
        honest = jobs.submit("-p", "vc-a", epochs=12, size="1-4")
        rigid = box.sbatch("-p", "vc-a", "--gres=gpu:2", script="sleep 3", user="bob")
        box.wait_ended(honest, rigid, limit_s=120)
        for how, number in liars.items():
            story = daemon.ctl("explain", number)
            print(policy, how, box.state(number), [len(story)], story[-300:], flush=True)
            assert "Traceback" not in story
        assert "Traceback" not in daemon.log()
        assert [box.state(number) for number in (honest, rigid)] == ["COMPLETED"] * 2
        for words in (["queue"], ["status"], ["when", "--gpus", "8"], ["why-not", honest]):
            assert "Traceback" not in daemon.ctl(*words)
    finally:
        daemon.close()


def test_who_lies_for_its_whole_life_gives_back_what_it_got(box: Box, lucidd: Lucidd) -> None:
    """1000/n² seconds an epoch, and none is ever done: the honest job beside it grows while the liar still runs."""
    jobs = Elastics(box)
    (box.root / "opt/elastic/lie.py").write_text(LIES.replace("/REPORTS", f"/{REPORTS}"))
    liar = box.sbatch("-p", "vc-a", "--gres=gpu:1", "--requeue", "--open-mode=append", "--comment=lucid:elastic=1-8",
                      script="exec python3 /opt/elastic/lie.py square")  # fmt: skip
    box.wait("it is believed at first", lambda: held(box, liar) >= 4, 60)
    honest = jobs.submit("-p", "vc-a", epochs=2000, size="1-8")
    box.wait("it has what its user wrote", lambda: held(box, liar) == 1, 300)
    told = lucidd.ctl("explain", liar), lucidd.ctl("doctor"), lucidd.ctl("status")
    print(*told)
    box.wait("the others have the rest", lambda: held(box, honest) == 7, 60)
    box.run("sleep", "15")
    assert held(box, liar) == 1
    assert box.state(liar) == box.state(honest) == "RUNNING"
    assert all("told no progress for" in words for words in told)
    assert f"job {honest}:" not in told[1], "and nothing is held against the honest one"
    box.run("scancel", liar, honest)


def held(box: Box, number: str) -> int:
    """GPUs that a job has now; 0 while it waits."""
    job = box.job(number)
    found = re.search(r"gres/gpu=(\d+)", job["tres_alloc_str"])
    return int(found[1]) if found and job["job_state"] == ["RUNNING"] else 0
