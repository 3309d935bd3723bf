"""lucidctl setup on sites that differ: what slurmctld refuses, jobs on nodes whose GPUs change, a pool's partition
that comes and goes, and what every command and page says on the first day.

One testbed; for each site slurm.conf is another, and ``lucidctl setup`` is typed and undone.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from box import Box
from story_box import GATE, PARTITIONS, Site, story_site
from testbeds import slurms_own, typed

from json_schemas import trouble_with

pytestmark = pytest.mark.slow
SETUP = "/opt/lucid/bin/lucidctl setup"
PACK = f"{SETUP} --mode pack --partitions vc-a --nodes-have-files --drain --yes"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Site]:
    with story_site("setup", "bare") as site:
        yield site


@contextmanager
def configured(site: Site, goes: str, comes: str) -> Iterator[None]:
    """slurm.conf without the lines that fit the pattern ``goes``, and with more."""
    conf = site.box.root / "etc/slurm/slurm.conf"
    before = conf.read_text()
    conf.write_text((re.sub(goes, "", before) if goes else before) + comes)
    try:
        site.type("systemctl restart slurmctld")
        idle = ("sinfo", "-h", "-N", "-t", "idle")
        site.box.wait("slurmctld", lambda: site.box.run(*idle, check=False).stdout.count("\n") == 4)
        yield
    finally:
        conf.write_text(before)
        site.type("systemctl restart slurmctld")


@pytest.fixture
def plain(cluster: Site) -> Iterator[Box]:
    """Afterwards nothing of Lucid's is left, and Slurm is as it was, whatever the test did."""
    box = cluster.box
    before = slurms_own(box)
    yield box
    cluster.clear()
    cluster.type(f"{SETUP} --undo --purge --drain --yes")
    assert slurms_own(box) == before
    left = typed(box, "find /etc /usr/local /var/lib /run -xdev -iname '*lucid*' | grep -v '^/var/lib/dpkg'").stdout
    assert left == ""
    assert box.run("id", "lucid", check=False).returncode
    assert box.run("sinfo", "-h", "-N", "-t", "drain,down").stdout == "", "no node stays drained"


def told(box: Box, line: str) -> Any:
    found = json.loads(typed(box, f"{line} --json").stdout)
    assert trouble_with("setup", found) == []
    return found


def test_what_slurmctld_refuses_is_taken_back_at_once(cluster: Site, plain: Box) -> None:
    """A line that was wrong before shows when slurmctld reads its files again, or to every command."""
    conf = plain.root / "etc/slurm/slurm.conf"
    own = conf.read_text()
    for wrong, words in (("NoSuchParameter=1", "NoSuchParameter"),
                         ("JobSubmitPlugins=nosuch", "slurmctld could not use the new files")):  # fmt: skip
        conf.write_text(f"{own}{wrong}\n")
        done = typed(plain, PACK)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
        assert conf.read_text() == f"{own}{wrong}\n"
        # the line stays wrong without Lucid, too: it is the site's, and slurmctld does not start with it
        assert not (plain.root / "etc/slurm/job_submit.lua").exists()
        conf.write_text(own)
    cluster.type("systemctl restart slurmctld")


def test_jobs_on_nodes_whose_gpus_change_are_not_hurt_and_slots_may_change_later(cluster: Site, plain: Box) -> None:
    job = plain.sbatch("--gres=gpu:2", "-p", "vc-a", script="sleep 30")
    plain.wait("start", lambda: plain.state(job) == "RUNNING")
    refused = typed(plain, PACK.replace(" --drain", ""))
    assert refused.returncode == 2
    assert f"({job})" in refused.stderr
    assert told(plain, f"{SETUP} --undo")["pending"] is False, "nothing was changed"
    assert "waiting for 1 jobs" in cluster.type(PACK)
    assert plain.state(job) == "COMPLETED"
    cluster.type(f"{PACK} --slots 6")
    assert "Count=6" in (plain.root / "etc/slurm/gres.conf").read_text()
    plain.wait("the nodes have them", lambda: "shard:g0:6" in plain.run("scontrol", "show", "node", "n1").stdout, 60)
    assert told(plain, f"{PACK} --slots 6")["changed"] is False
    assert told(plain, PACK)["changed"] is False, "as it is"
    job = plain.sbatch("--gres=gpu:1", "-p", "vc-a", script="sleep 1")
    plain.wait_ended(job)
    assert plain.state(job) == "COMPLETED"


def test_without_the_nodes_files_slurm_is_not_told(cluster: Site, plain: Box) -> None:
    assert "Slurm does not use them yet" in cluster.type(PACK.replace(" --nodes-have-files", ""))
    assert "JobSubmitPlugins        = (null)" in plain.run("scontrol", "show", "config").stdout
    cluster.type(PACK)
    assert "JobSubmitPlugins        = lua" in plain.run("scontrol", "show", "config").stdout
    assert "mode vc-a pack" in (plain.root / "run/lucid/heartbeat").read_text(), "lucidd has read its file, too"


# -- VCs that could lend ---------------------------------------------------------------------------------------------

LIKE = (
    "PartitionName=DEFAULT MaxTime=2-0\n"
    "PartitionName=vc-a Nodes=n1 Default=YES\nPartitionName=vc-b Nodes=n2 AllowGroups=users,alice,bob,root\n"
    "PartitionName=vc-c Nodes=n[3-4] MaxTime=2-0 State=UP\n"
)
POOL = f"{SETUP} --mode pack --partitions vc-a,vc-b,vc-c --gpu-mem a100=40960 --drain --nodes-have-files"


@pytest.fixture
def like(cluster: Site) -> Iterator[None]:
    """Three partitions that are alike."""
    with configured(cluster, re.escape(PARTITIONS), LIKE):
        yield


@pytest.mark.usefixtures("like")
def test_the_pools_partition_goes_only_once_no_job_is_left_in_it(cluster: Site, plain: Box) -> None:
    """Slurm kills running jobs whose partition goes."""

    def gated(gate: str) -> str:
        """A job that runs for as long as the file is there."""
        (plain.root / "tmp" / gate).touch()
        ask = ("-p", "vc-a", "--gres=gpu:4", "--comment=lucid:exclusive", "-J", gate)
        job = plain.sbatch(*ask, script=GATE.format(gate))
        plain.wait("it runs", lambda: plain.state(job) == "RUNNING")
        return job

    cluster.type(f"{POOL} --lending borrow --yes")
    gated("own")
    loan = gated("loan")
    assert plain.job(loan)["partition"] == "overflow"
    (plain.root / "tmp/own").unlink()
    refused = typed(plain, f"{POOL.replace(' --drain', '')} --lending off --yes")
    assert (refused.returncode, f"stays until {loan} end there" in refused.stdout) == (0, True), refused.stdout
    assert plain.run("sinfo", "-h", "-p", "overflow").stdout
    later = threading.Timer(5.0, (plain.root / "tmp/loan").unlink)
    later.start()
    cluster.type(f"{POOL} --lending off --yes")
    later.join()
    assert (plain.state(loan), plain.job(loan)["restart_cnt"]) == ("COMPLETED", 0)
    assert not plain.run("sinfo", "-h", "-p", "overflow").stdout
    assert (plain.root / "etc/slurm/slurm.conf").read_text().count("overflow") == 0


# -- the first day ---------------------------------------------------------------------------------------------------

ACCOUNTING = r"(?m)^AccountingSt.*\n"
SITES: Mapping[str, tuple[str, str, str]] = {
    "nothing is past": ("", "", "alice"),
    "no slurmdbd": (ACCOUNTING, "", "alice"),
    "private": ("", "PrivateData=jobs,usage,users,accounts\n", "alice"),
    "nobody but root, and no mail": (r"(?m)^MailProg.*\n", "MailProg=/nonexistent/mail\n", "root"),
}
"""By what is special there: lines of slurm.conf that go, those that come, and whose the jobs are."""
PAGES = ("", "queue", "queue/changes", "people", "health", "queue.json", "people.json", "health.json", "metrics")
OBSERVE = f"{SETUP} --mode observe --yes"


@pytest.fixture(params=SITES)
def first(request: pytest.FixtureRequest, cluster: Site) -> Iterator[tuple[str, list[str]]]:
    """lucidd comes to a cluster with jobs: whose they are, and those that wait: two for the one node of vc-b, one for
    both of vc-a."""
    goes, comes, user = SITES[request.param]
    box = cluster.box
    with configured(cluster, goes, comes):
        one = [box.sbatch("-p", "vc-b", "--gres=gpu:4", script="sleep 600", user=user) for _ in range(3)]
        two = [box.sbatch("-p", "vc-a", *words, script="sleep 600", user=user) for words in (
            ["--gres=gpu:2"], ["-N2", "--gres=gpu:4", "-t", "60"])]  # fmt: skip
        box.wait("two run", lambda: [box.state(job) for job in (one[0], two[0])] == ["RUNNING"] * 2)
        try:
            cluster.type(OBSERVE)
            yield user, [*one[1:], two[1]]
        finally:
            cluster.clear()
            cluster.undo()


def test_every_command_and_page_answers_and_says_what_is(cluster: Site, first: tuple[str, list[str]]) -> None:
    site, (user, waiting) = cluster, first
    site.box.wait("the queue", lambda: len(site.json("queue")["queue"]) == len(waiting))
    site.box.wait("what is published", lambda: waiting[0] in site.ctl("queue", user=user))
    one = waiting[0]
    everyday = ["queue", f"explain {one}", f"why-not {one} --gpus 2", "when --gpus 4 --time 10", "doctor"]
    for who, lines in {user: everyday, "root": [*everyday, "status", "efficiency", "history"]}.items():
        said = {line: site.ctl(*line.split(), user=who) for line in lines}
        assert not [line for line, words in said.items() if not words or re.search("Traceback|Error:", words)], said
        assert " bad " not in said["doctor"], said["doctor"]
        assert all(job in said["queue"] for job in waiting)
        assert "MiB of host memory" not in said["queue"], "GPUs are what they wait for"
        assert "Lucid only observes" in said["queue"]
        assert "needs 4 GPUs, 0 free" in said[f"explain {one}"]
        assert "asked not to share" not in said[f"why-not {one} --gpus 2"], "nobody asked that"
    with site.pages() as pages:
        for path in (*PAGES, f"job/{one}", f"job/{one}.json"):
            assert "Traceback" not in pages.get(path), path
        assert [row["job"] for row in json.loads(pages.get("queue.json"))["queue"]] == [waiting[2], *waiting[:2]]
        assert not pages.asked.exists(), "Slurm was asked"


def test_without_slurmdbd_private_jobs_are_not_looked_after_in_silence(cluster: Site) -> None:
    with configured(cluster, ACCOUNTING, ""):
        try:
            cluster.type(OBSERVE)
            conf = cluster.box.root / "etc/slurm/slurm.conf"
            conf.write_text(conf.read_text() + "PrivateData=jobs\n")
            cluster.type("systemctl restart slurmctld")
            assert "lucidd sees none" in cluster.ctl("doctor")
            assert "take jobs out of PrivateData" in cluster.ctl(*OBSERVE.split()[1:])
        finally:
            cluster.undo()
