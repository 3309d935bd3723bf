"""How often lucidd asks Slurm, counted where the requests leave; and what it may do over pyslurm."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fake_slurm import FakeSampler, FakeSlurm
from lucid.cli.main import lucidctl
from lucid.config.live import SlurmSettings
from lucid.config.load import Settings, settings_from
from lucid.daemon.build import Parts
from lucid.daemon.loop import Daemon
from lucid.daemon.modes import modes_from
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.places import Mode
from lucid.slurm import commands as slurm_cli
from lucid.slurm.client import Breaker
from lucid.slurm.cluster import SlurmCluster
from lucid.slurm.commands import CommandClient
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore

ASSETS = Path(__file__).parents[2] / "assets/slurm"
PYSLURM = {"client": "pyslurm"}


class Watch:
    """A clock that stands still between turns."""

    now = 1.8e9

    def now_s(self) -> float:
        return self.now


class Idle:
    """A Slurm of this release on which nothing waits; counts what leaves."""

    def __init__(self, release: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release, self.asked = release, 0
        monkeypatch.setattr(slurm_cli.subprocess, "run", self.command)

    def document(self, folder: str, name: str) -> Any:
        found = json.loads((ASSETS / folder / f"{name}.json").read_text())
        if name == "jobs":
            found["jobs"] = [job for job in found["jobs"] if job["job_state"] == ["RUNNING"]]
        return found

    def command(self, words: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.asked += 1
        if "--version" in words:
            return subprocess.CompletedProcess(words, 0, f"slurm {self.release}.5\n", "")
        newest = self.release == "26.05" and "--json" in words and words[0] == "squeue"
        folder = f"{self.release}-v0.0.45" if newest else self.release
        shown = "reservations" if "reservation" in words else "nodes"
        document = self.document(folder, "jobs" if words[0] == "squeue" else shown)
        return subprocess.CompletedProcess(words, 0, json.dumps(document), "")


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_an_idle_cluster_is_asked_at_most_thirteen_times_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    idle, watch = Idle(release, monkeypatch), Watch()
    breaker = Breaker(watch.now_s)
    client = CommandClient([], breaker)
    settings = settings_from(
        {
            "daemon": {
                "partitions": {"vc": "pack", "other": "observe"},
                "state_dir": str(tmp_path), "heartbeat": str(tmp_path / "heartbeat"),
            },
        },
        "test",
    )  # fmt: skip
    store = SqliteStore(tmp_path / "lucid.db")
    parts = Parts(settings, client, breaker, store, FakeSampler(FakeSlurm([]), {}), watch, HistoryPredictor(600.0))
    daemon = Daemon(parts, "me")
    times: list[float] = []
    while watch.now < 1.8e9 + 240:
        before = idle.asked
        wait_s = daemon.turn()
        times += [watch.now] * (idle.asked - before)
        watch.now += wait_s
    assert (tmp_path / "heartbeat").exists(), "its cycles are good ones"
    assert breaker.calls.reads <= idle.asked <= breaker.calls.reads + 4, "status tells what left, versions apart"
    steady = [at for at in times if at > 1.8e9]
    assert len(steady) >= 30
    assert max(sum(0 <= at - first < 60 for at in steady) for first in steady) <= 13
    store.close()


def over(**slurm: Any) -> Settings:
    return settings_from({"slurm": slurm, "daemon": {"partitions": {"a": "order", "b": "observe"}}}, "test")


def test_over_pyslurm_no_partition_is_packed() -> None:
    settings = over(**PYSLURM)
    assert modes_from(settings, {"mode.a": "pack", "mode.b": "pack"}) == {"a": Mode.ORDER, "b": Mode.ORDER}
    assert modes_from(settings, {"mode.b": "observe"})["b"] is Mode.OBSERVE
    assert modes_from(over(), {"mode.a": "pack"})["a"] is Mode.PACK
    with pytest.raises(ConfigError, match=r"daemon\.partitions\.vc = 'pack'.*slurm\.client = 'command'"):
        settings_from({"slurm": PYSLURM, "daemon": {"partitions": {"vc": "pack"}}}, "test")


def test_over_pyslurm_a_cluster_says_that_it_can_do_less() -> None:
    for slurm, able in ((SlurmSettings(client="pyslurm"), 0), (SlurmSettings(), 2)):
        cluster = SlurmCluster(
            FakeSlurm([]), SqliteStore(IN_MEMORY), FakeSampler(FakeSlurm([]), {}), Watch(), slurm,
            over().daemon, dict, lambda job: False, 0,
        )  # fmt: skip
        assert len(cluster.capabilities) == able


def test_pack_is_refused_where_it_cannot_be_had(tmp_path: Path) -> None:
    path = tmp_path / "lucid.toml"
    path.write_text(
        f'[slurm]\nclient = "pyslurm"\n[daemon]\nstate_dir = "{tmp_path}"\n[daemon.partitions]\nvc = "order"\n'
    )
    SqliteStore(tmp_path / "lucid.db").close()
    done = CliRunner().invoke(lucidctl, ["mode", "vc", "pack", "--config", str(path)])
    assert isinstance(done.exception, ConfigError)
    assert "slurm.client = 'command'" in str(done.exception)
    assert CliRunner().invoke(lucidctl, ["mode", "vc", "observe", "--config", str(path)]).exit_code == 0
