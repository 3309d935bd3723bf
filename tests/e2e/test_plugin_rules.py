"""job_submit.lua under the real slurmctld: what it does with each kind of job."""

from __future__ import annotations

import json
import os
import time

import pytest
from box import Box

from tool_comments import COMMENTS, LOOKALIKES

REQUESTS = {
    "--gres=gpu:2": "node=gres/gpu:2",
    "--gpus=2": "job=gres/gpu:2",
    "--gpus-per-node=2": "node=gres/gpu:2",
    "--gpus-per-task=1 -n2": "task=gres/gpu=1",
    "--gres=gpu:2 --cpus-per-gpu=3 --mem-per-gpu=1G": "node=gres/gpu:2;cpg=gres/gpu:3;mpg=gres/gpu:1024",
    "--gres=gpu:1 --array=0-3%2": "node=gres/gpu:1",
}


def test_without_a_fresh_heartbeat_every_job_passes_untouched(box: Box) -> None:
    hearts = {
        "none": None,
        "stale": f"time {time.time() - 65:.0f}\nmode vc-a pack\n",
        "from the future": f"time {time.time() + 3600:.0f}\nmode vc-a pack\n",
        "no heartbeat": "hello\n",
        "binary": "\x00\x01time 5\n",
        "far too long": f"time {time.time():.0f}\n" + "mode vc-a pack\n" * 1000,
        "no number": "time soon\nmode vc-a pack\n",
    }
    for name, text in hearts.items():
        box.stop_beating()
        if text is not None:
            box.write_heartbeat(text)
        job = box.job(box.sbatch("--gres=gpu:1"))
        assert (job["tag"], job["waits"]) == ("", False), name


@pytest.mark.parametrize("request_form", REQUESTS)
def test_a_batch_job_is_held_and_tagged_with_what_its_user_wrote(box: Box, request_form: str) -> None:
    box.beat()
    number = box.sbatch(*request_form.split())
    job = box.job(number)
    assert job["tag"] == f"lucid:vc=vc-a;held=1;{REQUESTS[request_form]};v=2"
    assert job["waits"]
    box.scontrol("release", number)
    box.wait_ended(number)
    assert box.state(number) == "COMPLETED"


@pytest.mark.parametrize(
    ("options", "tag"),
    [
        ("--gpus=0", ""),
        ("--partition=vc-b", ""),
    ],
)
def test_jobs_that_are_not_lucids_are_not_held(box: Box, options: str, tag: str) -> None:
    box.beat({"vc-a": "pack", "vc-b": "order"})
    gpus = [] if "--g" in options else ["--gres=gpu:1"]
    job = box.job(box.sbatch(*gpus, *options.split()))
    assert job["tag"] == tag
    assert not job["waits"]


def test_a_job_larger_than_any_node_is_refused_as_without_lucid(box: Box) -> None:
    plain = box.run("sbatch", "-D", "/tmp", "--gres=gpu:5", "--wrap=true", user="alice", check=False)
    box.beat(extra="most vc-a 4\n")
    lucid = box.run("sbatch", "-D", "/tmp", "--gres=gpu:5", "--wrap=true", user="alice", check=False)
    assert plain.returncode == lucid.returncode == 1
    assert "not available" in plain.stderr
    assert plain.stderr == lucid.stderr
    assert box.tag(box.sbatch("--gres=gpu:4")).startswith("lucid:vc=vc-a;held=1")


def test_a_reservation_is_left_to_slurm(box: Box) -> None:
    box.run(
        "scontrol", "create", "reservation", "ReservationName=class", "StartTime=now", "Duration=60",
        "Nodes=n2", "Users=alice", "Flags=IGNORE_JOBS",
    )  # fmt: skip
    try:
        box.beat()
        number = box.sbatch("--gres=gpu:1", "--reservation=class")
        assert box.tag(number) == "lucid:vc=vc-a;skip=reservation"
        box.wait_ended(number)
    finally:
        box.run("scontrol", "delete", "ReservationName=class")


@pytest.mark.parametrize(
    ("options", "script", "why"),
    [
        ("--exclude=n2", "true", "nodes"),
        ("--exclusive", "true", "exclusive"),
        ("--constraint=a100|a100", "true", "constraint"),
        ("", "srun --gpu-bind=closest hostname", "srun"),
        ("", "args=(\n  -n2\n  --gpu-bind=closest\n)\nsrun hostname", "srun"),
        ("", "SRUN_ARGS='--cpus-per-gpu=1 --gpus=1'; srun $SRUN_ARGS hostname", "srun"),
        ("", "export SLURM_GPU_BIND=closest; srun hostname", "variables"),
        ("--gpu-bind=closest", "srun hostname", "variables"),
        ("", "srun \\\n  --mem-per-gpu=100 hostname", "srun"),
        ("", "echo " + "x" * 70000, "long"),
    ],
)
def test_jobs_that_slots_could_break_are_tagged_to_keep_their_gpus(
    box: Box, options: str, script: str, why: str
) -> None:
    box.beat()
    number = box.sbatch("--gres=gpu:1", *([options] if options else []), script=script)
    assert box.tag(number) == f"lucid:vc=vc-a;held=1;node=gres/gpu:1;share=0;why={why};v=2"


def test_a_list_of_features_is_judged_by_lucidd_which_knows_the_nodes(box: Box) -> None:
    box.beat()
    assert box.tag(box.sbatch("--gres=gpu:1", "--constraint=a100&a100")) == "lucid:vc=vc-a;held=1;node=gres/gpu:1;v=2"


def test_a_comment_that_is_json_stays_json_and_comes_back_as_it_was(box: Box) -> None:
    box.beat()
    text = '{"reaper":{"exempt":true}}'
    number = box.sbatch("--gres=gpu:1", "--hold", f"--comment={text}")

    def comment() -> str:
        return box.run("squeue", "-h", "-j", number, "-o", "%k").stdout.strip()

    assert json.loads(comment())["reaper"] == {"exempt": True}
    assert " lucid:held " in json.loads(comment())
    box.run("scontrol", "release", number, user="alice")
    assert comment() == text
    box.run("scontrol", "uhold", number)
    box.run("scontrol", "release", number, user="alice")
    assert any(word.startswith(" lucid:lease=") for word in json.loads(comment()))
    box.run("scontrol", "update", f"JobId={number}", "StartTime=now+3600")  # as lucidd does
    assert comment() == text


UNMAPPED = {
    "srun -n1 -G 1 hostname": "srun",
    "srun \\\n  --gpus-per-task=1 hostname": "srun",
    "srun -G1 hostname": "srun",
    "echo $SLURM_GPUS": "variables",
    "echo ${SLURM_GPUS_PER_NODE}": "variables",
}


def test_what_srun_maps_keeps_no_gpus_unless_nobody_says_that_it_maps(box: Box) -> None:
    conf = box.root / "etc/slurm/lucid.plugin.conf"
    before = conf.read_text()
    assert "steps mapped\n" in before
    try:
        for steps in ("steps mapped\n", "", "steps unset\n"):
            conf.write_text(before.replace("steps mapped\n", steps))
            box.beat()
            for script, why in UNMAPPED.items():
                tag = box.tag(box.sbatch("--gres=gpu:1", script=script))
                assert (f"share=0;why={why}" in tag) == (steps != "steps mapped\n"), (steps, script, tag)
    finally:
        conf.write_text(before)


def test_what_users_say_of_their_job_is_tagged(box: Box) -> None:
    box.beat()
    number = box.sbatch("--gres=gpu:1", "--comment=mine, lucid:cold;lucid:amp")
    assert box.tag(number) == "lucid:vc=vc-a;held=1;node=gres/gpu:1;cold=1;amp=1;v=2"
    elastic = box.sbatch("--gres=gpu:1", "--comment=lucid:elastic=1-4,epochs=3")
    assert box.tag(elastic) == "lucid:vc=vc-a;held=1;node=gres/gpu:1;elastic=1;v=2"
    for words, most in (("-N1", 1), ("-N1-2", 2)):
        bound = box.sbatch("--gres=gpu:1", words, "--comment=lucid:elastic=1-4")
        assert box.tag(bound) == f"lucid:vc=vc-a;held=1;node=gres/gpu:1;elastic=1;most={most};v=2"
    assert box.tag(box.sbatch("--gres=gpu:1", "--comment=lucid:amps")) == "lucid:vc=vc-a;held=1;node=gres/gpu:1;v=2"


def test_words_for_lucid_stand_among_those_of_other_tools_which_stay(box: Box) -> None:
    box.beat()
    plain, alone = "lucid:vc=vc-a;held=1;node=gres/gpu:1;v=2", "share=0;why=asked"
    for comment in (one.format("lucid:exclusive") for one in COMMENTS):
        number = box.sbatch("--gres=gpu:1", f"--comment={comment}")
        assert alone in box.tag(number), comment
        assert box.job(number)["comment"] == comment
    for comment in LOOKALIKES:
        assert box.tag(box.sbatch("--gres=gpu:1", f"--comment={comment}")) == plain, comment


def test_words_that_only_look_like_it_do_not_keep_a_job_from_sharing(box: Box) -> None:
    box.beat()
    script = (
        "srun hostname; nvidia-smi --gpus; echo $SLURM_GPUS_ON_NODE; echo lucid:off; srun --gpu-bind=single:1 true\n"
        "# srun --gpu-bind=closest was slower\necho no srun --cpus-per-gpu=1 here\n"
        "srun python tools/train.py --samples-per-gpu=8 --imgs-per-gpu 4 --cpus-per-gpu 2\n"
        "srun true # --gpu-bind=closest"
    )
    number = box.sbatch("--gres=gpu:1", "--comment=not-lucid:offline", "--constraint=a100", script=script)
    assert box.tag(number) == "lucid:vc=vc-a;held=1;node=gres/gpu:1;v=2"


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(
    ("options", "features", "request_field", "asks"),
    [
        ("--gres=gpu:a100:2", "a100", "tres_per_node", "gres/gpu:2"),
        ("--gpus=a100:2", "a100", "tres_per_job", "gres/gpu:2"),
        ("--gpus-per-node=a100", "a100", "tres_per_node", "gres/gpu:1"),
        ("--gpus-per-task=a100:1 -n2", "a100", "tres_per_task", "gres/gpu=1"),
        ("--gpus=a100:1 -C a100", "a100", "tres_per_job", "gres/gpu:1"),
        ("--gpus=a100:1 -C (a100)", "(a100)&a100", "tres_per_job", "gres/gpu:1"),
    ],
)
def test_a_type_asked_for_becomes_a_feature_with_or_without_the_daemon(
    box: Box, fresh: bool, options: str, features: str, request_field: str, asks: str
) -> None:
    if fresh:
        box.beat()
    number = box.sbatch(*options.split())
    job = box.job(number)
    assert (job["features"], job[request_field]) == (features, asks)
    assert job["waits"] == fresh
    if fresh:
        box.scontrol("release", number)
    box.wait_ended(number)
    assert box.state(number) == "COMPLETED"


def test_types_that_nobody_has_are_refused_as_on_plain_slurm(box: Box) -> None:
    for asked in ("gpu:v100:1", "gpu:a100:1,gpu:v100:1"):
        done = box.run("sbatch", f"--gres={asked}", "--wrap=true", user="alice", check=False)
        assert done.returncode == 1
        assert "not available" in done.stderr or "Invalid" in done.stderr


def test_a_job_is_routed_to_the_profiling_partition_where_that_is_switched_on(box: Box) -> None:
    settings = box.root / "etc/slurm/lucid.plugin.conf"
    before = settings.read_text()
    settings.write_text(before.replace("route no", "route yes"))
    try:
        box.beat(extra="profiling prof\nn_prof 2\n")
        routed, too_large, fixed = (
            box.job(box.sbatch(*options, script="sleep 2"))
            for options in (["--gres=gpu:2"], ["--gres=gpu:2", "-N2"], ["--gres=gpu:1", "--no-requeue"])
        )
        assert (routed["partition"], routed["waits"]) == ("prof", False)
        assert routed["tag"] == "lucid:vc=vc-a;routed=1;node=gres/gpu:2;v=2"
        stays = box.job(box.sbatch("-p", "vc-a", "--gres=gpu:2", "--comment=x,lucid:stay", script="sleep 2"))
        assert (stays["partition"], stays["waits"]) == ("vc-a", True), "by its own word"
        for held in (too_large, fixed):
            assert (held["partition"], held["waits"]) == ("vc-a", True)
        box.beat(extra="profiling prof\nn_prof 2\nunrouted vc-b\nunrouted vc-a\n")
        unrouted = box.job(box.sbatch("-p", "vc-a", "--gres=gpu:2", script="sleep 2"))
        assert (unrouted["partition"], unrouted["waits"]) == ("vc-a", True), "the policy there profiles nobody"
    finally:
        settings.write_text(before)


def test_an_error_in_the_plugin_lets_the_job_through_as_it_was_written(box: Box) -> None:
    plugin = box.root / "etc/slurm/job_submit.lua"
    before = plugin.read_text()
    head = "local function tag_of("
    assert head in before

    def install(text: str, seconds: float) -> None:
        plugin.write_text(text)
        os.utime(plugin, (time.time() + seconds, time.time() + seconds))  # Slurm compares whole seconds

    install(before.replace(head, "error('boom')\n" + head), 2)
    try:
        box.beat()
        assert box.tag(box.sbatch("--gres=gpu:1")) != ""  # a script that does not load: the last good one stays
        broken = before.replace('local tag = { "vc="', 'error("boom")\n  local tag = { "vc="')
        install(broken, 4)
        number = box.sbatch("--gres=gpu:1")
        assert (box.tag(number), box.job(number)["waits"]) == ("", False)
        box.wait_ended(number)
        assert "lucid: job taken as it was written" in (box.root / "var/log/slurm/slurmctld.log").read_text()
    finally:
        install(before, 6)
