"""make sbatch-fuzz and make slurm-suite: what they draw, compare and tell, without a Slurm."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sbatch_fuzz.compare import ALLOWED, LEFT_OUT, compared, differences, named, unnamed
from sbatch_fuzz.lines import Case, cases, parse
from sbatch_fuzz.play import shortest
from sbatch_fuzz.walk import Done, judge, steps
from sbatch_fuzz.watch import Got, Run
from slurm_suite.choice import Test, chosen, found_in, result_of, version_of, why_of
from slurm_suite.difference import HEADING, Kept, Result, as_text, compare, limit_of, named_in

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


def test_slots_in_the_accounts_are_told_apart_from_less() -> None:
    plain, lucid = (
        Got(0, "", (Run("COMPLETED", 0, sacct={"0 AllocTRES": tres}),))
        for tres in ("gres/gpu=2,mem=1G", "mem=1G,gres/shard=2")
    )
    assert unnamed(differences(plain, lucid)) == []


def test_a_line_is_shrunk_to_what_differs() -> None:
    case = Case("sbatch", ("--gres=gpu:1", "-n4", "-t5", "--ntasks-per-node=2"))
    short, words = shortest(case, lambda one: ["tasks"] if {"-n4", "--ntasks-per-node=2"} <= set(one.options) else [])
    assert (short.options, words) == (("-n4", "--ntasks-per-node=2"), ("tasks",))


@pytest.mark.parametrize(("option", "had", "told"), [("-wn2", "n1", 1), ("-wn2", "n[1-2]", 0), ("-xn1", "n[1-2]", 1)])
def test_a_job_that_leaves_its_users_nodes_is_told(option: str, had: str, told: int) -> None:
    got = Got(0, "", (Run("COMPLETED", 0, hosts=had),))
    assert len(compared(Case("sbatch", (option,)), got, got)) == told


@pytest.mark.parametrize(
    ("option", "change", "told"),
    [
        ("-xn2", "ExcNodeList=n1", 0),
        ("-wn1", "ReqNodeList=n2", 0),
        ("-wn1", "NodeList=n2", 0),
        ("-xn2", "ReqNodeList=n2", 1),
    ],
)
def test_a_list_that_is_changed_then_is_not_judged(option: str, change: str, told: int) -> None:
    got = Got(0, "", (Run("COMPLETED", 0, hosts="n2"),))
    case = Case("sbatch", (option,), then=(f"alice: scontrol update JobId=JOB {change}",))
    assert len(compared(case, got, got)) == told


@pytest.mark.parametrize(
    ("line", "tasks", "row"),
    [
        ("sbatch --gpus=1 -c2 --mem-per-gpu=700", "1", "step-distribution"),
        ("sbatch --gpus=1 -c2 --mem-per-gpu=700", "2", None),
        ("sbatch --gpus=1 -c2", "1", None),
    ],
)
def test_only_a_step_of_one_task_with_memory_by_gpu_may_be_distributed_otherwise(
    line: str, tasks: str, row: str | None
) -> None:
    plain, lucid = (
        Got(0, "", (Run("COMPLETED", 0, step={"SLURM_NTASKS": tasks, "SLURM_DISTRIBUTION": way}),))
        for way in ("cyclic", "block")
    )
    (words,) = compared(parse(f"{line} --job-name=prog  # line, one, nothing"), plain, lucid)
    assert named([words]).get(words) == row


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


def test_who_passes_when_run_again_is_unsteady() -> None:
    found = compare({"1.1": PASS}, {"1.1": Result("timeout", 300)}, {}, {"1.1": PASS})
    assert (found.failing, found.unsteady) == ({}, ["1.1"])


@pytest.mark.parametrize(("after_s", "told"), [(4.9, False), (5.1, True)])
def test_slower_is_more_than_three_seconds_and_half_as_much_again(after_s: float, told: bool) -> None:
    lucid = {"1.1": Result("pass", after_s), "1.2": Result("pass", 104.0)}
    found = compare({"1.1": PASS, "1.2": Result("pass", 100.0)}, lucid, {})
    assert ("1.1" in found.slower, "1.2" in found.slower) == (told, False)


@pytest.mark.parametrize(("plain_s", "limit_s"), [(2.0, 300.0), (200.0, 400.0)])
def test_with_lucid_a_slow_test_may_take_twice_as_long_as_on_plain_slurm(plain_s: float, limit_s: float) -> None:
    assert limit_of(Result("pass", plain_s)) == limit_s


def test_tests_are_found_by_number_and_chosen_by_pattern(tmp_path: Path) -> None:
    for name in ("expect/test39.10", "expect/test1.2", "expect/test7.1", "expect/test21.4", "expect/test1.2.prog.c",
                 "python/tests/test_101_1.py", "python/tests/test_130_2.c"):  # fmt: skip
        path = tmp_path / "testsuite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    tests = found_in(tmp_path)
    seen = [(test.name, test.user, test.gpu) for test in tests]
    assert seen == [
        ("1.2", "alice", True),
        ("21.4", "root", True),
        ("39.10", "alice", False),
        ("101.1", "alice", True),
    ]
    assert [test.name for test in chosen(tests, "1.*, 39.10")] == ["1.2", "39.10"]
    assert version_of(tmp_path) == "unknown"
    (tmp_path / "META").write_text("##\n  Version:\t24.11.5\n")
    assert version_of(tmp_path) == "24.11.5"


def test_results_are_kept(tmp_path: Path) -> None:
    Kept(tmp_path / "plain.json").put("1.1", FAIL, "what it printed")
    kept = Kept(tmp_path / "plain.json")
    assert kept.results == {"1.1": FAIL}
    assert (kept.logs / "1.1.log").read_text() == "what it printed"
    kept.drop(["1.1", "1.2"])
    assert not kept.results


@pytest.mark.parametrize(
    ("file", "code", "text", "result"),
    [
        ("expect/test1.2", 0, "SUCCESS", "pass"),
        ("expect/test1.2", 255, "SKIPPED", "skip"),
        ("expect/test1.2", 1, "FAILURE", "fail"),
        ("expect/test1.2", None, "", "timeout"),
        ("python/tests/test_101_1.py", 0, "..\n==== 2 passed, 1 skipped in 0.4s ====\n", "pass"),
        ("python/tests/test_101_1.py", 0, "ss\n==== 2 skipped in 0.4s ====\n", "skip"),
        ("python/tests/test_101_1.py", 5, "==== 1 skipped in 0.4s ====\n", "skip"),
        ("python/tests/test_101_1.py", 1, "==== 1 failed, 1 passed in 0.4s ====\n", "fail"),
    ],
)
def test_what_a_test_says(file: str, code: int | None, text: str, result: str) -> None:
    assert result_of(Test("1.2", file, "alice", True), code, text) == result


def test_the_last_complaint_is_why() -> None:
    said = (
        "TEST: test1.3\n[2026-11-24 02:29:06.325] Warning odd (warn@globals:1)\n"
        "[2026-11-24 02:29:06.325] Fatal   No version (24.11) (fail@globals:431,test1.3:51)\nFAILURE\n"
    )
    assert why_of(said) == "No version (24.11)"
    assert why_of("E       AssertionError: no such job\n=== 1 failed ===") == "AssertionError: no such job"
    assert why_of("") == ""
