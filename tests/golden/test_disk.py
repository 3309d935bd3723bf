"""What commit b7b0384e left on disk (disk.py) is read by today's code: the same words, plans and models."""

from __future__ import annotations

import re
import shutil
import tarfile
import time
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner
from disk import NOW

from kept import HERE, same_as, shortened
from lucid.cli.main import lucidctl
from lucid.models.library import Library
from lucid.node.reports import read_profile_files
from lucid.store.plan_records import read_record, record_files, replan
from lucid.store.sqlite import SqliteStore
from sdists import unpack

ASKED = (
    "status", "queue", "history", "efficiency", "explain 5", "explain 6", "explain 1", "explain 30", "explain 129",
    "explain 249", "why-not 30", "why-not 129 --share", "when --gpus 2", "gpu", "gpu health",
    "mode", "efficiency --time-limits",
)  # fmt: skip
"""Each as text and as JSON."""

MODELS = ("models show share", "models show pairs", "models show duration", "models show throughput")
"""As text alone: their JSON is the file in the library."""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, unpacked; its settings name it."""
    folder = tmp_path_factory.mktemp("disk")
    with tarfile.open(HERE / "b7b0384e.tar.xz") as tar:
        unpack(tar, folder)
    toml = folder / "lucid.toml"
    toml.write_text(re.sub(r'"/tmp/[^/"]*', f'"{folder}', toml.read_text()))
    return folder


@pytest.fixture
def now(left: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """The moment after the last turn of that lucidd, in UTC."""
    at_s = float((left / NOW).read_text()) + 1.0
    monkeypatch.setattr(time, "time", lambda: at_s)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return at_s


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize(("words", "json"), [*product(ASKED, (False, True)), *product(MODELS, (False,))])
def test_commands_say_the_same(left: Path, words: str, json: bool) -> None:
    command = [*words.split(), *["--json"][: int(json)], "--config", str(left / "lucid.toml")]
    said = CliRunner(env={"COLUMNS": "120"}).invoke(lucidctl, command, catch_exceptions=False)
    assert said.exit_code == 0
    name = words.replace(" --", "-").replace(" ", "-")
    same_as(HERE / "words" / f"{name}.{'json' if json else 'txt'}", shortened(said.output.replace(str(left), "DIR")))


def test_records_are_planned_again_to_the_same_decisions(left: Path) -> None:
    records = [read_record(path) for path in record_files(left / "plans")]
    assert len(records) == 120
    assert [record.at_s for record in records if replan(record) != record.plans] == []


def test_every_row_of_the_store_is_read(left: Path, tmp_path: Path) -> None:
    shutil.copy(left / "lucid.db", tmp_path)
    store = SqliteStore(tmp_path / "lucid.db")
    counts = {
        "notes": len(store.notes()), "profiles": len(store.profiles()), "decisions": len(store.decisions()),
        "actions": len(store.actions()), "ended": len(store.ended()), "settings": len(store.settings()),
    }  # fmt: skip
    left_out = store.left_out.summary()
    store.close()
    assert left_out == {}
    assert counts == {"notes": 89, "profiles": 8, "decisions": 543, "actions": 284, "ended": 24, "settings": 1}


def test_samplers_files_and_models_are_read(left: Path) -> None:
    files = read_profile_files(left / "profiles")
    assert not files.bad
    assert set(files.summaries) == {"1"}
    library = Library(left / "models")
    assert library.names() == ["duration", "pairs", "share", "throughput"]
    assert all(library.show(name).number == 1 for name in library.names())
