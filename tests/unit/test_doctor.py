"""What doctor finds in Slurm's answers, without a Slurm."""

from __future__ import annotations

from typing import Any

from fake_slurm import fake_node
from lucid.cli.doctor import Finding, look_over_cluster
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
