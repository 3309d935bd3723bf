"""Whatever people type runs under Lucid as on plain Slurm, but for docs/differences.md: random lines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from box import Box
from testbeds import own_testbed

from sbatch_fuzz.lines import Case, cases, parse
from sbatch_fuzz.play import play
from sbatch_fuzz.site import knowing, make_plain
from testbed import cli

BROKE = """
sbatch --gres=gpu:1 --mem=10T
sbatch --gres=gpu:1 -wn3
srun --gres=gpu:1 --mincpus=999999
sbatch --tres-per-task=gres/gpu:1 -n4 --ntasks-per-node=2 --job-name=prog  # line, step, nothing
sbatch --gpus=2 --ntasks-per-gpu=1  # line, step, nothing
sbatch --gpus=4 --mem-per-gpu=20G
sbatch --gpus-per-node=2 --cpus-per-gpu=2 --mem-per-gpu=1G --job-name=prog  # line, step, nothing
sbatch --gpus-per-task=1 -n1 --ntasks-per-node=4 --gres-flags=enforce-binding
sbatch --gpus-per-node=1 -wn2 --job-name=new  # line, step, nothing
sbatch --gres=gpu:2 --gpus-per-task=1 -n2 -N1 --job-name=prog  # line, step, nothing
salloc --gres=gpu:3 --ntasks-per-gpu=2
sbatch --gres=gpu:1 --begin=now+6 --job-name=prog
sbatch -Ga100:2 -n2 --job-name=prog  # line, step, nothing
sbatch --gpus=3 --gpus-per-node=a100:3
sbatch --gres=gpu:1 --job-name=prog --dependency=afternotok:FIRST --wait  # line, none, fails
sbatch --gres=gpu:1 --job-name=prog : -n2 --job-name=prog  # line, step, nothing
sbatch -G2 -n4 --ntasks-per-node=2 --job-name=prog : --gpus-per-task=1 -n1 --job-name=prog
sbatch --gpus=1 --job-name=prog  # line, step, meets
sbatch --gres=gpu:1 --job-name=prog  # line, step, busy; \
alice: scontrol update JobId=JOB MinMemoryNode=2000; alice: scontrol hold JOB; root: scontrol release JOB
sbatch --gpus=1 -n4 --ntasks-per-node=4 --job-name=prog  # line, none, busy; \
alice: scontrol update JobId=JOB NumTasks=2
sbatch --gpus=1 --ntasks-per-node=2 --job-name=prog  # line, none, busy; \
alice: scontrol update JobId=JOB MinCPUsNode=3
sbatch -n4 --ntasks-per-gpu=1 --gpus-per-node=a100:3
sbatch --gres=gpu:1 -N1,2 --job-name=new
sbatch --gres=gpu:1 -N1,2  # line, none, busy; alice: scontrol update JobId=JOB Partition=vc-b
sbatch  # line, none, busy; alice: scontrol update JobId=JOB Partition=vc-a,vc-b
"""
"""One of each kind that once differed, and one of each kind of story, as ``Case`` prints them."""


@pytest.fixture(scope="module")
def plain() -> Iterator[Box]:
    """A Slurm without Lucid."""
    with own_testbed("plain", LUCID_TESTBED_PLUGIN="0") as layout:
        cli.up(layout, print)
        make_plain(layout)
        yield Box(layout.root)


def compare(plain: Box, box: Box, wanted: list[Case]) -> int:
    """Hold both sides against each other; returns how many runs were in slots."""
    with knowing(box):
        result = play(plain, box, list(enumerate(wanted)), print)
    assert not result.findings, "\n".join(f"{one.short}: {'; '.join(one.words)}" for one in result.findings)
    assert result.refused < 0.6 * len(wanted), "most lines have to run"
    return result.slots


def test_lines_that_once_differed(plain: Box, box: Box) -> None:
    assert compare(plain, box, [parse(line) for line in BROKE.strip().splitlines()]) >= 2


@pytest.mark.slow
def test_a_hundred_lines(plain: Box, box: Box) -> None:
    assert compare(plain, box, cases(100, int(os.environ.get("LUCID_SEED", "12")))) >= 10


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif("LUCID_NIGHTLY" not in os.environ, reason="make nightly")
@pytest.mark.timeout(7200)
def test_a_thousand_lines(plain: Box, box: Box) -> None:
    assert compare(plain, box, cases(1000, int(time.time()) // 86400)) >= 100
