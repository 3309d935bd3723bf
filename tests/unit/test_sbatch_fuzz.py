"""make sbatch-fuzz and make slurm-suite: what they draw, compare and tell, without a Slurm."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sbatch_fuzz.compare import ALLOWED, LEFT_OUT, compared, differences, named, unnamed
from sbatch_fuzz.lines import Case, cases, parse
from sbatch_fuzz.walk import Done, judge, steps
from sbatch_fuzz.watch import Got, Run
from slurm_suite.difference import HEADING, Result, as_text, compare, named_in

PAGE = Path(__file__).resolve().parents[2] / "docs/differences.md"


def test_the_same_seed_draws_the_same_lines_and_a_line_reads_back() -> None:
    drawn = cases(300, 7)
    assert drawn[:50] == cases(50, 7) != cases(50, 8)
    assert {case.command for case in drawn} == {"sbatch", "srun", "salloc"}
    assert {case.first for case in drawn} == {"nothing", "ends", "fails", "meets", "busy"}
    for case in drawn:
        again = parse(str(case))
        assert (again.words, replace(again, options=case.options)) == (case.words, case)


def test_every_allowance_and_every_variable_that_is_left_out_stands_on_the_page() -> None:
    rows, table = set(re.findall(r"^- `([a-z-]+)`:", PAGE.read_text(), re.MULTILINE)), PAGE.read_text()
    table = table[table.index("The machine looks whether") : table.index("## What is shown")]
    assert set(re.findall("`([A-Z_]+)`", table)) == set(LEFT_OUT)
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
        (
            Got(0, "", (Run("COMPLETED", 0, batch={"SLURM_JOB_GPUS": "0,1"}),)),
            Got(0, "", (Run("COMPLETED", 0, batch={"SLURM_JOB_GPUS": "2"}),)),
            "batch SLURM_JOB_GPUS names 1; plain 2",
        ),
        (Got(0, "", then=((0, ""),)), Got(0, "", then=((1, "no"),)), "line 1 typed then: 1, 'no'"),
        (
            Got(0, "", (Run("COMPLETED", 0, sacct={"job AllocTRES": "cpu=1,gres/gpu=1"}),)),
            Got(0, "", (Run("COMPLETED", 0, sacct={"job AllocTRES": "cpu=1,gres/shard=2"}),)),
            "sacct job AllocTRES cpu=1,gres/shard=2",
        ),
    ],
)
def test_what_differs_is_told(plain: Got, lucid: Got, first: str) -> None:
    assert differences(plain, plain) == []
    (words,) = differences(plain, lucid)
    assert words.startswith(first)
    assert unnamed([words]) == [words]


@pytest.mark.parametrize(
    ("words", "row"),
    [
        ("batch LUCID_GPUS_PER_TASK=1; plain (unset)", "slots-environment"),
        ("step SLURM_GPUS=2; plain a100:2", "gpu-model"),
        ("step SLURM_GPUS=1; plain a100:2", None),
        ("step SLURM_GPUS=2; plain 2", None),
    ],
)
def test_what_the_page_names_is_left_out(words: str, row: str | None) -> None:
    assert (named([words]), unnamed([words])) == (({words: row}, []) if row else ({}, [words]))


@pytest.mark.parametrize(("option", "had", "told"), [("-wn2", "n1", 1), ("-wn2", "n[1-2]", 0), ("-xn1", "n[1-2]", 1)])
def test_a_job_that_leaves_its_users_nodes_is_told(option: str, had: str, told: int) -> None:
    got = Got(0, "", (Run("COMPLETED", 0, hosts=had),))
    assert len(compared(Case("sbatch", (option,)), got, got)) == told


def test_a_walk_is_its_seeds_and_leaves_no_job_held() -> None:
    drawn = steps(150, 3)
    assert drawn == steps(150, 3) != steps(150, 4)
    jobs = {at for at, step in enumerate(drawn) if step.words.startswith("sbatch")}
    assert all(step.job in jobs and (step.job < at or step.job == at) for at, step in enumerate(drawn))
    for at, step in enumerate(drawn):
        if step.words.startswith(("hold", "uhold", "requeuehold", "suspend")):
            assert {"release JOB", "resume JOB"} <= {s.words for s in drawn[at:] if s.job == step.job}
    assert all("JOB" not in step.words or step.job < at for at, step in enumerate(drawn))


def test_a_walk_judges_a_job_until_its_steps_met_it_in_two_states() -> None:
    new, waits, runs = Done("", 0, ""), Done("PENDING", 0, ""), Done("RUNNING", 0, "")
    assert judge([new, waits], [new, waits], ("COMPLETED 0", "COMPLETED 0")) == []
    assert judge([new, waits], [new, waits], ("COMPLETED 0", "FAILED 3")) == ["ends FAILED 3; plain COMPLETED 0"]
    assert judge([new, waits], [new, runs], ("COMPLETED 0", "FAILED 3")) == []
    assert judge([new, waits], [new, runs], ("FAILED 3", "PENDING")) == ["waits for ever: PENDING; plain FAILED 3"]
    assert judge([waits], [replace(waits, code=1, said="no")], ("x", "x")) == [
        "line 0 typed then: 1, 'no'; plain 0, ''"
    ]
    known = "Lucid: a waiting job's GPUs cannot be changed here. scancel it"
    assert judge([waits], [replace(waits, code=1, said=known)], ("x", "x")) == []


SUITE_PAGE = f"""# Differences
- 9.9: of another section. *Why:* by design.

{HEADING}
Some words.

- 17.23: a priority. *Why:* by design.
- 28.5: another
  over two lines. *Why:* it waits.

## Later
| 1.1 | of another section |
"""
PASS, FAIL = Result("pass", 2.0), Result("fail", 2.0, "no job")


def test_rows_of_the_section_alone_name_tests() -> None:
    assert named_in(SUITE_PAGE) == {"17.23": "by design.", "28.5": "it waits."}
    assert named_in("# nothing") == {}


def test_a_failure_is_named_or_not_and_counts_only_where_plain_slurm_passes() -> None:
    plain = dict.fromkeys(("1.1", "1.2", "17.23", "28.5"), PASS) | {"2.1": FAIL, "2.2": Result("skip", 0)}
    lucid = {"1.1": PASS, "1.2": FAIL, "17.23": FAIL, "28.5": PASS, "2.1": FAIL, "2.2": FAIL}
    found = compare(plain, lucid, named_in(SUITE_PAGE))
    assert (found.both, list(found.failing), list(found.named), found.mended) == (4, ["1.2"], ["17.23"], ["28.5"])
    text = as_text(found, named_in(SUITE_PAGE))
    assert "1.2" in text
    assert "no job" in text
    assert "by design" in text
    assert "take these rows away" in text
