"""Waits told from a log: only from what was known at submission, scored beside the account's running median."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.waits.__main__ import main
from benchmarks.waits.features import FEATURES, features_of
from benchmarks.waits.table import WaitTable, moment_s, read_waits
from lucid.errors import LucidError, TraceError

_COLUMNS = "job_id,account,partition,submit_time,start_time,end_time,req_cpus,mem_mib,nodes,gpus,time_limit_s\n"


def a_log(path: Path, jobs: int = 900, seed: int = 3) -> Path:
    """Jobs of two accounts over nine days; a job waits ten minutes for each CPU, give or take."""
    rng, lines = random.Random(seed), []
    for i in range(jobs):
        at = np.datetime64("2026-01-01T00:00:00") + np.timedelta64(i * 864, "s")
        cpus = rng.choice([1, 2, 8, 32])
        start = at + np.timedelta64(int(600 * cpus * rng.uniform(0.8, 1.25)), "s")
        end = start + np.timedelta64(3600, "s")
        times = ",".join(str(t).replace("T", " ") for t in (at, start, end))
        lines.append(f"{i},acct{i % 2},p,{times},{cpus},4000,1,0,3600\n")
    path.write_bytes(gzip.compress((_COLUMNS + "".join(lines)).encode()))
    return path


def test_what_is_learned_beats_the_running_median_of_the_account(tmp_path: Path) -> None:
    log = a_log(tmp_path / "waits.csv.gz")
    result = CliRunner().invoke(main, [str(log), "--test-from", "2026-01-07"], catch_exceptions=False)
    assert result.exit_code == 0
    figures = json.loads(result.stdout)
    assert figures["within_2x"] > 0.95 > figures["account_median"]["within_2x"]
    assert figures["within_3x"] >= figures["within_2x"]
    assert figures["mse_log10"] < 0.02
    assert 0.7 <= figures["coverage_80"] <= 0.95
    assert (figures["jobs"], figures["accounts_tested"], figures["days_tested"]) == (300, 2, 3)


def test_the_future_changes_no_feature(tmp_path: Path) -> None:
    """Whatever happens after a job's submission: another start of a job that waits, other jobs, other ends."""
    table = read_waits(a_log(tmp_path / "waits.csv.gz"))
    before, cut = features_of(table), 500
    now_s = table.submit_s[cut]
    start, end = table.start_s.copy(), table.end_s.copy()
    start[start > now_s] += 5e5
    end[end > now_s] += 9e5
    other = WaitTable(table.submit_s, start, end, table.account, table.partition, table.user, table.asked)
    assert np.array_equal(before[: cut + 1], features_of(other)[: cut + 1], equal_nan=True)
    assert not np.array_equal(before, features_of(other), equal_nan=True)


def test_the_queue_is_counted_as_it_stood(tmp_path: Path) -> None:
    text = _COLUMNS + (
        "1,a,p,2026-01-01 00:00:00,2026-01-01 01:00:00,2026-01-01 03:00:00,4,0,1,0,3600\n"
        "2,a,p,2026-01-01 00:30:00,2026-01-01 05:00:00,,2,0,1,0,7200\n"
        "3,b,p,2026-01-01 02:00:00,2026-01-01 06:00:00,,2,0,1,0,7200\n"
    )
    (tmp_path / "waits.csv").write_text(text)
    found = features_of(read_waits(tmp_path / "waits.csv"))
    last = dict(zip(FEATURES, found[2], strict=True))
    assert last["all_pending"] == pytest.approx(np.log10(2))
    assert last["all_running"] == pytest.approx(np.log10(2))
    assert last["all_cpus"] == pytest.approx(np.log10(5))
    assert last["account_pending"] == 0.0
    assert last["partition_last"] == pytest.approx(np.log10(3600))
    assert last["all_oldest"] == pytest.approx(np.log10(1 + 5400))
    assert np.isnan(dict(zip(FEATURES, found[1], strict=True))["all_last"]), "the first had not started"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("1,a,p,soon,2026-01-01,,1,1,1,0,1", "line 2"),
        ("1,a,p,2026-01-02,2026-01-01,,1,1,1,0,1", "before submit_time"),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, row: str, words: str) -> None:
    (tmp_path / "waits.csv").write_text(_COLUMNS + row + "\n")
    with pytest.raises(TraceError, match=words):
        read_waits(tmp_path / "waits.csv")


def test_a_day_outside_the_log_is_refused(tmp_path: Path) -> None:
    log = a_log(tmp_path / "waits.csv.gz", 50)
    result = CliRunner().invoke(main, [str(log), "--test-from", "2027-01-01"])
    assert isinstance(result.exception, LucidError)
    assert "--test-from" in str(result.exception)


def test_times_without_a_zone_are_utc() -> None:
    assert moment_s("1970-01-01 00:01:00") == moment_s("1970-01-01T01:01:00+01:00") == 60.0
