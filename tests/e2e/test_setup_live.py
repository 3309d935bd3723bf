"""lucidctl setup on a real Slurm: what goes wrong half-way, what was edited since, and what slurmctld refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from box import Box
from testbeds import PATH, give_wheel, plain_slurm, slurms_own, typed

from json_schemas import trouble_with

pytestmark = pytest.mark.slow
SETUP = "/opt/lucid/bin/lucidctl setup"
PACK = f"{SETUP} --mode pack --partitions vc-a --nodes-have-files --drain --yes"


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with plain_slurm("setup") as box:
        give_wheel(box)
        lines = (
            "apt-get install --yes --no-install-recommends python3-venv",
            "python3 -m venv /opt/lucid",
            "/opt/lucid/bin/pip install --quiet /srv/wheels/*.whl",
        )
        for line in lines:
            done = typed(box, line)
            assert done.returncode == 0, (line, done.stderr[-2000:])
        yield box


@pytest.fixture
def plain(box: Box) -> Iterator[Box]:
    """Afterwards nothing of Lucid's is left, and Slurm is as it was, whatever the test did."""
    before = slurms_own(box)
    yield box
    done = typed(box, f"{SETUP} --undo --purge --drain --yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert slurms_own(box) == before
    left = typed(box, "find /etc /usr/local /var/lib /run -xdev -iname '*lucid*' | grep -v '^/var/lib/dpkg'").stdout
    assert left == ""
    assert box.run("id", "lucid", check=False).returncode
    assert box.run("sinfo", "-h", "-N", "-t", "drain,down").stdout == "", "no node stays drained"


def told(box: Box, line: str) -> dict[str, object]:
    done = typed(box, f"{line} --json")
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    assert trouble_with("setup", found) == []
    return found


@pytest.mark.parametrize("mode", ["observe", "order"])
def test_without_pack_mode_slurm_is_as_it_was_and_a_second_run_changes_nothing(plain: Box, mode: str) -> None:
    before = slurms_own(plain)
    line = f"{SETUP} --mode {mode} --partitions vc-a --yes"
    first = typed(plain, line)
    assert first.returncode == 0, first.stdout + first.stderr
    assert told(plain, line)["changed"] is False
    shown = typed(plain, "/usr/local/bin/lucidctl mode").stdout
    assert re.search(rf"vc-a\W+{mode}\b", shown), shown
    (plain.root / "etc/slurm/lucid/lucid-release").unlink()  # brought along for an emergency
    assert slurms_own(plain) == before
    assert typed(plain, line).returncode == 0, "it brings back what was lost"


@pytest.mark.parametrize("then", ["continue", "undo"])
def test_killed_between_two_files_it_is_continued_or_undone(plain: Box, then: str) -> None:
    """As kill -9 finds it: some files of Slurm are new, others old."""
    process = subprocess.Popen(
        ["chroot", str(plain.root), "sh", "-c", f"exec {PACK}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    until = time.monotonic() + 120
    first, last = plain.root / "etc/slurm/job_submit.lua", plain.root / "etc/slurm/lucid.plugin.conf"
    while not first.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert first.exists()
    assert not last.exists(), "killed too late: half of the files were to be missing"
    assert json.loads((plain.root / "etc/lucid/setup/manifest.json").read_text())["state"] == "applying"
    if then == "continue":
        done = typed(plain, PACK)
        assert done.returncode == 0, done.stdout + done.stderr
        job = plain.sbatch("--gres=gpu:1", "-p", "vc-a")
        plain.wait_ended(job)
        assert "held=1" in plain.tag(job)


def test_an_edit_is_shown_and_nothing_is_undone_until_it_is_out(plain: Box) -> None:
    assert typed(plain, PACK).returncode == 0
    conf = plain.root / "etc/slurm/slurm.conf"
    mine = conf.read_text()
    conf.write_text("# an edit of mine\n" + mine)
    now = slurms_own(plain)
    refused = typed(plain, f"{SETUP} --undo --yes --drain")
    assert refused.returncode == 2
    assert "+++ /etc/slurm/slurm.conf" in refused.stderr
    assert "+# an edit of mine" in refused.stderr
    assert slurms_own(plain) == now, "nothing was undone"
    conf.write_text(mine)
    done = typed(plain, f"{SETUP} --undo --yes --drain")
    assert done.returncode == 0, done.stderr


def test_what_slurmctld_refuses_is_taken_back_at_once(plain: Box) -> None:
    """A line that was wrong before shows when slurmctld reads its files again."""
    conf = plain.root / "etc/slurm/slurm.conf"
    own = conf.read_text()
    conf.write_text(own + "JobSubmitPlugins=nosuch\n")
    before = conf.read_text()
    done = typed(plain, PACK)
    assert done.returncode == 2
    assert "slurmctld could not use the new files" in done.stderr
    assert conf.read_text() == before
    # the line stays wrong without Lucid, too: it is the site's, and slurmctld does not start with it
    assert not (plain.root / "etc/slurm/job_submit.lua").exists()
    conf.write_text(own)
    typed(plain, "systemctl restart slurmctld")


def test_a_slurm_conf_that_no_command_can_read_is_left_alone(plain: Box) -> None:
    conf = plain.root / "etc/slurm/slurm.conf"
    own = conf.read_text()
    conf.write_text(own + "NoSuchParameter=1\n")
    done = typed(plain, PACK)
    assert done.returncode == 2
    assert "NoSuchParameter" in done.stderr
    assert conf.read_text() == own + "NoSuchParameter=1\n"
    conf.write_text(own)


def test_jobs_on_nodes_whose_gpus_change_are_not_hurt(plain: Box) -> None:
    job = plain.sbatch("--gres=gpu:2", "-p", "vc-a", script="sleep 30")
    plain.wait("start", lambda: plain.state(job) == "RUNNING")
    refused = typed(plain, PACK.replace(" --drain", ""))
    assert refused.returncode == 2
    assert f"({job})" in refused.stderr
    assert told(plain, f"{SETUP} --undo")["pending"] is False, "nothing was changed"
    done = typed(plain, PACK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "waiting for 1 jobs" in done.stdout
    assert plain.state(job) == "COMPLETED"


def test_slots_change_on_a_site_that_is_packed_and_are_taken_back_with_the_rest(plain: Box) -> None:
    done = typed(plain, PACK)
    assert done.returncode == 0, done.stdout + done.stderr
    done = typed(plain, f"{PACK} --slots 6")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Count=6" in (plain.root / "etc/slurm/gres.conf").read_text()
    plain.wait("the nodes have them", lambda: "shard:g0:6" in plain.run("scontrol", "show", "node", "n1").stdout, 60)
    assert told(plain, f"{PACK} --slots 6")["changed"] is False
    assert told(plain, PACK)["changed"] is False, "as it is"
    job = plain.sbatch("--gres=gpu:1", "-p", "vc-a", script="sleep 1")
    plain.wait_ended(job)
    assert plain.state(job) == "COMPLETED"


def test_without_the_nodes_files_slurm_is_not_told(plain: Box) -> None:
    line = PACK.replace(" --nodes-have-files", "")
    done = typed(plain, line)
    assert done.returncode == 0, done.stderr
    assert "Slurm does not use them yet" in done.stdout
    assert "JobSubmitPlugins        = (null)" in plain.run("scontrol", "show", "config").stdout
    assert typed(plain, PACK).returncode == 0
    assert "JobSubmitPlugins        = lua" in plain.run("scontrol", "show", "config").stdout
    assert "mode vc-a pack" in (plain.root / "run/lucid/heartbeat").read_text(), "lucidd has read its file, too"


def test_a_slurm_conf_behind_a_link_stays_a_link(plain: Box) -> None:
    conf = plain.root / "etc/slurm/slurm.conf"
    shared = plain.root / "srv/shared"
    shared.mkdir()
    conf.rename(shared / "slurm.conf")
    conf.symlink_to("/srv/shared/slurm.conf")
    own = (shared / "slurm.conf").read_text()
    try:
        assert typed(plain, PACK).returncode == 0
        assert conf.is_symlink()
        assert "JobSubmitPlugins=lua" in (shared / "slurm.conf").read_text()
        assert typed(plain, f"{SETUP} --undo --yes --drain").returncode == 0
        assert (shared / "slurm.conf").read_text() == own
    finally:
        conf.unlink()
        (shared / "slurm.conf").rename(conf)
        shared.rmdir()


def test_on_a_read_only_etc_nothing_is_changed(plain: Box) -> None:
    etc = str(plain.root / "etc/slurm")
    subprocess.run(["mount", "--bind", etc, etc], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", etc], check=True)
    try:
        done = typed(plain, PACK)
        assert done.returncode == 1
        assert "is mounted read-only" in done.stdout
        assert told(plain, f"{SETUP} --mode observe --dry-run")["pending"] is True
    finally:
        subprocess.run(["umount", etc], check=True)


def test_json_is_json_and_asks_nothing(plain: Box) -> None:
    found = told(plain, f"{SETUP} --mode observe --yes")
    assert found["changed"] is True
    assert found["findings"]
    assert told(plain, f"{SETUP} --undo --yes")["changed"] is True
