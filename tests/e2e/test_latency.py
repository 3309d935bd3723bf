"""What the plugin costs the one who types sbatch."""

from __future__ import annotations

import statistics
import time

import pytest
from box import Box

BLOCKS, EACH = 6, 40


def submit(box: Box, count: int) -> list[float]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        box.sbatch("--gres=gpu:1")
        times.append(time.perf_counter() - begin)
    return times


@pytest.mark.slow
def test_sbatch_takes_at_most_a_tenth_longer_than_on_plain_slurm(box: Box) -> None:
    """Blocks with and without the plugin, in turn (ABBA…); medians of the paired blocks are compared."""
    conf = box.root / "etc/slurm/lucid.slurm.conf"
    before = conf.read_text()
    times: dict[bool, list[float]] = {True: [], False: []}
    # Nothing is to start meanwhile, in either case: the partition takes jobs and keeps them.
    try:
        for block in range(BLOCKS):
            for plugin in (True, False) if block % 2 else (False, True):
                conf.write_text(before if plugin else before.replace("JobSubmitPlugins=lua\n", ""))
                box.run("scontrol", "reconfigure")
                box.run("scontrol", "update", "PartitionName=vc-a", "State=DOWN")
                box.beat()
                number = box.sbatch("--gres=gpu:1")
                assert box.job(number)["hold"] == plugin
                submit(box, 5)
                times[plugin] += submit(box, EACH)
                box.run("scancel", "--user=alice")
    finally:
        conf.write_text(before)
        box.run("scontrol", "reconfigure")
        box.run("scontrol", "update", "PartitionName=vc-a", "State=UP")
    with_plugin, plain = statistics.median(times[True]), statistics.median(times[False])
    shown = " against ".join(f"{1000 * seconds:.2f} ms" for seconds in (with_plugin, plain))
    print(f"sbatch, median of {BLOCKS * EACH} each, with the plugin against without: {shown}")
    assert with_plugin <= 1.10 * plain
