"""The commands as they are typed: exit status, what is printed, what is written."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kept import HERE, same_as
from lucid.cli.main import main
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.read import read_trace

ROOT = Path(__file__).parents[3]
HEADER = (
    "job_id,user,vc,gpu_num,submit_time,duration,state,model,dataset,batchsize,amp,speed,"
    "gpu_util,gmem_util,gmem,share_label\n"
)
PACK = HEADER + "".join(
    f"{i},,{'ab'[i % 2]},{gpus},{10 * i},{duration},,ResNet18,CIFAR-10,64,0,1,{util},20,3000,{label}\n"
    for i, (gpus, duration, util, label) in enumerate(
        [(1, 50, 10, 0), (1, 900, 20, 0), (2, 4000, 80, 2), (4, 3000, 60, 1), (8, 2000, 30, 1), (1, 700, 15, 0)] * 8
    )
)
PAIRS = (
    "model1,dataset1,batchsize1,amp1,speed1,model2,dataset2,batchsize2,amp2,speed2\n"
    "ResNet18,CIFAR-10,64,0,0.9,ResNet18,CIFAR-10,64,0,0.92\n"
)


class Said(NamedTuple):
    code: int
    out: str
    err: str


Lucid = Callable[..., Said]


@pytest.fixture
def lucid(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Lucid:
    """``lucidctl`` in a folder of its own with a small trace, its VCs, estimates and pairs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "pack.csv").write_text(PACK)
    (tmp_path / "vcs.csv").write_text(",num\na,2\nb,1\n")
    (tmp_path / "estimates.csv").write_text("job_id,duration_s\n" + "".join(f"{i},{100 + i}\n" for i in range(48)))
    (tmp_path / "pairs.csv").write_text(PAIRS)

    def call(*args: str | Path) -> Said:
        monkeypatch.setattr(sys, "argv", ["lucidctl", *map(str, args)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(code, *capsys.readouterr())

    return call


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "lucid/jobs.csv").open(newline="") as file:
        return list(csv.DictReader(file))


ALL = ("--vcs", "vcs.csv", "--estimates", "estimates.csv", "--pairs", "pairs.csv", "--profiling-nodes", "1")


def test_simulate_says_its_answer_first_and_developers_rows_if_asked(lucid: Lucid) -> None:
    short, long = (lucid("simulate", "pack.csv", "--vcs", "vcs.csv", *more).out for more in ((), ("--long",)))
    assert short.startswith("Mean JCT under lucid is ")
    assert long.startswith(short[: short.index("Comparison of policies")].rstrip())
    for words in ("simulated in", "preemptions", "median JCT", "avg JCT / avg queueing by VC", "Who gains"):
        assert (words in short, words in long) == (False, True)


def test_plain_slurm_and_lucid_are_compared_unless_told(lucid: Lucid) -> None:
    said = lucid("simulate", "pack.csv", "--vcs", "vcs.csv", "--json")
    data = json.loads(said.out)
    assert list(data["results"]) == ["backfill", "lucid"]
    assert data["times_baseline"]["policy"] == "backfill"
    ratio = data["results"]["lucid"]["avg_jct_s"] / data["results"]["backfill"]["avg_jct_s"]
    everybody = data["gains"]["lucid"]["everybody"]
    assert data["times_baseline"]["by_policy"]["lucid"]["avg_jct"] == ratio
    assert everybody["jct_s"] / everybody["baseline_s"] == pytest.approx(ratio)


def test_what_lending_costs_is_told_to_who_asks(lucid: Lucid) -> None:
    words = ("simulate", "pack.csv", "--vcs", "vcs.csv", "--policy", "lucid")
    asked = json.loads(lucid(*words, "--promise", "--json").out)
    assert asked["results"]["lucid"]["promise"]["jobs"] > 0
    assert set(asked["results"]["lucid"]["by_vc"]["a"]["promise"]) == set(asked["results"]["lucid"]["promise"])
    assert "what lending costs" in lucid(*words, "--promise").out
    assert "promise" not in json.loads(lucid(*words, "--json").out)["results"]["lucid"]
    nobody = lucid(*words, "--promise", "--lending", "off")
    assert "--promise: there is nothing to say" in " ".join(nobody.out.split())


def test_a_replay_knows_windows(lucid: Lucid, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("event,nodes,from,until\nwindow,*,1:00:00,2:00:00\ndown,a-000,60,90\n")
    options = ("simulate", "pack.csv", "--vcs", "vcs.csv", "--policy", "lucid", "--events", "events.csv")
    data = json.loads(lucid(*options, "--json").out)
    assert any("48 jobs of the trace have no time limit; theirs is MADE UP" in note for note in data["notes"])
    assert data["results"]["lucid"]["windows"]["windows"] == 1
    assert "GPU-hours unused in 24 h before windows" in lucid(*options).out
    (tmp_path / "events.csv").write_text("event,nodes,from\nwindow,c,0\n")
    assert "events.csv: line 2: column nodes: there is no VC or node 'c'" in lucid(*options).err


def test_as_live_jobs_of_a_user_are_measured_once(lucid: Lucid, tmp_path: Path) -> None:
    (tmp_path / "pack.csv").write_text(re.sub(r"^(\d+),,", r"\1,ada,", PACK, flags=re.MULTILINE))
    found = {}
    for options in ((), ("--as-live",)):
        said = lucid("simulate", "pack.csv", *ALL, *options, "--policy", "lucid", "--out", "run")
        assert said.code == 0, said.err
        found[options] = sum(float(row["profiled_s"]) > 0 for row in rows_of(tmp_path / "run"))
    assert 0 < found["--as-live",] < found[()]


def test_the_settings_file_is_heeded(lucid: Lucid, tmp_path: Path) -> None:
    (tmp_path / "lucid.toml").write_text("[policy.packing]\ngss = 0\n")
    said = lucid("simulate", "pack.csv", *ALL, "--policy", "lucid", "--config", "lucid.toml", "--json")
    assert json.loads(said.out)["results"]["lucid"]["packed_jobs"] == 0


def test_json_has_the_figures_of_each_policy_and_out_a_row_for_each_job(lucid: Lucid, tmp_path: Path) -> None:
    policies = ("--policy", "lucid", "--policy", "srtf")
    data = json.loads(lucid("simulate", "pack.csv", *ALL, *policies, "--out", "run", "--json").out)
    assert data["vcs"] == {"a": 2, "b": 1}
    assert list(data["results"]) == ["lucid", "srtf"]
    for figures in data["results"].values():
        assert figures["jobs"] == 48
        assert figures["avg_jct_s"] > figures["avg_queue_s"] >= 0.0
    rows = rows_of(tmp_path / "run")
    assert sorted(int(row["job_id"]) for row in rows) == list(range(48))
    for row in rows:
        jct_s, queue_s = float(row["jct_s"]), float(row["queue_s"])
        assert jct_s == pytest.approx(float(row["end_s"]) - float(row["submit_s"]), abs=0.01)
        assert 0.0 <= queue_s < jct_s
        assert row["placement"]
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["results"]["lucid"]
    assert found["avg_jct_s"] == pytest.approx(sum(float(row["jct_s"]) for row in rows) / 48, abs=0.01)
    assert sum(row["packed"] == "1" for row in rows) == found["packed_jobs"] > 0
    assert found["avg_jct_large_s"] is None, "no job is above 8 GPUs"
    assert "wall_s" not in found, "files are the same on every machine"
    assert "<svg" in (tmp_path / "run" / "report.html").read_text()


def test_the_same_input_gives_the_same_bytes(lucid: Lucid, tmp_path: Path) -> None:
    """Here, and in a process of its own, whose strings hash differently."""
    policies = ("lucid", "tiresias", "qssf")
    words = ["simulate", "pack.csv", *ALL, *(word for name in policies for word in ("--policy", name)), "--seed", "5"]
    assert lucid(*words, "--out", "here").code == 0
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "lucid.cli.main", *words, "--out", "there"]
    subprocess.run(command, env=env, cwd=tmp_path, check=True, capture_output=True)
    folders = [
        {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}
        for base in (tmp_path / "here", tmp_path / "there")
    ]
    expected = {f"{policy}/{file}" for policy in policies for file in ("jobs.csv", "decisions.jsonl")}
    expected |= {"report.html", "summary.json"}
    assert folders[0].keys() == folders[1].keys() == expected
    assert [name for name in expected if folders[0][name] != folders[1][name]] == []


def test_jobs_without_an_estimate_are_left_to_the_history_when_asked(lucid: Lucid, tmp_path: Path) -> None:
    (tmp_path / "estimates.csv").write_text("job_id,duration_s\n3,50\n")
    said = lucid("simulate", "pack.csv", *ALL, "--skip-bad", "--policy", "qssf", "--json")
    assert said.code == 0
    assert "47 jobs have no estimate; the history of the trace estimates them" in json.loads(said.out)["notes"]


TEN = PACK.splitlines()[10]
BAD = {
    "a missing trace": ({}, ("none.csv",)),
    "a bad cell": ({"pack.csv": PACK.replace(TEN, TEN.replace(",90,", ",soon,"))}, ("pack.csv",)),
    "an unknown policy": ({}, ("pack.csv", "--policy", "fifo", "--policy", "lucd")),
    "estimates without their column": ({"estimates.csv": "job_id,guess\n0,5\n"}, ("pack.csv", *ALL)),
    "estimates for a policy that takes none": ({}, ("pack.csv", "--estimates", "sjf=estimates.csv")),
    "an unknown setting": ({"lucid.toml": "[policy.packing]\ngs = 1\n"}, ("pack.csv", "--config", "lucid.toml")),
    "what cannot be compared": ({}, ("pack.csv", "--as-live", "--semantics", "published")),
    "a folder that is a file": ({"run": "x"}, ("pack.csv", *ALL)),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_in_one_message_and_status_2(lucid: Lucid, tmp_path: Path, case: str) -> None:
    files, args = BAD[case]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said = lucid("simulate", *args, "--out", "run")
    assert (said.code, said.out) == (2, "")
    same_as(HERE / "refused" / f"{case.replace(' ', '-')}.txt", said.err)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, "something written"


LARGE = "90,,b,32,5,60,,ResNet18,CIFAR-10,64,0,1,10,20,3000,0\n"


@pytest.mark.parametrize("command", ["simulate", "compare --workers 1"])
def test_a_job_larger_than_its_vc_is_counted_and_where_none_can_run_nothing_is_written(
    lucid: Lucid, tmp_path: Path, command: str
) -> None:
    """One of 32 GPUs in a VC of 8: it could never run."""
    words = (*command.split(), "pack.csv", "--vcs", "vcs.csv", "--policy", "fifo", "--policy", "srtf")
    (tmp_path / "pack.csv").write_text("\n".join([*PACK.splitlines()[:3], LARGE]))
    told = "fifo, srtf: 1 job could never run on these nodes and is left out of every figure."
    assert f"note: {told}" in lucid(*words).out
    assert told in json.loads(lucid(*words, "--json", "--out", "some").out)["notes"]
    assert command != "simulate" or (tmp_path / "some/report.html").read_text().count(told) == 1
    (tmp_path / "pack.csv").write_text(HEADER + LARGE)
    said = lucid(*words, "--out", "none")
    assert (said.code, said.out, (tmp_path / "none").exists()) == (2, "", False)
    assert "none of the 1 jobs can ever run on these nodes: the smallest, 90, asks for 32 GPUs of VC b" in said.err
    assert "which has 8; give --vcs or --nodes more nodes" in said.err


def test_explain_says_what_is_wrong(lucid: Lucid, tmp_path: Path) -> None:
    lucid("simulate", "pack.csv", *ALL, "--policy", "fifo", "--policy", "qssf", "--out", "run")
    path = tmp_path / "run" / "qssf" / "decisions.jsonl"
    path.write_text("\n".join(line[: len(line) // 2] for line in path.read_text().splitlines()))
    asked = ("--run run 999 --policy fifo", "--run nowhere 1", "--run run 1 --policy sjf", "--run run 1")
    *said, damaged = [lucid("explain", *words.split()) for words in (*asked, "--run run 1 --policy qssf")]
    assert {(one.code, one.out) for one in (*said, damaged)} == {(2, "")}
    same_as(HERE / "refused" / "explain.txt", "".join(one.err for one in said))
    assert "damaged at job 1" in damaged.err


def test_demo_compares_explains_and_writes_a_page(
    lucid: Lucid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a few jobs of its month: tests/e2e/test_story.py types it whole, and compares what README shows."""
    monkeypatch.setattr("lucid.cli.replay.demo.preset", lambda name: preset(name).resized(300, None))
    said = lucid("demo", "--out", "demo")
    assert said.code == 0
    for words in ("Comparison of policies", "no cluster can have srtf", "why did that job", "SYNTHETIC"):
        assert words in said.out
    assert "<svg" in (tmp_path / "demo" / "report.html").read_text()
    assert json.loads((tmp_path / "demo" / "summary.json").read_text())["results"]["lucid"]["packed_jobs"] > 0
    assert len(read_trace(tmp_path / "demo" / "trace.csv").jobs) == 300


ASSETS = ROOT / "tests/assets/traces"


def test_describe_and_convert(lucid: Lucid, tmp_path: Path) -> None:
    described = lucid("trace", "describe", ASSETS / "swf.txt", "--json", "--swf-procs-per-gpu", "4").out
    assert json.loads(described)["gpus"] == {"1": 2, "2": 1}
    err = lucid("trace", "convert", ASSETS / "sacct.txt", tmp_path / "out.csv", "--format", "sacct").err
    assert "3 jobs" in err
    assert "2 had not ended yet" in err
    assert read_trace(tmp_path / "out.csv") == read_trace(ASSETS / "sacct.txt")
    path = tmp_path / "bad.csv"
    path.write_text((ASSETS / "philly.csv").read_text() + "x,1,1,1,red\n")
    assert "'x' is not a date" in lucid("trace", "describe", path).err
    skipped = json.loads(lucid("trace", "describe", path, "--skip-bad", "--json").out)["skipped"]
    assert skipped == {"timestamp: is not a date": 1}


def test_synth(lucid: Lucid, tmp_path: Path) -> None:
    where = ("--out", "a.csv", "--vcs-out", "vcs.csv")
    said = lucid("trace", "synth", "month-small", *where, "--seed", "3", "--jobs", "300")
    assert "300 jobs for 26 nodes of 8 GPUs in 5 VCs, seed 3" in said.err
    assert len(read_trace(tmp_path / "a.csv").jobs) == 300
    assert (tmp_path / "vcs.csv").read_text() == ",num\nvision,9\nlanguage,7\nspeech,5\nrobotics,3\nshared,2\n"
