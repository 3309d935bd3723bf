"""Spoilt files, traces included."""

from __future__ import annotations

import json
import math
import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hostile import inputs, only_our_errors, short

from lucid.config.load import Settings, load_settings
from lucid.config.section import Section, is_table, keys_of
from lucid.core.codec import to_json
from lucid.core.decision import DecisionRow
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.prediction import Prediction
from lucid.daemon.modes import switches_of
from lucid.errors import ConfigError
from lucid.models.packing.pair_memory import PairMemoryFile
from lucid.node.reports import summary_to_dict
from lucid.node.spool import SampleWriter, read_run
from lucid.places import Mode
from lucid.profiler.samples import GpuSample
from lucid.profiler.summary import Summary
from lucid.simulator.traces.formats.table import columns_from
from lucid.simulator.traces.read import read_trace
from lucid.slurm.heartbeat import Heartbeat, read_heartbeat, write_heartbeat
from lucid.slurm.view.profiles import ProfileFolder
from lucid.store.port import JobNote, PredictionRow, ProfileRow, holder_is_dead
from lucid.store.sqlite import SqliteStore
from lucid.text import MOST

NOTE = JobNote("1", "ada", "x", "vc", {"tres_per_node": "gres/gpu:1"}, where="n1:0", asked_s=5.0, released=True)
PROFILE = JobProfile(20.0, 10.0, 4000.0)
ENDED = Ended(Job("9", "vc", 1, 2.0), 5.0, 3.0, "COMPLETED", PROFILE)


def test_spool_folders(tmp_path: Path) -> None:
    writer = SampleWriter(tmp_path, "7", "n1", 100.0)
    for second in range(3):
        writer.write(100.0 + second, ["GPU-a"], [GpuSample(50.0, 10.0, 1000.0)])
    writer.close()
    (run,) = tmp_path.iterdir()
    (segment,) = run.glob("*.seg")
    whole = segment.read_bytes()
    head, records = whole.split(b"\n", 1)
    for draw in inputs("spool"):
        for path in run.iterdir():
            path.unlink()
        name = draw.choice([segment.name, "²", "9" * 20, "-1", "1", "٣", "0" * 40])
        headed = [json.dumps(draw.mutated(json.loads(head))).encode(), b'{"gpus": ["a"], "base_s": 1e400}']
        bodies = [draw.garbled(whole), draw.raw(300), b"[" * 50_000 + b"\n"]
        made = draw.choice([*bodies, *(first + b"\n" + records for first in headed)])
        (run / f"{name}.seg").write_bytes(made)
        with only_our_errors("spool", made):
            assert all(0 <= sample.at_s < MOST for _, sample in read_run(run))
            SampleWriter(tmp_path, "7", "n1", 5.0).close()


def test_summaries(tmp_path: Path) -> None:
    real = summary_to_dict(Summary("7", "n1", ("a",), 0.0, 30.0, 30, PROFILE))
    (tmp_path / "900001.json").write_text(json.dumps({**real, "job": "900001"}))
    for draw in inputs("summaries"):
        whole = draw.random() < 0.3
        content = draw.garbled(json.dumps(real).encode()) if whole else json.dumps(draw.mutated(real)).encode()
        (tmp_path / "7.json").write_bytes(content)
        source = ProfileFolder(tmp_path)
        with only_our_errors("summaries", content):
            found = {reading.job_id: reading.profile for reading in source.new()}
            assert found["900001"] == PROFILE, content[:500]
            for profile in found.values():
                json.dumps(to_json(profile), allow_nan=False).encode()


def test_a_fifo_in_place_of_a_file_stops_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "7.json")
    source = ProfileFolder(tmp_path)
    assert source.new() == []
    assert "no regular file" in source.bad["7.json"]


def test_heartbeat_pairs_and_holders(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_heartbeat(path, Heartbeat(5.0, {"vc": Mode.PACK}, "prof", 4, {"vc": 8}))
    beat = path.read_bytes()
    pairs = json.dumps([["a", "b", {"1 2": [0.5, 0.6]}], ["c", "d", {"3 4": [0.5, 0.6]}]]).encode()
    for draw in inputs("small files"):
        given = draw.garbled(draw.choice([beat, pairs]))
        path.write_bytes(given)
        with only_our_errors("heartbeat", given):
            read_heartbeat(path)
        with only_our_errors("pairs", given):
            PairMemoryFile(path)
        with only_our_errors("holder", given):
            number = draw.choice(["²", "9" * 30, "-1", "0", "99999999"])
            assert holder_is_dead(f"{socket.gethostname()}:{number}:1") in (True, False)
            switches_of({"mode.vc": draw.text(), "mode.": given.decode("latin-1")})


ROWS: dict[str, tuple[str, Any]] = {
    "notes": ("UPDATE notes SET data = ? WHERE job_id = '7'", to_json(NOTE)),
    "profiles": ("UPDATE profiles SET data = ? WHERE job_id = '7'", to_json(PROFILE)),
    "ended": ("UPDATE ended SET job = ? WHERE job_id = '9'", to_json(ENDED.job)),
    "predictions": ("UPDATE predictions SET data = ? WHERE job_id = '7'", to_json(Prediction(5.0, "x"))),
    "views": ("INSERT OR REPLACE INTO views VALUES ('status', ?)", {"a": [1, 2]}),
    "settings": ("INSERT OR REPLACE INTO settings VALUES ('mode.vc', ?)", "pack was=order since=5"),
    "decisions": ("UPDATE decisions SET reasons = ?", []),
}


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    made = SqliteStore(tmp_path / "lucid.db")
    lease = made.take_lease("x", 0.0, 1e9)
    for job in ("7", "900001"):
        made.put_notes([JobNote(**{**to_json(NOTE), "job_id": job})], lease.token)
        made.put_profile(ProfileRow(job, "ada", "x", 1, PROFILE, 5.0), job, lease.token)
        made.put_predictions([PredictionRow(job, 5.0, "ada", Prediction(5.0, "x"))], lease.token)
    made.put_decisions([DecisionRow(5.0, "7", "vc", "start", ())], lease.token)
    made.put_ended([ENDED, Ended(Job("900001", "vc", 1, 2.0), 5.0, 3.0)], lease.token)
    return made


def test_rows_of_the_store(store: SqliteStore) -> None:
    store._db.execute("PRAGMA synchronous = OFF")
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("PRAGMA synchronous = OFF")
    for draw in inputs("rows"):
        table = draw.choice(list(ROWS))
        sql, real = ROWS[table]
        text = json.dumps(real)
        garbled = draw.garbled(text.encode())
        texts = [json.dumps(made) for made in (draw.mutated(real), draw.mutated(real), draw.value())]
        texts += [garbled.decode("latin-1"), "[" * 50_000, "{}", "null"]
        given: Any = draw.choice([*texts, garbled, draw.raw(), 5, 1e300])
        other.execute(sql, (given,))
        with only_our_errors(f"rows of {table}", given):
            assert store.notes()["900001"].as_written == NOTE.as_written
            assert store.notes()["7"].job_id == "7", "a note is never lost as a whole"
            json.dumps([to_json(note) for note in store.notes().values()], allow_nan=False)
            assert store.profiles()["900001"].profile == PROFILE
            assert "900001" in {ended.job.id for ended in store.ended()}
            for read in (store.settings, store.lease, store.decisions, store.actions):
                read()
            for read_of, key in ((store.view, "status"), (store.prediction, "7"), (store.note, "7")):
                read_of(key)
    other.close()


TOML = """\
[policy]
gss = 4
[slurm]
client = "command"
prefix = ["chroot", "/srv"]
poll_idle_s = 7
[daemon]
state_dir = "/var/lib/lucid"
heartbeat = "/run/lucid/heartbeat"
lease_s = 15
profiling_partition = "prof"
[daemon.partitions]
vc = "pack"
[models]
every_h = 6.0
"""


VALUES = (
    "inf", "nan", "-inf", "1e999", "-1", "0", "9" * 5000, "[" * 3000, '"\\u0000"', '"²"', "true", "[[1]]",
    "{ a = 1 }", '"' + "x" * 9000 + '"', "1979-05-27", str(10**30), "''", '"a\\nb"',
)  # fmt: skip


def keys_below(section: type[Section], path: str = "") -> list[tuple[str, str]]:
    found = []
    for name, kind in keys_of(section).items():
        found += keys_below(kind, f"{path}.{name}".strip(".")) if is_table(kind) else [(path, name)]
    return found


def test_lucid_toml(tmp_path: Path) -> None:
    path = tmp_path / "lucid.toml"
    keys = [(table, key) for table, key in keys_below(Settings) if table]

    for draw in inputs("lucid.toml"):
        table, key = draw.choice(keys)
        made_up = f"[{table}]\n{key} = {draw.choice(VALUES)}\n".encode()
        given = made_up if draw.random() < 0.5 else draw.garbled(TOML.encode())
        path.write_bytes(given)
        told = str(path)
        try:
            load_settings(path)
        except ConfigError as error:
            told = str(error)
        except Exception as error:
            raise AssertionError(f"{error!r} of {short(given.decode('latin-1'))}") from error
        assert str(path) in told, "the file is named"
        assert len(told) < 20_000


ASSETS = Path(__file__).parents[1] / "assets"
TABLE = "job;arrived;n;ran;limit;mem;state\n1;2024-03-01;5;1-02:00:00;60;16G;FAILED\n2;9;1;3.5;;;\n"
COLUMNS = columns_from("id=job,submit=arrived,gpus=n,duration=ran,limit=limit,mem=mem,state=state")
PBS = (
    "03/01/2024 10:01:00;E;12.head;user=ada jobname='a b' queue=gpu qtime=1709280000 start=1709280060 end=1709283660 "
    "Resource_List.select=2:ngpus=4+1 Resource_List.walltime=24:00:00 Exit_status=0\n"
)
FILES = {
    **{path.name: path.read_bytes() for path in sorted((ASSETS / "traces").iterdir()) if path.is_file()},
    **{path.parent.name: path.read_bytes() for path in sorted(ASSETS.glob("slurm/*/sacct.json"))},
    "pbs": PBS.encode() * 3,
    "table": TABLE.encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_a_garbled_log_is_read_or_refused_in_words(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for draw in inputs("traces"):
        given = draw.garbled(FILES[name])
        if FILES[name].startswith(b"{") and draw.random() < 0.7:
            given = json.dumps(draw.mutated(json.loads(FILES[name]))).encode()
        path.write_bytes(given)
        with only_our_errors(name, given):
            trace = read_trace(path, skip_bad=draw.random() < 0.5, columns=COLUMNS if name == "table" else None)
            for one in trace.jobs:
                assert math.isfinite(one.duration_s + one.job.submit_s)
                assert one.job.gpus > 0
