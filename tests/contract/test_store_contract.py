"""What every store keeps to. A new one joins by adding itself to ``STORES``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from builders import LIGHT, a_job
from lucid.core.decision import DecisionRow
from lucid.core.job import Ended, JobProfile
from lucid.core.prediction import DurationTerms, Prediction, Split, Term
from lucid.core.reasons.queue import FreeGpus
from lucid.core.reasons.sharing import NotMeasured
from lucid.store.lease import IN_MEMORY
from lucid.store.port import JobNote, LeaseLost, PredictionRow, ProfileRow
from lucid.store.sqlite import SqliteStore

Store = SqliteStore
STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: SqliteStore(IN_MEMORY),
    "sqlite": lambda folder: SqliteStore(folder / "lucid.db"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return STORES[request.param](tmp_path)


@pytest.fixture
def token(store: Store) -> int:
    return store.take_lease("me", 0.0, 10.0).token


def profile_row(job_id: str = "1", at_s: float = 5.0, name: str = "train") -> ProfileRow:
    return ProfileRow(job_id, "ada", name, 2, LIGHT, at_s)


def test_the_latest_prediction_of_a_job_is_kept_whole(store: Store, token: int) -> None:
    terms = DurationTerms(0.5, (Term("user median", "3 jobs", 4.0), Term("gpus", "2", -0.1)), 4.4, 10.0, 20.0, None)
    first = Prediction(60.0, "learned v1: habit", duration_terms=terms)
    then = Prediction(70.0, "history", 1, "share tree v2", share_splits=(Split("gpu_util", 20.0, True, 50.0),))
    store.put_predictions([PredictionRow("1", 5.0, "ada", first), PredictionRow("2", 5.0, "bob", first)], token)
    assert store.prediction("1") == PredictionRow("1", 5.0, "ada", first)
    store.put_predictions([PredictionRow("1", 9.0, "ada", then)], token)
    assert store.prediction("1") == PredictionRow("1", 9.0, "ada", then)
    assert store.prediction("3") is None
    assert store.prune(6.0) == 1
    assert store.prediction("2") is None
    with pytest.raises(LeaseLost):
        store.put_predictions([], token + 1)


def test_a_lease_has_one_holder_until_it_runs_out_and_each_holder_a_higher_token(store: Store, token: int) -> None:
    assert store.take_lease("other", 9.0, 10.0) is None
    renewed = store.take_lease("me", 9.0, 10.0)
    assert (renewed.token, renewed.until_s) == (token, 19.0)
    assert store.lease() == renewed
    taken = store.take_lease("other", 19.0, 10.0)
    assert taken.token > token
    assert store.take_lease("me", 20.0, 10.0) is None
    store.drop_lease(taken.token)
    assert store.lease() is None
    assert store.take_lease("me", 20.0, 10.0).token > taken.token, "given back, it is free, and its token is not"


def test_a_dead_holders_lease_is_taken_over_unless_it_was_renewed_since_it_was_seen(store: Store, token: int) -> None:
    seen = store.lease()
    renewed = store.take_lease("me", 1.0, 10.0)
    assert store.take_lease("other", 1.0, 10.0, takeover=seen) is None
    assert store.lease() == renewed
    assert store.take_lease("other", 1.0, 10.0, takeover=renewed).token > token


def test_nothing_is_written_with_an_old_token(store: Store, token: int) -> None:
    store.take_lease("other", 10.0, 10.0)
    for write in (
        lambda: store.put_notes([JobNote("1")], token),
        lambda: store.forget(["1"], token),
        lambda: store.put_profile(profile_row(), "a", token),
        lambda: store.put_decisions([], token),
        lambda: store.begin_action(1.0, "1", "start", "", token),
        lambda: store.put_ended([Ended(a_job("1"), 1.0, 1.0)], token),
    ):
        with pytest.raises(LeaseLost):
            write()
    assert not store.notes()
    assert not store.actions()


def test_notes_come_back_as_they_were(store: Store, token: int) -> None:
    request = {"tres_per_node": "gres/gpu:2"}
    note = JobNote("3_1", "ada", "a 'name' \"ü\"\n;rm", "main", request, alone=True, where="n1:0")
    for one in (JobNote("3_1"), note, JobNote("4")):
        store.put_notes([one], token)
    assert store.note("3_1") == note
    assert set(store.notes()) == {"3_1", "4"}
    store.forget(["3_1"], token)
    assert store.note("3_1") is None


def test_a_reading_counts_once(store: Store, token: int) -> None:
    assert store.put_profile(profile_row(at_s=5.0), "1.json@1", token)
    assert not store.put_profile(profile_row(at_s=6.0), "1.json@1", token)
    assert store.profiles()["1"].at_s == 5.0
    assert store.put_profile(profile_row(at_s=7.0), "1.json@2", token)
    assert store.profiles() == {"1": profile_row(at_s=7.0)}


def test_decisions_keep_their_reasons(store: Store, token: int) -> None:
    rows = [
        DecisionRow(1.0, "1", "main", "hold", (FreeGpus(2, 1, 1, False),), mode="pack"),
        DecisionRow(2.0, "2", "main", "start", (NotMeasured(False),), "n1:0", "1", "pack"),
        DecisionRow(3.0, "1", "main", "start", (), "n1:1", None, "pack"),
    ]
    store.put_decisions(rows, token)
    assert store.decisions() == rows
    assert store.decisions("1") == [rows[0], rows[2]]
    assert store.decisions(limit=1) == [rows[2]]


def test_an_action_is_noted_before_and_after(store: Store, token: int) -> None:
    first = store.begin_action(1.0, "1", "start", "n1:0", token)
    second = store.begin_action(2.0, "2", "requeue", "", token)
    store.end_action(first, "done", token)
    assert [(row.id, row.job_id, row.result) for row in store.actions()] == [(first, "1", "done"), (second, "2", "")]
    assert [row.verb for row in store.actions("2")] == ["requeue"]
    assert store.actions(limit=1)[0].id == second


def test_an_ended_job_is_kept_once(store: Store, token: int) -> None:
    first = Ended(a_job("1", 2, user="ada"), 9.0, 5.0, "FAILED", JobProfile(40.0, 20.0, 3000.0))
    store.put_ended([first, Ended(a_job("2"), 4.0, 1.0)], token)
    store.put_ended([Ended(a_job("1"), 99.0, 1.0)], token)
    assert [e.job.id for e in store.ended()] == ["2", "1"]
    assert store.ended(5.0) == [first]
    assert [e.job.id for e in store.ended(limit=1)] == ["1"]
    assert store.ended_ids({"1", "3"}) == {"1"}


def test_switches_are_set_and_taken_back_without_a_lease(store: Store) -> None:
    for name, value in (("paused", "1"), ("paused", "0"), ("mode.main", "pack")):
        store.set_setting(name, value)
    assert store.settings() == {"paused": "0", "mode.main": "pack"}
    store.set_setting("paused", None)
    assert store.settings() == {"mode.main": "pack"}


def test_pictures_are_replaced(store: Store) -> None:
    assert store.view("status") is None
    store.put_view("status", {"a": [1, (2, 3)]})
    store.put_view("status", {"a": [1, (2, 4)]})
    assert store.view("status") == {"a": [1, [2, 4]]}


def test_old_rows_go(store: Store, token: int) -> None:
    store.put_decisions([DecisionRow(t, "1", "m", "hold", ()) for t in (1.0, 9.0)], token)
    store.put_ended([Ended(a_job("1"), 1.0, 1.0), Ended(a_job("2"), 9.0, 1.0)], token)
    store.begin_action(1.0, "1", "start", "", token)
    store.put_profile(profile_row(at_s=1.0), "a", token)
    assert store.prune(5.0) == 5
    assert [row.at_s for row in store.decisions()] == [9.0]
    assert [e.job.id for e in store.ended()] == ["2"]
    assert not store.actions()
    assert not store.profiles()
