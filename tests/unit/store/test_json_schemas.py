"""JSON schemas of what is stored, and names that are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from test_plan_records import written

from daemon_site import Site
from json_schemas import FOLDER, commands, schema_of
from lucid.cli.main import lucidctl
from lucid.core.decision import EndProfiling
from lucid.orchestrator.policies.shadow import Kept
from lucid.store import values as nouns
from lucid.store.values import value_from_json, value_to_json


def test_every_command_with_json_has_a_schema_and_no_schema_is_left_over() -> None:
    there = {path.stem for path in FOLDER.glob("*.json")}
    assert there == {name.replace(" ", "-") for name in commands()}
    for name in commands():
        schema = schema_of(name)
        Draft202012Validator.check_schema(schema)
        assert schema.get("properties") or schema.get("items") or "type" in schema, name


def run(*words: Any) -> Any:
    done = CliRunner().invoke(lucidctl, [*map(str, words), "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return json.loads(done.stdout)


def test_simulate(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    made = CliRunner().invoke(lucidctl, ["trace", "synth", "month-small", "--jobs", "60", "--out", str(path)])
    assert made.exit_code == 0, made.output
    assert run("simulate", path, "--nodes", "10", "--policy", "fifo", "--policy", "lucid")
    events = tmp_path / "events.csv"
    events.write_text("event,nodes,from,until\nwindow,*,1-00:00,1-01:00\n")
    week = ("--events", events)
    week += ("--out", tmp_path / "out")
    assert run("simulate", path, "--nodes", "10", "--policy", "fifo", *week)["results"]["fifo"]["windows"]
    first = (tmp_path / "out/fifo/jobs.csv").read_text().splitlines()[1].partition(",")[0]
    assert run("explain", "--run", tmp_path / "out", first)["job"]["job_id"] == first


def test_doctor_replay_and_lending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    site.turns(10.0)
    assert run("doctor", "--config", tmp_path / "lucid.toml")["findings"]
    assert run("replay", written(tmp_path))["records"] == 1
    pool = '[daemon.pool]\npartition = "over"\nquotas = { vc = 4 }\n'
    (tmp_path / "lucid.toml").write_text((tmp_path / "lucid.toml").read_text() + pool)
    monkeypatch.setattr("lucid.cli.site.slurm.make_client", lambda *_: site.slurm)
    monkeypatch.setattr(site.slurm, "close", lambda: None, raising=False)
    assert "over" in run("slurm", "lending", "--config", tmp_path / "lucid.toml")["text"]


def test_a_record_of_0_1_is_read_and_its_names_are_written() -> None:
    for noun, name in (
        (EndProfiling(()), "lucid.core.decision:Release"),
        (Kept(3600.0, 2), "lucid.orchestrator.policies.plain:Kept"),
    ):
        data = value_to_json(noun)
        assert data["is"] == name
        assert value_from_json(json.loads(json.dumps(data))) == noun


def test_every_name_that_was_kept_is_of_a_class_that_there_is() -> None:
    for now, kept in nouns._WRITTEN_AS.items():
        assert nouns._class(kept) is nouns._class(now)
        assert nouns._name(nouns._class(now)) == kept
