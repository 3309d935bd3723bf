"""lucidd on a real Slurm: sbatch as usual, profiled, placed, packed, explained; and whatever users type."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from box import Box
from daemon_box import Lucidd, has_measured, with_constant

SHOW = "echo GPUS=$CUDA_VISIBLE_DEVICES; srun sh -c 'echo STEP=$CUDA_VISIBLE_DEVICES'; sleep {}"
EVERY_PLAN = with_constant("lucid.store.plan_records", "EVERY_S", 0.0)
"""lucidd, which records each plan instead of one in 30 s."""


def shards(box: Box, number: str) -> str:
    return str(box.job(number)["tres_per_node"])


def test_jobs_are_profiled_and_packed_on_exactly_the_same_gpus(box: Box, tmp_path: Path) -> None:
    """And each plan comes out the same, byte for byte, in another process."""
    # nothing here hangs on how fast this machine is: both profiles are there long before T_prof is over
    with Lucidd(box, tmp_path / "state", t_prof_s=10.0, program=EVERY_PLAN) as lucidd:
        first = box.sbatch("--gres=gpu:2", "-J", "one", script=SHOW.format(40))
        second = box.sbatch("--gpus=2", "-J", "two", script=SHOW.format(35))
        pair = (first, second)
        box.wait("the pair", lambda: all(box.state(n) == "RUNNING" and "shard" in shards(box, n) for n in pair))
        wide = box.sbatch("--gpus-per-node=4", "-N2", "-p", "vc-a", "-J", "wide", script="srun hostname")
        assert shards(box, first) == shards(box, second)
        slots = [re.findall(r"GRES=(\S+)", box.run("scontrol", "show", "job", "-d", n).stdout)[-1] for n in pair]
        assert slots[0] == slots[1]
        gpus = ",".join(re.findall(r"shard:g(\d)", shards(box, first)))
        box.wait("lucidd to see it", lambda: lucidd.json("status")["partitions"]["vc-a"]["packed"] == 2)
        box.wait_ended(first, second, wide)
        assert {box.state(number) for number in (first, second, wide)} == {"COMPLETED"}
        for number in pair:
            assert f"GPUS={gpus}\nSTEP={gpus}\n" in box.output(number)
        told = lucidd.ctl("explain", second) + lucidd.ctl("explain", first)  # who is requeued first starts first
        assert "starts its profiling" in told or "starts on n4" in told
        assert f"sharing GPUs with job {first}" in told or f"sharing GPUs with job {second}" in told
        assert box.job(wide)["tres_per_node"] == "gres/gpu:4", "a distributed job runs as its user wrote it"
        assert lucidd.story(wide)["decisions"][-1]["beside"] is None
        again = lucidd.json("replay")
        assert again["records"] == again["same"] > 3


def test_jobs_that_need_the_same_licences_run_one_after_the_other(box: Box, tmp_path: Path) -> None:
    with Lucidd(box, tmp_path / "state", restarts=""):
        jobs = [box.sbatch("--gres=gpu:1", "-L", "matlab:2", "-J", f"l{n}", script="sleep 3") for n in range(2)]
        box.wait_ended(*jobs)
    assert [(box.state(number), box.job(number)["restart_cnt"]) for number in jobs] == [("COMPLETED", 0)] * 2
    spans = sorted((box.job(n)["start_time"]["number"], box.job(n)["end_time"]["number"]) for n in jobs)
    assert spans[0][1] <= spans[1][0], "there are two licences"


# -- order mode ----------------------------------------------------------------------------------------------------


def test_order_mode_orders_writes_again_what_is_undone_and_is_taken_back(box: Box, tmp_path: Path) -> None:
    """A factor is undone by hand, at once: as backfill does it that began before and yielded meanwhile."""
    full = box.sbatch("--gres=gpu:4", "-p", "vc-b", script="sleep 600")
    box.wait("it runs", lambda: box.runs(full))
    large, small = (box.sbatch(f"--gres=gpu:{gpus}", "-p", "vc-b") for gpus in (4, 1))
    before = {number: box.priority(number) for number in (large, small)}
    with Lucidd(box, tmp_path / "lucidd", mode="order") as lucidd:
        until = time.monotonic() + 120.0
        while box.priority(small) < before[small] + 900:
            assert time.monotonic() < until
        box.scontrol("update", f"JobId={small}", "SiteFactor=0")
        box.wait("it is written again", lambda: box.priority(small) >= before[small] + 900)
        assert box.priority(small) > box.priority(large) > before[large]
        told = lucidd.json("status")
        assert (told["counts"]["factors_undone"], told["modes"]) == (1, {"vc-a": "order", "vc-b": "order"})
        lucidd.kill()
        assert "1 jobs" not in lucidd.ctl("uninstall")
        box.wait("the old priorities", lambda: box.priority(small) <= before[small] + 100)


# -- what users and administrators type ------------------------------------------------------------------------------


def test_a_change_on_waiting_jobs_means_what_it_means_in_slurm_and_gains_nothing(box: Box, lucidd: Lucidd) -> None:
    """They go out of the queue and come back into it; Lucid starts each, or lets it go at its turn."""
    full = [box.sbatch("-p", "vc-a", "--gres=gpu:4", "--comment=lucid:off", script="sleep 600") for _ in range(2)]
    full.append(box.sbatch("-p", "prof", "--gres=gpu:4", script="sleep 600", user="root"))
    box.wait("a full cluster", lambda: all(box.state(job) == "RUNNING" for job in full))
    changes = {
        "off": "Comment=lucid:off",
        "moved": "Partition=vc-b",
        "behind": f"Dependency=afterany:{full[0]}",
        "never": f"Dependency=afternotok:{full[0]}",
        "later": "StartTime=now+1hour",
        "back": "StartTime=now",
    }
    jobs = {name: box.sbatch("-p", "vc-a", "--gres=gpu:1", script="sleep 2") for name in changes}
    for name, job in jobs.items():
        box.run("scontrol", "update", f"JobId={job}", changes[name], user="alice")
    box.wait("parked", lambda: not box.job(jobs["behind"])["hold"])
    box.wait("Slurm's word for it", lambda: box.reason(jobs["behind"]) == "Dependency")
    box.wait_ended(jobs["moved"])
    assert box.job(jobs["moved"])["partition"] == "vc-b"
    box.run("scancel", *full)
    box.wait_ended(jobs["off"], jobs["back"], jobs["behind"], jobs["never"])
    verbs = [action["verb"] for action in lucidd.story(jobs["behind"])["actions"]]
    parked_all_the_time = [verb for verb in verbs if verb in ("park", "take over", "start")]
    assert parked_all_the_time == ["start"]
    assert "let go" in [action["verb"] for action in lucidd.story(jobs["off"])["actions"]]
    assert box.job(jobs["later"])["hold"], "its time has not come"
    assert "begin time" in lucidd.ctl("status", "--json")


SOON_S = 20.0
"""Less than a lease of five minutes, however busy the machine (PATIENCE): a credential lives for 30 s here."""


def test_jobs_that_are_requeued_held_and_released_by_hand_run_as_soon_as_on_plain_slurm(
    box: Box, tmp_path: Path
) -> None:
    lucidd = Lucidd(box, tmp_path / "state")
    has_measured(lucidd, "prog")
    with lucidd:
        job = box.sbatch("--gres=gpu:1", "-J", "prog", "--comment=mine", script="sleep 60")
        box.wait("it runs in slots", lambda: "gres/shard" in str(box.job(job)["tres_alloc_str"]))
        box.run("scontrol", "requeuehold", job, user="alice")
        box.wait("it is held", lambda: box.job(job)["job_state"] == ["PENDING"] and box.job(job)["hold"])
        box.run("scontrol", "release", job, user="alice")
        box.wait("it runs again", lambda: box.state(job) == "RUNNING", SOON_S)
        assert (box.job(job)["restart_cnt"], box.job(job)["comment"]) == (1, "mine")
        box.run("scancel", job)
        whole = ("--gres=gpu:4", "--comment=lucid:exclusive", "-J", "prog")
        busy = [box.sbatch(*whole, script="sleep 99") for _ in "12"]
        box.wait("no free GPU", lambda: all(box.state(one) == "RUNNING" for one in busy))
        job = box.sbatch(*whole, "--array=0-1", script="sleep 1")
        box.wait("it queues", lambda: job in lucidd.ctl("queue"))
        box.run("scontrol", "uhold", job)  # a hold that an administrator leaves to the user
        box.run("scontrol", "release", job, user="alice")
        box.run("scancel", *busy)
        box.wait("it runs", lambda: box.state(job) in ("RUNNING", "COMPLETED"), SOON_S)
        box.wait_ended(job)
        assert box.job(job)["comment"] == "lucid:exclusive"


NAMES = (b"\xff\xfe\x80", b"\xed\xa0\x80", b"a|b;c\td", b"[/]\x1b[31m", b'"}],"jobs":[', b"\\ud800\\x",
         b"$(touch /tmp/owned)", b"n\nheld=1;vc=x", b"x" * 1024, b"lucid:vc=prof;held=1")  # fmt: skip
REQUESTS = ("gpu:99999999999999999999", "gpu:²", "gpu:1e400", "gpu:-1", "gpu:18446744073709551615", "gpu:4294967297",
            "gpu:1[", "gpu:1k", "gpu:100001", "shard:99999999999999999999")  # fmt: skip


def test_no_job_of_any_user_ends_or_blinds_lucidd(box: Box, lucidd: Lucidd) -> None:
    def sbatch(*options: bytes) -> str:
        """As bytes; the number of the job, empty where sbatch refused it."""
        words = [b"sbatch", b"--parsable", b"-D", b"/tmp", b"-o", b"/dev/null", b"-p", b"vc-a", b"--wrap=sleep 2"]
        done = subprocess.run(
            [b"chroot", b"--userspec=alice", str(box.root).encode(), *words, *options],
            cwd="/", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL,
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
        return done.stdout.decode().strip() if done.returncode == 0 else ""

    sent = [sbatch(b"--gres=" + request.encode()) for request in REQUESTS]
    named = []
    for name in NAMES:
        named.append(sbatch(b"--gres=gpu:1", b"-J", name, b"--comment", name))
        sent.append(sbatch(b"--gres=gpu:1", b"-H", b"-J", name))
    sent.append(sbatch(b"--gres=gpu:1", b"-H", b"--comment", b"x\xff" * 50_000))
    sent.append(sbatch(b"--gres=gpu:1", b"-H", b"-t", b"99999999999999"))
    assert all(named)
    innocent = box.sbatch("-p", "vc-b", "--gres=gpu:1", script="sleep 1", user="bob")
    box.wait_ended(innocent, *named, limit_s=90)
    assert {box.state(job) for job in (innocent, *named)} == {"COMPLETED"}
    beat = box.root / "run/lucid/heartbeat"
    seen = beat.stat().st_mtime_ns
    box.wait("another heartbeat, with those jobs known", lambda: beat.stat().st_mtime_ns > seen)
    shown = lucidd.json("status")
    assert (shown["alive"], shown["last_error"], shown["failed_turns"]) == (True, "", 0)
    assert lucidd.process is not None
    assert lucidd.process.poll() is None
    assert "Traceback" not in lucidd.log()
    assert not (box.root / "tmp/owned").exists()
    assert not Path("/tmp/owned").exists()
    box.run("scancel", *filter(None, sent))
