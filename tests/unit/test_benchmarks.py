"""The benchmarks' own arithmetic and manners; what they measure is measured elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import public
from benchmarks.__main__ import main
from benchmarks.figure import Figure, as_dict


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("a", 8.0, "s", at_most=8.0), True),
        (Figure("a", 8.01, "s", at_most=8.0), False),
        (Figure("a", 0.8, "", at_least=0.9), False),
        (Figure("a", 5.9, "h", baseline=6.0, ratio_within=0.02), True),
        (Figure("a", 5.8, "h", baseline=6.0, ratio_within=0.02), False),
        (Figure("a", 1.0, "h", baseline=2.0), None),
    ],
)
def test_a_figure_knows_whether_it_holds_what_was_asked(figure: Figure, met: bool | None) -> None:
    assert figure.met is met
    assert as_dict(figure)["met"] is met


NEED_DATA = (
    "p1", "philly", "kept", "growth-p1", "quality", "best", "parity", "frontier", "contention", "cards",
)  # fmt: skip
"""Parts that measure nothing without the reference data; the others make their own."""


def test_parts_without_their_data_are_skipped_and_say_so(tmp_path: Path) -> None:
    needs_data = NEED_DATA
    options = [word for name in needs_data for word in ("--only", name)]
    done = CliRunner().invoke(main, [*options, "--json"], env={"LUCID_SHARED": str(tmp_path)})
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["results"] == []
    assert set(told["skipped"]) == set(needs_data)
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
    first, again = (line for line in shown.splitlines() if line.startswith("| Philly 1"))
    of = [row for row in told if row["what"].startswith("Philly 1") and row["detail"]["variant"] == "lucid"]
    for row in of:
        assert f"{row['value']:.3g}" in first
        if row["ratio"] is not None:
            assert (f"**{row['ratio']:.3f}**" if row["met"] is False else f"{row['ratio']:.3f}") in again
    assert " † |" not in first
    absent = CliRunner().invoke(main, ["--only", "public", "--json"], env={"LUCID_PUBLIC": ""})
    assert "set LUCID_PUBLIC to a folder" in json.loads(absent.stdout)["skipped"]["public"]
