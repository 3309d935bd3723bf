"""Features of jobs, and the table that holds them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lucid.errors import ModelError, TraceError
from lucid.models.duration import names
from lucid.models.duration.features import FACT_NAMES, from_log, name_stem, to_log
from lucid.models.duration.history import DurationHistory, replay
from lucid.models.duration.jobtable import JobTable, read_jobs
from lucid.models.duration.names import NameBuckets

COUNT, MEDIAN, DEMAND = (FACT_NAMES.index(n) for n in ("user_count", "user_median", "demand_mean"))


def jobs_of(rows: list[tuple[str, float, float, float]]) -> JobTable:
    """Rows of user, submit, wait, duration."""
    user, submit, wait, duration = zip(*rows, strict=True)
    ends = [s + w + d for s, w, d in zip(submit, wait, duration, strict=True)]
    return JobTable.of(user=user, submit_s=submit, end_s=ends, duration_s=duration, limit_s=[9e9] * len(rows))


job_rows = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "cy"]),
        st.integers(0, 50).map(float),
        st.integers(0, 20).map(float),
        st.integers(0, 40).map(float),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=examples(80), deadline=None)
@given(rows=job_rows)
def test_replay_sees_what_brute_force_sees(rows: list[tuple[str, float, float, float]]) -> None:
    jobs = jobs_of(rows).by_submit()
    facts = replay(jobs)
    for row in range(len(jobs)):
        past = jobs.end_s < jobs.submit_s[row]
        own = past & (jobs.user == jobs.user[row])
        assert facts[row, COUNT] == own.sum()
        if own.any():
            assert from_log(facts[row, MEDIAN]) == pytest.approx(np.median(jobs.duration_s[own]), abs=1e-5)
        if past.any():
            assert facts[row, DEMAND] == pytest.approx(to_log(jobs.duration_s[past]).mean())


@settings(max_examples=examples(60), deadline=None)
@given(rows=job_rows, data=st.data())
def test_no_leak_what_ends_later_changes_nothing_before(
    rows: list[tuple[str, float, float, float]], data: st.DataObject
) -> None:
    jobs = jobs_of(rows).by_submit()
    now = data.draw(st.sampled_from(jobs.submit_s.tolist()))
    future = jobs.end_s >= now
    changed = JobTable.of(
        user=jobs.user.tolist(),
        submit_s=jobs.submit_s,
        end_s=np.where(future, jobs.end_s + 1000.0, jobs.end_s),
        duration_s=np.where(future, jobs.duration_s + 1000.0, jobs.duration_s),
        limit_s=jobs.limit_s,
    )
    before = jobs.submit_s <= now
    np.testing.assert_array_equal(replay(jobs)[before], replay(changed)[before])


@given(rows=job_rows)
@settings(max_examples=examples(40), deadline=None)
def test_batched_facts_equal_the_replays_last_view(rows: list[tuple[str, float, float, float]]) -> None:
    jobs = jobs_of(rows)
    late = jobs_of([("ann", 1e6, 0.0, 1.0), ("new", 1e6, 0.0, 1.0), ("ann", 1e6, 0.0, 1.0)])
    both = jobs_of([*rows, ("ann", 1e6, 0.0, 1.0), ("new", 1e6, 0.0, 1.0), ("ann", 1e6, 0.0, 1.0)])
    np.testing.assert_array_equal(DurationHistory.of(jobs).facts(late), replay(both)[len(rows) :])


def test_a_history_fed_in_pieces_is_the_same() -> None:
    jobs = jobs_of([("ann", float(i), 0.0, float(i % 7)) for i in range(60)])
    order = np.argsort(jobs.end_s, kind="stable")
    pieces = DurationHistory()
    for part in np.array_split(order, 5):
        pieces.add(jobs.take(part))
    assert len(pieces) == 60
    np.testing.assert_array_equal(pieces.facts(jobs), DurationHistory.of(jobs).facts(jobs))


@given(st.floats(0, 1e8))
def test_log_and_back(seconds: float) -> None:
    assert from_log(to_log(seconds)) == pytest.approx(seconds, rel=1e-9, abs=1e-5)


def test_name_stems() -> None:
    assert name_stem("Train-ResNet50-007") == "train-resnet#-#"
    assert name_stem(None) is None


def test_alike_names_share_a_bucket_and_strangers_have_none() -> None:
    pytest.importorskip("sklearn")
    runs = [f"train-resnet-{i}" for i in range(30)] + [f"train-resnetx-{i}" for i in range(9)]
    buckets = NameBuckets.fit([*runs, *[f"postprocess_daily_{i}" for i in range(20)], "zz", None])
    first, second, other, absent, strange = buckets(
        ["train-resnet-99", "TRAIN-RESNETX-1", "postprocess_daily_77", None, "quite another thing"]
    )
    assert first == second
    assert first.endswith("*")
    assert other not in (first, None)
    assert absent is None
    assert strange is None


def test_buckets_do_not_depend_on_the_order_of_names() -> None:
    pytest.importorskip("sklearn")
    runs = [f"{a}-{b}-{i}" for a in ("train", "eval", "prep") for b in ("bert", "vgg") for i in range(4)]
    assert NameBuckets.fit(runs) == NameBuckets.fit(reversed(runs))


def test_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.setattr(names, "SAMPLE", 20)
    monkeypatch.setattr(names, "KEPT", 50)
    letters = "abcdefghij"
    stems = [f"job-{a}{b}{c}" for a in letters for b in letters for c in letters]
    assert len(NameBuckets.fit(stems).bucket_of) <= 50


def test_buckets_round_trip_and_refuse() -> None:
    buckets = NameBuckets({"a-#": "a-#*"})
    assert NameBuckets.from_json(buckets.to_json(), source="m") == buckets
    with pytest.raises(ModelError, match=r"m\.json: names"):
        NameBuckets.from_json({"a": 1}, source="m.json")


SACCT = (
    "7|7|c|batch|normal|acct|g|1|ann|2|2017-01-01T00:00:10|2017-01-01T00:00:10|2017-01-01T00:01:00|"
    "2017-01-02T00:01:05|1-00:00:05|0:0|COMPLETED|2|8|8|{memory}|cpu=8,gres/gpu=3|cpu=8|{limit}|n1|train-1"
)


def write(path: Path, text: str) -> Path:
    path.write_text(text + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        ("1000Mn", 2000.0),
        ("2Gc", 16384.0),
        ("2147486448Mn", 2800.0 * 8),
        ("4G", 4096.0),  # sacct since 21.08: without a letter, of the whole job
        ("0", math.nan),
    ],
)
def test_sacct_memory_is_the_jobs_total(tmp_path: Path, memory: str, mib: float) -> None:
    table = read_jobs(write(tmp_path / "a.log", SACCT.format(memory=memory, limit="1-00:00:00")))
    np.testing.assert_equal(table.memory_mib, [mib])


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("1-02:03:04", 93784.0),
        ("02:03:04", 7384.0),
        ("03:04", 184.0),
        ("30", 1800.0),
        ("2-12", 216000.0),
        ("Partition_Limit", math.nan),
        ("UNLIMITED", math.nan),
    ],
)
def test_sacct_limits(tmp_path: Path, limit: str, seconds: float) -> None:
    table = read_jobs(write(tmp_path / "a.log", SACCT.format(memory="1G", limit=limit)))
    np.testing.assert_equal(table.limit_s, [seconds])


def test_sacct_line(tmp_path: Path) -> None:
    table = read_jobs(write(tmp_path / "a.log", SACCT.format(memory="1G", limit="1-00:00:00")))
    assert (table.user[0], table.account[0], table.name[0]) == ("ann", "acct", "train-1")
    assert (table.gpus[0], table.cpus[0], table.nodes[0]) == (3.0, 8.0, 2.0)
    assert table.duration_s[0] == 86405.0
    assert table.end_s[0] - table.submit_s[0] == 86455.0


def test_a_job_that_never_started_keeps_its_row(tmp_path: Path) -> None:
    line = SACCT.format(memory="1G", limit="1-00:00:00").replace("2017-01-01T00:01:00", "Unknown")
    table = read_jobs(write(tmp_path / "a.log", line))
    assert len(table) == 1
    assert math.isnan(table.duration_s[0])


def test_short_csv_orders_by_submission_and_ends_without_a_queue(tmp_path: Path) -> None:
    text = (
        "job_id,user,submit_time,duration,nodes,tasks,time_limit,partition,qos,mem,gres\n"
        "b,u,20,5,2,4,01:00:00,p,q,1G,gpu:2\n"
        "a,u,10,7,1,4,01:00:00,p,q,,"
    )
    table = read_jobs(write(tmp_path / "a.csv", text))
    assert table.job_id.tolist() == ["a", "b"]
    assert table.end_s.tolist() == [17.0, 25.0]
    assert table.gpus.tolist() == [0.0, 4.0]
    np.testing.assert_equal(table.memory_mib, [math.nan, 2048.0])


def test_long_csv(tmp_path: Path) -> None:
    text = (
        "job_id,user,account,partition,qos,wallclock_req,nodes_req,processors_req,gpus_req,mem_req,"
        "submit_time,start_time,end_time,run_time,state,name\n"
        "1,u,a,p,q,60,1,2,0,0.0,2019-01-01 00:00:00,2019-01-01 00:00:30,2019-01-01 00:01:00,30,DONE,n"
    )
    table = read_jobs(write(tmp_path / "a.csv", text))
    assert table.end_s[0] - table.submit_s[0] == 60.0
    assert (table.duration_s[0], table.limit_s[0]) == (30.0, 60.0)


def test_refusals_name_file_line_column_value_and_remedy(tmp_path: Path) -> None:
    path = write(tmp_path / "a.log", SACCT.format(memory="plenty", limit="1-00:00:00"))
    with pytest.raises(TraceError, match=r"a\.log, line 1, column 'ReqMem': 'plenty'.*correct or delete the row"):
        read_jobs(path)
    with pytest.raises(TraceError, match=r"line 1: not the first line of a log of jobs: .*sacct --parsable2"):
        read_jobs(write(tmp_path / "b.csv", "what,ever"))
    with pytest.raises(TraceError, match="cannot be read"):
        read_jobs(tmp_path / "none.csv")


def test_tables_refuse_unknown_and_uneven_columns() -> None:
    with pytest.raises(ModelError, match=r"\['colour'\]"):
        JobTable.of(colour=["red"])
    with pytest.raises(ModelError, match="differ in length"):
        JobTable.of(user=["a"], submit_s=[1.0, 2.0])
