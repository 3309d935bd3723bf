"""The benchmarks: their arithmetic and manners, the guard over hot figures, and the pages that they write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import page as figures_page
from benchmarks import public, yardstick
from benchmarks.__main__ import main
from benchmarks.figure import Figure, as_dict
from benchmarks.guard import __main__ as guard
from benchmarks.guard.figures import COUNTS, HOT
from benchmarks.guard.measure import Hot
from benchmarks.guard.record import RECORD, Entry, Verdict, read, renewed, verdict, write
from benchmarks.papers import page
from benchmarks.papers.__main__ import PARTS
from benchmarks.yardstick import README, SEEDS


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("a", 8.0, "s", at_most=8.0), True), (Figure("a", 8.01, "s", at_most=8.0), False),
        (Figure("a", 0.8, "", at_least=0.9), False), (Figure("a", 1.0, "h", baseline=2.0), None),
        (Figure("a", 5.9, "h", baseline=6.0, ratio_within=0.02), True),
        (Figure("a", 5.8, "h", baseline=6.0, ratio_within=0.02), False),
    ],
)  # fmt: skip
def test_a_figure_knows_whether_it_holds_what_was_asked(figure: Figure, met: bool | None) -> None:
    assert figure.met is met
    assert as_dict(figure)["met"] is met


NEED_DATA = (
    "p1", "philly", "kept", "growth-p1", "quality", "best", "parity", "frontier", "contention", "cards",
)  # fmt: skip
"""Parts that measure nothing without the reference data; the others make their own."""


def test_parts_without_their_data_are_skipped_and_say_so(tmp_path: Path) -> None:
    options = [word for name in NEED_DATA for word in ("--only", name)]
    done = CliRunner().invoke(main, [*options, "--json"], env={"LUCID_SHARED": str(tmp_path)})
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["results"] == []
    assert set(told["skipped"]) == set(NEED_DATA)
    assert all(str(tmp_path) in why and "LUCID_SHARED" in why for why in told["skipped"].values())


PHILLY = "u_id,user,gpu_num,cpu_num,node_num,interval,run_time,wall_time,new_status\n" + "\n".join(
    f"{n},{n % 3},{16 if n % 9 == 0 else 1 + n % 8},8,1,60,{600 + 97 * (n % 13)},0,Pass" for n in range(60)
)


def test_public_logs_are_replayed_beside_plain_slurm(tmp_path: Path) -> None:
    log = tmp_path / "philly_data_training.csv"
    log.write_text(PHILLY)
    env = {"LUCID_PUBLIC": str(tmp_path)}
    done = CliRunner().invoke(main, ["--only", "public", "--json"], env=env)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)["results"]
    assert {row["what"].split(",")[0] for row in told} == {"Philly 1", "Philly 2", "Philly 3"}
    assert all(row["value"] >= 0 and row["baseline"] >= 0 and row["detail"]["jobs"] == 20 for row in told)
    assert {row["detail"]["variant"] for row in told} == set(public.VARIANTS)
    assert {row["detail"]["pool"][:8] for row in told if row["detail"]["held_out"]} == {"Philly 2", "Philly 3"}
    shown = CliRunner().invoke(main, ["--only", "public"], env=env).stdout
    assert sum(line.startswith("| Philly 1") for line in shown.splitlines()) == 2
    absent = CliRunner().invoke(main, ["--only", "public", "--json"], env={"LUCID_PUBLIC": ""})
    assert "set LUCID_PUBLIC to a folder" in json.loads(absent.stdout)["skipped"]["public"]


# -- the guard over hot figures

WHY = "columns instead of objects"


def test_a_record_changes_where_it_differs_and_keeps_the_reason(tmp_path: Path) -> None:
    old = {name: Entry(10.0, "python", "abc", "2026-01-01", "first") for name in ("same", "slower", "unmeasured")}
    with pytest.raises(ValueError, match="reason"):
        renewed({"slower": (14.0, "python")}, old, "def", "2026-11-25", "yes")
    found = {"same": (10.9, "python"), "slower": (14.0, "python"), "new": (1.0, "numpy")}
    made = renewed(found, old, "def", "2026-11-25", WHY)
    assert made == old | {
        "slower": Entry(14.0, "python", "def", "2026-11-25", WHY),
        "new": Entry(1.0, "numpy", "def", "2026-11-25", WHY),
    }
    write(made, tmp_path / "record.json")
    assert read(tmp_path / "record.json") == made
    assert verdict("slower", 14.0, "numpy", made) is Verdict.NEW, "a multiple of another loop says nothing"


@pytest.mark.parametrize(
    ("record", "ratio", "expected"),
    [
        (100.0, 129.0, Verdict.OK), (100.0, 130.0, Verdict.RED), (100.0, 70.0, Verdict.OK),
        (100.0, 69.0, Verdict.STALE), (0.0, 0.0, Verdict.OK), (0.0, 1.0, Verdict.RED),
    ],
)  # fmt: skip
def test_what_is_slower_by_a_third_or_a_heavy_module_where_none_was_is_red(
    record: float, ratio: float, expected: Verdict
) -> None:
    assert verdict("it", ratio, "loop", {"it": Entry(record, "loop", "abc", "2026-11-25", WHY)}) is expected


def test_red_is_measured_once_more_before_it_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command on one figure, whose measurements are given one after the other."""
    left: list[float] = []
    recorded = {"it": Entry(100.0, "loop", "abc", "2026-11-25", WHY)}
    figures = [Hot("it", "what it is", "loop", lambda: lambda _between: None)]
    stand_ins = {"LAST": tmp_path / "guard.json", "COUNTS": {}, "read": lambda: recorded, "HOT": figures,
                 "measured": lambda _: {"it": guard.Measured(left[0], left[0], (left.pop(0),))}}  # fmt: skip
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(guard, name, stand_in)

    def run(*seconds: float, words: tuple[str, ...] = ()) -> tuple[int, str]:
        left[:] = seconds
        done = CliRunner().invoke(guard.main, words)
        assert not left
        return done.exit_code, done.output

    assert (run(100.0)[0], run(150.0, 105.0)[0]) == (0, 0)
    code, told = run(150.0, 149.0)
    assert code == 1
    assert 'RED: it. Slower on purpose? make guard RECORD="why"' in told
    assert "RED: it; 0.0 h and 0 commits ago" in run(words=("--last",))[1]
    assert "record is stale" in run(50.0)[1]
    assert "green, stale: 1" in run(words=("--last",))[1]


def test_every_figure_is_recorded_with_a_reason() -> None:
    recorded = read()
    assert {*COUNTS, *(figure.name for figure in HOT)} <= recorded.keys(), f"{RECORD}: make guard RECORD=…"
    assert all(entry.why and entry.commit for entry in recorded.values())
    assert RECORD.read_text() == json.dumps(json.loads(RECORD.read_text()), indent=1, ensure_ascii=False) + "\n"


# -- pages


def test_the_page_of_figures_is_what_the_program_writes() -> None:
    text, kept = figures_page.PAGE.read_text(encoding="utf-8"), figures_page.DATA.read_text(encoding="utf-8")
    assert figures_page.written(text, json.loads(kept)) == text, "python -m benchmarks.page"


def test_the_pages_are_what_the_program_writes() -> None:
    kept = json.loads(page.DATA.read_text(encoding="utf-8"))
    texts = [path.read_text(encoding="utf-8") for path in page.PAGES]
    for text in texts:
        assert page.written(text, kept) == text, "python -m benchmarks.papers.page"
        assert len(text.splitlines()) <= 155
    for name in PARTS:
        assert sum(f"<!-- rows of: {name} -->" in text for text in texts) <= 1, name
        assert name not in kept or kept[name]["commit"] in page.recorded([name])
    assert set(kept) <= set(PARTS)


def test_readme_names_months_that_were_not_tuned_on_in_900_words_and_no_sentence_above_30() -> None:
    assert not set(SEEDS) & set(range(1, 11))
    text = README.read_text(encoding="utf-8")
    assert "python -m benchmarks.yardstick" in text
    assert f"seeds {', '.join(map(str, SEEDS[:-1]))} and {SEEDS[-1]}" in " ".join(text.split())
    assert len(text.split()) <= 900
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", prose)
    sentences = re.split(r"(?<=[.?!])[*)]*\s+|\n\n+|\n- |^#+ ", prose, flags=re.MULTILINE)
    assert len(sentences) > 30
    assert [one for one in sentences if len(one.split()) > 30] == []


@pytest.mark.slow
def test_readme_is_what_the_command_prints() -> None:
    done = CliRunner().invoke(yardstick.main, [])
    text = README.read_text(encoding="utf-8")
    assert set(done.output.splitlines()) <= set(text.splitlines())
