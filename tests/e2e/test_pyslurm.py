"""What of pyslurm cannot be seen by the clients' contract: one that is too old, and lucidd's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from box import Box
from pyslurm_box import HERE, LIBRARY, PyslurmProcess, no_pyslurm

from lucid.errors import ConfigError


def test_a_pyslurm_that_tells_too_little_is_refused(box: Box) -> None:
    if not (box.root / LIBRARY.lstrip("/") / "pyslurm").is_dir():
        pytest.skip("no pyslurm in this testbed: LUCID_TESTBED_PYSLURM (docs/testbed.md)")
    client = PyslurmProcess(box)
    try:
        if box.release < (25, 11):
            with pytest.raises(ConfigError, match=r"pyslurm 2[0-9.]+ does not tell .* use 25\.11\.2 or later"):
                client.jobs()
        else:
            assert client.jobs() == []
    finally:
        client.close()


def test_its_licence_lies_beside_it(box: Box) -> None:
    folder = box.root / LIBRARY.lstrip("/") / "pyslurm"
    if not folder.is_dir():
        pytest.skip("no pyslurm in this testbed: LUCID_TESTBED_PYSLURM (docs/testbed.md)")
    assert "GNU GENERAL PUBLIC LICENSE" in Path(folder / "COPYING.txt").read_text()


def test_lucidd_orders_a_queue_over_pyslurm(box: Box) -> None:
    """One cycle of a lucidd inside the testbed, whose commands run without a prefix."""
    if why := no_pyslurm(box):
        pytest.skip(why)
    box.sbatch("--gres=gpu:4", "-p", "vc-b", script="sleep 60")
    small = box.sbatch("--gres=gpu:1", "-p", "vc-b")
    large = box.sbatch("--gpus=4", "-p", "vc-b")
    before = {number: box.job(number)["priority"]["number"] for number in (small, large)}
    PyslurmProcess(box).close()  # which puts Lucid there
    folder = box.root / "tmp/by-pyslurm"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "lucid.toml").write_text(
        '[slurm]\nclient = "pyslurm"\n[daemon]\nstate_dir = "/tmp/by-pyslurm"\n'
        'heartbeat = "/tmp/by-pyslurm/heartbeat"\n[daemon.partitions]\nvc-b = "order"\n'
    )
    done = box.run(
        "env", f"PYTHONPATH={HERE}:{LIBRARY}", "python3", "-m", "lucid.daemon", "--once", "--config",
        "/tmp/by-pyslurm/lucid.toml", user="lucid",
    )  # fmt: skip
    gained = {number: box.job(number)["priority"]["number"] - before[number] for number in (small, large)}
    assert gained[small] >= gained[large] > 100, done.stderr
