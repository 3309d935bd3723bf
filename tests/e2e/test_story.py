"""The live part of ``make test``: one testbed, booted once, through which goes one story.

A plain Slurm is set up to observe, to order and to pack; jobs are submitted, measured, paired, explained, held and
limited; lucidd is killed; and setup is undone. Each step makes what it needs of its own (``Site.reach``, ``crowd``),
so that one that fails hides no other. Everything finer is in the other files, which ``make e2e`` runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from box import Box
from lucid_tree import REPO
from plain_slurm import slurms_own, typed
from sealing import seal
from story_box import UNDO, Site, story_site

pytestmark = pytest.mark.story
GATE = "while test -e /tmp/{}; do sleep 0.2; done"


@pytest.fixture(scope="session")
def story() -> Iterator[Site]:
    with story_site() as site:
        yield site


@pytest.fixture
def site(story: Site) -> Site:
    """No job of an earlier step is there."""
    story.clear()
    return story


@pytest.fixture
def packing(site: Site) -> Site:
    site.reach("pack")
    return site


@pytest.fixture
def dead(packing: Site) -> Iterator[Site]:
    """lucidd was killed, and the test writes its heartbeat, if there is to be one."""
    packing.kill()
    packing.box.stop_beating()
    yield packing
    packing.box.stop_beating()


@dataclass(frozen=True)
class Crowd:
    """All GPUs of vc-b and of the profiling node are taken, by jobs that nobody joins; another one waits for vc-b."""

    site: Site
    waiting: str


@pytest.fixture
def crowd(story: Site) -> Crowd:
    """Made by the first that asks, and left for the next."""
    waiting = story.crowd
    if not waiting or not story.pid or story.box.state(waiting) != "PENDING":
        story.clear()
        story.reach("pack")
        box = story.box
        full = [
            box.sbatch("-p", "vc-b", "--gres=gpu:4", "-t", "60", "--comment=lucid:off", script="sleep 3600"),
            box.sbatch("-p", "prof", "--gres=gpu:4", "-t", "60", script="sleep 3600", user="root"),
        ]
        box.wait("a full partition", lambda: all(box.state(job) == "RUNNING" for job in full))
        waiting = box.sbatch("-p", "vc-b", "--gpus=4", "-t", "30", "-J", "<b>x", script="true")
        box.wait("a reason", lambda: bool(story.story(waiting)["decisions"]))
        story.crowd = waiting
    return Crowd(story, waiting)


def gated(site: Site, name: str) -> Path:
    """Jobs whose script begins with GATE run for as long as this file is there."""
    path = site.box.root / "tmp" / name
    path.touch()
    return path


def slots(box: Box, number: str) -> str:
    return str(box.job(number)["tres_per_node"])


def priority(box: Box, number: str) -> int:
    words = box.run("scontrol", "show", "job", number).stdout.split()
    return int(next(word for word in words if word.startswith("Priority=")).partition("=")[2])


def refused(box: Box, *options: str, user: str = "alice") -> str:
    """What a user reads; empty where Slurm took the job."""
    done = box.run("sbatch", "-D", "/tmp", *options, "--wrap=true", user=user, check=False)
    return " ".join((done.stderr or done.stdout).split()) if done.returncode else ""


# -- setup, and the first two modes ------------------------------------------------------------------------------


def test_observe_mode_says_what_lucid_would_do_and_changes_nothing(site: Site) -> None:
    site.reach("observe")
    box = site.box
    now = {path: content for path, content in slurms_own(box).items() if not path.endswith("/lucid-release")}
    assert now == site.plain
    box.sbatch("-p", "vc-b", "--gres=gpu:4", script="sleep 600")
    waiting = box.sbatch("-p", "vc-b", "--gres=gpu:4")
    box.wait("a decision", lambda: bool(site.story(waiting)["decisions"]))
    assert "would, in observe mode" in site.ctl("explain", waiting)
    assert {job["admin_comment"] for job in box.jobs().values()} == {""}
    assert site.json("status")["calls"]["writes"] == 0


def test_order_mode_puts_small_jobs_first_and_one_command_takes_it_back(site: Site) -> None:
    site.reach("order")
    box = site.box
    full = box.sbatch("-p", "vc-b", "--gres=gpu:4", script="sleep 600")
    box.wait("it runs", lambda: box.state(full) == "RUNNING")
    large, small = (box.sbatch("-p", "vc-b", f"--gres=gpu:{gpus}") for gpus in (4, 1))
    box.wait("the order", lambda: priority(box, small) > priority(box, large))
    assert "order" in site.ctl("explain", small)
    assert site.json("status")["modes"] == {"vc-a": "observe", "vc-b": "order"}
    site.type("lucidctl mode vc-b observe")
    box.wait("Slurm's own order", lambda: priority(box, large) >= priority(box, small))
    site.type("lucidctl mode vc-b configured")


# -- pack mode ---------------------------------------------------------------------------------------------------


def test_setup_to_pack_says_that_all_is_well_and_a_second_run_changes_nothing(packing: Site) -> None:
    assert not [found for found in packing.json("doctor")["findings"] if found["level"] == "bad"]


def test_a_job_of_sbatch_runs_once_in_slots_and_its_hooks_are_called(packing: Site) -> None:
    box = packing.box
    job = box.sbatch("--gres=gpu:2", script="echo GPUS=$SLURM_GPUS_ON_NODE; srun -n1 true && echo STEP")
    assert box.tag(job) == "lucid:vc=vc-a;held=1;node=gres/gpu:2;v=2"
    box.wait_ended(job)
    assert (box.state(job), box.job(job)["restart_cnt"]) == ("COMPLETED", 0)
    assert box.output(job).splitlines() == ["GPUS=2", "STEP"]
    assert "shard" in slots(box, job), "another may join it from the start"
    assert "start" in packing.verbs(job)
    box.wait("the epilog", lambda: f"sampler stop --job {job}" in packing.hooks())
    assert [line for line in packing.hooks() if line.startswith(f"sampler start --job {job} ")]


def test_a_measured_job_is_joined_on_its_own_gpus_under_one_mps_daemon(packing: Site) -> None:
    box, gate = packing.box, gated(packing, "pair")
    show = f"echo PIPE=$CUDA_MPS_PIPE_DIRECTORY; echo FENCE=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; {GATE.format('pair')}"
    host = box.sbatch("--gpus=2", "-J", "train-1", script=show)
    box.wait("the profile", (box.root / f"var/lib/lucid/profiles/{host}.json").exists)
    box.wait("lucidd to read it", lambda: "measured" in packing.ctl("explain", host))
    guest = box.sbatch("--gpus=2", "-J", "train-2", script=show)
    box.wait("the guest", lambda: box.state(guest) == "RUNNING")
    assert box.state(host) == "RUNNING"
    assert slots(box, guest) == slots(box, host), "on the same GPUs"
    assert re.search(rf"beside job {host}", packing.ctl("explain", guest))
    box.wait("lucidd to see it", lambda: packing.json("status")["partitions"]["vc-a"]["packed"] == 2)
    gate.unlink()
    box.wait_ended(host, guest)
    assert [(box.state(n), box.job(n)["restart_cnt"]) for n in (host, guest)] == [("COMPLETED", 0)] * 2
    told = [dict(line.split("=", 1) for line in box.output(n).splitlines()) for n in (host, guest)]
    assert told[0]["PIPE"] == told[1]["PIPE"] != ""
    assert told[1]["FENCE"] == "0=5352M,1=5352M"
    assert not (packing.mps / "violations").exists()
    box.wait("the daemon's end", lambda: not list((box.root / "run/lucid-mps/sets").glob("*")))


def test_a_waiting_job_is_explained_to_its_user_and_why_not_and_when_answer(crowd: Crowd) -> None:
    site, waiting = crowd.site, crowd.waiting
    (reason, *_) = site.story(waiting)["decisions"][-1]["words"]
    told = site.ctl("explain", waiting, user="alice")
    assert reason.split(";")[0] in told
    assert f"job {waiting}" in site.ctl("why-not", waiting, "--gpus", "2")
    assert waiting in [row["job"] for row in site.json("queue")["queue"]]
    ask = ("when", "--gpus", "4", "--time", "10")
    assert site.json(*ask, "--partition", "vc-a")["partitions"]["vc-a"]["starts_in_s"] == [0, 0, 0]
    assert site.json(*ask, "--partition", "vc-b")["partitions"]["vc-b"]["starts_in_s"] != [0, 0, 0]


def test_pages_over_the_live_cluster_say_what_lucidctl_says_and_show_names_as_text(crowd: Crowd) -> None:
    site, waiting = crowd.site, crowd.waiting
    with site.pages() as get:
        assert [row["job"] for row in json.loads(get("queue.json"))["queue"]] == [waiting]
        assert "n3" in get("")
        page = get(f"job/{waiting}")
        (reason, *_) = site.story(waiting)["decisions"][-1]["words"]
        assert reason.split(";")[0] in re.sub("<[^>]*>", "", page).replace("&#39;", "'").replace("&lt;", "<")
        assert "<b>x" not in page + get("queue")
        assert 'lucid_pending_jobs{partition="vc-b"} 1.0' in get("metrics")


def test_jobs_over_a_limit_run_one_after_the_other_and_hold_nothing_from_others(packing: Site) -> None:
    box, gate = packing.box, gated(packing, "limited")
    one = ["--qos=one-job", "-p", "vc-a", "--gres=gpu:1"]
    limited = [box.sbatch(*one, "-J", f"limited-{n}", script=GATE.format(gate.name)) for n in range(2)]
    box.wait("the first runs", lambda: any(box.state(job) == "RUNNING" for job in limited))

    def waits_for_the_limit(job: str) -> bool:
        return any("QOSMaxJobsPerUserLimit" in " ".join(entry["words"]) for entry in packing.story(job)["decisions"])

    box.wait("the other waits for the limit", lambda: any(map(waits_for_the_limit, limited)))
    whole = box.sbatch("-p", "vc-a", "--gres=gpu:4", script="true", user="bob")
    box.wait_ended(whole)  # it does not wait for the one that Slurm holds back
    gate.unlink()
    box.wait_ended(*limited)
    assert {box.state(job) for job in (whole, *limited)} == {"COMPLETED"}
    spans = sorted((box.job(job)["start_time"]["number"], box.job(job)["end_time"]["number"]) for job in limited)
    assert spans[0][1] <= spans[1][0]
    assert sum(packing.verbs(job).count("take back") for job in limited) <= 6, "it is tried now and then"


def test_a_users_hold_stands_until_its_user_releases_it_and_lucid_starts_it_then(packing: Site) -> None:
    box, gate = packing.box, gated(packing, "full")
    options = ["-p", "vc-b", "--gres=gpu:1"]
    full = box.sbatch("-p", "vc-b", "--gres=gpu:4", "--comment=lucid:off", script=GATE.format(gate.name))
    box.wait("a full partition", lambda: box.state(full) == "RUNNING")
    job, by_root = (box.sbatch(*options, "--comment=mine") for _ in range(2))
    box.run("scontrol", "hold", job, user="alice")
    box.run("scontrol", "hold", by_root)
    other = box.sbatch(*options)
    assert box.job(job)["comment"] == "mine lucid:held"
    gate.unlink()
    box.wait_ended(other)
    assert [(box.state(n), box.job(n)["hold"]) for n in (job, by_root)] == [("PENDING", True)] * 2
    assert box.run("scontrol", "release", by_root, user="alice", check=False).returncode, "an administrator's"
    box.run("scontrol", "release", job, user="alice")
    box.run("scontrol", "release", by_root)
    box.wait_ended(job, by_root)
    assert (box.job(job)["comment"], box.job(job)["restart_cnt"]) == ("mine", 0)
    assert "start" in packing.verbs(job), "Lucid started it, not Slurm's plain order"


def test_a_pause_lets_all_jobs_go_as_their_users_wrote_them(packing: Site) -> None:
    box = packing.box
    full = box.sbatch("-p", "vc-b", "--gres=gpu:4", "--comment=lucid:off", script="sleep 600")
    box.wait("a full partition", lambda: box.state(full) == "RUNNING")
    held = [box.sbatch("-p", "vc-b", "--gres=gpu:4") for _ in range(2)]
    assert all(box.job(job)["hold"] for job in held)
    packing.type("lucidctl pause")
    try:
        box.wait("nothing held", lambda: not any(box.job(job)["hold"] for job in held))
        assert {box.job(job)["tres_per_node"] for job in held} == {"gres/gpu:4"}
        assert "stop it" in packing.ctl("uninstall", "--wait", "1"), "lucidd runs"
        box.run("scancel", full)
        box.wait_ended(*held)
    finally:
        packing.type("lucidctl resume")


def test_killed_and_started_again_lucidd_loses_no_job_and_starts_none_twice(packing: Site) -> None:
    box, gate = packing.box, gated(packing, "killed")
    script = f"echo BEGIN; {GATE.format(gate.name)}"
    alone = ["-p", "vc-b", "--gres=gpu:4", "--comment=lucid:exclusive"]
    running = box.sbatch(*alone, script=script)
    box.wait("it runs", lambda: box.state(running) == "RUNNING")
    waiting = [box.sbatch(*alone, script=script) for _ in range(2)]
    assert all(box.job(job)["hold"] for job in waiting)
    packing.kill()
    found = [found for found in packing.json("doctor")["findings"] if found["level"] == "bad"]
    assert any("down" in item["what"] and item["remedy"] for item in found), found
    assert box.state(running) == "RUNNING"
    gate.unlink()
    packing.start()
    jobs = [running, *waiting]
    box.wait_ended(*jobs)
    assert {(box.state(job), box.job(job)["restart_cnt"]) for job in jobs} == {("COMPLETED", 0)}
    assert {box.output(job) for job in jobs} == {"BEGIN\n"}


# -- without lucidd ----------------------------------------------------------------------------------------------


def release(site: Site, *options: str) -> None:
    """lucid-release, as its unit runs it."""
    assert site.box.run("/etc/slurm/lucid/lucid-release", *options, user="lucid").stderr == ""


def test_what_lucidd_held_is_released_once_it_has_been_dead_for_long_and_new_jobs_pass(dead: Site) -> None:
    box = dead.box
    box.beat()
    held = [box.sbatch("--gres=gpu:1", f"--job-name={name}", "--array=0-1") for name in ("plain", "a'b\"`id`$(id);")]
    slots_by_now = box.sbatch("--gpus=2", "--cpus-per-gpu=3")
    words = ["TresPerNode=gres/shard:g1:1,gres/shard:g3:1", "ReqNodeList=n1"]
    box.scontrol("update", f"JobId={slots_by_now}", "TresPerJob=", "CpusPerTres=")
    box.scontrol("update", f"JobId={slots_by_now}", *words)
    users_own = box.sbatch("--gres=gpu:1", "--hold", "--comment=x\n   AdminComment=lucid:vc=prof;held=1")
    box.beat(age_s=200)
    release(dead)
    assert all(box.job(job)["hold"] for job in (*held, slots_by_now))
    box.beat(age_s=400)
    through = box.sbatch("--gres=gpu:1")
    assert (box.tag(through), box.job(through)["hold"]) == ("", False), "plain Slurm"
    release(dead)
    box.wait_ended(*held, slots_by_now, through)
    assert {box.state(job) for job in (*held, slots_by_now, through)} == {"COMPLETED"}
    given_back = box.job(slots_by_now)
    assert given_back["tres_per_job"] == "gres/gpu:2"
    assert given_back["tres_alloc_str"].startswith("cpu=6,")
    assert box.job(users_own)["hold"], "nobody else's hold is touched"


TAGS = {
    "--gres=gpu:2": "node=gres/gpu:2;v=2",
    "--gpus=2": "job=gres/gpu:2;v=2",
    "--gpus-per-node=2": "node=gres/gpu:2;v=2",
    "--gpus-per-task=1 -n2": "task=gres/gpu=1;v=2",
    "--gres=gpu:a100:1": "node=gres/gpu:1;v=2",
    "--gres=gpu:1 --no-requeue": "node=gres/gpu:1;share=0;why=requeue;requeue=0;v=2",
    "--gres=gpu:1 --requeue": "node=gres/gpu:1;restart=1;v=2",
    "--gres=gpu:1 --nodelist=n1": "node=gres/gpu:1;share=0;why=nodes;v=2",
    "--gres=gpu:1 --comment=lucid:exclusive": "node=gres/gpu:1;share=0;why=asked;v=2",
    "--gres=gpu:1 --comment=mine,lucid:cold": "node=gres/gpu:1;cold=1;v=2",
    "--gres=gpu:1 --comment=lucid:off": "skip=asked;v=2",
    "-p vc-a,vc-b --gres=gpu:1": "skip=partitions;v=2",
}
REFUSED = {
    "--gres=shard:1": "only Lucid gives out shards of GPUs",
    "-p vc-b --gres=shard:g0:1": "only Lucid gives out shards of GPUs",
    "--gres=gpu:g2:1": "name single GPUs, which Lucid chooses",
    "--gres=gpu:1 --extra=lucid-gpus=0": "begin with lucid- are reserved for Lucid",
    "-p prof --gres=gpu:1": "Submit to your own partition",
    "--gres=gpu:v100:1": "",
    "--gres=gpu:5": "not available",
}


def test_the_plugin_tags_what_users_ask_for_and_refuses_what_would_pass_the_queue(dead: Site) -> None:
    box = dead.box
    box.beat({"vc-a": "pack", "vc-b": "pack"}, extra="optout behind\nprofiling prof\nn_prof 0\nmost vc-a 4\n")
    jobs = {options: box.sbatch(*options.split()) for options in TAGS}
    found = box.jobs()
    assert {options: found[job]["admin_comment"] for options, job in jobs.items()} == {
        options: f"lucid:vc=vc-a;held=1;{tag}" for options, tag in TAGS.items()
    }
    assert all(found[job]["hold"] for job in jobs.values())
    asking = box.sbatch("--gres=gpu:1", script="srun --gres=gpu:1 hostname")
    assert box.tag(asking) == "lucid:vc=vc-a;held=1;node=gres/gpu:1;share=0;why=srun;v=2"
    for options, words in REFUSED.items():
        said = refused(box, *options.split())
        assert said, options
        assert words in said, options
    for change in ("Partition=prof", "Gres=gpu:2", "TresPerNode=gres/shard:g0:1", "Extra=lucid-gpus=0"):
        job = jobs["--gres=gpu:2"]
        assert box.run("scontrol", "update", f"JobId={job}", change, user="alice", check=False).returncode, change
    assert box.tag(box.sbatch()) == "", "a job without GPUs is not Lucid's"


@pytest.fixture
def hanging(dead: Site) -> Iterator[Site]:
    """The nodes' sampler hangs, and MPS fails."""
    conf = dead.box.root / "etc/slurm/lucid/node.conf"
    before = conf.read_text()
    stopped = dead.box.root / "srv/failing"
    stopped.mkdir(exist_ok=True)
    for name in ("start", "stop"):
        (stopped / name).write_text('#!/bin/sh\necho "${0##*/} $*" >> /srv/hooks.log\nexit 3\n')
        (stopped / name).chmod(0o755)
    conf.write_text("sampler /opt/lucid/bin/lucid-sampler\nmps /srv/failing\nlimit 3\nbad $(touch /tmp/pwned)\n")
    mark = dead.box.root / "srv/sampler-hangs"
    mark.touch()
    yield dead
    mark.unlink()
    conf.write_text(before)


def test_hooks_get_numbers_and_neither_a_hanging_nor_a_failing_one_harms_the_job(hanging: Site) -> None:
    box = hanging.box
    box.beat()
    job = box.sbatch("--gres=gpu:2", "--job-name=$(touch /tmp/pwned)", "--comment=`touch /tmp/pwned`")
    box.scontrol(
        "update", f"JobId={job}", "TresPerNode=gres/shard:g1:1,gres/shard:g3:1", "ReqNodeList=n1",
        f"Extra={seal(box, job, (1, 3), 9000, 0.9)}",
    )  # fmt: skip
    box.scontrol("release", job)
    box.wait_ended(job)

    def called() -> list[str]:
        return [line for line in hanging.hooks() if f"--job {job} " in f"{line} "]

    box.wait("the epilog", lambda: len(called()) == 4)
    uid = box.run("id", "-u", "alice").stdout.strip()
    assert called() == [
        f"sampler start --job {job} --slurm-id {job} --gpus 1,3 --nodes 1 --promised 0.90",
        f"start --job {job} --uid {uid} --gpus GPU-aa1,GPU-aa3 --mem-limit 9000 --within 1",
        f"sampler stop --job {job}",
        f"stop --job {job} --within 1",
    ]
    assert box.state(job) == "COMPLETED"
    assert not (box.root / "tmp/pwned").exists()
    box.wait("no node drained", lambda: "drain" not in box.run("sinfo", "-h", "-o", "%t").stdout)


# -- afterwards --------------------------------------------------------------------------------------------------


def test_slurms_accounting_of_these_jobs_is_a_trace_for_the_simulator(site: Site) -> None:
    """By the very command of docs/traces.md."""
    box = site.box
    jobs = [box.sbatch("-p", "vc-b", "--gres=gpu:4", "-J", "for-the-trace") for _ in range(2)]
    box.wait_ended(*jobs, limit_s=120)
    line = re.search(r"^sacct [^`]*?Timelimit$", (REPO / "docs/traces.md").read_text(), re.MULTILINE)
    assert line
    sacct = line[0].replace("2024-01-01", "now-1days")
    box.wait("slurmdbd", lambda: site.type(sacct).count("|for-the-trace|") == 2)
    site.type(f"{sacct} > /tmp/trace.sacct".replace("\\\n", ""))
    told = json.loads(site.type("lucidctl trace describe /tmp/trace.sacct --json"))
    assert told["jobs"] >= 2
    replayed = json.loads(
        site.type(
            "lucidctl simulate /tmp/trace.sacct --nodes 4 --gpus-per-node 4 --policy backfill --policy lucid --json"
        )
    )
    assert set(replayed["results"]) == {"backfill", "lucid"}


def test_undo_leaves_slurm_as_it_was_and_every_job_to_it(packing: Site) -> None:
    box = packing.box
    full = box.sbatch("-p", "vc-b", "--gres=gpu:4", "--comment=lucid:off", script="sleep 5")
    held, free = (box.sbatch("-p", "vc-b", "--gres=gpu:4", *options) for options in (["--hold"], []))
    packing.type(UNDO)
    packing.mode = ""
    box.wait_ended(full, free, limit_s=120)
    assert {box.state(job) for job in (full, free)} == {"COMPLETED"}
    assert box.state(held) == "PENDING", "its user holds it"
    assert slurms_own(box) == packing.plain, "byte for byte"
    left = typed(box, "find /etc /usr/local /var/lib /run -xdev -iname '*lucid*'").stdout
    assert left == ""
    assert box.run("id", "lucid", check=False).returncode
    assert box.run("sacctmgr", "-nP", "show", "user", "lucid").stdout == ""
    plain = box.sbatch("--gres=gpu:2", script="echo $CUDA_VISIBLE_DEVICES")
    box.wait_ended(plain)
    assert (box.tag(plain), box.output(plain)) == ("", "0,1\n")
    assert box.run("sinfo", "-h", "-N", "-t", "drain,down").stdout == ""
