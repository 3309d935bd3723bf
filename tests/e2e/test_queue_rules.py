"""job_submit.lua under the real slurmctld: what users may not do, and what queues with the others."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from box import Box

MODES = {"vc-a": "pack", "vc-b": "order"}
GPU = "--gres=gpu:1"


def beat(box: Box) -> None:
    box.beat(MODES, extra="profiling prof\nn_prof 0\n")


def refused(box: Box, *command: str, user: str = "alice") -> str:
    """What a user reads; empty where Slurm took it."""
    done = box.run(*command, user=user, check=False)
    return " ".join((done.stderr or done.stdout).split()) if done.returncode else ""


def submits(box: Box, options: str, user: str = "alice") -> str:
    return refused(box, "sbatch", "-D", "/tmp", *options.split(), "--wrap=true", user=user)


@pytest.mark.parametrize("heart", ["fresh", "none"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--gres=shard:1", "only Lucid gives out shards of GPUs"),
        ("--gres=shard:g0:1", "only Lucid gives out shards of GPUs"),
        ("-p vc-b --gres=shard:g0:1", "only Lucid gives out shards of GPUs"),
        ("-n1 --tres-per-task=gres/shard:1", "only Lucid gives out shards of GPUs"),
        ("--gres=gpu:g2:1", "name single GPUs, which Lucid chooses"),
        ("-p prof --gpus=g2:1", "name single GPUs, which Lucid chooses"),
        ("--gpus-per-node=g0:1,g1:1", "name single GPUs, which Lucid chooses"),
        ("--gres=gpu:1 --extra=lucid-gpus=0", "begin with lucid- are reserved for Lucid"),
        ("--gres=gpu:1 --extra=x;lucid-mem=9", "begin with lucid- are reserved for Lucid"),
    ],
)
def test_nobody_takes_single_gpus_or_shares_of_them(box: Box, heart: str, options: str, words: str) -> None:
    if heart != "none":
        beat(box)
    said = submits(box, options)
    assert words in said
    assert re.search(r"Ask for|Leave them out", said), "it says what to do instead"


def test_a_site_with_shards_of_its_own_keeps_them_where_lucid_packs_nothing(box: Box) -> None:
    settings = box.root / "etc/slurm/lucid.plugin.conf"
    before = settings.read_text()
    settings.write_text(before + "shards users\n")
    try:
        beat(box)
        assert submits(box, "-p vc-b --gres=shard:1") == ""
        assert "shards of GPUs" in submits(box, "-p vc-b --gres=shard:g0:1")
        assert "shards of GPUs" in submits(box, "-p vc-a --gres=shard:1")
    finally:
        settings.write_text(before)


@pytest.mark.parametrize(
    "options", ["-p prof", "-p prof --gres=gpu:1", "-p vc-a,prof --gres=gpu:1", "-p prof -N1 --exclusive"]
)
def test_users_do_not_submit_to_the_profiling_partition(box: Box, options: str) -> None:
    beat(box)
    assert "Submit to your own partition" in submits(box, options)
    assert submits(box, options, user="root") == ""


SKIPS = {
    "--gres=gpu:1 --comment=x,lucid:off": "asked",
    "-p vc-a,vc-b --gres=gpu:1": "partitions",
    "-p vc-b,vc-a --gres=gpu:1": "partitions",
    "--gres=gpu:1 --array=0-1000": "array",
    "--gpus-per-socket=1 --sockets-per-node=1": "socket",
    "--exclusive": "whole",
}


@pytest.mark.parametrize("options", SKIPS)
def test_what_lucid_cannot_order_in_detail_is_held_all_the_same(box: Box, options: str) -> None:
    beat(box)
    job = box.job(box.sbatch(*options.split()))
    assert (job["tag"], job["waits"]) == (f"lucid:vc=vc-a;held=1;skip={SKIPS[options]};v=2", True)


@pytest.mark.parametrize("options", ["--gpus=2 --ntasks-per-gpu=2", "-N2 --gpus-per-node=1 --ntasks-per-gpu=2"])
def test_tasks_by_gpu_keep_their_number_while_they_queue(box: Box, options: str) -> None:
    """At any update of such a job, a release too, Slurm would work the number out anew, by nodes."""
    beat(box)
    number = box.sbatch(*options.split())
    job = box.job(number)
    assert (job["tag"], job["waits"]) == ("lucid:vc=vc-a;held=1;skip=tasks;tasks=4;v=2", True)
    box.scontrol("update", f"JobId={number}", "StartTime=now")
    box.scontrol("release", number)
    box.wait_ended(number)
    assert (box.state(number), box.job(number)["tasks"]["number"]) == ("COMPLETED", 4)


def test_tasks_by_gpu_that_nobody_can_count_before_they_start_are_slurms(box: Box) -> None:
    beat(box)
    assert "tasks=" not in box.tag(box.sbatch("-N1-2", "--gpus-per-node=2", "--ntasks-per-gpu=2"))
    assert box.tag(box.sbatch("--gpus=2", "--ntasks-per-gpu=2", user="root")) == "lucid:vc=vc-a;skip=tasks"


def test_who_held_a_job_while_no_lucidd_decided_can_release_it_later(box: Box) -> None:
    box.stop_beating()
    number = box.sbatch(GPU, "--hold")
    assert box.tag(number) == ""
    beat(box)
    assert box.run("scontrol", "release", number, user="alice", check=False).returncode == 0
    box.wait_ended(number)
    assert box.state(number) == "COMPLETED"


def test_begin_times_dependencies_and_users_holds_queue_too(box: Box) -> None:
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


def test_interactive_and_heterogeneous_jobs_queue_too(box: Box) -> None:
    beat(box)
    assert "Leave it out" in refused(box, "srun", GPU, "--immediate", "true")
    number = box.run("sbatch", "--parsable", GPU, "--wrap=true", ":", GPU, user="alice").stdout.strip()
    tags = {job["tag"] for job in box.jobs().values() if job["het_job_id"]["number"] == int(number)}
    assert tags == {"lucid:vc=vc-a;held=1;skip=het;v=2"}


def let_go(box: Box, *options: str) -> str:
    """A job that has left Lucid's queue and waits in Slurm's."""
    box.stop_beating()
    full = box.sbatch("-p", "vc-a", "--exclusive", "-N2", script="sleep 600", user="root")
    box.wait("a full VC", lambda: box.state(full) == "RUNNING")
    beat(box)
    job = box.sbatch(GPU, "--comment=lucid:deadline", *options)  # not parked, so that no lease is in its tag
    box.run("scontrol", "release", job, user="lucid")
    assert not box.job(job)["waits"]
    return job


def plain(box: Box) -> str:
    return box.sbatch(GPU)


def elsewhere(box: Box) -> str:
    box.sbatch("-p", "vc-b", "--exclusive", "-N1", script="sleep 600", user="root")
    return box.sbatch("-p", "vc-b", "--gres=gpu:4")


def parked(box: Box) -> str:
    return box.sbatch(GPU, "--dependency=afterany:" + box.sbatch(GPU))


@pytest.mark.parametrize(
    ("make", "change", "words"),
    [
        (plain, "release {job}", ""),
        (plain, "update JobId={job} Priority=99", "Access/permission denied"),
        (plain, "update JobId={job} Gres=gpu:2", "GPUs cannot be changed here"),
        (plain, "update JobId={job} TresPerJob=gres/gpu:2", "GPUs cannot be changed here"),
        (plain, "update JobId={job} TresPerNode=gres/shard:g0:1", "shards of GPUs"),
        (plain, "update JobId={job} TresPerNode=gres/gpu:g1:1", "name single GPUs"),
        (plain, "update JobId={job} Partition=prof", "Submit to your own partition"),
        (plain, "update JobId={job} Partition=vc-a,vc-b", "Name one"),
        (plain, "update JobId={job} Extra=lucid-gpus=0", "are reserved for Lucid"),
        (elsewhere, "update JobId={job} Partition=vc-a", "submit it again with -p"),
        (plain, "update JobId={job} StartTime=now", ""),
        (parked, "update JobId={job} StartTime=now", ""),
        (let_go, "update JobId={job} StartTime=now", ""),
        (let_go, "update JobId={job} NumNodes=2", "cannot be made larger"),
        (let_go, "update JobId={job} ReservationName=", "submit it again"),
    ],
)
def test_no_change_takes_a_job_past_the_queue(box: Box, make: Callable[[Box], str], change: str, words: str) -> None:
    beat(box)
    job = make(box)
    before = box.job(job)
    said = refused(box, "scontrol", *change.format(job=job).split())
    assert words in said if words else not said
    after = box.job(job)
    for field in (
        "waits",
        "partition",
        "tres_per_node",
        "tres_per_job",
        "extra",
        "comment",
        "admin_comment",
    ):
        assert after[field] == before[field], field
    box.run("scontrol", "update", f"JobId={job}", "Nice=5", "TimeLimit=5", user="alice")


@pytest.mark.parametrize("where", ["vc-b", "vc-a,vc-b"])
def test_a_job_without_gpus_goes_where_it_likes(box: Box, where: str) -> None:
    beat(box)
    job = box.sbatch("--begin=now+1hour")
    box.run("scontrol", "update", f"JobId={job}", f"Partition={where}", user="alice")
    assert (box.job(job)["partition"], box.tag(job)) == (where, "")


def test_a_change_of_size_is_noted_for_the_task_prolog(box: Box) -> None:
    beat(box)
    job = box.sbatch(GPU, "-n2", "--comment=mine")
    box.run("scontrol", "update", f"JobId={job}", "TimeLimit=9", user="alice")
    assert box.job(job)["comment"] == "mine"
    for _ in range(2):
        box.run("scontrol", "update", f"JobId={job}", "NumTasks=1", user="alice")
        assert box.job(job)["comment"] == "mine lucid:resized=1"
    box.run("scontrol", "update", f"JobId={job}", "Comment=other", user="alice")
    assert box.job(job)["comment"] == "other lucid:resized"


def test_a_change_of_size_takes_no_hold_away(box: Box) -> None:
    beat(box)
    job = box.sbatch(GPU, "-n2")
    box.run("scontrol", "hold", job)
    box.run("scontrol", "update", f"JobId={job}", "NumTasks=1", "Comment=other", user="alice")
    assert box.job(job)["comment"] == "other lucid:held lucid:admin lucid:resized=1"
    assert "denied" in refused(box, "scontrol", "release", job)


def test_a_release_gives_back_to_lucid_what_its_user_held(box: Box) -> None:
    beat(box)
    for job in (box.sbatch(GPU, "--hold"), box.sbatch("-p", "vc-a,vc-b", GPU, "--hold")):
        box.run("scontrol", "release", job, user="alice")
        assert (box.job(job)["waits"], box.job(job)["comment"].strip()) == (True, "")


def test_a_user_does_not_lift_an_administrators_hold(box: Box) -> None:
    beat(box)
    job = box.sbatch(GPU, "--comment=mine")
    box.run("scontrol", "hold", job)
    assert "denied" in refused(box, "scontrol", "release", job)
    box.run("scontrol", "update", f"JobId={job}", "Comment=other", user="alice")
    assert box.job(job)["comment"].startswith("other lucid:held lucid:admin")
    assert "denied" in refused(box, "scontrol", "release", job)
    box.run("scontrol", "release", job)
    assert box.job(job)["waits"], "it is Lucid's again"
    assert not re.search("held|admin", box.job(job)["comment"])


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
    settings = box.root / "etc/slurm/lucid.plugin.conf"
    before = settings.read_text()
    beat(box)
    job = box.sbatch(GPU)
    settings.write_text(before + "exempt 0\n")
    try:
        assert refused(box, "scontrol", "release", job, user="lucid") == ""
        assert box.job(job)["waits"], "Lucid starts it at its turn"
        lucid = box.run("id", "-u", "lucid").stdout.strip()
        settings.write_text(before + f"exempt {lucid}\n")
        assert refused(box, "scontrol", "release", job, user="lucid") == ""
        assert not box.job(job)["waits"]
    finally:
        settings.write_text(before)
