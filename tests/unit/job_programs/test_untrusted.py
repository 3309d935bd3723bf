"""What neighbours put where everybody may write: a job of alice's goes on, and lucidd reads hers and nothing else."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from test_lucid_run import PYTHON, RUN, environ

from lucid import untrusted
from lucid.slurm.elastic.reports import Reports

SLURM = RUN.parent
ALICE, BOB = 61001, 61002
PUBLIC = PYTHON if os.environ.get("LUCID_JOB_PYTHON") else "/usr/bin/python3"
root = pytest.mark.skipif(os.getuid() != 0, reason="runs programs as other users")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(40 << 30)


def as_link(path: Path) -> None:
    (path.parent / "elsewhere").write_text('{"epochs": 9}')
    path.symlink_to(path.parent / "elsewhere")


ODD: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "deep": lambda path: path.write_text("[" * 200_000),
    "deep and short": lambda path: path.write_text('{"epochs": ' + "[" * 20_000 + "]" * 20_000 + "}"),
    "sparse": sparse,
    "too long": lambda path: path.write_text('{"epochs": 9}' + " " * 70_000),
    "link": as_link,
    "folder": Path.mkdir,
    "not UTF-8": lambda path: path.write_bytes(b"\xff{"),
    "a long number": lambda path: path.write_text('{"epochs": 1' + "0" * 400 + "}"),
    "other types": lambda path: path.write_text('{"epochs": [], "losses": 3, "epoch_s": [7], "profile": {"a": 1}}'),
}


@pytest.mark.parametrize("odd", ODD)
def test_one_reader_takes_anything_for_nothing(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "7.json"
    ODD[odd](path)
    found = untrusted.json_of(str(path), os.getuid())
    assert not found or odd in ("a long number", "other types"), "flat JSON: who reads it checks the values"


def test_a_fifo_that_somebody_feeds_is_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "7.json")
    fd = os.open(tmp_path / "7.json", os.O_RDWR)
    os.write(fd, b'{"epochs": 9}')
    assert untrusted.json_of(str(tmp_path / "7.json"), os.getuid()) == {}
    os.close(fd)


@root
def test_a_file_of_somebody_else_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "7.json"
    path.write_text("{}")
    os.chown(path, BOB, BOB)
    with pytest.raises(untrusted.Refused, match="job's user"):
        untrusted.read(str(path), ALICE)
    with pytest.raises(FileNotFoundError):
        untrusted.read(str(tmp_path / "none"), ALICE)


def test_brackets_in_strings_are_no_depth() -> None:
    text = json.dumps({"a": '[[{"\\' * 100, "b": [[1]]}).encode()
    assert untrusted.parsed(text)["b"] == [[1]]
    with pytest.raises(untrusted.Refused, match="brackets"):
        untrusted.parsed(b'{"a":' + b"[" * 17 + b"]" * 17 + b"}")


@pytest.mark.parametrize("odd", ODD)
def test_what_stands_at_a_jobs_number_neither_stops_it_nor_lucidd(tmp_path: Path, odd: str) -> None:
    home = tmp_path / f"u{os.getuid()}"
    home.mkdir()
    ODD[odd](home / "7.json")
    assert (found := Reports(str(tmp_path)).of("7", os.getuid(), 1.0)) is not None
    assert found.refused
    done = subprocess.run(
        [PYTHON, "-IB", str(SLURM / "lucid_report.py"), "--epochs", "3"], capture_output=True, text=True, timeout=20,
        env=environ(LUCID_REPORTS=str(tmp_path)), check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    if odd == "folder":
        assert "not reported" in done.stderr
    else:
        assert (done.returncode, json.loads((home / "7.json").read_text())["epochs"]) == (0, 3.0), done.stderr


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that everybody may write to, with what runs in jobs beside it."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        subprocess.run(["cp", "-rL", str(SLURM), f"{made}/slurm"], check=True)
        folder = Path(made) / "common"
        folder.mkdir()
        folder.chmod(0o1777)
        yield folder


BY_ALICE = ("setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups")


def by_alice(common: Path, *words: str, before: Sequence[str] = (), **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*BY_ALICE, *before, PUBLIC, "-B", *words],
        capture_output=True, text=True, timeout=60, check=False, cwd=common.parent / "slurm",
        env=environ(LUCID_REPORTS=str(common), LUCID_GPUS_HERE="1", **more), umask=0o077,
    )  # fmt: skip


def taken(path: Path) -> None:
    path.mkdir()
    os.chown(path, BOB, BOB)


def taken_by_link(path: Path) -> None:
    elsewhere = path.parent.parent / "bobs"
    taken(elsewhere)
    path.symlink_to(elsewhere)


BEFORE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "folder": taken,
    "link": taken_by_link,
    "FIFO": os.mkfifo,
    "file": lambda path: path.write_text("x"),
}


@root
@pytest.mark.parametrize("before", BEFORE)
def test_a_neighbour_who_came_first_stops_no_job(common: Path, before: str) -> None:
    for number in range(1, 20):  # by number, as he can guess them
        taken(common / str(number))
        os.mkfifo(common / f"{number}.json")
    BEFORE[before](common / f"u{ALICE}")
    for n in range(3):
        taken(common / f"u{ALICE}.{n:016x}")
    for epochs in ("1", "2"):
        done = by_alice(common, "lucid_report.py", "--epochs", epochs, "--epoch-s", epochs)
        assert done.returncode == 0, done.stderr
    # lucidd is a user of its own, and need not be root
    told = "import sys; import lucid_job.untrusted as u; print(u.homes(sys.argv[1], *2 * [int(sys.argv[2])])[0])"
    seen = subprocess.run(
        ["setpriv", "--reuid=61003", "--clear-groups", PUBLIC, "-Bc", told, str(common), str(ALICE)],
        capture_output=True, text=True, check=True, cwd=common.parent / "slurm",
    )  # fmt: skip
    home = Path(seen.stdout.strip())
    assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (ALICE, 0o755), "whatever her umask"
    assert (home == common / f"u{ALICE}") == (before == "nothing")
    found = Reports(str(common)).of("7", ALICE, 1.0)
    assert found is not None
    assert found.progress is not None, found.refused
    assert found.progress.epochs == 2.0
    assert Reports(str(common)).of("7", BOB, 1.0) is None
    shows = "import os; print(os.environ['LUCID_CHECKPOINTS'])"
    runs = [by_alice(common, "lucid_run.py", "--checkpoints", str(common), PUBLIC, "-c", shows) for _ in range(2)]
    assert {run.stdout for run in runs} == {f"{home}/7\n" * 2}, runs[0].stderr
    assert (home / "7").stat().st_mode & 0o777 == 0o700


@root
def test_a_file_system_that_squashes_its_maker_is_said_and_leaves_nothing(
    common: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """root_squash gives what root makes to nobody: root's jobs go without, and fill the folder with nothing."""
    monkeypatch.setattr(os, "mkdir", lambda path, *_, made=os.mkdir, **__: (made(path), os.chown(path, 65534, 65534)))
    with pytest.raises(OSError, match="root_squash"):
        untrusted.made_homes(str(common))
    assert not list(common.iterdir())


def test_names_of_others_are_listed_now_and_then_only(common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(untrusted, "other_names", lambda folder: looks.append(folder) or iter(()))
    reports = Reports(str(common))
    for now_s in range(60):
        reports.of("7", ALICE, float(now_s))
        reports.of("8", BOB, float(now_s))
    assert len(looks) == 2


@root
def test_millions_of_names_stop_lucidd_for_a_moment_and_hide_nothing(
    common: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken(common / f"u{ALICE}")
    assert by_alice(common, "lucid_report.py", "--epochs", "2").returncode == 0
    (home,) = common.glob(f"u{ALICE}.*")
    millions = itertools.repeat((ALICE, str(common / f"u{ALICE}.{0:016x}")), 2_000_000)
    monkeypatch.setattr(untrusted, "other_names", lambda _: itertools.chain(millions, [(ALICE, str(home))]))
    reports, longest_s, look = Reports(str(common)), 0.0, 0
    while reports.of("7", ALICE, float(look)) is None:
        began, look = time.monotonic(), look + 1
        reports.of("7", ALICE, float(look))
        longest_s = max(longest_s, time.monotonic() - began)
        assert look < 500
    assert look > 1
    assert longest_s < 2


@root
def test_a_folder_that_others_may_write_to_is_nobodys(common: Path) -> None:
    """bob could have moved one of alice's there, and then puts into it what he likes."""
    (common / f"u{ALICE}").mkdir()
    os.chown(common / f"u{ALICE}", ALICE, ALICE)
    (common / f"u{ALICE}").chmod(0o777)
    taken(common / f"u{ALICE}/7")
    done = by_alice(common, "lucid_run.py", "--checkpoints", str(common), PUBLIC, "-c", "pass")
    assert done.returncode == 0, done.stderr
    assert by_alice(common, "lucid_report.py", "--epochs", "2").returncode == 0
    assert (found := Reports(str(common)).of("7", ALICE, 1.0)) is not None
    assert found.progress is not None


@root
def test_a_folder_whose_maker_was_killed_before_others_could_read_it_is_opened(common: Path) -> None:
    (common / f"u{ALICE}").mkdir(mode=0o700)
    os.chown(common / f"u{ALICE}", ALICE, ALICE)
    assert by_alice(common, "lucid_report.py", "--epochs", "2").returncode == 0
    assert (common / f"u{ALICE}").stat().st_mode & 0o777 == 0o755


@root
def test_root_of_a_container_is_the_jobs_user(common: Path) -> None:
    inside = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*BY_ALICE, *inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    done = by_alice(common, "lucid_report.py", "--epochs", "2", before=inside, SLURM_JOB_UID=str(ALICE))
    assert done.returncode == 0, done.stderr
    assert Reports(str(common)).of("7", ALICE, 1.0) is not None
