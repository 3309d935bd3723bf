"""Resizes over slurmrestd, with scontrol for what it cannot do."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from box import Box
from elastic_box import Elastics, elastic_lucidd
from test_slurm_clients import described

pytestmark = pytest.mark.slow


def test_a_job_grows_and_shrinks_over_slurmrestd(box: Box, tmp_path: Path) -> None:
    daemon = elastic_lucidd(box, tmp_path / "state")
    config = daemon.folder / "lucid.toml"
    text = config.read_text()
    url = f"unix:{described(box)['rest_socket']}"
    spoken = f'client = "rest"\nrest_url = "{url}"\nrest_commands = true\n'
    text = text.replace("[slurm]\n", f"[slurm]\n{spoken}", 1)
    config.write_text(text)
    jobs = Elastics(box)
    daemon.start()
    try:
        first = jobs.submit("-p", "vc-a", epochs=25, size="1-8", gpus=2)
        box.wait("it has grown", lambda: max(jobs.sizes(first), default=0) > 2, 60)
        rigid = box.sbatch("-p", "vc-a", "--gres=gpu:4", script="sleep 3")
        second = jobs.submit("-p", "vc-a", epochs=10, wrap="srun {}", gpus=1)
        box.wait_ended(first, second, rigid, limit_s=120)
        print("sizes", jobs.sizes(first), jobs.sizes(second))
        assert {n: box.state(n) for n in (first, second, rigid)} == dict.fromkeys((first, second, rigid), "COMPLETED")
        assert any(after < before for before, after in itertools.pairwise(jobs.sizes(first)))
        for number, steps in ((first, 500), (second, 200)):
            assert jobs.steps(number) == list(range(1, steps + 1)), "each step was done once, in order"
            assert len(jobs.sizes(number)) == box.job(number)["restart_cnt"] + 1
    finally:
        daemon.close()
