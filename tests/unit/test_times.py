"""What the tests take: the notebook of a run, the table, and which tests an inner loop runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from times import cpu
from times.choice import changed_files, chosen
from times.table import Row, gathered, read, write

pytest_plugins = ["pytester"]

TOOLS = Path(__file__).parents[2] / "tools"
KNOWN = {name: Row("test", name, 2, cpu_s, cpu_s) for name, cpu_s in {"a::cheap": 1.0, "b::dear": 8.0}.items()}


def test_the_cheapest_run_and_whatever_is_new_or_was_changed() -> None:
    tests = ["a::cheap", "a::cheap", "b::dear", "c::new"]
    assert chosen(tests, KNOWN, 4.9) == {"a::cheap", "c::new"}, "b::dear takes 4 s beside 1 s"
    assert chosen(tests, KNOWN, 0.0) == {"c::new"}
    assert chosen(tests, KNOWN, 0.0, {"b"}) == {"b::dear", "c::new"}
    assert chosen(tests, KNOWN, 5.0) == {"a::cheap", "b::dear", "c::new"}


def test_a_file_that_git_does_not_know_is_changed_and_no_git_changes_nothing(tmp_path: Path) -> None:
    assert changed_files(tmp_path) == frozenset()
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_new.py").touch()
    assert changed_files(tmp_path) == {"tests/test_new.py"}


def test_what_a_run_took_comes_back_from_the_table(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = pytester.path / "times"
    monkeypatch.setenv("LUCID_TEST_TIMES", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(TOOLS))
    pytester.makeini("[pytest]")
    pytester.makepyfile(
        test_it="""
        import time, pytest

        @pytest.fixture
        def base():
            time.sleep(0.2)

        @pytest.fixture
        def built(base):
            time.sleep(0.1)

        @pytest.mark.parametrize("n", [1, 2])
        def test_one(n, built):
            pass
        """
    )
    pytester.runpytest_subprocess("-p", "times.plugin").assert_outcomes(passed=2)
    rows = {row.name: row for row in gathered(folder)}
    assert rows["test_it.py::test_one"].times == 2
    assert rows["test_it.py::test_one"].wall_s >= 0.6
    assert rows["test_it.py::base"].wall_s >= 0.4
    assert 0.2 <= rows["test_it.py::built"].wall_s < rows["test_it.py::base"].wall_s, (
        "without those it asks for itself"
    )
    write(rows.values(), folder / "table.csv")
    assert read(folder / "table.csv")["test_it.py::test_one"].times == 2
    assert read(folder / "none.csv") == {}


def test_the_cpu_time_of_a_process_that_left_its_parents_counts(tmp_path: Path) -> None:
    # kill -0 finds it until somebody has waited for it, which is the program under test
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    line = f"({sys.executable} -c '{busy}' & echo $! >pid); while kill -0 $(cat pid); do sleep 0.1; done; exit 3"
    done = subprocess.run(
        [sys.executable, cpu.__file__, "sh", "-c", line],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert float(done.stdout.partition("exit code 3, ")[2].split()[0]) >= 0.5
