"""Tables go where they can be read."""

from __future__ import annotations

import pytest

from lucid.cli.console import stdout_console


def test_tables_for_a_pipe_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert stdout_console().width == 120
    monkeypatch.setenv("COLUMNS", "93")
    assert stdout_console().width == 93
