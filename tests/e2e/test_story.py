"""The live part of ``make test``: one testbed, booted once, through which goes one story.

README is typed: a plain Slurm is set up to observe, to order and to pack, and a pair is explained. Then jobs are
submitted, measured, paired, held and limited; lucidd is killed; and setup is undone. Each step but the first makes
what it needs of its own (``Site.pack``, ``crowd``), so that one that fails hides no other. Everything finer is in the
other files, which ``make e2e`` runs.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest
from box import Box
from readme_script import REPO, Reader, lines_of, named_in
from story_box import GATE, OWN, PACK, Site, fill, gated
from testbeds import slurms_own

from json_schemas import trouble_with
from typed import bare

pytestmark = pytest.mark.story


def slots(box: Box, number: str) -> str:
    return str(box.job(number)["tres_per_node"])


# -- README ------------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(site: Site, tmp_path: Path) -> Iterator[Reader]:
    site.write_settings()
    reader = Reader(site.box, tmp_path)
    yield reader
    reader.close()


def test_a_newcomer_types_readme_and_what_it_links_to_until_a_pair_is_explained(site: Site, reader: Reader) -> None:
    """Of each page the lines below the headings named here. The packages are built and installed in test_packages.py:
    this site has the programs of the checkout."""
    readme, guide, tutorial = "README.md", "docs/install.md", "docs/tutorials/user.md"
    links = (REPO / readme).read_text(encoding="utf-8")
    assert all(f"({page})" in links for page in (guide, tutorial))
    demo, install, pages = lines_of(readme, "Try it")
    deb, package, observe, undo = lines_of(readme, "Install it, and take it away")
    assert package.startswith("apt-get install ./out/packages/lucid_")
    with reader.here(demo) as printed:  # 20 s of work, while the site mostly waits
        with reader.here(install, PIP_DRY_RUN="1", PIP_NO_DEPS="1", PIP_NO_BUILD_ISOLATION="0"):
            pass
        page = reader.first_page(pages)
        assert "Lucid (demonstration)" in page
        assert re.search(r"borrows \d+|lends up to \d+", page), "its VCs lend each other idle GPUs"
        with reader.here(deb, MAKEFLAGS="n"):
            pass
        assert "Make these changes?" in reader.answer(observe, "vc-a,vc-b", "y")
        assert site.json("status")["modes"] == {"vc-a": "observe", "vc-b": "observe"}
        reader.answer(undo, "y")
        assert slurms_own(site.box) == site.plain
        reader.type(lines_of(guide, "1. Observe mode in three commands")[-1])
        reader.type(*lines_of(guide, "2. A look at it"))
        _observes(site)
        reader.type(*lines_of(guide, "3. Order mode"))
        _orders(site, reader, *(line for line in named_in(guide, "3. Order mode") if " mode " in line))
        show, do = lines_of(guide, "4. Pack mode")
        reader.type(show)
        reader.type(do.replace("vc-a", OWN))
        site.packs = True
        assert not [found for found in site.json("doctor")["findings"] if found["level"] == "bad"]
        submit, look = (line.replace("sleep 30", "sleep 300") for line in lines_of(tutorial, "1. Submit"))
        explain, again, pair, large, wait, what_if = lines_of(tutorial, "2. Ask why")
        reader.type(submit, look, explain, user="alice")
        first = reader.printed("echo $JOB", "alice").strip()
        site.box.wait("it is measured", lambda: "measured" in site.ctl("explain", first))
        shown = reader.type(again.replace("sleep 30", "sleep 300"), pair, user="alice")
        assert f"it shares its GPUs with job {first}" in shown
        second = reader.printed("echo $SECOND", "alice").strip()
        assert f"sharing GPUs with job {first}" in site.ctl("explain", second), "why, to root"
        assert "what would help: " in reader.type(large, wait, what_if, user="alice")
    print(f"{len(reader.steps)} steps\n{shown}")
    assert len(reader.steps) >= 20
    _shown(printed.read_text())


def _shown(printed: str) -> None:
    """README shows what ``make demo`` prints."""
    lines = [bare(line) for line in printed.splitlines()]
    shown = (REPO / "README.md").read_text(encoding="utf-8").split("```")[3].strip().splitlines()
    assert len(shown) > 5
    assert [line for line in shown if line != "..." and bare(line) not in lines] == []


def _observes(site: Site) -> None:
    box = site.box
    site.clear()
    now = {path: content for path, content in slurms_own(box).items() if not path.endswith("/lucid-release")}
    assert now == site.plain
    running, waiting = (box.sbatch("-p", "vc-b", "--gres=gpu:4", script="sleep 600") for _ in range(2))
    box.wait("a decision", lambda: bool(site.story(waiting)["decisions"]))
    assert "would, in observe mode" in site.ctl("explain", waiting)
    assert (box.tag(running), box.tag(waiting)) == ("", "")
    assert site.json("status")["calls"]["writes"] == 0
    site.clear()


def _orders(site: Site, reader: Reader, back: str, ends: str) -> None:
    """Small jobs go first, and one command takes that back."""
    box = site.box
    full = [box.sbatch("-p", "vc-a", "--gres=gpu:4", script="sleep 600") for _ in range(2)]
    box.wait("they run", lambda: box.runs(*full))
    large, small = (box.sbatch("-p", "vc-a", f"--gres=gpu:{gpus}") for gpus in (4, 1))
    box.wait("the order", lambda: box.priority(small) > box.priority(large))
    assert "order" in site.ctl("explain", small)
    assert site.json("status")["modes"] == {"vc-a": "order", "vc-b": "observe", "prof": "observe"}
    reader.type(back)
    box.wait("Slurm's own order", lambda: box.priority(large) >= box.priority(small))
    reader.type(ends)
    site.clear()


# -- pack mode ---------------------------------------------------------------------------------------------------


def test_setup_to_pack_mode_finds_all_well_and_a_second_run_changes_nothing(packing: Site) -> None:
    before = slurms_own(packing.box)
    told = json.loads(packing.type(f"{PACK} --json"))
    assert told["changed"] is False
    assert trouble_with("setup", told) == []
    assert not [found for found in told["findings"] if found["level"] == "bad"]
    assert slurms_own(packing.box) == before


def test_a_job_of_sbatch_runs_once_in_slots_and_its_hooks_are_called(packing: Site) -> None:
    box = packing.box
    job = box.sbatch("--gres=gpu:2", script="echo GPUS=$SLURM_GPUS_ON_NODE; srun -n1 true && echo STEP")
    assert box.tag(job) == "lucid:vc=vc-a;held=1;node=gres/gpu:2;v=2"
    box.wait_ended(job)
    assert (box.state(job), box.job(job)["restart_cnt"]) == ("COMPLETED", 0)
    assert box.output(job).splitlines() == ["GPUS=2", "STEP"]
    assert "shard" in slots(box, job), f"another may join it from the start\n{packing.ctl('explain', job)}"
    assert "start" in packing.verbs(job)
    box.wait("the epilog", lambda: f"sampler stop --job {job}" in packing.hooks())
    assert [line for line in packing.hooks() if line.startswith(f"sampler start --job {job} ")]


def test_a_measured_job_is_joined_on_its_own_gpus_under_one_mps_daemon(packing: Site) -> None:
    box, gate = packing.box, gated(packing, "pair")
    show = f"echo PIPE=$CUDA_MPS_PIPE_DIRECTORY; echo FENCE=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; {GATE.format('pair')}"
    host = box.sbatch("--gpus=2", "-J", "train-1", script=show)
    box.wait("the profile", (box.root / f"var/lib/lucid/profiles/{host}.json").exists)
    box.wait("lucidd to read it", lambda: "measured" in packing.ctl("explain", host))
    guest = box.sbatch("--gpus=2", "-J", "train-2", script=show)
    box.wait("the guest", lambda: box.state(guest) == "RUNNING")
    assert box.state(host) == "RUNNING"
    assert slots(box, guest) == slots(box, host), f"on the same GPUs\n{packing.ctl('explain', host)}"
    assert re.search(rf"sharing GPUs with job {host}", packing.ctl("explain", guest))
    box.wait("lucidd to see it", lambda: packing.json("status")["partitions"]["vc-a"]["packed"] == 2)
    gate.unlink()
    box.wait_ended(host, guest)
    assert [(box.state(n), box.job(n)["restart_cnt"]) for n in (host, guest)] == [("COMPLETED", 0)] * 2
    told = [dict(line.split("=", 1) for line in box.output(n).splitlines()) for n in (host, guest)]
    assert told[0]["PIPE"] == told[1]["PIPE"] != ""
    assert told[1]["FENCE"] == "0=5352M,1=5352M"
    assert not (packing.mps / "violations").exists()
    box.wait("the daemon's end", lambda: not list((box.root / "run/lucid-mps/sets").glob("*")))


def test_a_waiting_job_is_explained_to_its_user_and_why_not_and_when_answer(crowd: tuple[Site, str]) -> None:
    site, waiting = crowd
    (reason, *_) = site.story(waiting)["decisions"][-1]["words"]
    told = site.ctl("explain", waiting, user="alice")
    assert reason.split(";")[0] in told
    assert f"job {waiting}" in site.ctl("why-not", waiting, "--gpus", "2")
    assert waiting in [row["job"] for row in site.json("queue")["queue"]]
    ask = ("when", "--gpus", "4", "--time", "10")
    assert site.json(*ask, "--partition", "vc-a")["partitions"]["vc-a"]["starts_in_s"] == [0, 0, 0]
    assert site.json(*ask, "--partition", "vc-b")["partitions"]["vc-b"]["starts_in_s"] != [0, 0, 0]


def test_pages_over_the_live_cluster_say_what_lucidctl_says_and_ask_slurm_nothing(crowd: tuple[Site, str]) -> None:
    site, waiting = crowd
    with site.pages() as pages:
        assert [row["job"] for row in json.loads(pages.get("queue.json"))["queue"]] == [waiting]
        assert [row["job"] for row in site.json("queue")["queue"]] == [waiting]
        assert "n3" in pages.get("")
        assert pages.get("people")
        page = pages.get(f"job/{waiting}")
        (reason, *_) = site.story(waiting)["decisions"][-1]["words"]
        assert reason.split(";")[0] in re.sub("<[^>]*>", "", page).replace("&#39;", "'").replace("&lt;", "<")
        assert "<b>x" not in page + pages.get("queue"), "names are shown as text"
        for path in ("", "queue", f"job/{waiting}"):
            with pytest.raises(HTTPError, match="405"):
                pages.get(path, "POST")
        metrics = pages.get("metrics")
        assert 'lucid_pending_jobs{partition="vc-b"} 1.0' in metrics
        if shutil.which("promtool"):
            words = ["promtool", "check", "metrics"]
            told = subprocess.run(words, input=metrics, text=True, capture_output=True, check=False)
            assert (told.returncode, told.stdout + told.stderr) == (0, "")
        assert not pages.asked.exists(), f"Slurm was asked: {pages.asked.read_text()}"


def test_jobs_over_a_limit_run_one_after_the_other_and_hold_nothing_from_others(packing: Site) -> None:
    box, gate = packing.box, gated(packing, "limited")
    one = ["--qos=one-job", "-p", "vc-a", "--gres=gpu:1"]
    limited = [box.sbatch(*one, "-J", f"limited-{n}", script=GATE.format(gate.name)) for n in range(3)]
    box.wait("the first runs", lambda: any(box.state(job) == "RUNNING" for job in limited))

    def waits_for_the_limit(job: str) -> bool:
        return any("QOSMaxJobsPerUserLimit" in " ".join(entry["words"]) for entry in packing.story(job)["decisions"])

    box.wait("another waits for the limit", lambda: any(map(waits_for_the_limit, limited)))
    whole = box.sbatch("-p", "vc-a", "--gres=gpu:4", script="true", user="bob")
    box.wait_ended(whole)  # it does not wait for those that Slurm holds back
    gate.unlink()
    box.wait_ended(*limited)
    assert {box.state(job) for job in (whole, *limited)} == {"COMPLETED"}
    spans = sorted((box.job(job)["start_time"]["number"], box.job(job)["end_time"]["number"]) for job in limited)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans)), spans
    assert sum(packing.verbs(job).count("take back") for job in limited) <= 6, "one is tried now and then"


def test_a_users_hold_stands_until_its_user_releases_it_and_lucid_starts_it_then(packing: Site) -> None:
    box, gate = packing.box, gated(packing, "full")
    options = ["-p", "vc-b", "--gres=gpu:1"]
    fill(box, GATE.format(gate.name))
    job, by_root = (box.sbatch(*options, "--comment=mine") for _ in range(2))
    box.run("scontrol", "hold", job, user="alice")
    box.run("scontrol", "hold", by_root)
    other = box.sbatch(*options)
    assert box.job(job)["comment"] == "mine lucid:held"
    gate.unlink()
    box.wait_ended(other)
    assert [(box.state(n), box.job(n)["waits"]) for n in (job, by_root)] == [("PENDING", True)] * 2
    assert box.run("scontrol", "release", by_root, user="alice", check=False).returncode, "an administrator's"
    box.run("scontrol", "release", job, user="alice")
    box.run("scontrol", "release", by_root)
    box.wait_ended(job, by_root)
    assert (box.job(job)["comment"], box.job(job)["restart_cnt"]) == ("mine", 0)
    assert "start" in packing.verbs(job), "Lucid started it, not Slurm's plain order"


def test_after_a_pause_and_uninstall_all_jobs_are_slurms_as_their_users_wrote_them(packing: Site) -> None:
    box = packing.box
    full = fill(box)
    held = [box.sbatch("-p", "vc-b", "--gres=gpu:4") for _ in range(2)]
    assert all(box.job(job)["waits"] for job in held)
    packing.type("lucidctl pause")
    try:
        box.wait("nothing held", lambda: not any(box.job(job)["waits"] for job in held))
        assert "stop it" in packing.ctl("uninstall", "--wait", "1"), "lucidd runs"
        packing.kill()
        assert "Lucid holds and changes no job" in packing.ctl("uninstall", "--wait", "120")
        assert {box.job(job)["tres_per_node"] for job in held} == {"gres/gpu:4"}
        box.run("scancel", *full)
        box.wait_ended(*held)
    finally:
        packing.type("lucidctl resume")


def test_killed_and_started_again_lucidd_loses_no_job_and_starts_none_twice(packing: Site) -> None:
    box, gate = packing.box, gated(packing, "killed")
    script = f"echo BEGIN; {GATE.format(gate.name)}"
    alone = ["-p", "vc-b", "--gres=gpu:4", "--comment=lucid:exclusive"]
    running = box.sbatch(*alone, script=script)
    box.wait("it runs", lambda: box.runs(running))
    waiting = [box.sbatch(*alone, script=script) for _ in range(3)]
    # the profiling node takes one of them in
    assert any(box.job(job)["waits"] for job in waiting)
    packing.kill()
    found = [found for found in packing.json("doctor")["findings"] if found["level"] == "bad"]
    assert any("down" in item["what"] and item["remedy"] for item in found), found
    assert box.state(running) == "RUNNING"
    gate.unlink()
    packing.start()
    jobs = [running, *waiting]
    box.wait_ended(*jobs)
    assert {(box.state(job), box.job(job)["restart_cnt"]) for job in jobs} == {("COMPLETED", 0)}
    assert {box.output(job) for job in jobs} == {"BEGIN\n"}
