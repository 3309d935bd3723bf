"""A policy for each partition, on a real Slurm: users choose one by where they submit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd
from elastic_box import REPORTS, Elastics


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    """`lucid` plans for vc-b, `elastic` for vc-a."""
    more = (
        "lease_s = 6", "[daemon.policies]", 'vc-a = "elastic"', "[daemon.elastic]",
        f'reports_dir = "{box.root}/{REPORTS}"', "resize_every_s = 3.0", "restart_s = 5.0",
    )  # fmt: skip
    daemon = Lucidd(box, tmp_path / "state", more="\n".join(more))
    yield daemon
    daemon.close()


def test_the_same_job_grows_in_one_partition_and_is_profiled_in_the_other(box: Box, lucidd: Lucidd) -> None:
    jobs = Elastics(box)
    lucidd.start()
    grows = jobs.submit("-p", "vc-a", epochs=15, size="1-4")
    stays = jobs.submit("-p", "vc-b", "--comment=lucid:restart lucid:elastic=1-4,epochs=15", epochs=15, size="")
    box.wait("one is being profiled", lambda: box.job(stays)["partition"] == "prof", 30)
    assert box.job(grows)["partition"] == "vc-a"
    box.wait("the other has grown", lambda: box.job(grows)["restart_cnt"] > 0, 60)
    lucidd.kill()
    lucidd.start()
    status = json.loads(lucidd.ctl("status", "--json"))
    words = {number: lucidd.ctl("explain", number) for number in (grows, stays)}
    queue, when = lucidd.ctl("queue"), lucidd.ctl("when", "--gpus", "2")
    box.wait_ended(grows, stays, limit_s=150)
    print(status["policies"], words, queue, when, lucidd.ctl("status"), jobs.sizes(grows), jobs.sizes(stays))
    assert {box.state(number) for number in (grows, stays)} == {"COMPLETED"}
    assert status["policies"] == {"vc-a": "elastic", "vc-b": "lucid"}
    assert "resize" in words[grows]
    assert "the policy of its partition resizes no job" in words[stays]
    assert "vc-a" in when
    assert "vc-b" in when
    assert max(jobs.sizes(grows)) > 1
    assert set(jobs.sizes(stays)) == {1}
    assert jobs.lost(grows) == 0
    assert "all the same" in lucidd.ctl("replay", str(lucidd.folder / "plans"))
