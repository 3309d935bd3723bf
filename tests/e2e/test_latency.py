"""What the plugin costs the one who types sbatch."""

from __future__ import annotations

import resource
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
                assert box.job(number)["waits"] == plugin
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


@pytest.mark.slow
def test_what_the_filter_of_commands_costs_is_slurms_own_loading_of_it(box: Box) -> None:
    """CPU time of the command itself, with cli_filter.lua, with a script that does nothing, and with none."""
    conf, lua = box.root / "etc/slurm/lucid.slurm.conf", box.root / "etc/slurm/cli_filter.lua"
    before, ours = conf.read_text(), lua.read_text()
    nothing = "".join(
        f"function slurm_cli_{name}() return slurm.SUCCESS end\n"
        for name in ("setup_defaults", "pre_submit", "post_submit")
    )
    kinds = {
        "none": (before.replace("CliFilterPlugins=lua\n", ""), ours),
        "nothing": (before, nothing),
        "ours": (before, ours),
    }
    cpu_s: dict[str, list[float]] = {kind: [] for kind in kinds}
    try:
        box.run("scontrol", "update", "PartitionName=vc-a", "State=DOWN")
        for block in range(BLOCKS):
            for kind in list(kinds)[:: 1 if block % 2 else -1]:
                conf.write_text(kinds[kind][0])
                lua.write_text(kinds[kind][1])
                for _ in range(EACH // 2):
                    began = resource.getrusage(resource.RUSAGE_CHILDREN)
                    box.sbatch("--gres=gpu:1")
                    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
                    cpu_s[kind].append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
            box.run("scancel", "--user=alice")
    finally:
        conf.write_text(before)
        lua.write_text(ours)
        box.run("scontrol", "update", "PartitionName=vc-a", "State=UP")
    medians = {kind: statistics.median(times) for kind, times in cpu_s.items()}
    print("CPU time of sbatch, median:", {kind: f"{1000 * s:.2f} ms" for kind, s in medians.items()})
    assert medians["ours"] <= 1.10 * medians["nothing"]
