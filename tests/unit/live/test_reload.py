"""SIGHUP: sound settings are taken, others are refused as a whole; and the fields by which journald is searched."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lucid.daemon.process import JournalHandler, Reload, log_handler

SOUND = '[daemon]\nstate_dir = "/tmp/x"\n[daemon.partitions]\nvc = "observe"\n'


@pytest.mark.parametrize(
    "text",
    ["[daemon]\nlease = 3\n", "[daemon", '[daemon.partitions]\nvc = "observe"\n[daemon]\npolicy = "x"\n', None],
)
def test_settings_that_are_not_sound_change_nothing(
    text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, stop = tmp_path / "lucid.toml", threading.Event()
    if text is not None:
        config.write_text(text)
    reload = Reload(config)
    reload.read(stop)
    assert (stop.is_set(), reload.due) == (False, False)
    assert "the old ones hold" in caplog.text
    assert str(config) in caplog.records[0].facts["why"]  # type: ignore[attr-defined]
    config.write_text(SOUND)
    reload.read(stop)
    assert (stop.is_set(), reload.due) == (True, True)
    reload.end(stop)
    assert not reload.due, "after SIGTERM it does not start again"


def test_lucidd_checks_settings_where_there_is_no_slurm(tmp_path: Path) -> None:
    config = tmp_path / "lucid.toml"
    words = [sys.executable, "-m", "lucid.daemon", "--check", "--config", str(config)]
    config.write_text(SOUND)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{config}: sound\n")
    config.write_text(SOUND.replace("observe", "watch"))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{config}: line 4: daemon.partitions.vc" in done.stderr


def test_journald_is_told_the_job_and_how_bad_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal"
    record = logging.makeLogRecord({"msg": "done", "levelno": logging.ERROR, "levelname": "ERROR"})
    record.facts = {"job": "81\n2", "partition": "vc", "why": "x\ny"}
    handler = JournalHandler(log_handler(), str(path))
    handler.emit(record)
    assert json.loads(capsys.readouterr().err)["event"] == "done", "nobody listens: stderr has it"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(os.fspath(path))
        handler.emit(record)
        fields = dict(line.split("=", 1) for line in journald.recv(65536).decode().splitlines())
    assert json.loads(fields.pop("MESSAGE"))["why"] == "x\ny"
    assert fields == {
        "PRIORITY": "3",
        "SYSLOG_IDENTIFIER": "lucidd",
        "LUCID_JOB": "81\\n2",
        "LUCID_PARTITION": "vc",
    }
