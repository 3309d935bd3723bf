"""lucid-turns: jobs of real processes take turns in the best order, whoever comes, goes, or is killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

import lucid_turns
from lucid.orchestrator.policies.muri.interleave import best_ordering
from lucid.slurm.elastic.reports import said_in
from lucid_job import members
from lucid_job.members import Group, Member, State, Unusable, pack, unpack
from scenes.jobs import HOME
from turns_box import Box, sequences

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
    names = "abcd"[:count]
    for name, stages in zip(names, STAGES, strict=False):
        box.start(name, stages, 20, times=stages)
    assert [box.line(name) for name in names] == ["joined"] * count
    by_job = {chr(int(name.split(".")[2])): name for name in box.members()}
    (box.root / "go").touch()
    rows = box.all_end(names)
    assert len(rows) == 20 * 4 * count
    registered = sorted(names, key=lambda name: by_job[name])
    _, order = best_ordering([STAGES["abcd".index(name)] for name in registered], 4)
    cycle = [registered[index] for index in order]
    for resource, sequence in sequences(rows):
        began = sequence.index(cycle[0], 5 * count)  # they joined at different rounds
        sequence = sequence[began : 14 * count]
        assert sequence == (cycle * 20)[: len(sequence)], resource
    assert box.members() == []


def test_jobs_join_and_leave_while_others_go_on(box: Box) -> None:
    box.start("a", STAGES[0], 40, wait_at=8)
    box.start("b", STAGES[1], 15)
    box.start("c", STAGES[2], 20)
    box.wait_for_members(3)
    (box.root / "go").touch()
    box.start("d", (0, 0, 0.02, 0), 12, every=2)  # leaves stages out
    assert {row[4] for row in box.all_end("abcd")} >= {0, 3}
    assert box.members() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_member_that_dies_in_a_stage_is_gone_at_once(box: Box, how: signal.Signals) -> None:
    """Patience is 300 s here: if its death were not seen, this would take that long."""
    stuck_together(box, "dying", 300)
    box.jobs["dying"].send_signal(how)
    box.all_end("a")
    assert len(box.members()) == 1, "killed: its file is there still"
    box.start("next", STAGES[1], 5)
    box.ends("next")
    assert box.members() == [], "the same user's next job removes it"


def stuck_together(box: Box, name: str, patience_s: float, **spec: float) -> None:
    """Job a and this one take turns; this one is in its seventh iteration's CPU stage."""
    box.start(name, STAGES[1], 12, patience_s=patience_s, stuck_at=[6, 1], tell_at=4, wait_at=4, **spec)
    assert box.line(name) == "there 1"
    box.start("a", STAGES[0], 15, patience_s=patience_s)
    box.wait_for_members(2)
    (box.root / "go").touch()
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
rounds(turns, 8)
print(turns.members, flush=True)
turns.pause()
sys.stdin.readline()
rounds(turns, 8)
print(turns.members, flush=True)
"""
    with box.run(paused) as pausing:
        assert pausing.stdout.readline() == "1\n"
        box.start("a", STAGES[0], 20, patience_s=300)
        box.ends("a")
        assert pausing.communicate("on\n", timeout=60) == ("1\n", "")


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
rounds(turns, 4)
with turns.gpu():
    child = os.fork()
    if not child:
        rounds(turns, 1)
        turns.pause(), turns.close()
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


LEADS: dict[str, tuple[dict[str, str], ...]] = {
    "": ({}, {"SLURM_LOCALID": "0", "LOCAL_RANK": "0", "SLURM_JOB_NUM_NODES": "1"}),
    "another process": ({"SLURM_LOCALID": "0", "LOCAL_RANK": "1"}, {"SLURM_LOCALID": "2"}),
    "several nodes": ({"SLURM_LOCALID": "0", "SLURM_JOB_NUM_NODES": "2"}, {"LUCID_NODES": "2"}),
}


@pytest.mark.parametrize("why", LEADS)
def test_one_process_of_a_job_of_one_node_takes_turns(why: str) -> None:
    for found in map(lucid_turns.leads, LEADS[why]):
        assert (why in found, bool(found)) == (True, bool(why))


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
    for name, uid, stages in zip("abc", (0, 65534, 65533), STAGES, strict=False):
        box.start(name, stages, 20, uid=uid, python=PUBLIC, times=stages)
        assert box.line(name) == "joined"
    (box.root / "go").touch()
    assert max(row[4] for row in box.all_end("abc")) == 3


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


UID = os.getuid()


def name_of(uid: int = UID, number: int = 0) -> str:
    return f"turn.{uid}.7.{number:016x}"


def joined(box: Box, count: int = 1) -> list[Group]:
    groups = [Group(str(box.folder), "7", 300.0) for _ in range(count)]
    for group in groups:
        group.join((0.1, 0.1, 0.1, 0.1))
    return groups


def state(**said: object) -> State:
    known = {"times": (0.1,) * 4, "stamp": time.monotonic(), "round": 1, "point": 2, "inside": True, "away": False}
    return State(**(known | said))


@contextlib.contextmanager
def keeps(folder: Path, name: str, content: Callable[[int], bytes], every_s: float = 3600.0) -> Iterator[None]:
    """A file that somebody holds as a member does, and writes anew again and again, by how often it was."""
    fd, stop = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644), threading.Event()
    os.write(fd, content(0))
    fcntl.flock(fd, fcntl.LOCK_EX)

    def write() -> None:
        for count in itertools.count(1):
            if stop.wait(every_s):
                return
            os.pwrite(fd, content(count), 0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        os.close(fd)


def links(folder: Path) -> None:
    (folder / name_of()).symlink_to("/dev/zero")
    (folder / name_of(number=1)).symlink_to(folder / name_of(number=2))
    (folder / name_of(number=2)).symlink_to(folder)


def put(folder: Path, contents: Iterable[bytes]) -> None:
    for number, content in enumerate(contents):
        (folder / name_of(number=number)).write_bytes(content)


def odd_names(folder: Path) -> None:
    for name in ("turn.", "turn.-1.7.0000000000000000", "turn.0.7.x", "turn.0.7.00000000000000000", "\udcff\n"):
        (folder / name).write_bytes(pack(name if name.isascii() else "x", state()))


FOLDERS: dict[str, Callable[[Path], object]] = {
    "FIFO": lambda folder: os.mkfifo(folder / name_of()),
    "links": links,
    "folder": lambda folder: (folder / name_of()).mkdir(),
    "huge file": lambda folder: ((folder / name_of()).touch(), os.truncate(folder / name_of(), 1 << 40)),
    "junk": lambda folder: put(folder, (b"", b"{}", os.urandom(members._SIZE), bytes(members._SIZE))),
    "odd names": odd_names,
    "nobody alive": lambda folder: put(folder, (pack(name_of(number=number), state()) for number in range(20))),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_what_lies_in_the_folder_keeps_nobody_from_taking_turns(box: Box, what: str) -> None:
    FOLDERS[what](box.folder)
    box.start("a", STAGES[0], 12, patience_s=300, wait_at=4, tell_at=4)
    assert box.line("a").startswith("there 1")
    box.start("b", STAGES[1], 12, patience_s=300, tell_at=1)
    box.line("b")
    (box.root / "go").touch()
    assert max(row[4] for row in box.all_end("ab")) == 2


NUMBERS = ({"times": (0.1, bad, 0.1, 0.1)} for bad in (float("nan"), float("inf"), -1.0, 1e300))
STAMPS = ({"stamp": bad} for bad in (float("nan"), float("-inf"), 1e300))


@pytest.mark.parametrize("said", [*NUMBERS, *STAMPS, {"point": 5}, {"round": (1 << 64) - 1}], ids=str)
def test_numbers_that_cannot_be_are_not_believed(said: dict[str, object]) -> None:
    name = name_of()
    assert unpack(name, pack(name, state()), time.monotonic()) is not None
    assert unpack(name, pack(name, state(**said)), time.monotonic()) is None


def test_a_file_counts_under_its_own_name_and_its_owners_only(box: Box) -> None:
    """A copy or a second link does not count as a member, nor does a file with the name of another user."""
    (group,) = joined(box)
    name = group._me.name
    with contextlib.ExitStack() as held:
        for as_, of in ((name_of(number=1), name), (name_of(UID + 1), name_of(UID + 1))):
            held.enter_context(keeps(box.folder, as_, partial(lambda of, _: pack(of, state()), of)))
        os.link(box.folder / name, box.folder / name_of(number=3))
        group.enter(2, 0.0)
    assert group.count == 1
    group.leave()


def test_a_user_with_many_members_has_no_more_places_than_are_left() -> None:
    mine, others = [Member(f"a{n}", 1, -1) for n in range(3)], [Member(f"b{n}", 2, -1) for n in range(9)]
    assert [one.name for one in members._fair([*others, *mine])] == ["a0", "a1", "b0", "b1"]


def goes_on_alone(box: Box, says: str = "goes on without turns") -> None:
    """Job a ends well without turns, and says so once."""
    told, err = box.ends("a")
    assert (told["members"], err.count(says), err.count("\n")) == (0, 1, 1)


@pytest.mark.parametrize("how", ["folder", "file"])
def test_a_folder_or_a_file_that_goes_away_ends_the_turns(box: Box, how: str) -> None:
    box.start("a", STAGES[0], 12, wait_at=5, tell_at=5)
    assert box.line("a") == "there 1"
    if how == "folder":
        shutil.rmtree(box.folder)
    else:
        (box.folder / box.members()[0]).unlink()
    (box.root / "go").touch()
    goes_on_alone(box)


@pytest.mark.parametrize(("how", "says"), [("full", "too many files"), ("locked", "keeps the folder locked")])
def test_a_folder_that_cannot_be_used_costs_one_wait_and_ends_the_turns(box: Box, how: str, says: str) -> None:
    for number in range(members.MOST_ENTRIES + 1 if how == "full" else 0):
        (box.folder / f"x{number}").touch()
    fd = os.open(box.folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX if how == "locked" else fcntl.LOCK_UN)
    box.start("a", STAGES[0], 12, patience_s=0.2)
    goes_on_alone(box, says)
    os.close(fd)


@pytest.mark.parametrize("told", ["nothing", "signs"])
def test_a_member_that_never_lets_go_costs_one_wait(box: Box, told: str) -> None:
    """It is in every stage for ever. Without a sign it is given up; with signs the job leaves the turns."""

    def sign(_: int) -> bytes:
        return pack(name_of(), state(times=(0.0,) * 4, point=int(time.monotonic() * 50) % 3))

    with keeps(box.folder, name_of(), sign, 0.01 if told == "signs" else 3600.0):
        box.start("a", STAGES[0], 12, patience_s=0.2)
        if told == "signs":
            goes_on_alone(box)
        else:
            last, err = box.ends("a")
            assert (last["members"], err) == (1, "")


def test_a_member_that_keeps_all_waiting_a_little_is_left_in_the_end(box: Box) -> None:
    """It moves on, so it is never given up; but it makes each round thirty times as long as an iteration alone."""
    slow = (0.0, 0.0, 0.4, 0.0)
    box.start("s", slow, 40, patience_s=0.8, times=slow)
    assert box.line("s") == "joined"
    (box.root / "go").touch()
    box.start("a", (0, 0, 0.014, 0), 30, patience_s=0.8)
    goes_on_alone(box, "waited in 8 iterations")


def test_a_member_that_leaps_ahead_keeps_nobody_waiting(box: Box) -> None:
    """It is a thousand rounds further at each look. The others leap after it, and still wait for each other only."""

    def leap(looks: int) -> bytes:
        return pack(name_of(), state(round=(1 << 40) + 1000 * looks, inside=False))

    with keeps(box.folder, name_of(), leap, 0.003):
        box.start("a", STAGES[0], 12, patience_s=300)
        box.start("b", STAGES[1], 12, patience_s=300)
        box.all_end("ab")


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_folder_where_files_can_be_replaced_is_refused(box: Box, mode: int) -> None:
    box.folder.chmod(mode)
    with pytest.raises(Unusable, match="could replace"):
        Group(str(box.folder), "7")
    (box.root / "link").symlink_to(box.folder)
    with pytest.raises(OSError) as raised:
        Group(str(box.root / "link"), "7")
    assert raised.value.errno in (errno.ELOOP, errno.ENOTDIR)


def test_a_full_disk_leaves_a_job_without_turns(box: Box) -> None:
    """A limit on the size of files refuses the write as a full disk does."""
    program = """
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
turns = lucid_turns.Turns()
rounds(turns, 8)
print(turns.members)
"""
    with box.run(program) as job:
        out, err = job.communicate(timeout=60)
    assert (job.returncode, out) == (0, "0\n"), err
    assert err.count("goes on without turns") == err.count("\n") == 1
    assert list(box.folder.iterdir()) == []


def test_turns_are_tried_again_and_each_time_later(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lucid_turns, "AWAY_S", 0.0)
    turns = lucid_turns.Turns(folder=str(box.folder), report=False)
    for _ in range(3):
        turns.step()
    assert turns.members == 1
    (box.folder / box.members()[0]).unlink()
    with turns.gpu():
        assert turns.members == 0
    turns.step()
    assert (turns.members, turns._failures) == (1, 1)
    turns.close()
    assert (turns.members, box.members()) == (0, [])


def test_a_fifth_member_shares_without_turns(box: Box) -> None:
    """It neither waits nor is waited for."""
    groups = sorted(joined(box, 5), key=lambda group: group._me.name)
    groups[-1].enter(2, 0.0)
    assert groups[-1].count == 0
    groups[0]._free(0)
    assert groups[0].count == 4
    for group in groups:
        group.leave()
