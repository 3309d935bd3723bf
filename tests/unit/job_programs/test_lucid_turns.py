"""lucid-turns: jobs of real processes take turns in the best order, whoever comes, goes, or is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import lucid_turns
from lucid.orchestrator.policies.muri.interleave import best_ordering
from lucid.slurm.elastic.reports import said_in
from lucid_job import members
from scenes.jobs import HOME
from turns_box import Box, overlaps, sequences

STAGES = ((0.03, 0.01, 0.02, 0.01), (0.01, 0.03, 0.01, 0.02), (0.02, 0.01, 0.03, 0.01), (0.01, 0.02, 0.01, 0.03))

PUBLIC = "/usr/bin/python3"
"""A Python in every user's reach."""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        yield made


@pytest.fixture
def open_box() -> Iterator[Box]:
    """One that other users reach."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        with Box(Path(root)) as made:
            yield made


def test_the_order_is_that_of_muri() -> None:
    rng = random.Random(41)
    for _ in range(400):
        stages = [[rng.choice([0.0, 0.5, 1.0, rng.random()]) for _ in range(4)] for _ in range(rng.randint(2, 4))]
        period, order = best_ordering(stages, 4)
        assert members.best_order(stages) == (order, pytest.approx(period))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_each_resource_goes_round_in_the_best_order(box: Box, count: int) -> None:
    """By said stage times, so that no load on the machine makes another order the best."""
    names, go = "abcd"[:count], box.root / "go"
    for name, stages in zip(names, STAGES, strict=False):
        box.start(name, stages, 20, times=stages, go=str(go))
    assert [box.line(name) for name in names] == ["joined"] * count
    by_job = {chr(int(name.split(".")[2])): name for name in box.members()}
    go.touch()
    for name in names:
        box.ends(name)
    rows = box.used()
    assert len(rows) == 20 * 4 * count
    assert overlaps(rows) == []
    registered = sorted(names, key=lambda name: by_job[name])
    _, order = best_ordering([STAGES["abcd".index(name)] for name in registered], 4)
    cycle = [registered[index] for index in order]
    for resource, sequence in sequences(rows):
        began = sequence.index(cycle[0], 5 * count)  # they joined at different rounds
        sequence = sequence[began : 14 * count]
        assert sequence == (cycle * 20)[: len(sequence)], resource
    assert box.members() == []


def test_jobs_join_and_leave_while_others_go_on(box: Box) -> None:
    go = box.root / "go"
    box.start("a", STAGES[0], 40, wait_at=8, go=str(go))
    box.start("b", STAGES[1], 15)
    box.start("c", STAGES[2], 20)
    box.wait_for_members(3)
    go.touch()
    box.start("d", (0, 0, 0.02, 0), 12, every=2)
    for name in "abcd":
        _, err = box.ends(name)
        assert err == ""
    rows = box.used()
    assert overlaps(rows) == []
    assert {row[4] for row in rows} >= {0, 3}
    assert box.members() == []


def test_stages_left_out_and_stages_done_twice_keep_nobody_waiting(box: Box) -> None:
    box.start("a", STAGES[0], 24, every=2)
    box.start("b", STAGES[1], 24, every=3)
    box.start("c", (0, 0, 0.01, 0), 24)
    for name in "abc":
        assert box.ends(name)[1] == ""
    assert overlaps(box.used()) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_member_that_dies_in_a_stage_is_gone_at_once(box: Box, how: signal.Signals) -> None:
    """Patience is 300 s here: if its death were not seen, this would take that long."""
    stuck_together(box, "dying", 300)
    box.jobs["dying"].send_signal(how)
    assert box.ends("a")[1] == ""
    assert overlaps(box.used()) == []
    assert len(box.members()) == 1, "killed: its file is there still"
    box.start("next", STAGES[1], 5)
    box.ends("next")
    assert box.members() == [], "the same user's next job removes it"


def stuck_together(box: Box, name: str, patience_s: float, **spec: float) -> None:
    """Job a and this one take turns; this one is in its seventh iteration's CPU stage."""
    go = str(box.root / "go")
    box.start(name, STAGES[1], 12, patience_s=patience_s, stuck_at=[6, 1], tell_at=4, wait_at=4, go=go, **spec)
    assert box.line(name) == "there 1"
    box.start("a", STAGES[0], 15, patience_s=patience_s)
    box.wait_for_members(2)
    Path(go).touch()
    assert box.line(name) == "stuck"


def test_a_stopped_member_costs_one_wait_and_comes_back(box: Box) -> None:
    stuck_together(box, "stopped", 0.5, stuck_s=0.2)
    box.jobs["stopped"].send_signal(signal.SIGSTOP)
    assert box.ends("a")[1] == "", "it goes on, in turns"
    box.jobs["stopped"].send_signal(signal.SIGCONT)
    assert box.ends("stopped")[1] == ""
    assert len([row for row in box.used() if row[0] == "stopped"]) == 12 * 4


def test_a_member_that_pauses_keeps_nobody_waiting(box: Box) -> None:
    """A validation of ten minutes: with a patience of 300 s the test would not end in time."""
    paused = """
turns = lucid_turns.Turns(patience_s=300)
for _ in range(8):
    with turns.gpu():
        time.sleep(0.01)
    turns.step()
print(turns.members, flush=True)
turns.pause()
sys.stdin.readline()
for _ in range(8):
    with turns.gpu():
        time.sleep(0.01)
    turns.step()
print(turns.members, flush=True)
"""
    with box.run(paused) as pausing:
        assert pausing.stdout.readline() == "1\n"
        box.start("a", STAGES[0], 20, patience_s=300)
        box.ends("a")
        out, err = pausing.communicate("on\n", timeout=60)
    assert (out, err) == ("1\n", "")


@pytest.mark.parametrize("folder", ["none", ""])
def test_without_a_folder_it_measures_and_nothing_else(tmp_path: Path, folder: str) -> None:
    box = Box(tmp_path)
    environ = {"LUCID_TURNS": str(tmp_path / folder) if folder else ""}
    reports = {"LUCID_REPORTS": str(tmp_path), "SLURM_JOB_ID": "7"}
    with box.run(LOOP, **environ, **reports) as process:
        out, err = process.communicate(timeout=60)
    assert err == ""
    told = json.loads((tmp_path / HOME / "7.json").read_text())
    assert json.loads(out).keys() == told["stages"].keys() == {*members.RESOURCES, "iteration"}
    assert told["stages"]["gpu"] >= 0.02
    assert told["stages"]["cpu"] == told["stages"]["network"] == 0
    assert told["stages"]["iteration"] >= told["stages"]["gpu"] + told["stages"]["storage"]
    assert said_in((tmp_path / HOME / "7.json").read_bytes()).progress.epochs == 0


def test_an_error_or_a_signal_in_a_stage_ends_its_turn(box: Box) -> None:
    caught = """
turns = lucid_turns.Turns(patience_s=300)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
for number in range(6):
    try:
        with turns.gpu():
            if number > 2:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    turns.step()
(name,) = [one for one in os.listdir(os.environ["LUCID_TURNS"]) if one.startswith("turn.")]
with open(os.path.join(os.environ["LUCID_TURNS"], name), "rb") as file:
    assert not members.unpack(name, file.read(), time.monotonic()).inside
with turns.gpu():
    print("inside", flush=True)
    time.sleep(600)
"""
    with box.run(caught) as process:
        assert process.stdout.readline() == "inside\n", process.communicate()
        process.terminate()
        assert process.wait(60) == 3
    assert box.members() == []


def test_a_forked_child_takes_no_turns_and_is_no_sign_of_its_parents_life(box: Box) -> None:
    forking = """
turns = lucid_turns.Turns(patience_s=300)
for _ in range(4):
    with turns.gpu():
        pass
    turns.step()
with turns.gpu():
    child = os.fork()
    if not child:
        with turns.gpu():
            pass
        turns.step(), turns.pause(), turns.close()
        assert turns.iterations == 4
        print("child", flush=True)
        time.sleep(600)
    print("parent", child, flush=True)
    time.sleep(600)
"""
    with box.run(forking) as process:
        lines = sorted(process.stdout.readline().split() for _ in range(2))
        assert lines[0] == ["child"]
        child = int(lines[1][1])
        try:
            assert len(box.members()) == 1, "the child did not unregister its parent"
            process.kill()
            process.wait()
            box.start("a", (0, 0, 0.01, 0), 20, patience_s=300)
            assert box.ends("a")[1] == ""
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({}, ""),
        ({"SLURM_LOCALID": "0", "LOCAL_RANK": "0", "SLURM_JOB_NUM_NODES": "1"}, ""),
        ({"SLURM_LOCALID": "0", "LOCAL_RANK": "1"}, "another process"),
        ({"SLURM_LOCALID": "2"}, "another process"),
        ({"SLURM_LOCALID": "0", "SLURM_JOB_NUM_NODES": "2"}, "several nodes"),
        ({"LUCID_NODES": "2"}, "several nodes"),
    ],
)
def test_one_process_of_a_job_of_one_node_takes_turns(environ: dict[str, str], why: str) -> None:
    found = lucid_turns.leads(environ)
    assert found.startswith(why) if why == "" else why in found
    assert bool(found) == bool(why)


def test_the_other_ranks_measure_and_leave_the_folder_alone(box: Box) -> None:
    with box.run(LOOP, LOCAL_RANK="1", SLURM_JOB_ID="7", LUCID_REPORTS=str(box.root)) as process:
        out, err = process.communicate(timeout=60)
    assert (err, json.loads(out)["gpu"] >= 0.02) == ("", True)
    assert not (box.root / HOME / "7.json").exists()


@pytest.mark.skipif(os.getuid() != 0 or not Path(PUBLIC).exists(), reason="starts jobs of other users")
def test_jobs_of_different_users_take_turns(open_box: Box) -> None:
    box = open_box
    os.close(os.open(box.log, os.O_CREAT | os.O_WRONLY))
    box.log.chmod(0o666)
    go = box.root / "go"
    for name, uid, stages in (("a", 0, STAGES[0]), ("b", 65534, STAGES[1]), ("c", 65533, STAGES[2])):
        box.start(name, stages, 20, uid=uid, python=PUBLIC, times=stages, go=str(go))
        assert box.line(name) == "joined"
    go.touch()
    for name in "abc":
        assert box.ends(name)[1] == ""
    rows = box.used()
    assert overlaps(rows) == []
    assert max(row[4] for row in rows) == 3


LOOP = """
turns = lucid_turns.Turns(patience_s=300)
for _ in range(6):
    with turns.storage():
        time.sleep(0.01)
    with turns.gpu():
        time.sleep(0.02)
    turns.step()
print(json.dumps(turns.stages))
"""
BESIDE = """
lucid_turns.REPORT_S = 0.0
turns = lucid_turns.Turns()
end = time.monotonic() + float(os.environ["SECONDS_"])
while time.monotonic() < end:
    with turns.gpu():
        time.sleep(0.02)
    turns.step()
    if turns.in_turns is not None:
        print(json.dumps([turns.in_turns, turns.stages["iteration"]]), flush=True)
"""


def test_a_job_reports_what_an_iteration_takes_beside_others(tmp_path: Path, box: Box) -> None:
    """Two jobs of one resource take twice as long together; the iteration alone stays what it was."""
    both = {"LUCID_REPORTS": str(tmp_path), "SLURM_JOB_ID": "7", "SECONDS_": "4"}
    with box.run(BESIDE, **both) as one, box.run(BESIDE, **{**both, "SLURM_JOB_ID": "8", "SECONDS_": "2.5"}) as two:
        out, err = one.communicate(timeout=60)
        two.communicate(timeout=60)
    assert err == ""
    lines = [json.loads(line) for line in out.splitlines()]
    (took_s, count), alone_s = lines[len(lines) // 2]
    assert count == 2
    assert 0.018 < alone_s < 0.035
    assert took_s > 1.5 * alone_s
    said = said_in((tmp_path / HOME / "8.json").read_bytes())
    assert said.in_turns[1] == 2
    assert said.stages is not None
    assert said_in((tmp_path / HOME / "7.json").read_bytes()).in_turns is None, "it was alone again at its end"
