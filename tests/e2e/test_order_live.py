"""Order mode on a real Slurm: it orders, writes its factors again, and leaves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd


@pytest.fixture
def ordering(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    one = Lucidd(box, tmp_path / "lucidd", mode="order")
    yield one
    one.close()
    box.stop_beating()


def shown_priority(box: Box, number: str) -> int:
    words = box.run("scontrol", "show", "job", number).stdout.split()
    return int(next(word for word in words if word.startswith("Priority=")).partition("=")[2])


def full_queue(box: Box) -> tuple[str, str]:
    """vc-b is full; a job of all its GPUs waits there, and one of one GPU."""
    full = box.sbatch("--gres=gpu:4", "-p", "vc-b", script="sleep 600")
    box.wait("it runs", lambda: box.state(full) == "RUNNING")
    return box.sbatch("--gres=gpu:4", "-p", "vc-b"), box.sbatch("--gres=gpu:1", "-p", "vc-b")


def test_order_mode_orders_and_is_taken_back(box: Box, ordering: Lucidd) -> None:
    large, small = full_queue(box)
    before = {number: shown_priority(box, number) for number in (large, small)}
    ordering.start()
    box.wait("the order", lambda: shown_priority(box, small) >= before[small] + 900)
    assert shown_priority(box, small) > shown_priority(box, large) > before[large]
    assert ordering.json("status")["modes"] == {"vc-a": "order", "vc-b": "order"}
    assert "order" in ordering.ctl("explain", small)
    ordering.kill()
    assert "1 jobs" not in ordering.ctl("uninstall")
    box.wait("the old priorities", lambda: shown_priority(box, small) <= before[small] + 100)


def test_a_site_factor_that_is_taken_back_is_written_again_and_counted(box: Box, ordering: Lucidd) -> None:
    """By hand, at once after lucidd wrote it: as backfill does that began before and yielded meanwhile."""
    _, small = full_queue(box)
    before = shown_priority(box, small)
    ordering.start()
    until = time.monotonic() + 120.0
    while shown_priority(box, small) < before + 900:
        assert time.monotonic() < until
    box.scontrol("update", f"JobId={small}", "SiteFactor=0")
    box.wait("it is written again", lambda: shown_priority(box, small) >= before + 900)
    assert ordering.json("status")["counts"]["factors_undone"] == 1
