"""Three like partitions, from plain Slurm to VCs that lend and back: ``lucidctl setup`` says that they could, makes
the pool, and takes it away; a job borrows, a VC takes its GPUs back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from box import Box
from story_box import GATE, Site, story_site
from testbeds import slurms_own, typed

from json_schemas import trouble_with
from lucid.setup.install import with_keys

pytestmark = pytest.mark.slow
LIKE = (
    "PartitionName=DEFAULT MaxTime=2-0\n"
    "PartitionName=vc-a Nodes=n1 Default=YES\nPartitionName=vc-b Nodes=n2 AllowGroups=users,alice,bob,root\n"
    "PartitionName=vc-c Nodes=n[3-4] MaxTime=2-0 State=UP\n"
)
PACK = (
    "/opt/lucid/bin/lucidctl setup --mode pack --partitions vc-a,vc-b,vc-c --gpu-mem a100=40960 "
    "--drain --nodes-have-files"
)
UNDO = "/opt/lucid/bin/lucidctl setup --undo --purge --drain --yes"
ALONE = "--comment=lucid:exclusive"
QUICK: dict[str, dict[str, str | int]] = {
    "policy.lending": {"turn_s": 4},
    "slurm": {"nodes_every_s": 5, "poll_idle_s": 6, "start_grace_s": 10},
    "daemon": {"first_guess_s": 60, "lease_s": 6, "catch_up_days": 0},
}


@pytest.fixture(scope="module")
def whole() -> Iterator[Site]:
    with story_site("pool", partitions=LIKE) as site:
        yield site


@pytest.fixture
def site(whole: Site) -> Iterator[Site]:
    """A plain Slurm, before and after."""
    whole.clear()
    path = whole.box.root / "etc/lucid/lucid.toml"
    path.parent.mkdir(exist_ok=True)
    path.parent.chmod(0o755)
    text = ""
    for table, keys in QUICK.items():
        text = with_keys(text, table, keys)
    path.write_text(text)
    path.chmod(0o644)
    yield whole
    whole.clear()
    whole.type(UNDO)
    assert slurms_own(whole.box) == whole.plain


def told(site: Site, *words: str) -> Any:
    found = json.loads(site.type(" ".join([PACK, "--json", *words])))
    assert trouble_with("setup", found) == []
    return found


def gated(box: Box, vc: str, gpus: int, gate: str, *more: str, user: str = "alice") -> str:
    """A job that runs for as long as the file is there."""
    (box.root / "tmp" / gate).touch()
    return box.sbatch("-p", vc, f"--gres=gpu:{gpus}", ALONE, "-J", gate, *more, script=GATE.format(gate), user=user)


def opened(box: Box, *gates: str) -> None:
    for gate in gates:
        (box.root / "tmp" / gate).unlink(missing_ok=True)


def where(box: Box, number: str) -> tuple[str, str]:
    job = box.job(number)
    return str(job["partition"]), str(job["nodes"])


def could_lend(forecast_outcome: Any) -> bool:
    return any("could lend each other idle GPUs" in note for note in forecast_outcome["notes"])


def test_setup_tells_of_the_pool_makes_it_and_takes_it_away_byte_for_byte(site: Site) -> None:
    box = site.box
    assert could_lend(told(site, "--dry-run"))
    files = told(site, "--lending", "borrow", "--dry-run")["files"]
    lines = [line for file in files for line in file["diff"].splitlines()]
    assert "+PartitionName=overflow Nodes=n[1-4] MaxTime=2-0 AllowGroups=ALL" in lines
    assert "+quotas = { vc-a = 4, vc-b = 4, vc-c = 8 }" in lines
    assert slurms_own(box) == site.plain

    assert could_lend(told(site, "--yes")), "--yes alone does not decide whose GPUs they are"
    packed, toml = slurms_own(box), (box.root / "etc/lucid/lucid.toml").read_text()
    assert b"PartitionName=overflow" not in (box.root / "etc/slurm/slurm.conf").read_bytes()
    made = told(site, "--lending", "borrow", "--yes")
    assert made["changed"]
    assert not [found for found in made["findings"] if found["level"] != "ok" and "overflow" in found["what"]]
    assert "MaxTime=2-00:00:00" in box.run("scontrol", "show", "partition", "overflow").stdout
    again = told(site, "--lending", "borrow", "--yes")
    assert (again["changed"], could_lend(again)) == (False, False)
    assert told(site, "--yes")["changed"] is False

    ended = site.type(f"{PACK} --lending off --yes")
    assert "overflow" in ended
    assert slurms_own(box) == packed, "slurm.conf and what slurmctld runs with are as before the pool"
    text = (box.root / "etc/lucid/lucid.toml").read_text()
    assert text.replace('mode = "off"\n', "") == toml, "all that is left is that lending is off"
    assert not could_lend(told(site, "--dry-run")), "it is told no more"


def test_a_job_borrows_and_a_vc_takes_back(site: Site) -> None:
    """vc-a and vc-c hold all of theirs, and vc-a borrows all of vc-b's. vc-b's job waits for loans to end, and for
    nothing else: GPUs that come free are kept for it, and no other borrower gets them."""
    box = site.box
    gates = ("own", "rest", "loan-1", "loan-2")
    site.type(f"{PACK} --lending borrow --yes")
    try:
        # GPUs are kept where a loan is expected to end first: carol has no history, so hers are expected to take days
        own = [gated(box, vc, 4, gate, user="carol") for vc, gate in (("vc-a", "own"), *[("vc-c", "rest")] * 2)]
        box.wait("their own GPUs", lambda: all(box.state(job) == "RUNNING" for job in own))
        loans = [gated(box, "vc-a", 2, f"loan-{n}", "-t", "5") for n in (1, 2)]
        box.wait("loans", lambda: all(box.state(job) == "RUNNING" for job in loans))
        (place,) = {where(box, job) for job in loans}
        assert place[0] == "overflow"
        assert "borrows 2 GPUs of VC vc-b until it ends" in site.ctl("explain", loans[0])
        long = ["--gres=gpu:2", "-t", "600", ALONE]  # a short one would delay nobody, and may start there
        others = [box.sbatch("-p", vc, *long, script="sleep 1", user="carol") for vc in ("vc-a", "vc-c")]
        back = box.sbatch("-p", "vc-b", "--gres=gpu:4", ALONE, "-J", "back", script="sleep 3")
        box.wait("its turn", lambda: "it goes before all others" in site.ctl("explain", back))
        opened(box, "loan-1")
        box.wait_ended(loans[0])
        time.sleep(8)  # some cycles
        waits = [box.state(job) for job in (back, *others)]
        assert waits == ["PENDING"] * 3, "\n".join(site.ctl("explain", job) for job in (back, *others))
        opened(box, "loan-2")
        box.wait_ended(back, *others)
        began, ended = box.job(back)["start_time"]["number"], box.job(loans[1])["end_time"]["number"]
        assert where(box, back)[1] == place[1]
        assert 0 <= began - ended <= 15, "nothing but the loan delayed it"
        assert all(box.job(other)["start_time"]["number"] >= began for other in others)
    finally:
        opened(box, *gates)


def test_the_pools_partition_goes_only_once_no_job_is_left_in_it(site: Site) -> None:
    """Slurm kills running jobs whose partition goes."""
    box = site.box
    site.type(f"{PACK} --lending borrow --yes")
    own = gated(box, "vc-a", 4, "own")
    box.wait("its own GPUs", lambda: box.state(own) == "RUNNING")
    loan = gated(box, "vc-a", 4, "loan")
    box.wait("a loan", lambda: box.state(loan) == "RUNNING")
    opened(box, "own")
    refused = typed(box, f"{PACK.replace(' --drain', '')} --lending off --yes")
    assert (refused.returncode, f"stays until {loan} end there" in refused.stdout) == (0, True), refused.stdout
    assert box.run("sinfo", "-h", "-p", "overflow").stdout
    later = threading.Timer(5.0, opened, (box, "loan"))
    later.start()
    done = typed(box, f"{PACK} --lending off --yes")
    later.join()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (box.state(loan), box.job(loan)["restart_cnt"]) == ("COMPLETED", 0)
    assert not box.run("sinfo", "-h", "-p", "overflow").stdout
    assert Path(box.root / "etc/slurm/slurm.conf").read_text().count("overflow") == 0
