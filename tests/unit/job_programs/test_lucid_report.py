"""lucid_report, and files that jobs write."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from test_lucid_run import PYTHON, RUN, environ

import lucid_report
from lucid import untrusted
from lucid.core.job import Progress
from lucid.slurm.elastic.reports import Reports, said_in
from scenes.jobs import HOME

REPORT = Path(__file__).resolve().parents[3] / "slurm/lucid_report.py"


def call(
    folder: Path, *words: str, process: bool = sys.executable != PYTHON, **environ: str
) -> subprocess.CompletedProcess[str]:
    """The program's end and words. It is called in this process, unless another Python is to run it."""
    env = {"LUCID_REPORTS": str(folder), "SLURM_JOB_ID": "7", "LUCID_GPUS_HERE": "2", "LUCID_NODES": "2", **environ}
    if process:
        command = [PYTHON, "-IB", str(REPORT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    out, err = io.StringIO(), io.StringIO()
    with patch.dict(os.environ, env, clear=True), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = lucid_report.main(list(words))
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def told_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / HOME / "7.json").read_text())
    return found


def read_in(folder: Path) -> Progress:
    """What lucidd makes of it."""
    return said_in((folder / HOME / "7.json").read_bytes()).progress


def test_what_a_job_reports_is_what_lucidd_reads(tmp_path: Path) -> None:
    first = call(tmp_path, "--epochs", "1", "--epoch-s", "40", "--loss", "0.5", "--batch", "256", process=True)
    assert first.returncode == 0, "it runs as a program of its own"
    assert call(tmp_path, "--epochs", "2", "--epoch-s", "30", "--loss", "0.3", LUCID_NODES="1").returncode == 0
    assert call(tmp_path, "--epochs", "3", "--epoch-s", "29", "--gpus", "2").returncode == 0
    reports, me = Reports(str(tmp_path)), os.getuid()
    others = (("7", me + 1), ("6", me), (f"../{HOME}/7", me))
    assert [reports.report_of(*other, 1.0) for other in others] == [None] * 3, "another's, of nobody, no number"
    found = reports.report_of("7", me, 5.0)
    assert found.progress is not None, found.refused
    assert (found.progress.epochs, found.progress.batch) == (3.0, 256)
    assert found.progress.epoch_s == ((4, 40.0), (2, 29.0))
    assert found.progress.losses == ((1.0, 0.5), (2.0, 0.3))
    assert [path.name for path in (tmp_path / HOME).iterdir()] == ["7.json"], "nothing is left beside it"
    refused = call(tmp_path / "none", "--epochs", "1", process=True)
    assert (refused.returncode, refused.stderr.count("not reported")) == (1, 1)


def test_losses_after_a_checkpoint_are_taken_back_and_many_stay_within_what_lucidd_reads(tmp_path: Path) -> None:
    for epochs, loss in (("1", "0.5"), ("2", "0.4"), ("3", "0.3"), ("2", "0.45")):
        call(tmp_path, "--epochs", epochs, "--loss", loss)
    assert read_in(tmp_path).losses == ((1.0, 0.5), (2.0, 0.45))
    (tmp_path / HOME / "7.json").write_text(json.dumps({"losses": [[n / 10, 0.1] for n in range(200)]}))
    call(tmp_path, "--epochs", "900", "--loss", "0.1")
    losses = read_in(tmp_path).losses
    assert (len(losses), losses[-1]) == (101, (900.0, 0.1))


def test_what_an_agent_tells_is_kept_beside_it(tmp_path: Path) -> None:
    def told(**agent: object) -> dict[str, Any]:
        assert lucid_report.report(1, folder=str(tmp_path), job=7, **agent)
        return told_in(tmp_path)

    told(profile=[[1, 2, 16, 0.1, 0.2], [1, 2, 32, 0.2, 0.3]], batch_range=[32, 512], gradient=[0.5, 2.0])
    found = told(profile=[[1, 2, 16, 0.15, 0.25]], gradient=None, atomic_range=[8, 64])
    assert found["profile"] == [[1, 2, 32, 0.2, 0.3], [1, 2, 16, 0.15, 0.25]], "a kind of step has one row"
    assert (found["batch_range"], found["atomic_range"], found["gradient"]) == ([32, 512], [8, 64], [0.5, 2.0])
    found = told(profile=[[1, 4, size, 0.1, 0.2] for size in range(1, 100)])
    assert found["profile"] == [[1, 4, size, 0.1, 0.2] for size in range(36, 100)], "the newest 64"
    assert read_in(tmp_path).gradient == (0.5, 2.0)


def test_a_word_that_is_not_known_is_said_and_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not lucid_report.report(1, folder=str(tmp_path), job=7, gradients=[1, 2])
    assert "unknown: gradients; known are batch_range" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.*"))


RUNS = {"6:5": 4, ":": 4, "7:many": 0, "7:5": 5}  # by the job that lucid-run started, and its GPUs


@pytest.mark.parametrize(("name", "told", "gpus"), [("GPUS", "5", 5), *(("RUN", *row) for row in RUNS.items())])
def test_gpus_are_counted_over_all_nodes(tmp_path: Path, name: str, told: str, gpus: int) -> None:
    """These may have different numbers."""
    call(tmp_path, "--epochs", "1", "--epoch-s", "9", **{f"LUCID_{name}": told})
    assert told_in(tmp_path).get("epoch_s", [[0]])[0][0] == gpus


def test_stage_times_are_told_with_or_without_epochs(tmp_path: Path) -> None:
    assert call(tmp_path, "--stages", "storage=0.1,gpu=0.5,iteration=0.7").returncode == 0
    found = told_in(tmp_path)
    assert found["stages"] == {"storage": 0.1, "cpu": 0.0, "gpu": 0.5, "network": 0.0, "iteration": 0.7}
    assert found["epochs"] == 0.0
    assert call(tmp_path, "--epochs", "2").returncode == 0
    assert call(tmp_path, "--stages", "gpu=0.4,iteration=0.7").returncode == 0
    found = told_in(tmp_path)
    assert (found["epochs"], found["stages"]["gpu"], found["stages"]["storage"]) == (2.0, 0.4, 0.0)
    assert read_in(tmp_path).epochs == 2.0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        *((["--epochs", "1", f"--loss={loss}"], 1, "not reported") for loss in ("nan", "inf", "-inf")),
        *(([f"--stages={said}"], 1, "iteration") for said in ("gpu=nan", "gpu=-1", "gpu=inf", "disk=1")),
        *(([f"--stages={said}"], 2, "iteration") for said in ("gpu", "gpu=", "")),
        ([], 2, ""),
    ],
)
def test_what_cannot_be_is_not_written_and_jobs_go_on(tmp_path: Path, words: list[str], code: int, says: str) -> None:
    done = call(tmp_path, *words)
    assert (done.returncode, says in done.stderr) == (code, True)
    assert not list(tmp_path.rglob("*.*"))
    assert call(tmp_path / "none", "--epochs", "1").returncode == 1
    assert call(tmp_path, "--epochs", "1", SLURM_JOB_ID="").returncode == 1


SLURM = RUN.parent
ALICE, BOB = 61001, 61002
PUBLIC = PYTHON if os.environ.get("LUCID_JOB_PYTHON") else "/usr/bin/python3"
root = pytest.mark.skipif(os.getuid() != 0, reason="runs programs as other users")


def linked(path: Path, to: Path) -> None:
    to.write_text('{"epochs": 9}')
    path.symlink_to(to)


ODD: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "deep": lambda path: path.write_text("[" * 200_000),
    "deep and short": lambda path: path.write_text('{"epochs": ' + "[" * 20_000 + "]" * 20_000 + "}"),
    "sparse": lambda path: (path.touch(), os.truncate(path, 40 << 30)),
    "too long": lambda path: path.write_text('{"epochs": 9}' + " " * 70_000),
    "link": lambda path: linked(path, path.parent / "elsewhere"),
    "folder": Path.mkdir,
    "not UTF-8": lambda path: path.write_bytes(b"\xff{"),
    "a long number": lambda path: path.write_text('{"epochs": 1' + "0" * 400 + "}"),
    "other types": lambda path: path.write_text('{"epochs": [], "losses": 3, "epoch_s": [7], "profile": {"a": 1}}'),
}


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
    (tmp_path / HOME).mkdir()
    ODD[odd](tmp_path / HOME / "7.json")
    assert Reports(str(tmp_path)).report_of("7", os.getuid(), 1.0).refused
    done = subprocess.run(
        [PYTHON, "-IB", str(SLURM / "lucid_report.py"), "--epochs", "3"], capture_output=True, text=True, timeout=20,
        env=environ(LUCID_REPORTS=str(tmp_path)), check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    if odd == "folder":
        assert "not reported" in done.stderr
    else:
        assert (done.returncode, told_in(tmp_path)["epochs"]) == (0, 3.0), done.stderr


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


def taken(path: Path, who: int = BOB) -> Path:
    """A folder of somebody."""
    path.mkdir()
    os.chown(path, who, who)
    return path


BEFORE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "folder": taken,
    "link": lambda path: path.symlink_to(taken(path.parent.parent / "bobs")),
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
    assert Reports(str(common)).report_of("7", ALICE, 1.0).progress.epochs == 2.0
    assert Reports(str(common)).report_of("7", BOB, 1.0) is None
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
        reports.report_of("7", ALICE, float(now_s))
        reports.report_of("8", BOB, float(now_s))
    assert len(looks) == 2


@root
def test_a_folder_that_others_may_write_to_is_nobodys(common: Path) -> None:
    """bob could have moved one of alice's there, and then puts into it what he likes."""
    taken(common / f"u{ALICE}", ALICE).chmod(0o777)
    taken(common / f"u{ALICE}/7")
    done = by_alice(common, "lucid_run.py", "--checkpoints", str(common), PUBLIC, "-c", "pass")
    assert done.returncode == 0, done.stderr
    assert by_alice(common, "lucid_report.py", "--epochs", "2").returncode == 0
    assert Reports(str(common)).report_of("7", ALICE, 1.0).progress is not None


@root
def test_a_folder_whose_maker_was_killed_before_others_could_read_it_is_opened(common: Path) -> None:
    taken(common / f"u{ALICE}", ALICE).chmod(0o700)
    assert by_alice(common, "lucid_report.py", "--epochs", "2").returncode == 0
    assert (common / f"u{ALICE}").stat().st_mode & 0o777 == 0o755


@root
def test_root_of_a_container_is_the_jobs_user(common: Path) -> None:
    inside = ["unshare", "--user", "--map-root-user"]
    if subprocess.run([*BY_ALICE, *inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    done = by_alice(common, "lucid_report.py", "--epochs", "2", before=inside, SLURM_JOB_UID=str(ALICE))
    assert done.returncode == 0, done.stderr
    assert Reports(str(common)).report_of("7", ALICE, 1.0) is not None
