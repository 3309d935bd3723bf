"""Groups that take turns, on a real Slurm whose GPUs have four slots: started together, joined, never stopped."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from testbeds import own_testbed

from testbed import cli

REPORTS = "run/lucid-reports"
KINDS = ("storage", "cpu", "gpu", "network")
STAGES = {kind: {**{other: 0.9 if other == kind else 0.05 for other in KINDS}, "iteration": 1.05} for kind in KINDS}


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with own_testbed("turns", LUCID_TESTBED_SLOTS="4") as layout:
        cli.up(layout, print)
        made = Box(layout.root)
        (made.root / "etc/slurm/lucid/node.conf").write_text("daemon lucid\nlimit 5\n")
        yield made


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    folder = box.root / REPORTS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    more = ("lease_s = 6", 'policy = "muri-l"', "[daemon.elastic]", f'reports_dir = "{folder}"')
    daemon = Lucidd(box, tmp_path / "state", restarts="", more="\n".join(more))
    daemon.start()
    yield daemon
    daemon.close()
    box.clear()


def reports(what: str) -> str:
    """Shell that writes a report."""
    return f"mkdir -p /{REPORTS}/u$(id -u); printf '%s' '{what}' > /{REPORTS}/u$(id -u)/$SLURM_JOB_ID.json"


def submit(
    box: Box, kind: str, seconds: float, where: str = "vc-b", stages: Mapping[str, float] | None = None, *options: str
) -> str:
    """A job that opted in and says what its iterations are bound by."""
    said = json.dumps({"epochs": 0, "stages": stages or STAGES[kind]})
    return box.sbatch(
        "-p", where, "--gres=gpu:1", f"--job-name={kind}", "--comment=lucid:turns", *options,
        script=f"{reports(said)}; echo GPU $CUDA_VISIBLE_DEVICES TURNS $LUCID_TURNS; ls -ld $LUCID_TURNS; "
        f"touch $LUCID_TURNS/$SLURM_JOB_ID; sleep {seconds}; ls $LUCID_TURNS; echo DONE",
    )  # fmt: skip


def until_known(box: Box, lucidd: Lucidd, jobs: Mapping[str, str]) -> None:
    """Jobs by name run alone, to their end, and are measured: what they report counts for later ones."""
    for kind, number in jobs.items():
        box.wait(
            f"lucidd has read {kind}",
            lambda number=number: "its own report" in lucidd.ctl("explain", number),  # type: ignore[misc]
            60,
        )
        box.wait("it is measured", (lucidd.profiles / f"{number}.json").exists, 30)
    box.wait_ended(*jobs.values(), limit_s=90)


def warm(box: Box, lucidd: Lucidd, *kinds: str) -> None:
    until_known(box, lucidd, {kind: submit(box, kind, 12, "vc-a") for kind in kinds})


def span(box: Box, number: str) -> tuple[float, float]:
    job = box.job(number)
    return job["start_time"]["number"], job["end_time"]["number"]


def gpu_of(box: Box, number: str) -> str:
    return re.findall(r"^GPU (\S*)", box.output(number), re.M)[-1]


def together(box: Box, *numbers: str) -> bool:
    return {box.state(number) for number in numbers} == {"RUNNING"}


def test_jobs_of_four_resources_share_one_gpu_beside_a_rigid_job(box: Box, lucidd: Lucidd) -> None:
    warm(box, lucidd, *KINDS)
    rigid = box.sbatch("-p", "vc-b", "--gres=gpu:3", script="sleep 60; echo DONE")
    box.wait("it runs", lambda: together(box, rigid))
    jobs = [submit(box, kind, 30 + 10 * at) for at, kind in enumerate(KINDS)]
    box.wait("all four run at once", lambda: together(box, rigid, *jobs), 60)
    story = lucidd.ctl("explain", jobs[-1])
    lucidd.kill()
    time.sleep(3)
    lucidd.start()
    late = submit(box, "gpu", 2)
    box.wait("it is in the queue", lambda: late in lucidd.ctl("queue"), 30)
    print(lucidd.ctl("explain", jobs[0]), lucidd.ctl("queue"), lucidd.ctl("why-not", late))
    box.wait_ended(*jobs, rigid, late, limit_s=150)
    numbers = (*jobs, rigid, late)
    print({number: span(box, number) for number in numbers}, story)
    assert {box.state(number) for number in numbers} == {"COMPLETED"}
    assert {box.job(number)["restart_cnt"] for number in numbers} == {0}, "nobody was stopped"
    assert len({gpu_of(box, number) for number in jobs}) == 1
    assert "takes turns in a group of" in story
    for number in jobs:
        said = box.output(number)
        folder = re.findall(r"TURNS (\S+)", said)[0]
        assert re.fullmatch(r"/run/lucid-turns/n3/g\d", folder)
        assert "drwxrwxrwt" in said
        assert said.splitlines()[-1] == "DONE"
        box.wait("the folder is gone", lambda folder=folder: not (box.root / folder[1:]).exists(), 20)  # type: ignore[misc]
    assert set(jobs) <= set(box.output(jobs[0]).split()), "all four met in one folder"


def test_jobs_bound_by_the_same_resource_run_one_after_the_other(box: Box, lucidd: Lucidd) -> None:
    warm(box, lucidd, "gpu")
    rigid = box.sbatch("-p", "vc-b", "--gres=gpu:3", script="sleep 40")
    box.wait("it runs", lambda: together(box, rigid))
    first = submit(box, "gpu", 15)
    box.wait("it runs", lambda: together(box, first))
    second = submit(box, "gpu", 2)
    box.wait("it is told why", lambda: "would take turns in a group of 2" in lucidd.ctl("explain", second), 40)
    box.wait_ended(first, second, rigid, limit_s=90)
    assert span(box, second)[0] >= span(box, first)[1], "they never shared"


def test_what_hostile_jobs_report_costs_nobody_a_job(box: Box, lucidd: Lucidd) -> None:
    warm(box, lucidd, "storage")
    rubbish = ('{"stages": 7}', '{"stages": {"gpu": -1}}', '{"stages": {"gpu": 1e999}}', "[" * 5000, "{")
    junk = [
        box.sbatch(
            "-p", "vc-a", "--gres=gpu:1", f"--job-name=junk{at}", "--comment=lucid:turns",
            script=f"{reports(text)}; sleep 8",
        )
        for at, text in enumerate(rubbish)
    ]  # fmt: skip
    link = box.sbatch(
        "-p", "vc-a", "--gres=gpu:1", "--comment=lucid:turns",
        script=f"cd /{REPORTS}; mkdir -p u$(id -u); ln -s /etc/shadow u$(id -u)/$SLURM_JOB_ID.json; "
        "ln -s /etc /run/lucid-turns/n1/x; rm -rf $LUCID_TURNS; ln -s /etc $LUCID_TURNS/link; sleep 8",
    )  # fmt: skip
    rigid = box.sbatch("-p", "vc-b", "--gres=gpu:3", script="sleep 30")
    liar = dict.fromkeys(KINDS, 1e-6)
    box.wait("they run", lambda: together(box, link, *junk), 60)
    box.wait("the rigid one runs", lambda: together(box, rigid), 30)
    honest = submit(box, "storage", 15)
    box.wait("it runs", lambda: together(box, honest))
    liars = [submit(box, f"liar{at}", 3, "vc-b", liar) for at in range(3)]
    box.wait_ended(link, rigid, honest, *junk, *liars, limit_s=150)
    assert {box.state(number) for number in (rigid, honest, *junk, *liars)} == {"COMPLETED"}
    assert {box.job(number)["restart_cnt"] for number in (rigid, honest, *junk, *liars)} == {0}
    assert lucidd.process is not None
    assert lucidd.process.poll() is None
    assert (box.root / "etc/passwd").exists()
    assert "Traceback" not in lucidd.log()


LOOP = """
import os, sys, time
sys.path.insert(0, "/etc/slurm/lucid")
import lucid_turns
kind, seconds = sys.argv[1], float(sys.argv[2])
turns, end = lucid_turns.Turns(), time.monotonic() + seconds
with open("/tmp/turns-%s.log" % os.environ["SLURM_JOB_ID"], "w") as log:
    while time.monotonic() < end:
        for name in ("storage", "cpu", "gpu", "network"):
            with getattr(turns, name)():
                began = time.monotonic()
                time.sleep(0.3 if name == kind else 0.01)
                log.write("%s %d %.6f %.6f\\n" % (name, turns.members, began, time.monotonic()))
        turns.step()
"""


def loops(box: Box, kind: str, seconds: float, where: str) -> str:
    """A job that calls lucid_turns, and reports by itself."""
    (box.root / "tmp/turns_loop.py").write_text(LOOP)
    return box.sbatch(
        "-p", where, "--gres=gpu:1", f"--job-name=loop-{kind}", "--comment=lucid:turns",
        script=f"echo GPU $CUDA_VISIBLE_DEVICES TURNS $LUCID_TURNS; export LUCID_REPORTS=/{REPORTS}; "
        f"python3 /tmp/turns_loop.py {kind} {seconds} && echo DONE",
    )  # fmt: skip


def test_programs_that_call_turns_report_by_themselves_and_take_turns(box: Box, lucidd: Lucidd) -> None:
    until_known(box, lucidd, {kind: loops(box, kind, 20, "vc-a") for kind in KINDS})
    rigid = box.sbatch("-p", "vc-b", "--gres=gpu:3", script="sleep 70")
    box.wait("it runs", lambda: together(box, rigid))
    jobs = [loops(box, kind, 40, "vc-b") for kind in KINDS]
    box.wait("all four run at once", lambda: together(box, *jobs), 60)
    box.wait_ended(*jobs, rigid, limit_s=150)
    assert {box.state(number) for number in (*jobs, rigid)} == {"COMPLETED"}
    assert len({gpu_of(box, number) for number in jobs}) == 1
    held: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for number in jobs:
        lines = [line.split() for line in (box.root / f"tmp/turns-{number}.log").read_text().splitlines()]
        four = [line for line in lines if line[1] == "4"]
        print(number, len(lines), "stages,", len(four), "of them in a group of four")
        assert len(four) > 20
        for name, _, began, ended in four[4:-4]:  # who joins or leaves is seen by the others at their next stage
            held[name].append((float(began), float(ended)))
    for name, spans in held.items():
        spans.sort()
        late = [(one, other) for one, other in itertools.pairwise(spans) if other[0] < one[1]]
        assert not late, f"two jobs in {name} at once"
