"""MPS version 3 (driver r615, CUDA 13.4) on a stand-in that holds the TOML file to NVIDIA's documentation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from test_mps import G0, G1, Mps, mps, pytestmark

from lucid_hooks.plan import Limits, commands_to_join, namespace_of, render

__all__ = ["mps", "pytestmark"]


@pytest.fixture
def v3(mps: Mps) -> Mps:
    (mps.fake / "v3").touch()
    return mps


def servers(mps: Mps) -> dict[str, dict[str, object]]:
    (path,) = (mps.dir / "sets").glob("*/pipe/v3.json")
    found: dict[str, dict[str, object]] = json.loads(path.read_text())
    return found


def test_each_job_of_a_pair_has_a_namespace_with_its_own_fence(v3: Mps) -> None:
    first = v3.start("7", G0, G1, options=("--mem-limit", "9000", "--threads", "60"))
    assert first["sharing"] == "mps-v3"
    second = v3.start("8_3", G1, G0, options=("--mem-limit", "5000"))
    assert second == first
    (server,) = servers(v3).values()
    assert server["allowed_devices"] == f"{G0},{G1}"
    assert server["namespaces"] == {
        "default": {},
        "job_7": {"pinned_memory_limit": "9000M", "active_thread_percentage": "60"},
        "job_8_3": {"pinned_memory_limit": "5000M", "active_thread_percentage": "100"},
    }
    own = v3.exports("8_3")
    assert own["CUDA_MPS_PIPE_DIRECTORY"] == f"{first['pipe']}/lucid/job_8_3"
    assert Path(own["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
    assert own["CUDA_VISIBLE_DEVICES"] == f"{G0},{G1}"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in own, "one that names a GPU a task does not see drops the fence"
    assert (v3.dir / "sharing" / "7").read_text().startswith("MPS v3, 9000 MiB on each GPU\n")
    v3.stop("7")
    (server,) = servers(v3).values()
    assert sorted(server["namespaces"]) == ["default", "job_8_3"]  # type: ignore[call-overload]
    v3.stop("8_3")
    v3.gone()


def test_where_version_3_does_not_come_up_it_is_version_2(v3: Mps) -> None:
    (v3.fake / "v3-broken").touch()  # a server that exits at once: its clients would have no limits
    assert v3.start("7", G0, options=("--mem-limit", "9000"))["sharing"] == "mps"
    assert v3.exports("7")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=9000M"
    assert len(v3.daemons()) == 1


def test_a_site_may_keep_to_version_2(v3: Mps) -> None:
    assert v3.start("7", G0, options=("--protocol", "2"))["sharing"] == "mps"


def test_a_program_that_does_not_know_version_3_is_not_asked_for_it(mps: Mps) -> None:
    assert mps.start("7", G0, options=("--protocol", "0"))["sharing"] == "mps"
    assert mps.log("-f") == 0


def test_after_a_fault_those_that_stay_have_their_namespaces_again(v3: Mps) -> None:
    for job, mem in (("7", "9000"), ("8", "5000"), ("9", "4000")):
        v3.start(job, G0, options=("--mem-limit", mem))
    (path,) = (v3.dir / "sets").glob("*/pipe/v3.json")
    broken = servers(v3)
    broken["lucid"]["status"] = "FAULT"
    path.write_text(json.dumps(broken))
    assert v3.stop("8")["fault"] == f"server 4194301 of GPUs {G0} was broken; hit: 7 8 9"
    (server,) = servers(v3).values()
    spaces = server["namespaces"]
    assert isinstance(spaces, dict)
    limits = {name: limits.get("pinned_memory_limit") for name, limits in spaces.items()}
    assert limits == {"default": None, "job_7": "9000M", "job_9": "4000M"}


@pytest.mark.parametrize("bad", ["mem = 3", 'pinned_memory_limit = "10"', "uid = 4294967", 'allowed_devices = "0,1"'])
def test_the_stand_in_refuses_what_is_not_documented(v3: Mps, tmp_path: Path, bad: str) -> None:
    plan = tmp_path / "plan.toml"
    key = bad.split()[0]
    good = render([G0], 0, "7", Limits()).splitlines()
    plan.write_text("\n".join([*(line for line in good[:3]), bad, *(x for x in good[3:] if not x.startswith(key))]))
    pipe = tmp_path / "pipe"
    pipe.mkdir()
    env = {**v3.env, "CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    env["CUDA_VISIBLE_DEVICES"] = G0
    done = subprocess.run(
        [v3.tools / "nvidia-cuda-mps-control", "-f", "-p", "3", "-a", str(plan)],
        env=env, capture_output=True, text=True, timeout=30, check=False, start_new_session=True,
    )  # fmt: skip
    assert f"configuration error: lucid.{key}" in done.stderr
    (v3.fake / "violations").unlink()
    for daemon in v3.fake.glob("daemon-*"):
        daemon.unlink()


def test_names_are_what_version_3_allows() -> None:
    assert namespace_of("70_3") == "job_70_3"
    assert namespace_of("A+b-" + "9" * 90) == "job_a_b_" + "9" * 52
    create, change = commands_to_join("7", Limits(100))
    assert create == ["namespace", "create", "job_7", "--server=lucid"]
    assert change[:4] == ["namespace", "set", "job_7", "--server=lucid"]
    assert change[4:] == ["--pinned-memory-limit=100M", "--active-thread-percentage=100"]
