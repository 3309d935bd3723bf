"""lucid-report: the one file that an elastic job calls or imports, read back by the rules of lucidd."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from test_lucid_run import PYTHON

import lucid_report
from lucid.slurm.elastic.reports import Reports, said_in
from scenes.folders import HOME

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
    with (
        patch.dict(os.environ, env, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = lucid_report.main(list(words))
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def test_it_runs_as_a_program_of_its_own(tmp_path: Path) -> None:
    assert call(tmp_path, "--epochs", "1", process=True).returncode == 0
    assert said_in((tmp_path / HOME / "7.json").read_bytes()).progress.epochs == 1.0
    refused = call(tmp_path / "none", "--epochs", "1", process=True)
    assert (refused.returncode, refused.stderr.count("not reported")) == (1, 1)


def test_what_a_job_reports_is_what_lucidd_reads(tmp_path: Path) -> None:
    assert call(tmp_path, "--epochs", "1", "--epoch-s", "40", "--loss", "0.5", "--batch", "256").returncode == 0
    assert call(tmp_path, "--epochs", "2", "--epoch-s", "30", "--loss", "0.3", LUCID_NODES="1").returncode == 0
    assert call(tmp_path, "--epochs", "3", "--epoch-s", "29", "--gpus", "2").returncode == 0
    found = Reports(str(tmp_path)).of("7", os.getuid(), 5.0)
    assert found.progress is not None, found.refused
    assert found.progress.epochs == 3.0
    assert found.progress.epoch_s == ((4, 40.0), (2, 29.0))
    assert found.progress.losses == ((1.0, 0.5), (2.0, 0.3))
    assert found.progress.batch == 256
    assert [path.name for path in (tmp_path / HOME).iterdir()] == ["7.json"], "nothing is left beside it"


def test_a_job_that_goes_back_to_a_checkpoint_takes_its_later_losses_back(tmp_path: Path) -> None:
    for epochs, loss in (("1", "0.5"), ("2", "0.4"), ("3", "0.3"), ("2", "0.45")):
        call(tmp_path, "--epochs", epochs, "--loss", loss)
    assert said_in((tmp_path / HOME / "7.json").read_bytes()).progress.losses == ((1.0, 0.5), (2.0, 0.45))


def test_many_losses_stay_within_what_lucidd_reads(tmp_path: Path) -> None:
    (tmp_path / HOME).mkdir()
    (tmp_path / HOME / "7.json").write_text(json.dumps({"losses": [[n / 10, 0.1] for n in range(200)]}))
    call(tmp_path, "--epochs", "900", "--loss", "0.1")
    losses = said_in((tmp_path / HOME / "7.json").read_bytes()).progress.losses
    assert len(losses) == 101
    assert losses[-1] == (900.0, 0.1)


@pytest.mark.parametrize("loss", ["nan", "inf", "-inf"])
def test_what_is_no_number_is_not_written_and_the_job_goes_on(tmp_path: Path, loss: str) -> None:
    done = call(tmp_path, "--epochs", "1", f"--loss={loss}")
    assert done.returncode == 1
    assert "not reported" in done.stderr
    assert not list(tmp_path.rglob("*.*"))


def test_without_a_folder_or_a_job_it_only_says_so(tmp_path: Path) -> None:
    done = call(tmp_path / "none", "--epochs", "1")
    assert (done.returncode, "not reported" in done.stderr) == (1, True)
    assert call(tmp_path, "--epochs", "1", SLURM_JOB_ID="").returncode == 1


def test_rubbish_that_stands_there_is_replaced(tmp_path: Path) -> None:
    (tmp_path / HOME).mkdir()
    (tmp_path / HOME / "7.json").write_bytes(b"\xff{")
    assert call(tmp_path, "--epochs", "1").returncode == 0
    assert said_in((tmp_path / HOME / "7.json").read_bytes()).progress.epochs == 1.0


def test_what_an_agent_tells_is_kept_beside_it(tmp_path: Path) -> None:
    def told(**agent: object) -> dict[str, object]:
        assert lucid_report.report(1, folder=str(tmp_path), job=7, **agent)
        found: dict[str, object] = json.loads((tmp_path / HOME / "7.json").read_text())
        return found

    told(profile=[[1, 2, 16, 0.1, 0.2], [1, 2, 32, 0.2, 0.3]], batch_range=[32, 512], gradient=[0.5, 2.0])
    found = told(profile=[[1, 2, 16, 0.15, 0.25]], gradient=None, atomic_range=[8, 64])
    assert found["profile"] == [[1, 2, 32, 0.2, 0.3], [1, 2, 16, 0.15, 0.25]], "a kind of step has one row"
    assert (found["batch_range"], found["atomic_range"], found["gradient"]) == ([32, 512], [8, 64], [0.5, 2.0])
    found = told(profile=[[1, 4, size, 0.1, 0.2] for size in range(1, 100)])
    assert found["profile"] == [[1, 4, size, 0.1, 0.2] for size in range(36, 100)], "the newest 64"
    assert said_in((tmp_path / HOME / "7.json").read_bytes()).progress.gradient == (0.5, 2.0)


def test_a_word_that_is_not_known_is_said_and_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not lucid_report.report(1, folder=str(tmp_path), job=7, gradients=[1, 2])
    assert "unknown: gradients; known are batch_range" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.*"))


def test_gpus_are_counted_over_all_nodes_where_these_have_different_numbers(tmp_path: Path) -> None:
    call(tmp_path, "--epochs", "1", "--epoch-s", "9", LUCID_GPUS="5")
    assert json.loads((tmp_path / HOME / "7.json").read_text())["epoch_s"] == [[5, 9.0]]


def test_gpus_are_lucid_runs_where_it_started_this_job(tmp_path: Path) -> None:
    for run, gpus in (("7:5", 5), ("6:5", 4), (":", 4), ("7:many", 0)):
        call(tmp_path, "--epochs", "1", "--epoch-s", "9", LUCID_RUN=run)
        found = json.loads((tmp_path / HOME / "7.json").read_text())
        assert found.get("epoch_s", [[0]])[0][0] == gpus, run
        (tmp_path / HOME / "7.json").unlink()


def test_stage_times_are_told_with_or_without_epochs(tmp_path: Path) -> None:
    assert call(tmp_path, "--stages", "storage=0.1,gpu=0.5,iteration=0.7").returncode == 0
    found = json.loads((tmp_path / HOME / "7.json").read_text())
    assert found["stages"] == {"storage": 0.1, "cpu": 0.0, "gpu": 0.5, "network": 0.0, "iteration": 0.7}
    assert found["epochs"] == 0.0
    assert call(tmp_path, "--epochs", "2").returncode == 0
    assert call(tmp_path, "--stages", "gpu=0.4,iteration=0.7").returncode == 0
    found = json.loads((tmp_path / HOME / "7.json").read_text())
    assert (found["epochs"], found["stages"]["gpu"], found["stages"]["storage"]) == (2.0, 0.4, 0.0)
    assert said_in((tmp_path / HOME / "7.json").read_bytes()).progress.epochs == 2.0


@pytest.mark.parametrize("said", ["gpu=nan", "gpu=-1", "gpu=inf", "disk=1", "gpu", "gpu=", ""])
def test_stage_times_that_are_none_are_not_written(tmp_path: Path, said: str) -> None:
    done = call(tmp_path, f"--stages={said}")
    assert done.returncode != 0
    assert "iteration" in done.stderr, "it says what can be written"
    assert not list(tmp_path.rglob("*.*"))


def test_nothing_to_tell_is_refused(tmp_path: Path) -> None:
    assert call(tmp_path).returncode == 2
