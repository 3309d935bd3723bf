"""make sbatch-fuzz: what it draws, compares and tells, without a Slurm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sbatch_fuzz.compare import ALLOWED, LEFT_OUT, compared, differences, named, unnamed
from sbatch_fuzz.lines import Case
from sbatch_fuzz.watch import Got, Run

PAGE = Path(__file__).resolve().parents[2] / "docs/differences.md"


def test_every_allowance_and_every_variable_that_is_left_out_stands_on_the_page() -> None:
    rows, table = set(re.findall(r"^- `([a-z-]+)`:", PAGE.read_text(), re.MULTILINE)), PAGE.read_text()
    table = table[table.index("The machine looks whether") : table.index("## What is shown")]
    assert set(re.findall("`([A-Z_]+)`", table)) == set(LEFT_OUT)
    assert rows - {"array-size"} == set(ALLOWED), "array-size: no line of the machine has as many tasks"


def ran(**of: Any) -> Got:
    return Got(0, "", (Run("COMPLETED", 0, **of),))


@pytest.mark.parametrize(
    ("plain", "lucid", "first"),
    [
        (Got(1, "no"), ran(), "exit code 0"),
        (Got(1, "no"), Got(1, "never"), "says 'never'"),
        (ran(tasks=4), ran(tasks=2), "tasks 2; plain 4"),
        (ran(batch={"A": "1", "SLURM_JOB_ID": "3"}), ran(batch={"SLURM_JOB_ID": "4"}), "batch A=(unset); plain 1"),
        (ran(batch={"SLURM_JOB_GPUS": "0,1"}), ran(batch={"SLURM_JOB_GPUS": "2"}), "batch SLURM_JOB_GPUS names 1"),
        (Got(0, "", then=((0, ""),)), Got(0, "", then=((1, "no"),)), "line 1 typed then: 1, 'no'"),
        (ran(sacct={"job AllocTRES": "cpu=1"}), ran(sacct={"job AllocTRES": "cpu=2"}), "sacct job AllocTRES cpu=2"),
    ],
)
def test_what_differs_is_told(plain: Got, lucid: Got, first: str) -> None:
    assert differences(plain, plain) == []
    (words,) = differences(plain, lucid)
    assert words.startswith(first)
    assert unnamed([words]) == [words]


def test_what_the_page_names_is_left_out() -> None:
    rows = {
        "batch LUCID_GPUS_PER_TASK=1; plain (unset)": "slots-environment",
        "step SLURM_GPUS=2; plain a100:2": "gpu-model",
    }
    others = ["step SLURM_GPUS=1; plain a100:2", "step SLURM_GPUS=2; plain 2"]
    assert (named([*rows, *others]), unnamed([*rows, *others])) == (rows, others)


@pytest.mark.parametrize(("option", "had", "told"), [("-wn2", "n1", 1), ("-wn2", "n[1-2]", 0), ("-xn1", "n[1-2]", 1)])
def test_a_job_that_leaves_its_users_nodes_is_told(option: str, had: str, told: int) -> None:
    assert len(compared(Case("sbatch", (option,)), ran(hosts=had), ran(hosts=had))) == told
