"""Tables go where they can be read."""

from __future__ import annotations

import pytest

from lucid.cli.console import stdout_console, warn_on_stderr
from lucid.left_out import LeftOut


def test_tables_for_a_pipe_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert stdout_console().width == 120
    monkeypatch.setenv("COLUMNS", "93")
    assert stdout_console().width == 93


def test_warnings_stand_on_stderr_with_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read stdout; a job that cannot be read is named for the administrator beside it."""
    warn_on_stderr()
    warn_on_stderr()
    LeftOut().one("jobs", "job 7", "asks for 10000000 GPUs")
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "warning: left out: cannot be read source=jobs which=job 7 why=asks for 10000000 GPUs"
    ]
