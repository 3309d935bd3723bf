"""The benchmarks' own arithmetic and manners; what they measure is measured elsewhere."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import capacity, helios, public
from benchmarks.__main__ import main
from benchmarks.figure import Figure, as_dict, markdown
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
