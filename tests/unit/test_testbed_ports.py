"""Testbeds that are begun at the same time have ports of their own, wherever each of them lies."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from testbed import cli
from testbed.settings import Layout, TestbedError, layout_from

PORT = 27_000 + os.getpid() % 10 * 100
"""Where ports are asked for; another run of this test asks for others."""


@pytest.fixture(autouse=True)
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "unfit", lambda layout: None)
    monkeypatch.setattr(cli.tree, "build", lambda layout, say: None)
    monkeypatch.setattr(cli.tree, "release", lambda layout: "24.11.5")
    monkeypatch.setattr(cli.host, "mount", lambda layout: None)
    monkeypatch.setattr(cli.cgroups, "prepare", lambda layout: None)
    monkeypatch.setattr(cli.conf, "write", lambda layout, base, files: None)


def bed(folder: Path, name: str, **environ: str) -> Layout:
    return layout_from({"LUCID_TESTBED": str(folder), "LUCID_TESTBED_NAME": name, **environ})


def begun_at_once(monkeypatch: pytest.MonkeyPatch, *layouts: Layout) -> list[int | str]:
    """The first port of each, in order, or why it did not come up. None listens before all have chosen."""
    got: list[int | str] = [""] * len(layouts)
    chosen = threading.Barrier(len(layouts), timeout=5)
    monkeypatch.setattr(cli.daemons, "start", lambda layout, say: chosen.wait())

    def begin(number: int) -> None:
        try:
            got[number] = cli.up(layouts[number], lambda text: None)["port"]
        except TestbedError as error:
            got[number] = str(error)
            chosen.wait()

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(len(layouts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got


def test_in_several_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got = begun_at_once(monkeypatch, *(bed(tmp_path / name, name) for name in "abc"))
    assert len(set(got)) == 3, got
    assert all(isinstance(port, int) for port in got), got


def test_ports_that_were_asked_for_and_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beds = [bed(tmp_path, name, LUCID_TESTBED_PORT=str(PORT + 5 * n)) for n, name in enumerate("ab")]
    got = begun_at_once(monkeypatch, *beds)
    assert sorted(isinstance(port, int) for port in got) == [False, True], got
    assert any("LUCID_TESTBED_PORT" in str(port) for port in got), got
