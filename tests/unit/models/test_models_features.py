"""The history knows exactly the jobs that had ended, and name buckets are stable and bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lucid.errors import ModelError
from lucid.models.duration import features as names
from lucid.models.duration.features import FACT_NAMES, NameBuckets, from_log, name_stem, to_log
from lucid.models.duration.history import DurationHistory, replay
from lucid.models.duration.jobtable import JobTable

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
