"""job_submit.lua under the real slurmctld: which jobs it takes for Lucid, in which words, and what it lets nobody do.

The commonest requests and refusals are in test_story_fail_open.py.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from box import Box, rewritten

from tool_comments import COMMENTS, LOOKALIKES

GPU = "--gres=gpu:1"
MODES = {"vc-a": "pack", "vc-b": "order"}
WHOLE = "node=gres/gpu:1;share=0;why="
TAGS = {
    "--gres=gpu:2 --cpus-per-gpu=3 --mem-per-gpu=1G": "node=gres/gpu:2;cpg=gres/gpu:3;mpg=gres/gpu:1024;v=2",
    "--gres=gpu:1 --array=0-3%2": "node=gres/gpu:1;v=2",
    "--gres=gpu:1 --exclude=n2": f"{WHOLE}nodes;v=2",
    "--gres=gpu:1 --exclusive": f"{WHOLE}exclusive;v=2",
    "--gres=gpu:1 --constraint=a100|a100": f"{WHOLE}constraint;v=2",
    "--gres=gpu:1 --constraint=a100&a100": "node=gres/gpu:1;v=2",  # lucidd knows the nodes
    "--gres=gpu:1 --comment=mine,lucid:cold;lucid:amp": "node=gres/gpu:1;cold=1;amp=1;v=2",
    "--gres=gpu:1 --comment=lucid:amps": "node=gres/gpu:1;v=2",
    "--gres=gpu:1 --comment=not-lucid:offline": "node=gres/gpu:1;v=2",
    "--gres=gpu:1 --comment=lucid:elastic=1-4,epochs=3": "node=gres/gpu:1;elastic=1;v=2",
    "--gres=gpu:1 -N1 --comment=lucid:elastic=1-4": "node=gres/gpu:1;elastic=1;most=1;v=2",
    "--gres=gpu:1 -N1-2 --comment=lucid:elastic=1-4": "node=gres/gpu:1;elastic=1;most=2;v=2",
    # what Lucid cannot order in detail is held all the same
    "--gres=gpu:1 --comment=x,lucid:off": "skip=asked;v=2",
    "-p vc-b,vc-a --gres=gpu:1": "skip=partitions;v=2",
    "--gres=gpu:1 --array=0-1000": "skip=array;v=2",
    "--gpus-per-socket=1 --sockets-per-node=1": "skip=socket;v=2",
    "--exclusive": "skip=whole;v=2",
    # tasks by GPU: at any update of such a job, a release too, Slurm would work their number out anew, by nodes
    "--gpus=2 --ntasks-per-gpu=2": "skip=tasks;tasks=4;v=2",
    "-N2 --gpus-per-node=1 --ntasks-per-gpu=2": "skip=tasks;tasks=4;v=2",
}
"""By what alice types: behind ``lucid:vc=vc-a;held=1;``."""
SCRIPTS = {
    "srun --gpu-bind=closest hostname": "srun",
    "args=(\n  -n2\n  --gpu-bind=closest\n)\nsrun hostname": "srun",
    "SRUN_ARGS='--cpus-per-gpu=1 --gpus=1'; srun $SRUN_ARGS hostname": "srun",
    "srun \\\n  --mem-per-gpu=100 hostname": "srun",
    "export SLURM_GPU_BIND=closest; srun hostname": "variables",
    "echo " + "x" * 70000: "long",
    "srun hostname; nvidia-smi --gpus; echo $SLURM_GPUS_ON_NODE; echo lucid:off; srun --gpu-bind=single:1 true\n"
    "# srun --gpu-bind=closest was slower\necho no srun --cpus-per-gpu=1 here\n"
    "srun python tools/train.py --samples-per-gpu=8 --imgs-per-gpu 4 --cpus-per-gpu 2\n"
    "srun true # --gpu-bind=closest": "",
}
"""Scripts that slots could break, and why; one that only looks like it."""
SHARDS, SINGLE = "only Lucid gives out shards of GPUs", "name single GPUs, which Lucid chooses"
RESERVED, OWN = "begin with lucid- are reserved for Lucid", "Submit to your own partition"
REFUSED = {
    "--gres=shard:g0:1": SHARDS,
    "-n1 --tres-per-task=gres/shard:1": SHARDS,
    "-p prof --gpus=g2:1": SINGLE,
    "--gpus-per-node=g0:1,g1:1": SINGLE,
    "--gres=gpu:1 --extra=x;lucid-mem=9": RESERVED,
}
"""With or without a lucidd that lives."""
NOT_TO_PROF = ("-p prof", "-p vc-a,prof --gres=gpu:1", "-p prof -N1 --exclusive")


def beat(box: Box) -> None:
    box.beat(MODES, extra="profiling prof\nn_prof 0\n")


def submits(box: Box, options: str, user: str = "alice") -> str:
    return box.refused("sbatch", "-D", "/tmp", *options.split(), "--wrap=true", user=user)


def settings(box: Box, old: str, new: str) -> AbstractContextManager[None]:
    """The plugin's settings with other words in them; without ``old``, with more."""
    path = box.root / "etc/slurm/lucid.plugin.conf"
    before = path.read_text()
    assert old in before
    return rewritten(path, before.replace(old, new) if old else before + new)


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
        job = box.job(box.sbatch(GPU))
        assert (job["tag"], job["waits"]) == ("", False), name


def test_jobs_are_held_and_tagged_with_what_their_users_wrote(box: Box) -> None:
    def held(*options: str, script: str = "true") -> str:
        beat(box)  # however long all of it takes
        return box.sbatch(*options, script=script)

    jobs = {options: held(*options.split()) for options in TAGS}
    by_script = {script: held(GPU, script=script) for script in SCRIPTS}
    variables = held(GPU, "--gpu-bind=closest", script="srun hostname")
    found = box.jobs()
    head = "lucid:vc=vc-a;held=1;"
    assert {options: found[job]["tag"] for options, job in jobs.items()} == {o: head + tag for o, tag in TAGS.items()}
    for script, job in (*by_script.items(), ("--gpu-bind", variables)):
        why = SCRIPTS.get(script, "variables")
        assert found[job]["tag"] == head + (f"{WHOLE}{why};v=2" if why else "node=gres/gpu:1;v=2"), script[:99]
    assert all(found[job]["waits"] for job in (*jobs.values(), *by_script.values()))
    tasks = [job for options, job in jobs.items() if "--ntasks-per-gpu" in options]
    for job in tasks:
        box.scontrol("update", f"JobId={job}", "StartTime=now")
        box.run("scontrol", "release", job, user="lucid", check=False)  # a parked one may run already
    box.wait_ended(*tasks)
    assert [(box.state(job), box.job(job)["tasks"]["number"]) for job in tasks] == [("COMPLETED", 4)] * 2
    assert "tasks=" not in box.tag(held("-N1-2", "--gpus-per-node=2", "--ntasks-per-gpu=2")), "nobody can count them"


def test_jobs_that_are_not_lucids_are_not_held(box: Box) -> None:
    for options, tag in (("--gpus=0", ""), (f"{GPU} -p vc-b", "")):
        beat(box)
        job = box.job(box.sbatch(*options.split()))
        assert (job["tag"], job["waits"]) == (tag, False)
    for where in ("vc-b", "vc-a,vc-b"):
        number = box.sbatch("--begin=now+1hour")
        box.run("scontrol", "update", f"JobId={number}", f"Partition={where}", user="alice")
        assert (box.job(number)["partition"], box.tag(number)) == (where, "")
    assert box.tag(box.sbatch("--gpus=2", "--ntasks-per-gpu=2", user="root")) == "lucid:vc=vc-a;skip=tasks"
    with box.reserved("n2", "alice", "flags=ignore_jobs") as name:
        beat(box)
        number = box.sbatch(GPU, f"--reservation={name}")
        assert box.tag(number) == "lucid:vc=vc-a;skip=reservation"
        box.wait_ended(number)


def test_a_job_larger_than_any_node_is_refused_as_without_lucid(box: Box) -> None:
    plain = submits(box, "--gres=gpu:5")
    box.beat(extra="most vc-a 4\n")
    assert "not available" in plain
    assert submits(box, "--gres=gpu:5") == plain
    assert box.tag(box.sbatch("--gres=gpu:4")).startswith("lucid:vc=vc-a;held=1")
    for asked in ("--gres=gpu:v100:1", "--gres=gpu:a100:1,gpu:v100:1"):
        assert re.search("not available|Invalid", submits(box, asked)), "types that nobody has"


@pytest.mark.parametrize("heart", ["fresh", "none"])
def test_nobody_takes_single_gpus_or_shares_of_them(box: Box, heart: str) -> None:
    for options, words in REFUSED.items():
        if heart == "fresh":
            beat(box)
        said = submits(box, options)
        assert words in said, options
        assert re.search(r"Ask for|Leave them out", said), "it says what to do instead"


def test_users_do_not_submit_to_the_profiling_partition_and_sites_may_have_shards(box: Box) -> None:
    for options in NOT_TO_PROF:
        beat(box)
        assert (OWN in submits(box, options), submits(box, options, user="root")) == (True, ""), options
    with settings(box, "", "shards users\n"):
        beat(box)
        assert submits(box, "-p vc-b --gres=shard:1") == "", "where Lucid packs nothing"
        assert "shards of GPUs" in submits(box, "-p vc-b --gres=shard:g0:1")
        assert "shards of GPUs" in submits(box, "-p vc-a --gres=shard:1")


def test_a_comment_that_is_json_stays_json_and_comes_back_as_it_was(box: Box) -> None:
    box.beat()
    text = '{"reaper":{"exempt":true}}'
    number = box.sbatch(GPU, "--hold", f"--comment={text}")

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


def test_words_for_lucid_stand_among_those_of_other_tools_which_stay(box: Box) -> None:
    plain, alone = "lucid:vc=vc-a;held=1;node=gres/gpu:1;v=2", "share=0;why=asked"
    for comment in (one.format("lucid:exclusive") for one in COMMENTS):
        box.beat()
        number = box.sbatch(GPU, f"--comment={comment}")
        assert alone in box.tag(number), comment
        assert box.job(number)["comment"] == comment
    for comment in LOOKALIKES:
        box.beat()
        assert box.tag(box.sbatch(GPU, f"--comment={comment}")) == plain, comment


UNMAPPED = {
    "srun -n1 -G 1 hostname": "srun",
    "srun \\\n  --gpus-per-task=1 hostname": "srun",
    "srun -G1 hostname": "srun",
    "echo $SLURM_GPUS": "variables",
    "echo ${SLURM_GPUS_PER_NODE}": "variables",
}


def test_what_srun_maps_keeps_no_gpus_unless_nobody_says_that_it_maps(box: Box) -> None:
    for steps in ("steps mapped\n", "", "steps unset\n"):
        with settings(box, "steps mapped\n", steps):
            box.beat()
            for script, why in UNMAPPED.items():
                tag = box.tag(box.sbatch(GPU, script=script))
                assert (f"share=0;why={why}" in tag) == (steps != "steps mapped\n"), (steps, script, tag)


TYPES = {
    "--gres=gpu:a100:2": ("a100", "tres_per_node", "gres/gpu:2"),
    "--gpus=a100:2": ("a100", "tres_per_job", "gres/gpu:2"),
    "--gpus-per-node=a100": ("a100", "tres_per_node", "gres/gpu:1"),
    "--gpus-per-task=a100:1 -n2": ("a100", "tres_per_task", "gres/gpu=1"),
    "--gpus=a100:1 -C a100": ("a100", "tres_per_job", "gres/gpu:1"),
    "--gpus=a100:1 -C (a100)": ("(a100)&a100", "tres_per_job", "gres/gpu:1"),
}


def test_a_type_asked_for_becomes_a_feature_with_or_without_the_daemon(box: Box) -> None:
    for fresh in (False, True):
        jobs = {}
        for options, (features, field, asks) in TYPES.items():
            if fresh:
                box.beat()
            jobs[options] = box.sbatch(*options.split())
            job = box.job(jobs[options])
            assert (job["features"], job[field], job["waits"] and fresh) == (features, asks, fresh), options
        if fresh:
            box.scontrol("release", ",".join(jobs.values()))
        box.wait_ended(*jobs.values())
        assert {box.state(number) for number in jobs.values()} == {"COMPLETED"}


def test_a_job_is_routed_to_the_profiling_partition_where_that_is_switched_on(box: Box) -> None:
    with settings(box, "route no", "route yes"):
        box.beat(extra="profiling prof\nn_prof 2\n")
        routed, too_large, fixed, stays = (
            box.job(box.sbatch(*options, script="sleep 2"))
            for options in (
                ["--gres=gpu:2"], ["--gres=gpu:2", "-N2"], [GPU, "--no-requeue"], [GPU, "--comment=x,lucid:stay"]
            )
        )  # fmt: skip
        assert (routed["partition"], routed["waits"]) == ("prof", False)
        assert routed["tag"] == "lucid:vc=vc-a;routed=1;node=gres/gpu:2;v=2"
        box.beat(extra="profiling prof\nn_prof 2\nunrouted vc-b\nunrouted vc-a\n")
        unrouted = box.job(box.sbatch("--gres=gpu:2", script="sleep 2"))  # the policy there profiles nobody
        for held in (too_large, fixed, stays, unrouted):
            assert (held["partition"], held["waits"]) == ("vc-a", True)


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
        assert box.tag(box.sbatch(GPU)) != ""  # a script that does not load: the last good one stays
        install(before.replace('local tag = { "vc="', 'error("boom")\n  local tag = { "vc="'), 4)
        number = box.sbatch(GPU)
        assert (box.tag(number), box.job(number)["waits"]) == ("", False)
        box.wait_ended(number)
        assert "lucid: job taken as it was written" in (box.root / "var/log/slurm/slurmctld.log").read_text()
    finally:
        install(before, 6)


# -- what queues, and what takes nobody out of the queue -----------------------------------------------------------


def test_begin_times_dependencies_users_holds_and_heterogeneous_jobs_queue_too(box: Box) -> None:
    beat(box)
    later = box.job(box.sbatch(GPU, "--begin=now+1hour"))
    assert later["tag"] == f"lucid:vc=vc-a;held=1;begin={later['eligible_time']['number']};node=gres/gpu:1;v=2"
    assert later["waits"]
    depends = box.job(box.sbatch(GPU, f"--dependency=afterany:{later['job_id']}"))
    assert depends["tag"] == "lucid:vc=vc-a;held=1;wait=1;node=gres/gpu:1;v=2"
    assert (depends["hold"], depends["state_reason"]) == (False, "Dependency")
    assert 200 < depends["eligible_time"]["number"] - time.time() <= 300
    own = box.job(box.sbatch(GPU, "--hold", "--comment=mine"))
    assert (own["tag"], own["waits"]) == ("lucid:vc=vc-a;held=1;own=1;node=gres/gpu:1;v=2", True)
    assert own["comment"] == "mine lucid:held"
    assert "Leave it out" in box.refused("srun", GPU, "--immediate", "true")
    number = box.run("sbatch", "--parsable", GPU, "--wrap=true", ":", GPU, user="alice").stdout.strip()
    tags = {job["tag"] for job in box.jobs().values() if job["het_job_id"]["number"] == int(number)}
    assert tags == {"lucid:vc=vc-a;held=1;skip=het;v=2"}


def plain(box: Box) -> str:
    return box.sbatch(GPU)


def elsewhere(box: Box) -> str:
    box.sbatch("-p", "vc-b", "--exclusive", "-N1", script="sleep 600", user="root")
    return box.sbatch("-p", "vc-b", "--gres=gpu:4")


def parked(box: Box) -> str:
    return box.sbatch(GPU, "--dependency=afterany:" + box.sbatch(GPU))


def let_go(box: Box) -> str:
    """A job that has left Lucid's queue and waits in Slurm's."""
    box.stop_beating()
    full = box.sbatch("-p", "vc-a", "--exclusive", "-N2", script="sleep 600", user="root")
    box.wait("a full VC", lambda: box.state(full) == "RUNNING")
    beat(box)
    job = box.sbatch(GPU, "--comment=lucid:deadline")  # not parked, so that no lease is in its tag
    box.run("scontrol", "release", job, user="lucid")
    assert not box.job(job)["waits"]
    return job


CHANGES: dict[Callable[[Box], str], dict[str, str]] = {
    plain: {
        "release {job}": "",
        "update JobId={job} Priority=4000000000": "Access/permission denied",
        "update JobId={job} Gres=gpu:2": "GPUs cannot be changed here",
        "update JobId={job} TresPerJob=gres/gpu:2": "GPUs cannot be changed here",
        "update JobId={job} TresPerNode=gres/shard:g0:1": "shards of GPUs",
        "update JobId={job} TresPerNode=gres/gpu:g1:1": "name single GPUs",
        "update JobId={job} Partition=prof": "Submit to your own partition",
        "update JobId={job} Partition=vc-a,vc-b": "Name one",
        "update JobId={job} Extra=lucid-gpus=0": "are reserved for Lucid",
        "update JobId={job} StartTime=now": "",
    },
    elsewhere: {"update JobId={job} Partition=vc-a": "submit it again with -p"},
    parked: {"update JobId={job} StartTime=now": ""},
    let_go: {
        "update JobId={job} StartTime=now": "",
        "update JobId={job} NumNodes=2": "cannot be made larger",
        "update JobId={job} ReservationName=": "submit it again",
    },
}
KEPT = ("waits", "partition", "tres_per_node", "tres_per_job", "extra", "comment", "admin_comment")


def test_no_change_takes_a_job_past_the_queue(box: Box) -> None:
    """What a user may change in general stays theirs to change."""
    for make, changes in CHANGES.items():
        for change, words in changes.items():
            beat(box)
            job = make(box)
            before = box.job(job)
            said = box.refused("scontrol", *change.format(job=job).split())
            assert words in said if words else not said, (change, said)
            after = box.job(job)
            assert {field: after[field] for field in KEPT} == {field: before[field] for field in KEPT}, change
            box.run("scontrol", "update", f"JobId={job}", "Nice=5", "TimeLimit=5", user="alice")
            if make is not plain:
                box.clear()


def test_a_change_of_size_is_noted_for_the_task_prolog_and_takes_no_hold_away(box: Box) -> None:
    beat(box)
    job = box.sbatch(GPU, "-n2", "--comment=mine")
    box.run("scontrol", "update", f"JobId={job}", "TimeLimit=9", user="alice")
    assert box.job(job)["comment"] == "mine"
    for _ in range(2):
        box.run("scontrol", "update", f"JobId={job}", "NumTasks=1", user="alice")
        assert box.job(job)["comment"] == "mine lucid:resized=1"
    box.run("scontrol", "update", f"JobId={job}", "Comment=other", user="alice")
    assert box.job(job)["comment"] == "other lucid:resized"
    job = box.sbatch(GPU, "-n2")
    box.run("scontrol", "hold", job)
    box.run("scontrol", "update", f"JobId={job}", "NumTasks=1", "Comment=other", user="alice")
    assert box.job(job)["comment"] == "other lucid:held lucid:admin lucid:resized=1"
    assert "denied" in box.refused("scontrol", "release", job)


def test_a_release_gives_back_to_lucid_what_its_user_held_and_lifts_no_administrators_hold(box: Box) -> None:
    box.stop_beating()
    earlier = box.sbatch(GPU, "--hold")  # while no lucidd decided
    assert box.tag(earlier) == ""
    beat(box)
    for job in (box.sbatch(GPU, "--hold"), box.sbatch("-p", "vc-a,vc-b", GPU, "--hold")):
        box.run("scontrol", "release", job, user="alice")
        assert (box.job(job)["waits"], box.job(job)["comment"].strip()) == (True, "")
    job = box.sbatch(GPU, "--comment=mine")
    box.run("scontrol", "hold", job)
    assert "denied" in box.refused("scontrol", "release", job)
    box.run("scontrol", "update", f"JobId={job}", "Comment=other", user="alice")
    assert box.job(job)["comment"].startswith("other lucid:held lucid:admin")
    assert "denied" in box.refused("scontrol", "release", job)
    box.run("scontrol", "release", job)
    assert box.job(job)["waits"], "it is Lucid's again"
    assert not re.search("held|admin", box.job(job)["comment"])
    assert box.refused("scontrol", "release", earlier) == ""
    box.wait_ended(earlier)
    assert box.state(earlier) == "COMPLETED"


def test_a_job_that_was_requeued_and_held_comes_back_into_the_queue(box: Box) -> None:
    beat(box)
    job = box.sbatch(GPU, script="sleep 100")
    box.run("scontrol", "release", job, user="lucid")
    box.wait("a start", lambda: box.state(job) == "RUNNING")
    box.run("scontrol", "requeuehold", job, user="alice")
    box.wait("its end", lambda: box.job(job)["job_state"] == ["PENDING"])
    box.run("scontrol", "release", job, user="alice")
    assert 200 < box.job(job)["eligible_time"]["number"] - time.time() <= 300, "the daemon takes it over meanwhile"


def test_a_coordinators_hands_are_bound_where_the_site_names_who_is_exempt(box: Box) -> None:
    beat(box)
    job = box.sbatch(GPU)
    with settings(box, "", "exempt 0\n"):
        assert box.refused("scontrol", "release", job, user="lucid") == ""
        assert box.job(job)["waits"], "Lucid starts it at its turn"
    lucid = box.run("id", "-u", "lucid").stdout.strip()
    with settings(box, "", f"exempt {lucid}\n"):
        assert box.refused("scontrol", "release", job, user="lucid") == ""
        assert not box.job(job)["waits"]


def test_asking_whether_lucidd_lives_submits_nothing(box: Box) -> None:
    box.beat()
    done = box.run("sbatch", "--comment=lucid:alive", "--chdir=/", "--wrap=:", user="alice", check=False)
    assert done.returncode != 0
    assert "lucid-alive heartbeat=" in done.stderr
    assert not box.run("squeue", "-h", "-a").stdout
