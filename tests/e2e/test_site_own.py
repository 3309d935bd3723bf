"""A site with a plugin, prologs and exporters of its own, on a real Slurm. Its prolog fails where a GPU is busy, and
Lucid's wrapper runs it: jobs end as without Lucid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from box import OVER, Box
from daemon_box import Lucidd, has_measured
from testbeds import own_testbed, running

from sbatch_fuzz.site import make_plain
from testbed import cli

WRAPPER = "/etc/slurm/lucid/site_scripts"
# In own words what jobstats, and checks that a GPU is idle, do. All nodes of a testbed have one file system.
PROLOG = """#!/bin/sh
echo "pro $SLURM_JOB_ID $SLURMD_NODENAME $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES" >> /opt/site/log
mkdir -p /opt/site/$SLURMD_NODENAME
for gpu in $(echo "$SLURM_JOB_GPUS" | tr , ' '); do
    [ ! -e /opt/site/$SLURMD_NODENAME/$gpu ] || exit 1
    echo $SLURM_JOB_ID > /opt/site/$SLURMD_NODENAME/$gpu
done
"""
EPILOG = """#!/bin/sh
echo "epi $SLURM_JOB_ID $SLURMD_NODENAME $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES" >> /opt/site/log
for gpu in $(echo "$SLURM_JOB_GPUS" | tr , ' '); do rm -f /opt/site/$SLURMD_NODENAME/$gpu; done
"""
PLUGIN = """-- The site's own plugin. Lucid's is joined to it as docs/files.md says.
local file, lucid = io.open("/etc/slurm/lucid/job_submit.lua"), {}
if file then
  file:close()
  dofile("/etc/slurm/lucid/job_submit.lua")
  lucid = { submit = slurm_job_submit, modify = slurm_job_modify }
end
function slurm_job_submit(job, parts, uid)
  job.features = job.features and job.features ~= "" and job.features .. "&a100" or "a100"
  job.admin_comment = "site:team=vision"
  return lucid.submit and lucid.submit(job, parts, uid) or slurm.SUCCESS
end
function slurm_job_modify(job, record, parts, uid)
  if uid ~= 0 and uid ~= 2000 and job.time_limit ~= slurm.NO_VAL then
    slurm.log_user("ask the help desk for more time")
    return slurm.ERROR
  end
  return lucid.modify and lucid.modify(job, record, parts, uid) or slurm.SUCCESS
end
return slurm.SUCCESS
"""
WRITER = """#!/bin/sh
scontrol update JobId=$SLURM_JOB_ID AdminComment="site:began" </dev/null >/dev/null 2>&1
exit 0
"""
RUNS = "touch /tmp/began.$SLURM_JOB_ID; while ! test -e /tmp/over; do sleep 0.2; done; exit {}"
TRAINS = ("--gres=gpu:2", "-J", "train")
EXPORTER = {
    "squeue -a -r -h -o %A|%u|%T|%C|%b|%P|%r": 7,
    "sinfo -a -h -N -O NodeHost:|,Gres:|,GresUsed:|,StateLong:|,CPUsState:|": 6,
    "sinfo -h -o %R|%D|%C|%T": 4,
    "sacct -a -X -n -P -s RUNNING -o JobIDRaw,User,AllocTRES,State": 4,
}
"""What exporters type, and how many fields they read of each line."""


def drained(box: Box) -> list[str]:
    return box.run("sinfo", "-h", "-N", "-t", "drain", "-o", "%N").stdout.split()


def began(box: Box, *jobs: str) -> bool:
    """Their prologs have ended."""
    return all((box.root / f"tmp/began.{number}").exists() for number in jobs)


def make_hostile(box: Box, packed: bool) -> None:
    """Slurm is as that site has it."""
    folder, etc = box.root / "opt/site", box.root / "etc/slurm"
    plugin, conf, nodes = (etc / name for name in ("job_submit.lua", "slurm.conf", "lucid.slurm.conf"))
    folder.mkdir()
    for name, text in (("prolog", PROLOG), ("epilog", EPILOG), ("writer", WRITER)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    named = r"NodeSet=of-\1 Nodes=\2\nPartitionName=\1 Nodes=of-\1"
    nodes.write_text(re.sub(r"(?m)^PartitionName=(vc-\w) Nodes=(\S+)", named, nodes.read_text()))
    site = "Prolog=/opt/site/prolog\nProlog=/opt/site/writer\nEpilog=/opt/site/epilog\nJobSubmitPlugins=lua\n"
    if packed:
        plugin.rename(etc / "lucid/job_submit.lua")
        site = f"Prolog={WRAPPER}\nEpilog={WRAPPER}\n"
        (etc / "lucid/node.conf").write_text(
            "site-prolog /opt/site/prolog\nsite-prolog /opt/site/writer\nsite-epilog /opt/site/epilog\n"
            "site-run first-last /opt/site/prolog\nsite-run first-last /opt/site/epilog\n"
        )
    plugin.write_text(PLUGIN)
    conf.write_text(site + conf.read_text())
    box.run("scontrol", "reconfigure")
    box.wait("the site's prolog", lambda: site.split()[0][7:] in box.run("scontrol", "show", "config").stdout)
    box.wait("idle nodes", lambda: {*box.run("sinfo", "-h", "-o", "%t").stdout.split()} == {"idle"})


def ends(box: Box, fit: int) -> dict[str, list[tuple[object, ...]]]:
    """How each job of the list ended, and what was answered to what was typed meanwhile. ``fit``: how many of the
    first seven are to run at once."""
    full = box.sbatch("--gres=gpu:4", "-p", "prof", script=RUNS.format(0), user="root")
    box.wait("a full room", lambda: began(box, full))
    jobs = {f"train {at}": box.sbatch(*TRAINS, script=RUNS.format(0)) for at in range(7)}
    box.wait(f"{fit} at once", lambda: sum(began(box, number) for number in jobs.values()) == fit)
    jobs["fails"] = box.sbatch(*TRAINS, script=RUNS.format(3))
    jobs["array"] = box.sbatch("--gres=gpu:1", "--array=0-3%2", script="exit $SLURM_ARRAY_TASK_ID")
    jobs["steps"] = box.sbatch("--gpus=2", "-n2", "-J", "train", script="srun sh -c 'exit $SLURM_PROCID'")
    jobs["model"] = box.sbatch("-p", "vc-b", "--gpus=a100:1", "-Ca100", "--comment=grant 42", script="srun true")
    jobs["after"] = box.sbatch(*TRAINS, f"--dependency=afternotok:{jobs['fails']}")
    jobs["held"] = box.sbatch(*TRAINS, "-H")
    jobs["gone"] = box.sbatch(*TRAINS)
    tags = [str(box.job(number)["admin_comment"]) for number in jobs.values()]
    assert all("site:" in tag for tag in tags), tags
    typed = (
        f"scancel {jobs['train 0']} {jobs['gone']}", f"scontrol requeue {jobs['train 1']}",
        f"scontrol release {jobs['held']}", f"scontrol update JobId={jobs['after']} TimeLimit=7",
        f"scontrol update JobId={jobs['after']} Comment=mine",
    )  # fmt: skip
    codes = [(box.run(*line.split(), user="alice", check=False).returncode,) for line in typed]
    for line, fields in EXPORTER.items():
        rows = box.run(*line.split(" ")).stdout.splitlines()
        assert rows, line
        assert {row.count("|") + 1 for row in rows} == {fields}, (line, rows)
    (box.root / "tmp/over").touch()
    box.wait("the end of all", lambda: not box.run("squeue", "-h", "-a").stdout.strip(), 150)
    assert drained(box) == []
    return {"typed": codes, **{name: sorted(_ends(box, number)) for name, number in jobs.items()}}


def _ends(box: Box, number: str) -> Iterator[tuple[object, ...]]:
    """Of a job, or of each task: state, exit code, restarts, the site's words in its AdminComment, and its comment (a
    space is what Slurm keeps of one that a plugin empties)."""
    for job in box.jobs().values():
        if number in (str(job["job_id"]), str(job["array_job_id"]["number"])):
            code: Mapping[str, dict[str, int]] = job["exit_code"]
            site = re.sub(r"lucid:\S+ ?", "", str(job["admin_comment"]))
            assert job["job_state"][0] in OVER
            yield job["job_state"][0], code["return_code"]["number"], job["restart_cnt"], site, job["comment"].strip()


@pytest.mark.slow
def test_jobs_end_there_as_without_lucid_and_no_node_is_drained(tmp_path: Path) -> None:
    with own_testbed("hostile", LUCID_TESTBED_PLUGIN="0") as layout:
        cli.up(layout, print)
        make_plain(layout)
        make_hostile(Box(layout.root), packed=False)
        expected = ends(Box(layout.root), 4)
    with running("hostile") as box:
        make_hostile(box, packed=True)
        lucidd = Lucidd(box, tmp_path / "lucidd", restarts="")
        has_measured(lucidd, "train")
        with lucidd:
            got = ends(box, 7)
            assert {name: (one, got[name]) for name, one in expected.items() if one != got[name]} == {}
            assert "jobs never share" not in lucidd.ctl("doctor")
