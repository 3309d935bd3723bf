"""How a command ends: interrupted, without a library it needs, or asked to write over what it reads."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.errors import ModelError, TraceError

INTERRUPTED = """
import os, signal, sys
import lucid.simulator.traces as traces
import lucid.cli.replay.trace as command
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
def stop(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError("never reached")
command.read_trace = stop
sys.argv = ["lucidctl", "trace", "describe", "any.csv"]
from lucid.cli.main import main
main()
"""


def test_ctrl_c_ends_with_the_status_of_shells() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.strip().splitlines()[-1] == "lucidctl: interrupted"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("library", "arguments", "extra"),
    [
        ("interpret", ("throughput", "bins.csv", "--test-from", "2024-02-01"), "models"),
        ("sklearn", ("packing", "p.csv", "q.csv"), "models"),
    ],
)
def test_evaluating_without_the_extra_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, arguments: tuple[str, ...], extra: str
) -> None:
    import lucid.models.packing.evaluate as packing
    import lucid.models.throughput.forecaster as throughput

    def absent(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(packing, "evaluate", absent)
    monkeypatch.setattr(throughput, "evaluate", absent)
    Path("bins.csv").write_text("time,submit_gpu_job,submit_gpu_num\n2024-01-01,1,1\n2024-03-01,1,1\n")
    result = CliRunner().invoke(lucidctl, ["models", "evaluate", *arguments])
    assert isinstance(result.exception, ModelError)
    assert f"needs {library}, of the extra '{extra}'; pip install 'lucid-scheduler[{extra}]'" in str(result.exception)


def test_a_missing_module_of_our_own_is_no_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import lucid.cli.replay.trace as command

    def absent(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'lucid.gone'", name="lucid.gone")

    monkeypatch.setattr(command, "read_trace", absent)
    result = CliRunner().invoke(lucidctl, ["trace", "describe", "x.csv"])
    assert isinstance(result.exception, ModuleNotFoundError)


@pytest.mark.parametrize("linked", [False, True])
def test_convert_does_not_write_over_what_it_reads(tmp_path: Path, linked: bool) -> None:
    path = tmp_path / "philly.csv"
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,a\n")
    before = path.read_bytes()
    out = path
    if linked:
        out = tmp_path / "link.csv"
        out.symlink_to(path)
    result = CliRunner().invoke(lucidctl, ["trace", "convert", str(path), str(out)])
    assert isinstance(result.exception, TraceError)
    assert "give OUT another name" in str(result.exception)
    assert path.read_bytes() == before
