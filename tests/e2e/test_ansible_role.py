"""packaging/ansible on a real Slurm: --check changes nothing, a second run has changed=0, and all of it goes again.

The testbed is the inventory's one controller and its one node: they share one root, so the role's copying to nodes
is run, and finds the files there; only the controller installs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from testbeds import REPO, give_wheel, plain_slurm, slurms_own, typed, why_not_made

pytestmark = pytest.mark.slow
TOOLS = REPO / "build/ansible/bin"
ROLE = REPO / "packaging/ansible"


@pytest.fixture(scope="module")
def tools() -> Path:
    """Ansible in an environment of its own, as ``make`` makes it."""
    if why := why_not_made("build/ansible/.installed"):
        pytest.skip(f"ansible-core and ansible-lint cannot be had: {why}")
    return TOOLS


@pytest.fixture(scope="module")
def site() -> Iterator[Box]:
    with plain_slurm("ansible") as box:
        give_wheel(box)
        done = typed(box, "apt-get install --yes --no-install-recommends python3")  # whose modules Ansible runs on
        assert done.returncode == 0, done.stderr
        yield box


def play(tools: Path, box: Box, folder: Path, *words: str, **settings: object) -> dict[str, int]:
    """Runs the playbook; gives the counts of its recap for the controller."""
    (folder / "hosts.yml").write_text(
        json.dumps(
            {
                "slurm_controllers": {"hosts": {"head": {}}},
                "slurm_nodes": {"hosts": {"node": {"lucid_install": "none"}}},
                "all": {
                    "vars": {
                        "ansible_connection": "into_chroot",
                        "ansible_host": str(box.root),
                        "ansible_python_interpreter": "/usr/bin/python3",
                        "ansible_become": False,
                        "lucid_pip_name": "lucid-scheduler",
                        "lucid_pip_node_name": "lucid-scheduler",
                        "lucid_pip_environment": {"PIP_FIND_LINKS": "/srv/wheels"},
                        "lucid_partitions": ["vc-a"],
                        **settings,
                    }
                },
            }
        )
    )
    done = subprocess.run(
        [str(tools / "ansible-playbook"), "-i", str(folder / "hosts.yml"), str(ROLE / "site.yml"), *words],
        capture_output=True, text=True, check=False, timeout=900, cwd=folder,
        env={
            **os.environ, "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent / "ansible_plugins"),
            "ANSIBLE_ROLES_PATH": str(ROLE / "roles"), "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": str(folder / "home"),
        },
    )  # fmt: skip
    recap = re.search(r"^head +: (.*)$", done.stdout, re.MULTILINE)
    assert recap, done.stdout[-3000:] + done.stderr[-3000:]
    counts = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", recap[1])}
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    nodes = re.search(r"^node +: .*changed=(\d+)", done.stdout, re.MULTILINE)
    return {**counts, "on_nodes": int(nodes[1]) if nodes else 0}


def test_ansible_lint_finds_nothing(tools: Path) -> None:
    done = subprocess.run(
        [str(tools / "ansible-lint"), "--offline", "--nocolor", "-q"], cwd=ROLE, capture_output=True, text=True,
        check=False, timeout=300, env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_mode_changes_once_and_away_leaves_nothing(tools: Path, site: Box, tmp_path: Path) -> None:
    before = slurms_own(site)
    first = play(tools, site, tmp_path)
    assert first["changed"] > 0
    assert first["failed"] == 0
    assert play(tools, site, tmp_path)["changed"] == 0
    for mode in ("order", "pack"):
        words = {"lucid_mode": mode, "lucid_drain": True, "lucid_gpu_mem": {"a100": 40960}}
        now = slurms_own(site)
        assert play(tools, site, tmp_path, "--check", **words)["changed"] > 0, "--check says that there is something"
        assert slurms_own(site) == now, "and does nothing of it"
        assert play(tools, site, tmp_path, **words)["changed"] > 0
        again = play(tools, site, tmp_path, **words)
        assert (again["changed"], again["on_nodes"]) == (0, 0)
        assert play(tools, site, tmp_path, "--check", **words)["changed"] == 0
    job = site.sbatch("--gres=gpu:a100:1", "-p", "vc-a")
    site.wait_ended(job)
    assert "held=1" in site.tag(job)
    gone = {"lucid_state": "absent", "lucid_drain": True}
    assert play(tools, site, tmp_path, **gone)["changed"] > 0
    assert slurms_own(site) == before
    assert play(tools, site, tmp_path, **gone)["changed"] == 0
