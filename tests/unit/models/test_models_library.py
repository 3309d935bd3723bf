"""The library keeps its promise when killed anywhere, refuses damage, and promotes only what is not worse."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lucid.errors import ModelError
from lucid.models.library import Library, Trained, TrainingRuns, write_whole


@pytest.fixture
def library(tmp_path: Path) -> Library:
    minutes = itertools.count()
    begun = datetime(2024, 5, 1, tzinfo=UTC)
    return Library(tmp_path / "models", lambda: begun + timedelta(minutes=next(minutes)))


def train(library: Library, value: float, **options: Any) -> Trained:
    """A 'model' is a number, its loss the distance from 10."""
    return library.train(
        "toy",
        fit=lambda: value,
        dump=lambda number: {"value": number},
        load=lambda data: float(data["value"]),
        loss=lambda number: abs(number - 10),
        **options,
    )


def test_promotes_what_is_not_worse_and_keeps_the_rest(library: Library) -> None:
    assert train(library, 5.0).promoted
    worse = train(library, 1.0)
    assert (worse.promoted, worse.loss, worse.loss_in_service) == (False, 9.0, 5.0)
    assert train(library, 15.0).promoted  # as good
    assert library.serving("toy") == 3
    assert [(v.number, v.in_service) for v in library.versions("toy")] == [(1, False), (2, False), (3, True)]
    assert library.show("toy", 2).facts == {"loss": 9.0, "loss_in_service": 5.0}
    assert library.names() == ["toy"]


def test_rolls_back_and_forth_and_says_so(library: Library) -> None:
    with pytest.raises(ModelError, match="no earlier version"):
        library.rollback("toy")
    train(library, 5.0)
    train(library, 6.0)
    assert library.rollback("toy", "looked wrong") == 1
    assert library.serving("toy") == 1
    assert library.rollback("toy") == 2
    trail = [(e["action"], e["version"]) for e in library.trail("toy")]
    assert trail == [("add", 1), ("promote", 1), ("add", 2), ("promote", 2), ("rollback", 1), ("rollback", 2)]
    assert library.trail("toy")[4]["why"] == "looked wrong; was v2"
    assert library.trail("toy")[0]["time"] == "2024-05-01T00:01:00+00:00"
    library.promote("toy", 2)  # it serves already: the way back stays
    assert library.rollback("toy") == 1


def test_names_and_versions_that_are_not_there_and_models_without_a_loss(library: Library) -> None:
    with pytest.raises(ModelError, match="no loss"):
        train(library, float("nan"))
    assert library.names() == []
    for name in ("../etc", "Toy", ""):
        with pytest.raises(ModelError, match="is no name of a model"):
            library.show(name)
    with pytest.raises(ModelError, match="no version of toy is in service"):
        library.show("toy")
    with pytest.raises(ModelError, match="no such version"):
        library.promote("toy", 7)


@pytest.mark.parametrize("damage", ["flip", "cut", "list", "format"])
def test_damage_is_refused_and_names_file_and_remedy(library: Library, damage: str) -> None:
    train(library, 5.0)
    path = library.root / "toy" / "v0001.json"
    text = path.read_text()
    edits = {"flip": text.replace("5.0", "5.5"), "cut": text[:-20], "list": "[]", "format": text.replace("/1", "/9")}
    path.write_text(edits[damage])
    with pytest.raises(ModelError, match=r"v0001\.json.*roll back"):
        library.show("toy")
    again = train(library, 4.0)  # a version that cannot be used must not block the next
    assert again.promoted
    assert "cannot be used" in again.reason


def test_two_trainings_never_run_at_once(library: Library) -> None:
    def nested() -> float:
        with pytest.raises(TrainingRuns, match="another training runs"):
            train(library, 9.0)
        return 5.0

    library.train("toy", nested, lambda m: {"value": m}, lambda d: float(d["value"]), abs)
    assert library.serving("toy") == 1
    assert [v.number for v in library.versions("toy")] == [1]


def test_a_torn_audit_line_is_left_out_and_then_replaced_and_a_service_file_that_says_nothing_is_refused(
    library: Library,
) -> None:
    train(library, 5.0)
    path = library.root / "toy" / "audit.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time": "20')
    assert [e["action"] for e in library.trail("toy")] == ["add", "promote"]
    library.promote("toy", 1)
    assert [e["action"] for e in library.trail("toy")] == ["add", "promote", "promote"]
    path.write_bytes(b"rubbish\n" + path.read_bytes())
    with pytest.raises(ModelError, match="line 1"):
        library.trail("toy")
    path.unlink()
    (library.root / "toy" / "service.json").write_text("{}")
    with pytest.raises(ModelError, match="does not say which version"):
        library.show("toy")
    library.root.joinpath("toy", "service.json").unlink()
    library.promote("toy", 1)
    assert library.serving("toy") == 1
    with pytest.raises(ModelError, match="cannot be written"):
        write_whole(library.root / "toy" / "v0001.json" / "x.json", "{}")


_VICTIM = """
import os, signal, sys
from pathlib import Path
from lucid.models.library import write_whole
from lucid.models.library import Library

last = int(sys.argv[2])
steps = 0
def step():
    global steps
    steps += 1
    if steps == last:
        os.kill(os.getpid(), signal.SIGKILL)
def dying(real):
    def call(*args, **kwargs):
        step()
        result = real(*args, **kwargs)
        step()
        return result
    return call
os.fsync = dying(os.fsync)
Path.replace = dying(Path.replace)
Library(Path(sys.argv[1])).train(
    "toy", lambda: 9.0, lambda m: {"value": m}, lambda d: d["value"], lambda m: abs(m - 10))
"""


def test_killed_at_any_step_the_library_serves_and_trains_on(tmp_path: Path) -> None:
    """SIGKILL before and after every fsync and rename: old or new is served whole, the lock is free."""
    seen: set[float] = set()
    for step in range(1, 100):
        library = Library(tmp_path / str(step))
        train(library, 5.0)
        done = subprocess.run([sys.executable, "-c", _VICTIM, str(library.root), str(step)], check=False)
        served: Mapping[str, Any] = library.show("toy").data
        seen.add(served["value"])
        assert served["value"] in (5.0, 9.0)
        assert library.trail("toy")[0]["action"] == "add"
        after = train(library, 9.5)
        assert after.promoted
        assert library.show("toy").data == {"value": 9.5}
        assert [e["action"] for e in library.trail("toy")][-2:] == ["add", "promote"]
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert seen == {5.0, 9.0}
    assert step > 10  # it did die on the way
