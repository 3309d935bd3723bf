"""The command-line client and the breaker before it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lucid.errors import ActionRefused, ClusterError, ClusterUnavailable
from lucid.slurm.client import Breaker, Changes, checked_id, guarded
from lucid.slurm.commands import CommandClient

ASSETS = Path(__file__).parents[2] / "assets/slurm/24.11"


class Watch:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def client(tmp_path: Path, script: str, timeout_s: float = 10.0) -> CommandClient:
    """A client whose prefix is a program of the test's; what it was called with stands in ``said``."""
    path = tmp_path / "slurm.py"
    path.write_text(
        "import json, sys, time\n"
        f"with open({str(tmp_path / 'said')!r}, 'a') as f: f.write(json.dumps(sys.argv[1:]) + '\\n')\n" + script
    )
    return CommandClient([sys.executable, str(path)], Breaker(Watch()), timeout_s)


def said(tmp_path: Path) -> list[list[str]]:
    return [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()]


def test_jobs_and_nodes_are_asked_for_once_each(tmp_path: Path) -> None:
    name = "'jobs' if sys.argv[1] == 'squeue' else 'nodes'"
    slurm = client(tmp_path, f"print(open({str(ASSETS)!r} + '/' + ({name}) + '.json').read())")
    assert {job.name for job in slurm.jobs()} >= {"gres", "gpus"}
    assert [node.name for node in slurm.nodes()] == ["n1", "n2", "n3", "p1"]
    assert slurm.version() == (24, 11)
    count = ["scontrol", "--oneliner", "show", "job"]  # only before the first look
    look = ["squeue", "--json", "--states=all"]
    assert said(tmp_path) == [count, look, ["scontrol", "show", "nodes", "--json"]]


def test_only_fields_that_change_are_written(tmp_path: Path) -> None:
    slurm = client(tmp_path, "")
    slurm.update("3_1", Changes(tres_per_node="gres/shard:g1:1", tres_per_job="", req_nodes="n2", start_now=True))
    slurm.update("4", Changes(site_factor=0))
    slurm.update("4", Changes(extra="lucid-gpus=1,3;lucid-mem=9"))
    slurm.update("4", Changes(extra=""))
    slurm.update("4", Changes(start_at_s=1.9e9))
    slurm.update("4", Changes())
    slurm.release("4")
    slurm.hold("4")
    slurm.requeue_hold("4")
    assert said(tmp_path) == [
        ["scontrol", "update", "JobId=3_1", "TresPerNode=gres/shard:g1:1", "TresPerJob=", "ReqNodeList=n2",
         "StartTime=now"],
        ["scontrol", "update", "JobId=4", "SiteFactor=0"],
        ["scontrol", "update", "JobId=4", "Extra=lucid-gpus=1,3;lucid-mem=9"],
        ["scontrol", "update", "JobId=4", "Extra="],
        ["scontrol", "update", "JobId=4", "StartTime=uts1900000000"],
        ["scontrol", "release", "4"],
        ["scontrol", "update", "JobId=4", "Priority=0", "StartTime=now"],
        ["scontrol", "requeuehold", "Incomplete", "4"],
    ]  # fmt: skip


def test_what_goes_through_ssh_reaches_slurm_as_it_is(tmp_path: Path) -> None:
    """ssh gives its words to a shell, for which a semicolon ends a command."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/said\n")
    scontrol.chmod(0o755)
    prefix = [str(ssh), "head", "env", f"PATH={tmp_path}:/usr/bin:/bin"]
    slurm = CommandClient(prefix, Breaker(Watch()), 10.0)
    slurm.update("4", Changes(req_nodes="n1", extra="lucid-gpus=1,3;lucid-mem=9"))
    assert (tmp_path / "said").read_text().split() == [
        "update", "JobId=4", "ReqNodeList=n1", "Extra=lucid-gpus=1,3;lucid-mem=9",
    ]  # fmt: skip


@pytest.mark.parametrize("job_id", ["", "1;rm -rf /", "1 2", "$(x)", "-1", "1_", "1\n2", "9" * 20, "１"])
def test_what_is_no_job_id_never_reaches_a_command(tmp_path: Path, job_id: str) -> None:
    slurm = client(tmp_path, "")
    for act in (slurm.hold, slurm.release, slurm.requeue_hold, lambda i: slurm.update(i, Changes(start_now=True))):
        with pytest.raises(ActionRefused, match="not a Slurm job id"):
            act(job_id)
    assert not (tmp_path / "said").exists()
    assert checked_id("123_4") == "123_4"


def test_a_refusal_has_slurms_words(tmp_path: Path) -> None:
    slurm = client(tmp_path, "sys.exit('Job is no longer pending execution for job 4')")
    with pytest.raises(ActionRefused, match="no longer pending"):
        slurm.release("4")


@pytest.mark.parametrize("words", ["Unable to contact slurm controller (connect failure)", "Socket timed out"])
def test_no_answer_is_told_from_a_refusal(tmp_path: Path, words: str) -> None:
    with pytest.raises(ClusterUnavailable):
        client(tmp_path, f"sys.exit({words!r})").jobs()


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailable, match="no answer within"):
        client(tmp_path, "time.sleep(60)", timeout_s=0.3).jobs()


def test_a_prefix_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailable, match="/no/such/program"):
        CommandClient(["/no/such/program"], Breaker(Watch())).jobs()


def test_what_is_no_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is not JSON"):
        client(tmp_path, "print('slurm 20.02 knows no --json')").jobs()


def fail() -> None:
    raise ClusterUnavailable("timed out")


def test_the_breaker_opens_after_failures_and_rests_longer_each_time() -> None:
    watch = Watch()
    breaker = Breaker(watch, errors=2, rest_s=10.0)
    for _ in range(2):
        with pytest.raises(ClusterUnavailable, match="timed out"):
            guarded(breaker, fail)
    with pytest.raises(ClusterUnavailable, match="Slurm is not asked"):
        guarded(breaker, fail)
    assert breaker.calls.failed == 2
    watch.now = 10.0
    with pytest.raises(ClusterUnavailable, match="timed out"):
        guarded(breaker, fail)
    assert breaker.open_s == 20.0
    watch.now = 30.0
    assert guarded(breaker, lambda: 1) == 1
    assert breaker.open_s == 0.0
    with pytest.raises(ClusterUnavailable, match="timed out"):
        guarded(breaker, fail)
    assert breaker.open_s == 0.0, "a success closed it, so it counts anew"


def test_the_breaker_opens_for_a_slow_slurm() -> None:
    watch = Watch()
    breaker = Breaker(watch, latency_s=5.0, slow=2)

    def slow() -> None:
        watch.now += 6.0

    guarded(breaker, slow)
    guarded(breaker, lambda: None)
    guarded(breaker, slow)
    assert breaker.open_s == 0.0
    guarded(breaker, slow)
    assert breaker.open_s > 0
    assert "longer than 5 s" in breaker.why


def test_a_refusal_is_an_answer() -> None:
    breaker = Breaker(Watch(), errors=1)

    def refuse() -> None:
        raise ActionRefused("no")

    with pytest.raises(ActionRefused):
        guarded(breaker, refuse)
    assert breaker.open_s == 0.0
    assert breaker.calls.refused == 1


def test_accounting_that_does_not_answer_is_no_silence_of_slurm(tmp_path: Path) -> None:
    """As sacctmgr of 26.05 says it; three such answers once kept lucidctl doctor from asking slurmctld at all."""
    said = "sacctmgr: error: _open_persist_conn: failed to open persistent connection: Connection refused"
    down = tmp_path / "down"
    down.touch()
    slurm = client(
        tmp_path,
        f"import os\nif sys.argv[1] == 'sacctmgr' and os.path.exists({str(down)!r}): sys.exit({said!r})\n"
        "print('lucid')",
    )
    for _ in range(4):
        assert slurm.rights() is None
        with pytest.raises(ActionRefused):
            slurm.gpu_limits()
    assert slurm.accounting == said
    down.unlink()
    assert slurm.rights() == ("lucid", "lucid")
    assert slurm.accounting == ""
