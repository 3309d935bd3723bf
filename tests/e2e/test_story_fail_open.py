"""The story without lucidd: what Slurm, its plugin and its nodes' hooks do while nobody decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from box import HOSTILE_NAMES, rewritten
from daemon_box import seal
from story_box import Site

pytestmark = pytest.mark.story


def release(site: Site, *options: str) -> str:
    """lucid-release, as its unit runs it."""
    done = site.box.run("/etc/slurm/lucid/lucid-release", *options, user="lucid")
    assert done.stderr == ""
    return done.stdout


def test_what_lucidd_held_is_released_once_it_has_been_dead_for_long_and_new_jobs_pass(dead: Site) -> None:
    box = dead.box
    box.beat()
    held = [
        box.sbatch("--gres=gpu:1", f"--job-name={name}", f"--comment={name}", "--array=0-1")
        for name in HOSTILE_NAMES[:1]
    ] + [box.sbatch("--gpus=1", f"--job-name={name}", f"--comment={name}") for name in HOSTILE_NAMES[1:]]
    slots_by_now = box.sbatch("--gpus=2", "--cpus-per-gpu=3")
    words = ["TresPerNode=gres/shard:g1:1,gres/shard:g3:1", "ReqNodeList=n1"]
    box.scontrol("update", f"JobId={slots_by_now}", "TresPerJob=", "CpusPerTres=")
    box.scontrol("update", f"JobId={slots_by_now}", *words)
    users_own = box.sbatch("--gres=gpu:1", "--hold", "--comment=x\n   AdminComment=lucid:vc=prof;held=1")
    box.beat(age_s=200)
    release(dead)
    assert all(box.job(job)["waits"] for job in (*held, slots_by_now))
    box.beat(age_s=400)
    through = box.sbatch("--gres=gpu:1")
    assert (box.tag(through), box.job(through)["waits"]) == ("", False), "plain Slurm"
    said = [line for line in release(dead, "--dry-run").splitlines() if "TresPerNode=" not in line]
    assert "\n".join(said).count("StartTime=now") == 1, "one command for all, beside those that give requests back"
    assert all(box.job(job)["waits"] for job in held)
    release(dead)
    box.wait_ended(*held, slots_by_now, through)
    assert {box.state(job) for job in (*held, slots_by_now, through)} == {"COMPLETED"}
    given_back = box.job(slots_by_now)
    assert given_back["tres_per_job"] == "gres/gpu:2"
    assert given_back["tres_alloc_str"].startswith("cpu=6,")
    assert box.job(users_own)["waits"], "nobody else's hold is touched"


TAGS = {
    "--gres=gpu:2": "node=gres/gpu:2;v=2",
    "--gpus=2": "job=gres/gpu:2;v=2",
    "--gpus-per-node=2": "node=gres/gpu:2;v=2",
    "--gpus-per-task=1 -n2": "task=gres/gpu=1;v=2",
    "--gres=gpu:a100:1": "node=gres/gpu:1;v=2",
    "--gres=gpu:1 --no-requeue": "node=gres/gpu:1;share=0;why=requeue;requeue=0;v=2",
    "--gres=gpu:1 --requeue": "node=gres/gpu:1;restart=1;v=2",
    "--gres=gpu:1 --comment=lucid:restart": "node=gres/gpu:1;restart=1;v=2",
    "--gpus=1 --no-requeue --comment=lucid:restart": "job=gres/gpu:1;share=0;why=requeue;requeue=0;v=2",
    "--gres=gpu:1 --nodelist=n1": "node=gres/gpu:1;nodes=1;share=0;why=nodes;v=2",
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

    def beating(options: str) -> list[str]:
        """However long all of it takes, each is submitted to a lucidd that lives."""
        box.beat({"vc-a": "pack", "vc-b": "pack"}, extra="profiling prof\nn_prof 0\nmost vc-a 4\n")
        return options.split()

    jobs = {options: box.sbatch(*beating(options)) for options in TAGS}
    found = box.jobs()
    assert {options: found[job]["tag"] for options, job in jobs.items()} == {
        options: f"lucid:vc=vc-a;held=1;{tag}" for options, tag in TAGS.items()
    }
    assert all(found[job]["waits"] for job in jobs.values())
    asking = box.sbatch(*beating("--gres=gpu:1"), script="srun --gres=gpu:1 hostname")
    assert box.tag(asking) == "lucid:vc=vc-a;held=1;node=gres/gpu:1;v=2", "cli_filter.lua maps it to the job's slots"
    for options, words in REFUSED.items():
        said = box.refused("sbatch", "-D", "/tmp", *beating(options), "--wrap=true")
        assert said, options
        assert words in said, options
    for change in ("Partition=prof", "Gres=gpu:2", "TresPerNode=gres/shard:g0:1", "Extra=lucid-gpus=0"):
        job = jobs["--gres=gpu:2"]
        assert box.run("scontrol", "update", f"JobId={job}", change, user="alice", check=False).returncode, change
    assert box.tag(box.sbatch()) == "", "a job without GPUs is not Lucid's"


@pytest.fixture
def hanging(dead: Site) -> Iterator[Site]:
    """The nodes' sampler hangs, and MPS fails."""
    stopped = dead.box.root / "srv/failing"
    stopped.mkdir(exist_ok=True)
    for name in ("start", "stop"):
        (stopped / name).write_text('#!/bin/sh\necho "${0##*/} $*" >> /srv/hooks.log\nexit 3\n')
        (stopped / name).chmod(0o755)
    mark = dead.box.root / "srv/sampler-hangs"
    mark.touch()
    text = "sampler /opt/lucid/bin/lucid-sampler\nmps /srv/failing\nlimit 3\nbad $(touch /tmp/pwned)\n"
    with rewritten(dead.box.root / "etc/slurm/lucid/node.conf", text):
        yield dead
    mark.unlink()


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
