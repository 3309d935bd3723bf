"""The demonstration's stream and tables, without the testbed."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

import demo
import demo_tables
from demo_realism import RealTimes
from demo_stream import GPUS_PER_NODE, NODES, PROGRAMS, VC, stream, trace_of
from lucid.config.load import load_settings
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.read import read_trace


def test_the_stream_is_the_same_for_the_same_seed_and_more_than_the_cluster_can_do() -> None:
    pieces = stream(60, 1)
    assert pieces == stream(60, 1) != stream(60, 2)
    work_gpu_s = sum(piece.work_s * piece.program.gpus for piece in pieces)
    assert work_gpu_s / (NODES * GPUS_PER_NODE) > 2 * pieces[-1].at_s
    assert all(piece.work_s < 60 * piece.program.limit_min for piece in pieces), "no limit strikes a job alone"
    assert {piece.program.name for piece in pieces} == {p.name for some in PROGRAMS.values() for p in some}


def test_the_trace_of_the_stream_is_read_back_and_replayed_under_the_demonstrations_settings(tmp_path: Path) -> None:
    trace = trace_of(stream(60, 1))
    write_trace(trace, tmp_path / "trace.csv")
    assert read_trace(tmp_path / "trace.csv").jobs == trace.jobs
    (tmp_path / "lucid.toml").write_text(demo.SETTINGS)
    settings = load_settings(tmp_path / "lucid.toml")
    found = {}
    for policy in ("backfill", "lucid"):
        scenario = Scenario(
            trace, {VC: NODES}, NodeShape(GPUS_PER_NODE), settings=settings, profiling_nodes=1, as_live=True
        )
        found[policy] = run_metrics(simulate(scenario, policy))
    assert found["lucid"]["jobs"] == found["backfill"]["jobs"] == 60
    assert found["lucid"]["packed_share"] > 0.5 > found["backfill"]["packed_share"] == 0


def test_jct_is_reckoned_from_the_time_in_the_stream() -> None:
    pieces = stream(12, 1)
    names = [str(n) for n in range(1, 13)]

    def played(later_s: float, requeued: int) -> demo_tables.Played:
        real = {n: RealTimes(pieces[int(n) - 1].at_s, pieces[int(n) - 1].at_s + later_s) for n in names}
        return demo_tables.Played({f"10{n}": n for n in names}, real, {f"10{n}": requeued for n in names})

    plain, packed = played(40.0, 0), played(30.0, 1)
    assert demo_tables.figures(pieces, plain)["avg JCT"] == 40.0
    assert demo_tables.figures(pieces, packed)["makespan"] == pieces[-1].at_s + 30.0
    text = io.StringIO()
    demo_tables.show(Console(file=text, width=120), pieces, plain, packed, {"107": "103"})
    said = text.getvalue()
    assert "0.75" in said
    assert "1 jobs started beside another; 12 were requeued" in said
    data = demo_tables.as_data(pieces, plain, packed, {"107": "103"}, [])
    assert (data["requeued"], data["guests"], round(data["lucid"]["p90 JCT"])) == (12, 1, 30)
    assert "--policy backfill --policy lucid --as-live" in demo_tables.commands(Path("out"), "17")
