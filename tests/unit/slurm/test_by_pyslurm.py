"""The client over pyslurm: what a real one told (tests/assets/slurm/record.py), and what goes another way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lucid.config.live import SlurmSettings
from lucid.config.load import settings_from
from lucid.errors import ActionRefused, ClusterUnavailable, ConfigError
from lucid.left_out import LeftOut
from lucid.slurm.client import Breaker, Changes
from lucid.slurm.commands import CommandClient
from lucid.slurm.pyslurm import PyslurmClient, make_client
from lucid.slurm.records.from_json import jobs_from, nodes_from
from lucid.slurm.records.request import EXCLUSIVE

ASSETS = Path(__file__).parents[2] / "assets/slurm"
TOLD = json.loads((ASSETS / "pyslurm-25.11.json").read_text())


class Refused(Exception):
    """As pyslurm's RPCError."""


class Job(SimpleNamespace):
    """One recorded job; a new one is only written to."""

    requested_tres: Any = None
    extra = ""

    def __init__(self, number: int = 0, **told: Any) -> None:
        wanted = told.pop("requested_tres", None)
        super().__init__(**{"id": number, **told})
        if wanted:
            gres = {name: SimpleNamespace(count=count) for name, count in wanted["gres"].items()}
            self.requested_tres = SimpleNamespace(gres=gres, mem=SimpleNamespace(count=wanted["mem"]))

    def get_resource_layout_per_node(self) -> Any:
        return self.layout

    def modify(self, changes: SimpleNamespace) -> None:
        WRITTEN.append((self.id, vars(changes)))
        if SAYS:
            raise Refused(SAYS[0])

    def release(self) -> None:
        WRITTEN.append((self.id, "release"))


WRITTEN: list[Any] = []
SAYS: list[str] = []


def module(jobs: list[Any]) -> Any:
    listed = {job.id: job for job in jobs}
    nodes = {node["name"]: SimpleNamespace(**node) for node in TOLD["nodes"]}
    return SimpleNamespace(
        __version__=TOLD["version"], Job=Job, RPCError=Refused, JobSubmitDescription=SimpleNamespace,
        Jobs=SimpleNamespace(load=lambda: listed), Nodes=SimpleNamespace(load=lambda: nodes),
    )  # fmt: skip


class Commands(CommandClient):
    """Notes what goes through Slurm's commands."""

    def _run(self, command: Any) -> str:
        WRITTEN.append(list(command))
        return ""


def client(jobs: list[Any] | None = None) -> PyslurmClient:
    WRITTEN.clear()
    SAYS.clear()
    told = [Job(**job) for job in TOLD["jobs"]] if jobs is None else jobs
    breaker = Breaker(lambda: 0.0)
    return PyslurmClient(breaker, Commands([], breaker), LeftOut(), module(told))


def test_it_tells_of_jobs_what_the_commands_tell() -> None:
    mine = {job.name: job for job in client().jobs()}
    theirs = {job.name: job for job in jobs_from(json.loads((ASSETS / "25.11/jobs.json").read_text()))}
    assert mine.keys() == theirs.keys()
    for name, job in mine.items():
        other = theirs[name]
        assert not job.unread, job.unread
        whole = (EXCLUSIVE,) if EXCLUSIVE in other.request.others else ()
        assert (EXCLUSIVE in job.request.others) is bool(whole)
        if name == "gres":  # it completes, of which pyslurm tells nothing else
            assert job.completing
            assert other.completing
            continue
        assert job == replace(other, flags=job.flags, request=job.request, dependency=job.dependency)
        assert job.request.tres_per_node == other.request.tres_per_node


def test_it_tells_of_nodes_what_the_commands_tell() -> None:
    made = {node.name: node for node in client().nodes()}
    for node in nodes_from(json.loads((ASSETS / "25.11/nodes.json").read_text())):
        assert made[node.name] == node


def test_a_job_that_cannot_be_read_is_told_as_such() -> None:
    raw = next(job for job in TOLD["jobs"] if job["name"] == "gpus")
    slots = {"n1": {"cpu_ids": "0", "gres": {"shard:a100": 2}, "memory": 5}}
    (job,) = client([Job(**{**raw, "layout": slots})]).jobs()
    assert "slots of a100" in job.unread
    assert job.lost


@pytest.mark.parametrize(
    ("target", "changes", "written"),
    [
        ("7", Changes(site_factor=500), ("7", {"site_factor": 500})),
        ("7", Changes(site_factor=0), ["scontrol", "update", "JobId=7", "SiteFactor=0"]),
        ("7_2", Changes(site_factor=5), ["scontrol", "update", "JobId=7_2", "SiteFactor=5"]),
        ("7", Changes(extra="x"), ["scontrol", "update", "JobId=7", "Extra=x"]),
        ("7", Changes(site_factor=5, extra="x"), ["scontrol", "update", "JobId=7", "SiteFactor=5", "Extra=x"]),
    ],
)
def test_what_pyslurm_cannot_write_goes_through_scontrol(target: str, changes: Changes, written: Any) -> None:
    client([]).update(target, changes)
    assert [(7, written[1]) if isinstance(written, tuple) else written] == WRITTEN


def test_one_task_of_an_array_is_held_and_released_by_scontrol() -> None:
    slurm = client([])
    for job_id in ("7", "7_2"):
        slurm.hold(job_id)
        slurm.release(job_id)
    assert WRITTEN[0][1]["priority"] == 0
    assert WRITTEN[1] == (7, "release")
    assert [words[0] for words in WRITTEN[2:]] == ["scontrol"] * 2
    for job_id in ("7;", "7_2 x", ""):
        with pytest.raises(ActionRefused):
            slurm.hold(job_id)


def test_its_errors_are_refusals_or_silence() -> None:
    slurm = client([])
    SAYS.append("Invalid job id specified")
    with pytest.raises(ActionRefused, match="Invalid job id"):
        slurm.hold("7")
    SAYS[0] = "Unable to contact slurm controller (connect failure)"
    with pytest.raises(ClusterUnavailable):
        slurm.hold("7")


def test_without_pyslurm_the_reason_is_said_and_pack_mode_is_refused() -> None:
    settings = SlurmSettings(client="pyslurm")
    with pytest.raises(ConfigError, match=r"slurm\.client = 'pyslurm': it cannot be loaded"):
        make_client(settings, Breaker(lambda: 0.0))
    assert not settings.packs
    with pytest.raises(ConfigError, match="pyslurm does not tell all of what a job asks for"):
        settings_from({"slurm": {"client": "pyslurm"}, "daemon": {"partitions": {"a": "pack"}}}, "test")


def test_a_pyslurm_that_does_not_tell_requests_is_refused() -> None:
    old = SimpleNamespace(__version__="24.11.0", Job=object)
    with pytest.raises(ConfigError, match=r"24\.11\.0 does not tell requested_tres and extra"):
        PyslurmClient(Breaker(lambda: 0.0), CommandClient([], Breaker(lambda: 0.0)), None, old)
