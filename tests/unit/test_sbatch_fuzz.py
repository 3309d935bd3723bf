"""make sbatch-fuzz: its lines, its comparison and its shrinking, without a Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sbatch_fuzz.compare import ALLOWED, compared, differences, named, unnamed
from sbatch_fuzz.lines import Case, cases, parse
from sbatch_fuzz.play import shortest
from sbatch_fuzz.watch import Got, Run

PAGE = Path(__file__).resolve().parents[2] / "docs/differences.md"


def test_the_same_seed_draws_the_same_lines_and_a_line_reads_back() -> None:
    drawn = cases(300, 7)
    assert drawn[:50] == cases(50, 7) != cases(50, 8)
    assert {case.command for case in drawn} == {"sbatch", "srun", "salloc"}
    for case in drawn:
        again = parse(str(case))
        assert (again.words, again.how, again.inner) == (case.words, case.how, case.inner)


def test_every_allowance_has_its_row() -> None:
    rows = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE))
    assert rows - {"array-size"} == set(ALLOWED), "array-size: no line of the machine has as many tasks"


@pytest.mark.parametrize(
    ("plain", "lucid", "first"),
    [
        (Got(1, "no"), Got(0, "", (Run("COMPLETED", 0),)), "exit code 0"),
        (Got(1, "no"), Got(1, "never"), "says 'never'"),
        (
            Got(0, "", (Run("COMPLETED", 0, tasks=4),)),
            Got(0, "", (Run("COMPLETED", 0, tasks=2),)),
            "tasks 2; plain 4",
        ),
        (
            Got(0, "", (Run("COMPLETED", 0, batch={"A": "1", "SLURM_JOB_ID": "3"}),)),
            Got(0, "", (Run("COMPLETED", 0, batch={"SLURM_JOB_ID": "4"}),)),
            "batch A=(unset); plain 1",
        ),
    ],
)
def test_what_differs_is_told(plain: Got, lucid: Got, first: str) -> None:
    assert differences(plain, plain) == []
    (words,) = differences(plain, lucid)
    assert words.startswith(first)
    assert unnamed([words]) == [words]


def test_what_the_page_names_is_left_out() -> None:
    words = "batch LUCID_GPUS_PER_TASK=1; plain (unset)"
    assert (named([words]), unnamed([words])) == ({words: "slots-environment"}, [])


def test_a_line_is_shrunk_to_what_differs() -> None:
    case = Case("sbatch", ("--gres=gpu:1", "-n4", "-t5", "--ntasks-per-node=2"))
    short, words = shortest(case, lambda one: ["tasks"] if {"-n4", "--ntasks-per-node=2"} <= set(one.options) else [])
    assert (short.options, words) == (("-n4", "--ntasks-per-node=2"), ("tasks",))


@pytest.mark.parametrize(("option", "had", "told"), [("-wn2", "n1", 1), ("-wn2", "n[1-2]", 0), ("-xn1", "n[1-2]", 1)])
def test_a_job_that_leaves_its_users_nodes_is_told(option: str, had: str, told: int) -> None:
    got = Got(0, "", (Run("COMPLETED", 0, hosts=had),))
    assert len(compared(Case("sbatch", (option,)), got, got)) == told
