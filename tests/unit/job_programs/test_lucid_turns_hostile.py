"""lucid-turns in a folder where anybody may write anything: jobs go on, after one bounded wait at the most."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lucid_turns
from lucid_job import members
from lucid_job.members import Group, Member, State, Unusable, pack, unpack
from turns_box import Box, overlaps

STAGES = ((0.02, 0.01, 0.01, 0), (0.01, 0.01, 0.02, 0.01))
UID = os.getuid()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with Box(tmp_path) as made:
        yield made


def name_of(uid: int = UID, number: int = 0) -> str:
    return f"turn.{uid}.7.{number:016x}"


def state(**said: object) -> State:
    known = {"times": (0.1,) * 4, "stamp": time.monotonic(), "round": 1, "point": 2, "inside": True, "away": False}
    return State(**(known | said))


def a_fifo(folder: Path) -> None:
    os.mkfifo(folder / name_of())


def links(folder: Path) -> None:
    (folder / name_of()).symlink_to("/dev/zero")
    (folder / name_of(number=1)).symlink_to(folder / name_of(number=2))
    (folder / name_of(number=2)).symlink_to(folder)


def a_folder(folder: Path) -> None:
    (folder / name_of()).mkdir()


def a_huge_file(folder: Path) -> None:
    with (folder / name_of()).open("wb") as file:
        file.truncate(1 << 40)


def junk(folder: Path) -> None:
    for number, content in enumerate((b"", b"{}", os.urandom(members._SIZE), bytes(members._SIZE))):
        (folder / name_of(number=number)).write_bytes(content)


def odd_names(folder: Path) -> None:
    for name in ("turn.", "turn.-1.7.0000000000000000", "turn.0.7.x", "turn.0.7.00000000000000000", "\udcff\n"):
        (folder / name).write_bytes(pack(name if name.isascii() else "x", state()))


def nobody_alive(folder: Path) -> None:
    """Good content that no process holds."""
    for number in range(20):
        (folder / name_of(number=number)).write_bytes(pack(name_of(number=number), state()))


FOLDERS: tuple[Callable[[Path], None], ...] = (a_fifo, links, a_folder, a_huge_file, junk, odd_names, nobody_alive)


@pytest.mark.parametrize("fill", FOLDERS)
def test_what_lies_in_the_folder_keeps_nobody_from_taking_turns(box: Box, fill: Callable[[Path], None]) -> None:
    fill(box.folder)
    go = box.root / "go"
    box.start("a", STAGES[0], 12, patience_s=300, wait_at=4, go=str(go), tell_at=4)
    assert box.line("a").startswith("there 1")
    box.start("b", STAGES[1], 12, patience_s=300, tell_at=1)
    box.line("b")
    go.touch()
    for name in "ab":
        assert box.ends(name)[1] == ""
    rows = box.used()
    assert overlaps(rows) == []
    assert max(row[4] for row in rows) == 2


NUMBERS = ({"times": (0.1, bad, 0.1, 0.1)} for bad in (float("nan"), float("inf"), -1.0, 1e300))
STAMPS = ({"stamp": bad} for bad in (float("nan"), float("-inf"), 1e300))


@pytest.mark.parametrize("said", [*NUMBERS, *STAMPS, {"point": 5}, {"round": (1 << 64) - 1}], ids=str)
def test_numbers_that_cannot_be_are_not_believed(said: dict[str, object]) -> None:
    name = name_of()
    assert unpack(name, pack(name, state()), time.monotonic()) is not None
    assert unpack(name, pack(name, state(**said)), time.monotonic()) is None


def test_a_file_counts_under_its_own_name_and_its_owners_only(box: Box) -> None:
    """A copy or a second link is no second member; a file named for another user is none at all."""
    group = joined(box)
    name = group._me.name
    with keeps(box.folder, name_of(number=1), pack(name, state())), keeps(
        box.folder, name_of(UID + 1), pack(name_of(UID + 1), state())
    ):  # fmt: skip
        os.link(box.folder / name, box.folder / name_of(number=3))
        group.enter(2, 0.0)
    assert group.count == 1
    group.leave()


def test_a_user_with_many_members_has_no_more_places_than_are_left() -> None:
    mine, others = [Member(f"a{n}", 1, -1) for n in range(3)], [Member(f"b{n}", 2, -1) for n in range(9)]
    assert [one.name for one in members._fair([*others, *mine])] == ["a0", "a1", "b0", "b1"]


@pytest.mark.parametrize("how", ["folder", "file"])
def test_a_folder_or_a_file_that_goes_away_ends_the_turns(box: Box, how: str) -> None:
    go = box.root / "go"
    box.start("a", STAGES[0], 12, wait_at=5, tell_at=5, go=str(go))
    assert box.line("a") == "there 1"
    if how == "folder":
        shutil.rmtree(box.folder)
    else:
        (box.folder / box.members()[0]).unlink()
    go.touch()
    told, err = box.ends("a")
    assert told["members"] == 0
    assert err.count("goes on without turns") == err.count("\n") == 1


def test_too_many_files_end_the_turns(box: Box) -> None:
    for number in range(members.MOST_ENTRIES + 1):
        (box.folder / f"x{number}").touch()
    box.start("a", STAGES[0], 8)
    told, err = box.ends("a")
    assert (told["members"], err.count("too many files"), err.count("\n")) == (0, 1, 1)


def test_a_folder_locked_for_ever_costs_one_wait(box: Box) -> None:
    fd = os.open(box.folder, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        box.start("a", STAGES[0], 12, patience_s=0.2)
        told, err = box.ends("a")
    finally:
        os.close(fd)
    assert (told["members"], err.count("keeps the folder locked"), err.count("\n")) == (0, 1, 1)


@pytest.mark.parametrize("told", ["nothing", "signs"])
def test_a_member_that_never_lets_go_costs_one_wait(box: Box, told: str) -> None:
    """It is in every stage for ever. Without a sign it is given up; with signs the job leaves the turns."""
    name = name_of()

    def sign(_: int) -> bytes:
        return pack(name, state(times=(0.0,) * 4, point=int(time.monotonic() * 50) % 3))

    with keeps(box.folder, name, sign(0)) as fd, writing(fd, sign, 0.01 if told == "signs" else 3600.0):
        box.start("a", STAGES[0], 12, patience_s=0.2)
        last, err = box.ends("a")
    if told == "nothing":
        assert (last["members"], err) == (1, "")
    else:
        assert (last["members"], err.count("goes on without turns"), err.count("\n")) == (0, 1, 1)


def test_a_member_that_keeps_all_waiting_a_little_is_left_in_the_end(box: Box) -> None:
    """It moves on, so it is never given up; but it makes each round thirty times as long as an iteration alone."""
    slow = (0.0, 0.0, 0.4, 0.0)
    go = box.root / "go"
    box.start("s", slow, 40, patience_s=0.8, times=slow, go=str(go))
    assert box.line("s") == "joined"
    go.touch()
    box.start("a", (0, 0, 0.014, 0), 30, patience_s=0.8)
    last, err = box.ends("a")
    assert (last["members"], err.count("waited in 8 iterations"), err.count("\n")) == (0, 1, 1)


def test_a_member_that_leaps_ahead_keeps_nobody_waiting(box: Box) -> None:
    """It is a thousand rounds further at each look. The others leap after it, and still wait for each other only."""
    name = name_of()

    def leap(looks: int) -> bytes:
        return pack(name, state(round=(1 << 40) + 1000 * looks, inside=False))

    with keeps(box.folder, name, leap(0)) as fd, writing(fd, leap, 0.003):
        box.start("a", STAGES[0], 12, patience_s=300)
        box.start("b", STAGES[1], 12, patience_s=300)
        for job in "ab":
            assert box.ends(job)[1] == ""
    assert overlaps(box.used()) == []


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
for _ in range(8):
    with turns.gpu():
        time.sleep(0.01)
    turns.step()
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
    assert turns.members == 1
    assert turns._failures == 1
    turns.close()
    assert (turns.members, box.members()) == (0, [])


def joined(box: Box, patience_s: float = 300.0) -> Group:
    group = Group(str(box.folder), "7", patience_s)
    group.join((0.1, 0.1, 0.1, 0.1))
    return group


@contextlib.contextmanager
def keeps(folder: Path, name: str, content: bytes) -> Iterator[int]:
    """A file that somebody holds as a member does."""
    fd = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.write(fd, content)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def writing(fd: int, content: Callable[[int], bytes], every_s: float) -> Iterator[None]:
    """Its content is written anew again and again, by how often it was."""
    stop = threading.Event()

    def write() -> None:
        count = 0
        while not stop.wait(every_s):
            count += 1
            os.pwrite(fd, content(count), 0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_fifth_member_shares_without_turns(box: Box) -> None:
    """It neither waits nor is waited for."""
    groups = [joined(box) for _ in range(5)]
    fifth = max(groups, key=lambda group: group._me.name)
    fifth.enter(2, 0.0)
    assert fifth.count == 0
    first = min(groups, key=lambda group: group._me.name)
    first._free(0)
    assert first.count == 4
    for group in groups:
        group.leave()
