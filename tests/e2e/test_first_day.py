"""The first look at Lucid on sites that differ: jobs wait before lucidd comes, and every command and page is asked.

One testbed; for each site slurm.conf is another, and ``lucidctl setup`` is typed and undone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import pytest
from story_box import Site, story_site

ACCOUNTING = r"(?m)^AccountingSt.*\n"
SITES: Mapping[str, tuple[str, str, str]] = {
    "nothing is past": ("", "", "alice"),
    "no slurmdbd": (ACCOUNTING, "", "alice"),
    "private": ("", "PrivateData=jobs,usage,users,accounts\n", "alice"),
    "nobody but root, and no mail": (r"(?m)^MailProg.*\n", "MailProg=/nonexistent/mail\n", "root"),
}
"""By what is special there: lines of slurm.conf that go, those that come, and whose the jobs are."""
PAGES = ("", "queue", "queue/changes", "people", "health", "queue.json", "people.json", "health.json", "metrics")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Site]:
    with story_site("day", "bare") as site:
        yield site


@pytest.fixture(params=SITES)
def first(request: pytest.FixtureRequest, cluster: Site) -> Iterator[tuple[Site, str, list[str]]]:
    """lucidd as it comes to a cluster with jobs; whose they are; those that wait: two for the one node of vc-b, one
    for both of vc-a."""
    goes, comes, user = SITES[request.param]
    site, box, conf = cluster, cluster.box, cluster.box.root / "etc/slurm/slurm.conf"
    before = conf.read_text()
    conf.write_text(re.sub(goes, "", before) if goes else before)
    conf.write_text(conf.read_text() + comes)
    try:
        site.type("systemctl restart slurmctld")
        box.wait("slurmctld", lambda: box.run("sinfo", "-h", "-N", "-t", "idle", check=False).stdout.count("\n") == 4)
        one = [box.sbatch("-p", "vc-b", "--gres=gpu:4", script="sleep 600", user=user) for _ in range(3)]
        two = [box.sbatch("-p", "vc-a", *words, script="sleep 600", user=user) for words in (
            ["--gres=gpu:2"], ["-N2", "--gres=gpu:4", "-t", "60"])]  # fmt: skip
        box.wait("two run", lambda: [box.state(job) for job in (one[0], two[0])] == ["RUNNING"] * 2)
        site.type("/opt/lucid/bin/lucidctl setup --mode observe --yes")
        yield site, user, [*one[1:], two[1]]
    finally:
        site.clear()
        site.undo()
        conf.write_text(before)


def test_every_command_and_page_answers_and_says_what_is(first: tuple[Site, str, list[str]]) -> None:
    site, user, waiting = first
    site.box.wait("the queue", lambda: len(site.json("queue")["queue"]) == len(waiting))
    site.box.wait("what is published", lambda: waiting[0] in site.ctl("queue", user=user))
    everyday = [
        "queue",
        f"explain {waiting[0]}",
        f"why-not {waiting[0]} --gpus 2",
        "when --gpus 4 --time 10",
        "doctor",
    ]
    for who, lines in {user: everyday, "root": [*everyday, "status", "efficiency", "history"]}.items():
        told = {line: site.ctl(*line.split(), user=who) for line in lines}
        assert not [line for line, words in told.items() if not words or re.search("Traceback|Error:", words)], told
        assert " bad " not in told["doctor"], told["doctor"]
        assert all(job in told["queue"] for job in waiting)
        assert "MiB of host memory" not in told["queue"], "GPUs are what they wait for"
        assert "Lucid only observes" in told["queue"]
        assert "needs 4 GPUs, 0 free" in told[f"explain {waiting[0]}"]
        assert "asked not to share" not in told[f"why-not {waiting[0]} --gpus 2"], "nobody asked that"
    with site.pages() as pages:
        for path in (*PAGES, f"job/{waiting[0]}", f"job/{waiting[0]}.json"):
            assert "Traceback" not in pages.get(path), path
        assert [row["job"] for row in json.loads(pages.get("queue.json"))["queue"]] == [waiting[2], *waiting[:2]]
        assert not pages.asked.exists(), "Slurm was asked"


def test_without_slurmdbd_private_jobs_are_not_looked_after_in_silence(cluster: Site) -> None:
    site, conf = cluster, cluster.box.root / "etc/slurm/slurm.conf"
    before = conf.read_text()
    setup = "/opt/lucid/bin/lucidctl setup --mode observe --yes"
    try:
        conf.write_text(re.sub(ACCOUNTING, "", before))
        site.type("systemctl restart slurmctld")
        site.type(setup)
        conf.write_text(conf.read_text() + "PrivateData=jobs\n")
        site.type("systemctl restart slurmctld")
        assert "lucidd sees none" in site.ctl("doctor")
        assert "take jobs out of PrivateData" in site.ctl(*setup.split()[1:])
    finally:
        site.undo()
        conf.write_text(before)
        site.type("systemctl restart slurmctld")
