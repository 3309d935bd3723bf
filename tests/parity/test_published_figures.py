"""Our replays against the published simulator's figures on its own packs (hours unless said otherwise)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from packs import hours, replayed, shared

from lucid.cli.main import lucidctl
from lucid.simulator.cluster.truth import read_pairs
from lucid.simulator.layout import read_vcs
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.read import read_trace

pytestmark = pytest.mark.parity

LAST_DIGIT = 0.001
"""The published figures have three decimals, so the last may be off by one."""


def row(*values: str | float, quick: bool) -> Any:
    """A policy's row of the small pack: ``make test`` replays each policy in one of the two modes."""
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(
    ("policy", "semantics", "jct"),
    [
        row("fifo", "published", 6.988, quick=False),
        row("sjf", "published", 0.747, quick=False),
        row("srtf", "published", 0.621, quick=True),
        row("tiresias", "published", 0.652, quick=False),
        row("fifo", "honest", 6.988, quick=True),
        row("sjf", "honest", 0.747, quick=True),
        row("srtf", "honest", 0.627, quick=False),
        row("tiresias", "honest", 0.652, quick=True),
    ],
)
def test_small_pack(policy: str, semantics: str, jct: float) -> None:
    """As we replay it ("honest") srtf differs from the published 0.621 (by 1 %): jobs are not made a second longer,
    nor is an end noticed a tick late."""
    figures = replayed("P0", policy, semantics)
    assert figures["jobs"] == 1577
    assert hours(figures, "avg_jct_s") == pytest.approx(jct, abs=LAST_DIGIT)


@pytest.mark.parametrize(("semantics", "jct"), [("published", 0.746), ("honest", 0.718)])
def test_lucid_on_the_small_pack(semantics: str, jct: float) -> None:
    """Nobody has published these: they are our own, so that ``make test`` sees when what the large pack's figures
    rest on has moved. Durations are true ones."""
    figures = replayed("P0", "lucid", semantics)
    assert figures["jobs"] == 1577
    assert hours(figures, "avg_jct_s") == pytest.approx(jct, abs=LAST_DIGIT), "our own figure has moved"


@dataclass(frozen=True)
class Row:
    """A row of the published table; the columns with fewer decimals are compared to what they have."""

    policy: str
    jct: float
    queue: float
    p90: float
    p999: float
    large: float
    preemptions: int
    estimates: str = ""


PUBLISHED = [
    Row("fifo", 10.788, 5.363, 15.33, 51.63, 56.00, 0),
    Row("sjf", 6.735, 1.310, 2.80, 53.62, 54.56, 0),
    Row("srtf", 6.049, 0.618, 0.31, 49.30, 49.55, 5740),
    Row("qssf", 8.341, 2.916, 11.94, 63.30, 57.97, 0, "P1_est_lgb"),
    Row("tiresias", 6.300, 0.872, 0.83, 57.65, 54.08, 2555),
]


@pytest.mark.slow
@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.policy)
def test_large_pack_in_parity_mode(row: Row) -> None:
    figures = replayed("P1", row.policy, "published", row.estimates)
    assert (figures["jobs"], figures["large_jobs"]) == (10432, 35)
    assert hours(figures, "avg_jct_s") == pytest.approx(row.jct, abs=LAST_DIGIT)
    assert hours(figures, "avg_queue_s") == pytest.approx(row.queue, abs=LAST_DIGIT)
    assert hours(figures, "p90_queue_s") == pytest.approx(row.p90, abs=0.01)
    assert hours(figures, "p999_queue_s") == pytest.approx(row.p999, abs=0.01)
    assert hours(figures, "avg_jct_large_s") == pytest.approx(row.large, abs=0.01)
    assert figures["preemptions"] == row.preemptions


@pytest.mark.slow
@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row.policy)
def test_large_pack_as_we_replay_it(row: Row) -> None:
    """fifo, sjf and qssf do not depend on the published loops' ticks; srtf and tiresias only a little."""
    figures = replayed("P1", row.policy, "honest", row.estimates)
    exact = row.policy in {"fifo", "sjf", "qssf"}
    assert hours(figures, "avg_jct_s") == pytest.approx(row.jct, abs=LAST_DIGIT if exact else 0.01 * row.jct)


@pytest.mark.slow
def test_lucid_in_parity_mode() -> None:
    figures = replayed("P1", "lucid", "published", "P1_est_ebm")
    assert hours(figures, "avg_jct_s") == pytest.approx(5.951, rel=0.02)
    assert hours(figures, "avg_jct_large_s") == pytest.approx(96.50, abs=0.01)
    assert hours(figures, "avg_jct_s") == pytest.approx(5.913, abs=LAST_DIGIT), "our own figure has moved"


@pytest.mark.slow
def test_lucid_in_parity_mode_with_the_published_slip_mended() -> None:
    figures = replayed("P1", "lucid", "published-mended", "P1_est_ebm")
    assert hours(figures, "avg_jct_s") == pytest.approx(5.810, abs=LAST_DIGIT)
    assert hours(figures, "avg_queue_s") == pytest.approx(0.299, abs=LAST_DIGIT)
    assert hours(figures, "p90_queue_s") == pytest.approx(0.19, abs=0.01)
    assert hours(figures, "p999_queue_s") == pytest.approx(9.05, abs=0.01)
    assert hours(figures, "avg_jct_large_s") == pytest.approx(96.12, abs=0.01)


@pytest.mark.slow
def test_lucid_is_better_than_published_on_every_count_at_once() -> None:
    """Profiling charged, survivors mended, the same estimates, the same 96 nodes. 5.425 is what jobs would take
    without any queue or interference: nobody can be below that."""
    figures = replayed("P1", "lucid", "honest", "P1_est_ebm")
    assert figures["jobs"] == 10432
    assert figures["total_gpus"] == 96 * 8
    assert figures["preemptions"] == 0
    assert 5.425 < hours(figures, "avg_jct_s") <= 5.75
    assert hours(figures, "p999_queue_s") <= 16.0
    assert hours(figures, "avg_jct_large_s") <= 56.0


def test_the_command_line_gives_the_same_figures(tmp_path: Path) -> None:
    """On the first two days, for it forecasts starts as well."""
    path, vcs = tmp_path / "P0.csv", shared("packs/P0_vc_config.csv")
    path.write_text("".join(shared("packs/P0.csv").read_text().splitlines(keepends=True)[:300]))
    command = ["simulate", str(path), "--vcs", str(vcs), "--gpus-per-node", "8", "--policy", "sjf", "--json"]
    made = CliRunner().invoke(lucidctl, [*command, "--pairs", str(shared("pairs.csv"))], catch_exceptions=False)
    assert made.exit_code == 0
    found = json.loads(made.stdout)["results"]["sjf"]
    pairs = read_pairs(shared("pairs.csv"))
    direct = run_metrics(simulate(Scenario(read_trace(path), read_vcs(vcs), interference=pairs), "sjf"))
    machine = {"wall_s", "cpu_s", "start_forecast"}  # forecasts are the command's own
    assert {k: v for k, v in found.items() if k not in machine} == {
        k: v for k, v in direct.items() if k not in machine
    }
