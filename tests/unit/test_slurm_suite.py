"""What make slurm-suite makes of results, of the page that names differences, and of a folder of tests."""

from pathlib import Path

import pytest

from slurm_suite.choice import Test, chosen, found_in, version_of
from slurm_suite.difference import HEADING, Result, as_text, compare, limit_of, named_in
from slurm_suite.kept import Kept
from slurm_suite.printed import result_of, why_of

PAGE = f"""# Differences
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
    assert named_in(PAGE) == {"17.23": "by design.", "28.5": "it waits."}
    assert named_in("# nothing") == {}


def test_a_failure_is_named_or_not_and_counts_only_where_plain_slurm_passes() -> None:
    plain = dict.fromkeys(("1.1", "1.2", "17.23", "28.5"), PASS) | {"2.1": FAIL, "2.2": Result("skip", 0)}
    lucid = {"1.1": PASS, "1.2": FAIL, "17.23": FAIL, "28.5": PASS, "2.1": FAIL, "2.2": FAIL}
    found = compare(plain, lucid, named_in(PAGE))
    assert (found.both, list(found.failing), list(found.named), found.mended) == (4, ["1.2"], ["17.23"], ["28.5"])
    text = as_text(found, named_in(PAGE))
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
    assert limit_of(Result("pass", plain_s), 300.0) == limit_s


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
