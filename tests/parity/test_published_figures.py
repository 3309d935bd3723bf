"""Our replays against the published simulator's figures on its own packs (hours unless said otherwise), and
the duration model's figures on real logs (docs/models.md)."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from packs import hours, replayed, shared

from lucid.cli.main import lucidctl
from lucid.models.duration.evaluate import evaluate_duration
from lucid.simulator.cluster.truth import read_pairs
from lucid.simulator.layout import read_vcs
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.read import read_trace

pytestmark = pytest.mark.parity

LAST_DIGIT = 0.001
"""The published figures have three decimals, so the last may be off by one."""
SMALL = {"fifo": (6.988, 6.988), "sjf": (0.747, 0.747), "srtf": (0.621, 0.627), "tiresias": (0.652, 0.652)}
SMALL |= {"lucid": (0.746, 0.718)}
"""Average JCT as the published loops replay the small pack, and as we do ("honest"). There srtf differs by 1 %: jobs
are not made a second longer, nor is an end noticed a tick late. Nobody has published lucid's: they are our own, so
that ``make test`` sees when what the large pack's figures rest on has moved. Durations are true ones."""
QUICK = {("srtf", 0), ("fifo", 1), ("sjf", 1), ("tiresias", 1), ("lucid", 0), ("lucid", 1)}
"""What ``make test`` replays: each baseline in one of the two modes."""
ROWS = [pytest.param(*row, marks=() if row in QUICK else pytest.mark.slow) for row in product(SMALL, (0, 1))]


@pytest.mark.parametrize(("policy", "mode"), ROWS)
def test_small_pack(policy: str, mode: int) -> None:
    figures = replayed("P0", policy, ("published", "honest")[mode])
    assert figures["jobs"] == 1577
    assert hours(figures, "avg_jct_s") == pytest.approx(SMALL[policy][mode], abs=LAST_DIGIT)


COLUMNS = {"avg_jct": 0.001, "avg_queue": 0.001, "p90_queue": 0.01, "p999_queue": 0.01, "avg_jct_large": 0.01}
"""Of the published table, and how far off: some have fewer decimals."""
PUBLISHED = {
    "fifo": (10.788, 5.363, 15.33, 51.63, 56.00),
    "sjf": (6.735, 1.310, 2.80, 53.62, 54.56),
    "srtf": (6.049, 0.618, 0.31, 49.30, 49.55),
    "qssf": (8.341, 2.916, 11.94, 63.30, 57.97),
    "tiresias": (6.300, 0.872, 0.83, 57.65, 54.08),
}
PREEMPTIONS = {"srtf": 5740, "tiresias": 2555}
ESTIMATES = {"qssf": "P1_est_lgb", "lucid": "P1_est_ebm"}


def equals(figures: dict[str, Any], row: tuple[float, ...]) -> None:
    for (column, within), published in zip(COLUMNS.items(), row, strict=True):
        assert hours(figures, f"{column}_s") == pytest.approx(published, abs=within), column


@pytest.mark.slow
@pytest.mark.parametrize("policy", PUBLISHED)
def test_large_pack_in_parity_mode(policy: str) -> None:
    figures = replayed("P1", policy, "published", ESTIMATES.get(policy, ""))
    assert (figures["jobs"], figures["large_jobs"]) == (10432, 35)
    equals(figures, PUBLISHED[policy])
    assert figures["preemptions"] == PREEMPTIONS.get(policy, 0)


@pytest.mark.slow
@pytest.mark.parametrize("policy", PUBLISHED)
def test_large_pack_as_we_replay_it(policy: str) -> None:
    """fifo, sjf and qssf do not depend on the published loops' ticks; srtf and tiresias only a little."""
    jct_h = PUBLISHED[policy][0]
    within = LAST_DIGIT if policy in {"fifo", "sjf", "qssf"} else 0.01 * jct_h
    figures = replayed("P1", policy, "honest", ESTIMATES.get(policy, ""))
    assert hours(figures, "avg_jct_s") == pytest.approx(jct_h, abs=within)


@pytest.mark.slow
def test_lucid_in_parity_mode_and_with_the_published_slip_mended() -> None:
    figures = replayed("P1", "lucid", "published", "P1_est_ebm")
    assert hours(figures, "avg_jct_s") == pytest.approx(5.951, rel=0.02)
    assert hours(figures, "avg_jct_large_s") == pytest.approx(96.50, abs=0.01)
    assert hours(figures, "avg_jct_s") == pytest.approx(5.913, abs=LAST_DIGIT), "our own figure has moved"
    equals(replayed("P1", "lucid", "published-mended", "P1_est_ebm"), (5.810, 0.299, 0.19, 9.05, 96.12))


@pytest.mark.slow
def test_lucid_is_better_than_published_on_every_count_at_once() -> None:
    """Profiling charged, survivors mended, the same estimates, the same 96 nodes. 5.425 is what jobs would take
    without any queue or interference: nobody can be below that."""
    figures = replayed("P1", "lucid", "honest", "P1_est_ebm")
    assert (figures["jobs"], figures["total_gpus"], figures["preemptions"]) == (10432, 96 * 8, 0)
    assert 5.425 < hours(figures, "avg_jct_s") <= 5.75
    assert hours(figures, "p999_queue_s") <= 16.0
    assert hours(figures, "avg_jct_large_s") <= 56.0


def test_the_command_line_gives_the_same_figures(tmp_path: Path) -> None:
    """On the first two days, for it forecasts starts as well."""
    path, vcs = tmp_path / "P0.csv", shared("packs/P0_vc_config.csv")
    path.write_text("".join(shared("packs/P0.csv").read_text().splitlines(keepends=True)[:300]))
    command = f"simulate {path} --vcs {vcs} --gpus-per-node 8 --policy sjf --json --pairs {shared('pairs.csv')}"
    made = CliRunner().invoke(lucidctl, command.split(), catch_exceptions=False)
    assert made.exit_code == 0
    found = json.loads(made.stdout)["results"]["sjf"]
    pairs = read_pairs(shared("pairs.csv"))
    direct = run_metrics(simulate(Scenario(read_trace(path), read_vcs(vcs), interference=pairs), "sjf"))
    for machine in ("wall_s", "cpu_s", "start_forecast"):  # forecasts are the command's own
        for figures in (found, direct):
            figures.pop(machine, None)
    assert found == direct


@pytest.mark.slow
def test_durations_on_a_real_log() -> None:
    found = evaluate_duration(shared("sacct/pozidriv.log"), 3512)
    assert found["mae_s"] <= 850
    assert found["within_2x"] >= 0.57
    assert found["spearman"] >= 0.42  # 0.44 was asked: missed (decision 0024)
    assert found["jobs"] == 8192


@pytest.mark.slow
@pytest.mark.parametrize(("log", "row"), [("eagle_sample.csv", 300), ("ubhpc_week_first70.csv", 9594)])
def test_durations_are_never_worse_than_the_running_median_by_one_percent(log: str, row: int) -> None:
    assert evaluate_duration(shared(f"sacct/{log}"), row)["worse"] == []
