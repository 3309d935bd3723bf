"""The benchmarks' own arithmetic and manners; what they measure is measured elsewhere."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import capacity, helios, plan, public
from benchmarks.__main__ import PARTS, main
from benchmarks.bench import main as bench_command
from benchmarks.figure import Figure, as_dict, markdown, timed
from lucid.errors import TraceError
from scenes.jobs import by
from scenes.replays import a_trace


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("a", 8.0, "s", at_most=8.0), True),
        (Figure("a", 8.01, "s", at_most=8.0), False),
        (Figure("a", 0.8, "", at_least=0.9), False),
        (Figure("a", 5.9, "h", baseline=6.0, ratio_within=0.02), True),
        (Figure("a", 5.8, "h", baseline=6.0, ratio_within=0.02), False),
        (Figure("a", 1.0, "h", baseline=2.0), None),
    ],
)
def test_a_figure_knows_whether_it_holds_what_was_asked(figure: Figure, met: bool | None) -> None:
    assert figure.met is met
    assert as_dict(figure)["met"] is met


def test_the_table_shows_value_target_baseline_and_ratio() -> None:
    table = markdown([Figure("wall", 12.0, "s", 3, 4.0, "fifo", at_most=8.0, note="cold")])
    header, rule, row = table.splitlines()
    assert len(header) == len(rule) == len(row)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["wall (cold)", "12.000 s", "<= 8 MISSED", "4.000 s (fifo)", "3.000", "3"]


def test_timed_calls_as_often_as_told_and_takes_the_median() -> None:
    calls: list[int] = []
    found = timed(lambda: calls.append(1) or len(calls), 3)
    assert found.result == len(calls) == 3
    assert found.seconds < found.pace_s


NEED_DATA = (
    "p1", "philly", "kept", "growth-p1", "quality", "best", "parity", "frontier", "contention", "cards",
)  # fmt: skip
"""Parts that measure nothing without the reference data; the others make their own."""


def test_parts_without_their_data_are_skipped_and_say_so(tmp_path: Path) -> None:
    needs_data = NEED_DATA
    options = [word for name in needs_data for word in ("--only", name)]
    done = CliRunner().invoke(main, [*options, "--json"], env={"LUCID_SHARED": str(tmp_path)})
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["results"] == []
    assert set(told["skipped"]) == set(needs_data)
    assert all(str(tmp_path) in why and "LUCID_SHARED" in why for why in told["skipped"].values())


def test_every_part_that_reads_the_reference_data_is_asked_without_it() -> None:
    bring_their_own = {
        "plan", "starts", "timeaware", "forecaster", "restarts", "sampler", "systems", "tuner", "clusters", "models",
        "growth", "million", "fair", "durations", "light", "metrics", "report", "web", "scale", "sbatch",
        "turns", "elastic", "first", "windows", "commands", "commands-large", "look", "public",
        "capacity", "load", "lies",
    }  # fmt: skip
    assert set(NEED_DATA) | bring_their_own == set(PARTS), "sort the new part into one of the two"


PHILLY = "u_id,user,gpu_num,cpu_num,node_num,interval,run_time,wall_time,new_status\n" + "\n".join(
    f"{n},{n % 3},{16 if n % 9 == 0 else 1 + n % 8},8,1,60,{600 + 97 * (n % 13)},0,Pass" for n in range(60)
)


def test_public_logs_are_replayed_beside_plain_slurm(tmp_path: Path) -> None:
    log = tmp_path / "philly_data_training.csv"
    log.write_text(PHILLY)
    env = {"LUCID_PUBLIC": str(tmp_path)}
    done = CliRunner().invoke(main, ["--only", "public", "--json"], env=env)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["results"]
    assert {row["what"].split(",")[0] for row in told} == {"Philly 1", "Philly 2", "Philly 3"}
    assert all(row["value"] >= 0 and row["baseline"] >= 0 and row["detail"]["jobs"] == 20 for row in told)
    assert {row["detail"]["variant"] for row in told} == set(public.VARIANTS)
    assert {row["detail"]["pool"][:8] for row in told if row["detail"]["held_out"]} == {"Philly 2", "Philly 3"}
    shown = CliRunner().invoke(main, ["--only", "public"], env=env).stdout
    first, again = (line for line in shown.splitlines() if line.startswith("| Philly 1"))
    of = [row for row in told if row["what"].startswith("Philly 1") and row["detail"]["variant"] == "lucid"]
    for row in of:
        assert f"{row['value']:.3g}" in first
        if row["ratio"] is not None:
            assert (f"**{row['ratio']:.3f}**" if row["met"] is False else f"{row['ratio']:.3f}") in again
    assert " † |" not in first
    absent = CliRunner().invoke(main, ["--only", "public", "--json"], env={"LUCID_PUBLIC": ""})
    assert "set LUCID_PUBLIC to a folder" in json.loads(absent.stdout)["skipped"]["public"]


def test_public_logs_are_replayed_with_estimates_that_lie(tmp_path: Path) -> None:
    log = tmp_path / "philly_data_training.csv"
    log.write_text(PHILLY)
    env = {"LUCID_PUBLIC": str(tmp_path)}
    done = CliRunner().invoke(main, ["--only", "lies", "--json"], env=env)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["results"]
    assert {row["detail"]["variant"] for row in told} == {"backfill", "lucid", *public.LIES}
    judged = {row["detail"]["variant"] for row in told if row["target"]}
    assert judged == {"noise", "inverted", "constant"}
    assert not any(row["target"] for row in told if row["detail"]["measure"] == "p99.9 of waiting")
    shown = CliRunner().invoke(main, ["--only", "lies"], env=env).stdout
    assert "| pool | jobs | backfill | lucid | noise | inverted | constant | true |" in shown
    absent = CliRunner().invoke(main, ["--only", "lies", "--json"], env={"LUCID_PUBLIC": ""})
    assert "set LUCID_PUBLIC to a folder" in json.loads(absent.stdout)["skipped"]["lies"]


def test_a_window_leaves_out_the_first_jobs_of_a_log_and_begins_with_the_next() -> None:
    trace = a_trace(*(by(f"j{n}", 1, 10.0, 60.0 * n) for n in range(9)))
    left = public.window(trace, 1, 3, first=2).jobs
    assert [(item.job.id, item.job.submit_s, item.job.rank) for item in left] == [("j5", 0.0, 0)]


def test_helios_own_logs_wait_for_who_has_them(tmp_path: Path) -> None:
    header = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
    rows = [
        f"{n},u{n % 3},vc{'ab'[n % 2]},{24 if n == 9 else 1},4,1,COMPLETED,{day} 10:00:00,{day} 10:00:00,,600,0"
        for n, day in enumerate(["2020-08-31"] * 5 + ["2020-09-02"] * 20)
    ]
    (tmp_path / "cluster_log.csv").write_text("\n".join([header, *rows]))
    numbers = "date,vca,vcb,vcc,total\n2020-08-31,8,8,8,24\n2020-09-01,16,16,4,36\n"
    (tmp_path / "cluster_gpu_number.csv").write_text(numbers)
    (tmp_path / "qssf.csv").write_text("job_id,priority\n7,120\n")
    scenario = helios.cluster_of(tmp_path)
    assert scenario.vcs == {"vca": 2, "vcb": 2}
    assert len(scenario.trace.jobs) == 19
    assert dict(scenario.trace.skipped) == {"submitted before the window": 5, "larger than their VC": 1}
    assert scenario.durations_s == {"qssf": {"7": 120.0}}
    with pytest.raises(TraceError, match="has no row of 2021-01-01"):
        helios.nodes_on(tmp_path / "cluster_gpu_number.csv", "2021-01-01")


def test_a_stream_with_more_work_has_all_jobs_of_one_with_less_and_those_of_the_middle_count() -> None:
    trace = a_trace(*(by(f"j{n}", 1, 10.0, 60.0 * n) for n in range(60)))
    streams = [capacity.scaled(trace, times).jobs for times in (0.5, 1.0, 1.3, 2.0)]
    ids = [{item.job.id for item in jobs} for jobs in streams]
    assert all(less < more for less, more in pairwise(ids))
    assert {name.removesuffix("~") for name in ids[1]} == {item.job.id for item in trace.jobs}
    assert [len(jobs) for jobs in streams[1::2]] == [90, 180], "one and a half times the trace"
    times_s = sorted(item.job.submit_s for item in streams[1] if item.job.id in capacity.counted(trace))
    assert (len(times_s), min(times_s), max(times_s)) == (60, 900.0, 4381.0)


def test_of_the_loads_the_largest_at_which_figures_are_as_good_is_found() -> None:
    tried: list[float] = []

    def at(load: float) -> tuple[float, float, float]:
        tried.append(round(load, 2))
        return load, 2 * load, 10 * load

    assert capacity.carried((1.45, 2.45, 7.0), at, 2.0) == [1.4, 1.2, None]
    assert len(set(tried)) == len(tried) <= 8
    assert capacity.carried((1.45, 2.45, 7.0), at, 1.37) == [1.3, 1.2, None], "no more than is possible"


def test_growth_is_measured_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SIZES", ((20, 64), (40, 64)))
    out, other = tmp_path / "growth.svg", tmp_path / "growth.png"
    done = CliRunner().invoke(main, ["--only", "plan", "--runs", "1", "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)["results"]
    assert [r["detail"]["pending"] for r in results] == [20, 40]
    assert all(r["value"] > 0 and r["baseline_name"] == "fifo" and r["runs"] >= 3 for r in results)
    plan.draw([Figure("one plan()", 1.0, "ms", detail=result["detail"]) for result in results], other)
    assert all(path.stat().st_size > 1000 for path in (out, other))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "quick"], "'quick' is not one of"),
        (["--out", "growth.txt"], "must end in .png or .svg"),
        (["--only", "p1", "--out", "growth.svg"], "add --only plan"),
    ],
)
def test_wrong_options_are_named(options: list[str], said: str) -> None:
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def bench(*words: str) -> str:
    """What ``python -m benchmarks.bench`` prints."""
    return CliRunner().invoke(bench_command, [*words, "--repeat", "3"], catch_exceptions=False).output


def test_a_plan_is_timed_by_policy_and_size() -> None:
    asked = ("--size", "30:16", "--size", "60:32", "--policy", "fifo", "--policy", "lucid")
    results = json.loads(bench(*asked, "--json"))["results"]
    assert [(r["policy"], r["pending"], r["gpus"]) for r in results] == [
        ("fifo", 30, 16), ("fifo", 60, 32), ("lucid", 30, 16), ("lucid", 60, 32),
    ]  # fmt: skip
    assert all(0.0 < r["median_ms"] <= r["p99_ms"] for r in results)
    assert "median" in bench("--size", "30:16")
    assert "write PENDING:GPUS" in bench("--size", "many")


def test_a_warm_cycle_takes_less_than_one_with_nothing_kept() -> None:
    asked = ("--warm", "--size", "400:64", "--vcs", "2")
    (found,) = json.loads(bench(*asked, "--json"))["results"]
    for change in ("waits", "starts"):
        assert 0.0 < found[change]["warm_ms"] < found[change]["cold_ms"], "what did not change was worked out anew"
    assert "a job ended, another starts" in bench(*asked)
