"""The trace commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lucid.cli.replay.trace import trace
from lucid.errors import LucidError
from lucid.simulator.traces.read import read_trace

ASSETS = Path(__file__).parents[2] / "assets" / "traces"


def run(*args: str | Path) -> tuple[str, str]:
    result = CliRunner().invoke(trace, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout, result.stderr


def test_describe_prints_tables() -> None:
    out, _ = run("describe", ASSETS / "helios.csv")
    for words in ("Trace helios", "1 asked for no GPU", "vcA", "GPU-hours", "rhythm of the week"):
        assert words in out


def test_describe_json() -> None:
    out, _ = run("describe", ASSETS / "swf.txt", "--json", "--swf-procs-per-gpu", "4")
    assert json.loads(out)["gpus"] == {"1": 2, "2": 1}


def test_convert(tmp_path: Path) -> None:
    _, err = run("convert", ASSETS / "sacct.txt", tmp_path / "out.csv", "--format", "sacct")
    assert "3 jobs" in err
    assert "2 had not ended yet" in err
    assert read_trace(tmp_path / "out.csv") == read_trace(ASSETS / "sacct.txt")


def test_skip_bad(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text((ASSETS / "philly.csv").read_text() + "x,1,1,1,red\n")
    with pytest.raises(LucidError) as caught:
        run("describe", path)
    assert caught.value.exit_code == 2
    out, _ = run("describe", path, "--skip-bad", "--json")
    assert json.loads(out)["skipped"] == {"timestamp: is not a date": 1}


def test_synth(tmp_path: Path) -> None:
    out, vcs = tmp_path / "a.csv", tmp_path / "vcs.csv"
    _, err = run("synth", "month-small", "--out", out, "--seed", "3", "--jobs", "300", "--vcs-out", vcs)
    assert "300 jobs for 26 nodes of 8 GPUs in 5 VCs, seed 3" in err
    assert len(read_trace(out).jobs) == 300
    assert vcs.read_text() == ",num\nvision,9\nlanguage,7\nspeech,5\nrobotics,3\nshared,2\n"
    run("synth", "month-small", "--out", tmp_path / "b.csv", "--seed", "3", "--jobs", "300")
    assert out.read_bytes() == (tmp_path / "b.csv").read_bytes()


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("synth", "moon", "--out", "x"), 2, "known: burst, month-10k, month-logs, month-small"),
        (("describe", str(ASSETS / "pack.csv"), "--format", "nope"), 2, "known: helios"),
        (("describe", "no-such-file"), 2, "cannot be read"),
        (("synth", "burst", "--jobs", "50", "--out", "no-such-folder/x.csv"), 2, "cannot be written"),
    ],
)
def test_errors_carry_their_exit_code(args: tuple[str, ...], code: int, says: str) -> None:
    with pytest.raises(LucidError, match=says) as caught:
        run(*args)
    assert caught.value.exit_code == code
