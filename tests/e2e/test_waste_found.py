"""Waste that is planted in emulated readings is found by a lucidd on a real Slurm, and told in its metrics."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from box import Box
from daemon_box import Lucidd
from sampler_box import Emulated, SamplerBeside

from lucid.config.load import load_settings, profiles_folder
from lucid.core.gpu import GpuProcess, GpuReading
from lucid.daemon.reporting.waste_inputs import MetricsSource, job_accounts
from lucid.node.processes import JobSpec, Owners
from lucid.node.reports import UseFolder
from lucid.profiler import use as use_of_gpus
from lucid.profiler import waste
from lucid.store.sqlite import SqliteStore
from prometheus_box import Exporter, Prometheus, make, plain

WORK_S = 10.0
"""Of the job that works at first and is idle then."""


class Named(Emulated):
    """Readings by what a job's name says that it does."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[str, float]] = {}
        """By number: name, and since when it runs."""
        self.seen: dict[str, JobSpec] = {}

    def saw(self, running: Mapping[str, Mapping[str, Any]]) -> None:
        self.seen = {n: JobSpec(n, (f"{n}/0", f"{n}/1")) for n in running}
        for number, job in running.items():
            self.jobs.setdefault(number, (job["name"], float(job["start_time"]["number"])))

    def specs(self) -> Mapping[str, JobSpec]:
        return self.seen

    def read(self, uuids: Collection[str]) -> Mapping[str, GpuReading]:
        return {uuid: self._reading(uuid) for uuid in uuids}

    def _reading(self, uuid: str) -> GpuReading:
        number = uuid.partition("/")[0]
        name, since_s = self.jobs[number]
        works = name == "busy" or (name == "lazy" and time.time() - since_s < WORK_S)
        util = 80.0 if works else 0.0
        processes = () if name == "empty" else (GpuProcess(int(number), 3000.0, util, util / 2),)
        return GpuReading(uuid, util, util / 2, 3000.0 if processes else 0.0, processes=processes)


class Itself(Owners):
    def job_of(self, pid: int, given: Mapping[int, str]) -> str | None:
        return str(pid)


@pytest.fixture
def lucidd(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lucidd]:
    """One whose own stand-in for a sampler tells nothing: the real one does."""
    monkeypatch.setattr(Lucidd, "_sample", lambda self: None)
    daemon = Lucidd(box, tmp_path / "state", restarts="")
    daemon.start()
    yield daemon
    daemon.close()


def test_two_kinds_of_waste_are_found_and_a_working_job_is_left_alone(
    box: Box, lucidd: Lucidd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a Prometheus that scrapes it has data for every panel that is to have data on every cluster."""
    # jobs here run for half a minute: stretches and bounds are scaled down, all else is as it is installed
    monkeypatch.setattr(use_of_gpus, "LEAST_IDLE_S", 5.0)
    beside = SamplerBeside(box, tmp_path, lucidd.profiles, Named(), Itself())
    try:
        numbers = {
            name: box.sbatch("--gpus=2", "-J", name, "-t", "10", script="sleep 30")
            for name in ("busy", "idle", "lazy", "empty")
        }
        box.wait_ended(*numbers.values(), limit_s=180.0)
        store = SqliteStore(Path(lucidd.folder) / "lucid.db", read_only=True)
        box.wait("lucidd to see their ends", lambda: {e.job.id for e in store.ended()} >= set(numbers.values()))
    finally:
        beside.close()
    settings = load_settings(lucidd.folder / "lucid.toml")
    for name, bound in (("IDLE_START_S", 8.0), ("EMPTY_S", 8.0), ("LEAST_GPU_H", 0.0)):
        monkeypatch.setattr(waste, name, bound)
    scaled = settings.changed({"efficiency.idle_after_s": 8.0})
    accounts = {
        account.job.name: account
        for account in job_accounts(store, UseFolder(profiles_folder(settings)), scaled, time.time())
    }
    kinds = {name: [str(waste.kind) for waste in accounts[name].waste] for name in numbers}
    assert kinds == {
        "busy": [],
        "idle": ["idle_from_start"],
        "lazy": ["idle_after_activity"],
        "empty": ["no_process"],
    }
    assert all(accounts[name].measured for name in numbers)
    idle = accounts["idle"]
    assert idle.waste[0].gpu_h == pytest.approx(idle.held_gpu_h, rel=0.25), "all that it held"
    told = lucidd.json("efficiency")
    assert {job["job"] for job in told["jobs"]} >= set(numbers.values())
    wasted = [job["waste"] for job in told["jobs"] if job["waste"] and job["job"] in numbers.values()]
    assert not wasted, "by the bounds as installed, 30 s are no waste"
    asked = lucidd.json("status")["calls"]["reads"]
    text = lucidd.ctl("metrics")
    assert "lucid_up 1.0" in text
    held = next(line for line in text.splitlines() if line.startswith("lucid_efficiency_held_gpu_seconds{"))
    assert float(held.split()[-1]) > 4 * 2 * 25.0
    assert lucidd.json("status")["calls"]["reads"] - asked < 10, "lucidd's own looks, and none of the command"
    if shutil.which("prometheus") is not None:
        every_panel_has_data(MetricsSource(scaled), tmp_path)


def every_panel_has_data(source: MetricsSource, folder: Path) -> None:
    exporter = Exporter(source)
    prometheus = Prometheus(folder, exporter.port)
    try:
        prometheus.scraped(5)
        panels = [panel for board in make.BOARDS for panel in board.panels]
        none = [
            panel.title
            for panel in panels
            for expr, _ in panel.queries
            if not prometheus.ask("query", query=plain(expr))["result"] and not panel.empty
        ]
        assert none == []
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        assert {rule["name"] for rule in rules} == {alert.name for alert in make.ALERTS}
        assert [rule["name"] for rule in rules if rule.get("lastError")] == []
        critical = [r["name"] for r in rules if r["state"] != "inactive" and r["labels"]["severity"] == "critical"]
        assert critical == []
    finally:
        prometheus.stop()
        exporter.server.shutdown()
        exporter.server.server_close()
