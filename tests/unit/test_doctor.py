"""What doctor finds in Slurm's answers, without a Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_slurm import fake_node
from lucid.adapters.store_sqlite import SqliteStore
from lucid.cli.doctor import Finding, look_over_cluster, look_over_state
from lucid.config import settings_from

SOUND = {
    "PriorityType": "priority/multifactor",
    "JobSubmitPlugins": "lua",
    "GresTypes": "gpu,shard",
    "TaskProlog": "/etc/slurm/lucid/task_prolog",
    "Prolog": "/etc/slurm/lucid/prolog.d/*",
    "SchedulerParameters": "bf_continue",
}


def found(config: dict[str, str] | None = None, **daemon: Any) -> list[Finding]:
    """All that is not as it should be."""
    data = {"partitions": {"vc": "pack"}, "profiling_partition": "prof", "heartbeat": "/nowhere", **daemon}
    nodes = [fake_node("n1", "vc"), fake_node("p1", "prof")]
    settings = settings_from({"daemon": data}, "test")
    findings = look_over_cluster(settings, (24, 11), {**SOUND, **(config or {})}, nodes, [], 0.0)
    return [item for item in findings if item.level != "ok"]


def test_a_sound_cluster_has_no_findings() -> None:
    assert found() == []


def test_extra_that_slurm_would_read_as_a_constraint_is_bad() -> None:
    constraints = {"SchedulerParameters": "bf_continue,extra_constraints"}
    (finding,) = found(constraints)
    assert finding.level == "bad"
    assert "daemon.mps = false" in finding.remedy
    assert found(constraints, mps=False) == []


def test_without_a_prolog_nothing_starts_mps() -> None:
    (finding,) = found({"Prolog": "(null)"})
    assert (finding.level, "MPS" in finding.what) == ("warn", True)
    assert found({"Prolog": "(null)"}, mps=False) == []


def test_a_folder_of_samples_has_to_be_there(tmp_path: Path) -> None:
    def about(samples_dir: str) -> list[Finding]:
        data = {"partitions": {"vc": "pack"}, "state_dir": str(tmp_path), "samples_dir": samples_dir}
        found = look_over_state(settings_from({"daemon": data}, "test"), 0.0)
        return [item for item in found if "taken in" in item.what]

    SqliteStore(tmp_path / "lucid.db").close()
    (finding,) = about(str(tmp_path / "none"))
    assert (finding.level, "--spool" in finding.remedy) == ("bad", True)
    assert about(str(tmp_path)) == about("") == []


def test_models_need_what_trains_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SqliteStore(tmp_path / "lucid.db").close()
    monkeypatch.setattr("lucid.cli.doctor.find_spec", lambda name: None)

    def lacking(every_h: float) -> list[str]:
        daemon = {"partitions": {"vc": "observe"}, "state_dir": str(tmp_path)}
        settings = settings_from({"daemon": daemon, "models": {"every_h": every_h}}, "test")
        return [item.remedy for item in look_over_state(settings, 0.0) if "not installed" in item.what]

    assert lacking(0) == []
    (remedy,) = lacking(6)
    assert "lucid-scheduler[models]" in remedy
