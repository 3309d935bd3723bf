"""``lucidctl gpu``: what the samplers wrote, as a table and as JSON."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner, Result
from msgspec import structs

from lucid.cli.site.gpu import gpu, rows_of
from lucid.core.job import JobProfile
from lucid.errors import ConfigError, MetricsError
from lucid.node.reports import write_summary
from lucid.profiler.summary import Spell, Summary

PROFILE = JobProfile(80, 40, 4000)


def summary(job: str, partner: str | None = None, **changes: object) -> Summary:
    now = time.time()
    recent = Spell(60, 55, 20, 92, 45, 24, 3800)
    made = Summary(job, "n1", ("GPU-0123456789",), now - 300, now, 300, PROFILE, 20.0, recent=recent, partner=partner)
    return structs.replace(made, **changes)


def pair(folder: Path) -> None:
    slow = replace(PROFILE, seen_speed=0.62, seen_beside="8")
    write_summary(folder, summary("7", "8", profile=slow, promised=0.93, seen_by="DRAM traffic"))
    write_summary(folder, summary("8", "7", profile=replace(PROFILE, mem_growing=True, unstable=True)))


def call(*arguments: str) -> Result:
    return CliRunner().invoke(gpu, list(arguments), env={"COLUMNS": "160"})


def test_the_table_has_cards_jobs_readings_and_speeds(tmp_path: Path) -> None:
    pair(tmp_path)
    done = call("--profiles", str(tmp_path), "--once")
    assert done.exit_code == 0, done.output
    header, first, second, _caption = (line.split() for line in done.output.splitlines())
    assert header[:4] == ["node", "GPU", "job", "partner"]
    assert first == ["n1", "GPU-01234567", "7", "8", "92%", "55%", "45%", "24%", "3,800", "93%", "62%", "steady"]
    assert second[:2] == ["8", "7"], "the second job of a card stands under the first"
    assert "unstable, memory grows" in done.output


def test_the_folder_is_lucidds_where_its_file_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path / "own", tmp_path / "state/profiles"):
        folder.mkdir(parents=True)
        pair(folder)
    config = tmp_path / "lucid.toml"
    for line in (f'state_dir = "{tmp_path}/state"', f'state_dir = "/none"\nprofiles_dir = "{tmp_path}/own"'):
        config.write_text(f"[daemon]\n{line}\n")
        assert len(json.loads(call("--config", str(config), "--json").output)["gpus"]) == 2
    config.write_text("[daemon\n")
    assert isinstance(call("--config", str(config)).exception, ConfigError)
    assert isinstance(call("--config", str(tmp_path / "none")).exception, ConfigError)
    done = call("--config", str(config), "--profiles", str(tmp_path / "own"), "--json")
    assert len(json.loads(done.output)["gpus"]) == 2
    none = call("--profiles", str(tmp_path / "none")).exception
    assert isinstance(none, MetricsError)
    assert "give --profiles" in str(none)


def test_json_has_the_same_and_the_files_that_are_none(tmp_path: Path) -> None:
    pair(tmp_path)
    (tmp_path / "9.json").write_text("{")
    found = json.loads(call("--profiles", str(tmp_path), "--json").output)
    rows = [(row["job"], row["partner"], row["seen"], row["promised"]) for row in found["gpus"]]
    assert rows == [("7", "8", 0.62, 0.93), ("8", "7", None, None)]
    assert found["gpus"][0]["seen_by"] == "DRAM traffic"
    assert len(found["bad_files"]) == 1


def test_what_is_not_measured_yet_has_its_word_and_a_speed_is_that_beside_the_present_partner() -> None:
    now = time.time()
    old = summary("7", "9", profile=replace(PROFILE, seen_speed=0.6, seen_beside="8"))
    assert rows_of({"7": [old]}, now)[0].seen is None
    young = {"1": [summary("1", profile=None, warm_up_s=None)], "2": [summary("2", profile=None)]}
    assert [row.state for row in rows_of(young, now)] == ["starting up", "not measured yet"]


def test_an_older_sample_and_a_note_are_told_and_an_ended_job_is_left_out(tmp_path: Path) -> None:
    write_summary(tmp_path, summary("7", end_s=time.time() - 90, notes=("Xid 79 on GPU-0123456789",)))
    text = " ".join(call("--profiles", str(tmp_path), "--once").output.split())
    assert "Xid 79" in text
    assert "last sample 90 s" in text
    write_summary(tmp_path, summary("7", end_s=time.time() - 1000))
    assert "no sampler has written for three minutes" in call("--profiles", str(tmp_path)).output
