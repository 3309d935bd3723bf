"""What the daemon planned on a real Slurm comes out the same, byte for byte, in another process."""

from __future__ import annotations

from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd


@pytest.mark.slow
def test_plans_on_a_real_slurm_can_be_made_again(box: Box, tmp_path: Path) -> None:
    daemon = Lucidd(box, tmp_path / "lucid")
    config = tmp_path / "lucid" / "lucid.toml"
    config.write_text(config.read_text().replace("[daemon]\n", "[daemon]\nrecord_every_s = 0\n"))
    try:
        daemon.start()
        jobs = [box.sbatch("--gpus=2", "-J", f"pair{i % 2}", script="sleep 12") for i in range(6)]
        jobs += [box.sbatch("--gpus=4", "-J", "large", script="sleep 3", user="bob")]
        box.wait_ended(*jobs, limit_s=240)
    finally:
        daemon.close()
    told = daemon.json("replay")
    assert told["records"] == told["same"] > 3
    assert sum(item["jobs"] for item in told["found"]) > len(jobs)
    assert any(item["kept"] for item in told["found"])
