"""The end of the story: what is left in Slurm's accounting is replayed, and setup is undone."""

from __future__ import annotations

import json
import re

import pytest
from story_box import Site
from testbeds import REPO, slurms_own, typed

pytestmark = pytest.mark.story


def test_slurms_accounting_of_these_jobs_is_a_trace_for_the_simulator(packing: Site) -> None:
    """By the very command of docs/traces.md; rows with line ends in names of jobs are left out."""
    site, box = packing, packing.box
    jobs = [box.sbatch("-p", "vc-b", "--gres=gpu:4", "-J", "for-the-trace") for _ in range(2)]
    box.wait_ended(*jobs, limit_s=120)
    line = re.search(r"^sacct [^`]*?Timelimit$", (REPO / "docs/traces.md").read_text(), re.MULTILINE)
    assert line
    sacct = line[0].replace("2024-01-01", "now-1days").replace("\\\n", "")
    box.wait("slurmdbd", lambda: site.type(sacct).count("|for-the-trace|") == 2)
    site.type(f"{sacct} > /tmp/trace.sacct")
    told = json.loads(site.type("lucidctl trace describe /tmp/trace.sacct --skip-bad --json"))
    assert told["jobs"] >= 2
    cluster = "--nodes 4 --gpus-per-node 4 --policy backfill --policy lucid"
    replayed = json.loads(site.type(f"lucidctl simulate /tmp/trace.sacct --skip-bad {cluster} --json"))
    assert set(replayed["results"]) == {"backfill", "lucid"}


def test_undo_leaves_slurm_as_it_was_and_every_job_to_it(packing: Site) -> None:
    box = packing.box
    full = box.sbatch("-p", "vc-b", "--gres=gpu:4", "--comment=lucid:off", script="sleep 5")
    held, free = (box.sbatch("-p", "vc-b", "--gres=gpu:4", *options) for options in (["--hold"], []))
    packing.undo()
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
