"""The simulated cluster and its outages."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from builders import HEAVY, LIGHT, VC, a_cluster, a_trace, at, by, nodes, replay
from examples import tried
from lucid.config.policy import BackfillSettings, OverheadSettings
from lucid.core.decision import Action, EndProfiling, Keep, Requeue, Start
from lucid.core.job import JobProfile, Running, Stage
from lucid.core.node import Node, Window
from lucid.core.reasons.queue import FairOrder
from lucid.errors import ConfigError, TraceError
from lucid.models.history import HistoryPredictor
from lucid.models.packing.pair_memory import PairMemory
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.cluster.jobs import PROFILING
from lucid.simulator.cluster.nodes import Outages, read_events, with_limits
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.engine import Run, run
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.record import Trace, TraceJob
from scenes.plans import policy

WHY = (FairOrder(0.0),)


def halves(a: JobProfile, b: JobProfile) -> tuple[float, float]:
    """The first of a pair runs at half its speed, the second at a quarter."""
    return (0.5, 0.25) if a.workload < b.workload else (0.25, 0.5)


def known(name: str) -> JobProfile:
    return JobProfile(10.0, 10.0, 1000.0, workload=name)


def start(cluster: SimulatedCluster, job_id: str, where: str, beside: str | None = None, room: str = VC) -> None:
    (done,) = cluster.apply([Action(job_id, room, Start(at(where), WHY, beside))])
    assert done.refused is None


def pair(
    semantics: Semantics = Semantics.HONEST, a_s: float = 1000.0, b_s: float = 400.0, memory: PairMemory | None = None
) -> SimulatedCluster:
    """Jobs a and b, both measured by running side by side on other GPUs first, then packed at 100 s.

    They are measured at 80 s and requeued at 100 s with all their work to do again.
    """
    trace = a_trace(by("a", 1, a_s, profile=known("a")), by("b", 1, b_s, profile=known("b")))
    parts = {"interference": halves, "overheads": OverheadSettings(requeue_s=0.0), "memory": memory}
    cluster = a_cluster(trace, profiled=lambda job: False, semantics=semantics, **parts)
    cluster.advance(0.0)
    start(cluster, "a", "vc-1:0")
    start(cluster, "b", "vc-1:1")
    cluster.advance(80.0)
    cluster.advance(100.0)
    cluster.apply([Action(j, VC, Requeue(WHY, part=True)) for j in "ab"])
    start(cluster, "a", "vc-1:0")
    start(cluster, "b", "vc-1:0", "a")
    return cluster


def run_out(cluster: SimulatedCluster) -> None:
    while (at_s := cluster.next_event_s()) is not None:
        cluster.advance(at_s)


def test_pair_speeds_move_the_ends_exactly() -> None:
    cluster = pair()
    run_out(cluster)
    # a at 0.5: 800 s of its 1000 s are done when b at 0.25 has done 400 s, at 100 + 1600; then 200 s alone
    assert cluster.outcomes["b"].end_s == pytest.approx(1700.0)
    assert cluster.outcomes["a"].end_s == pytest.approx(1900.0)


def test_without_mending_the_survivor_of_the_first_placed_stays_slow() -> None:
    mended, slow = pair(Semantics.PUBLISHED_MENDED, 400.0, 1000.0), pair(Semantics.PUBLISHED, 400.0, 1000.0)
    for cluster in (mended, slow):
        run_out(cluster)
        assert cluster.outcomes["a"].end_s == pytest.approx(100.0 + 400.0 / 0.5)
    # b has done 200 s when a ends at 900 s; 800 s are left
    assert mended.outcomes["b"].end_s == pytest.approx(900.0 + 800.0)
    assert slow.outcomes["b"].end_s == pytest.approx(900.0 + 800.0 / 0.25)


def test_the_partner_of_a_parted_job_recovers_and_the_parted_one_starts_over() -> None:
    cluster = pair()
    cluster.advance(500.0)
    cluster.apply([Action("b", VC, Requeue(WHY, part=True))])
    (waiting,) = cluster.observe().partitions[VC].pending
    assert (waiting.alone, waiting.restarts, waiting.since_s) == (True, 2, 500.0)
    run_out(cluster)
    assert cluster.outcomes["a"].end_s == pytest.approx(500.0 + 800.0)
    start(cluster, "b", "vc-1:5")
    run_out(cluster)
    assert cluster.outcomes["b"].end_s == pytest.approx(1300.0 + 400.0)


def test_a_pair_shows_its_speeds_after_a_minute_and_makes_a_memory() -> None:
    memory = PairMemory()
    cluster = pair(memory=memory)
    cluster.advance(159.0)
    assert len(memory) == 0  # nothing of the future
    cluster.advance(160.0)
    assert memory.speeds("b", "a") == (0.25, 0.5)
    shown = {entry.job.id: entry.profile for entry in cluster.observe().partitions[VC].running}
    seen = {job: (found.seen_beside, found.seen_speed) for job, found in shown.items() if found is not None}
    assert seen == {"a": ("b", 0.5), "b": ("a", 0.25)}


@pytest.mark.parametrize(("leaves", "again"), [("a", False), ("b", False), ("a", True)])
def test_a_pair_that_parts_before_a_sampler_could_judge_it_leaves_nothing_of_it_nor_of_the_next_partner(
    leaves: str, again: bool
) -> None:
    memory = PairMemory()
    cluster = pair(memory=memory)
    cluster.advance(130.0 if again else 159.0)
    cluster.apply([Action(leaves, VC, Requeue(WHY, part=True))])
    if again:
        start(cluster, "a", "vc-1:0", "b")
    cluster.advance(160.0)
    assert len(memory) == 0
    cluster.advance(190.0)
    assert len(memory) == again


def in_profiling() -> SimulatedCluster:
    """Job a of 500 s, for its first 80."""
    parts = {"profiling_nodes": nodes(1, prefix="p"), "overheads": OverheadSettings(requeue_s=10.0)}
    cluster = a_cluster(a_trace(by("a", 1, 500.0, profile=LIGHT)), **parts)
    cluster.advance(0.0)
    start(cluster, "a", "p1:0", room=PROFILING)
    cluster.advance(80.0)
    return cluster


def member(cluster: SimulatedCluster, room: str) -> Running:
    (entry,) = cluster.observe().partitions[room].running
    return entry


def test_a_released_job_starts_over_and_pays_for_the_requeue() -> None:
    cluster = in_profiling()
    cluster.apply([Action("a", PROFILING, EndProfiling(WHY))])
    assert cluster.moved
    (waiting,) = cluster.observe().partitions[VC].pending
    assert (waiting.profile, waiting.ran_s, waiting.since_s) == (LIGHT, 80.0, 80.0)
    cluster.advance(100.0)
    start(cluster, "a", "vc-1:0")
    run_out(cluster)
    outcome = cluster.outcomes["a"]
    assert (outcome.end_s, outcome.queue_s, outcome.profiled_s) == (100.0 + 500.0 + 10.0, 20.0, 80.0)


def test_who_waits_is_shown_in_order_though_one_that_comes_home_does_so_last() -> None:
    """What a policy keeps of a queue from plan to plan goes by this order."""
    trace = a_trace(by("a", 1, rank=0), by("b", 4, rank=1))
    cluster = a_cluster(trace, profiled=lambda job: job.gpus == 1, profiling_nodes=nodes(1, prefix="p"))
    cluster.advance(0.0)
    before = cluster.observe().partitions[VC]
    cluster.apply([Action("a", PROFILING, EndProfiling(WHY))])
    after = cluster.observe().partitions[VC]
    assert [entry.job.id for entry in after.pending] == ["a", "b"]
    assert [entry.job.id for entry in after.since(before).came] == ["a"]


def test_a_kept_job_goes_on_where_it_is() -> None:
    cluster = in_profiling()
    cluster.apply([Action("a", PROFILING, Keep(WHY))])
    assert member(cluster, PROFILING).stage is Stage.MAIN
    run_out(cluster)
    assert cluster.outcomes["a"].end_s == 500.0
    assert not cluster.outcomes["a"].ended_in_profiling


def test_a_job_that_left_its_gpus_before_t_prof_is_not_measured() -> None:
    cluster = a_cluster(a_trace(by("a", 1, 500.0, profile=HEAVY)), profiled=lambda job: False)
    cluster.advance(0.0)
    start(cluster, "a", "vc-1:0")
    cluster.advance(50.0)
    cluster.apply([Action("a", VC, Requeue(WHY))])
    cluster.advance(60.0)
    start(cluster, "a", "vc-1:0")
    cluster.advance(139.0)
    assert member(cluster, VC).profile is None
    cluster.advance(140.0)
    assert member(cluster, VC).profile == HEAVY


def test_a_vc_named_like_the_profiling_partition_or_without_nodes_is_an_error_that_says_so() -> None:
    """Its nodes and its jobs would be the profiling partition's: the replay never ended."""
    trace, layout = a_trace(by("j", vc=PROFILING)), {PROFILING: nodes(2)}
    with pytest.raises(ConfigError, match=r"VC 'profiling'.*another name.*policy\.profiling\.enabled"):
        a_cluster(trace, layout, profiling_nodes=nodes(1, prefix="p"))
    assert a_cluster(trace, layout).observe().profiling is None
    with pytest.raises(ConfigError, match=r"jobs of VC lost.*nodes are given for: vc"):
        a_cluster(a_trace(by("a"), by("b", vc="lost")), {VC: nodes(1)})


DAY = 86400.0
LAYOUT = {"a": nodes(2, prefix="a-"), "b": nodes(1, prefix="b-")}
ONE_NODE = {VC: nodes(1, prefix="vc-")}


def read(tmp_path: Path, *lines: str, epoch_s: float | None = None, head: str = "") -> Outages:
    path = tmp_path / "events.csv"
    path.write_text("\n".join([head or "event,nodes,from,until,every,name", *lines]) + "\n")
    trace = Trace("test", (by("x", 1, 10.0, 0.0), by("y", 1, 10.0, 10 * DAY)), epoch_s)
    return read_events(path, trace, LAYOUT)


def limited(name: str, gpus: int, seconds: float, limit_s: float | None, submit_s: float = 0.0) -> TraceJob:
    return by(name, gpus, seconds, submit_s, time_limit_s=limit_s)


def run_on(trace: Trace, layout: dict[str, tuple[Node, ...]], outages: Outages) -> Run:
    cluster = a_cluster(trace, layout, profiled=lambda job: False, outages=outages)
    return run(cluster, policy("fifo"), HistoryPredictor())


def test_events_name_nodes_vcs_or_all_and_come_again(tmp_path: Path) -> None:
    planned = ("window,*,1-02:00,1-04:00,,maintenance", "window,a,3600,7200,week,")
    found = read(tmp_path, *planned, '"down","a-[1-2],b-1",10:00:00,,,')
    maintenance, closed = Window(DAY + 7200, DAY + 14400, "maintenance"), Window(3600.0, 7200.0, "closed")
    of_a = (closed, maintenance, Window(7 * DAY + 3600, 7 * DAY + 7200, "closed"))
    assert found.windows == {"a-1": of_a, "a-2": of_a, "b-1": (maintenance,)}
    assert found.downs == dict.fromkeys(("a-1", "a-2", "b-1"), (Window(36000.0, None, "down"),))


def test_a_trace_with_dates_takes_dates(tmp_path: Path) -> None:
    found = read(tmp_path, "window,b,2024-01-02T06:00,2024-01-02 08:00:00,day,m", epoch_s=1704067200.0)
    first, second, *_ = found.windows["b-1"]
    assert (first.from_s, first.until_s, second.from_s) == (DAY + 21600, DAY + 28800, 2 * DAY + 21600)
    assert len(found.windows["b-1"]) == 9  # up to the last submission


BAD_EVENTS = {
    "broken,*,0,1,,": "line 2: column event: 'broken' is neither 'window' nor 'down'",
    "window,c,0,1,,": "line 2: column nodes: there is no VC or node 'c'; write *, or of these: a (a-1 to a-2)",
    "window,a-[,0,1,,": "line 2: column nodes: 'a-[' is not a host list",
    "window,a,soon,1,,": "line 2: column from: 'soon' is no time; write seconds of the trace, 3-18:00",
    "window,a,-1,1,,": "line 2: column from: '-1' is no time",
    "window,a,2024-01-02,1,,": "line 2: column from: '2024-01-02' is a date, and the trace has none",
    "window,a,5,5,,": "line 2: column until: '5' is not after '5'",
    "window,a,5,6,month,": "line 2: column every: 'month' is neither 'day' nor 'week' nor empty",
    "window,a,0,1-00:00,day,": "line 2: column until: an event of every day must end before the next begins",
    "window,a,5,,day,": "line 2: column until: an event of every day must end",
    "window,a-1,a-2,5,6,,": "line 2: more values than columns; quote a list of nodes",
    "": "names no event",
    "job_id,when": "line 1: no column event, nodes, from (found: job_id, when)",
}


@pytest.mark.parametrize("line", BAD_EVENTS)
def test_a_bad_event_is_refused_with_its_place(tmp_path: Path, line: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, line, head=line if line.startswith("job_id") else "")
    assert BAD_EVENTS[line] in str(caught.value)
    assert str(tmp_path / "events.csv") in str(caught.value)
    with pytest.raises(TraceError, match="cannot be read"):
        read_events(tmp_path / "none.csv", a_trace(by("x")), LAYOUT)


def test_jobs_without_a_limit_get_one_that_is_counted() -> None:
    trace = a_trace(limited("long", 1, 1000.0, None), limited("short", 1, 10.0, None), limited("own", 1, 10.0, 5.0))
    made, count = with_limits(trace, BackfillSettings(limit_factor=3.0, least_limit_s=600.0))
    assert count == 2
    assert {item.job.id: item.job.time_limit_s for item in made.jobs} == {"long": 3000.0, "short": 600.0, "own": 5.0}


WINDOW = Outages({"vc-1": (Window(1000.0, 2000.0, "m"),)})


@pytest.mark.parametrize("name", ["backfill", "lucid"])
def test_what_ends_before_a_window_starts_and_what_does_not_starts_at_its_end(name: str) -> None:
    trace = a_trace(limited("long", 1, 500.0, 1001.0), limited("short", 1, 400.0, 1000.0))
    outcomes, tape = replay(name, trace, ONE_NODE, outages=WINDOW, profiling={"enabled": False})
    assert (outcomes["short"].start_s, outcomes["long"].start_s) == (0.0, 2000.0)
    assert [snapshot.now_s for snapshot, _, _ in tape.cycles] == [0.0, 400.0, 1000.0, 2000.0, 2500.0]


def test_a_run_that_outlived_its_limit_starts_over_after_the_window() -> None:
    result = run_on(a_trace(limited("late", 1, 1500.0, 900.0)), ONE_NODE, WINDOW)
    assert result.outcomes[0].end_s == 2000.0 + 1500.0 + 10.0  # overheads.requeue_s
    gpu_h = {"unused_before_gpu_h": 7 * 1000 / 3600, "there_before_gpu_h": 8 * 1000 / 3600, "lost_gpu_h": 1000 / 3600}
    counts = {"windows": 1, "runs_cut": 1, "runs_left": 0, "runs_failed": 0}
    assert run_metrics(result)["windows"] == pytest.approx(gpu_h | counts)


def test_a_node_that_goes_down_loses_its_runs_and_nobody_knew() -> None:
    downs = Outages({}, {"vc-1": (Window(100.0, 300.0, "down"),)})
    trace = a_trace(limited("here", 8, 200.0, None), limited("there", 8, 200.0, None))
    result = run_on(trace, {VC: nodes(2, prefix="vc-")}, downs)
    assert {outcome.job.id: outcome.end_s for outcome in result.outcomes} == {"here": 200.0 + 210.0, "there": 200.0}
    assert result.windows is not None
    assert (result.windows.failed, result.windows.cut) == (1, 0)


def test_a_job_that_fits_before_no_window_does_not_keep_the_replay_going() -> None:
    for_ever = Outages({"vc-1": (Window(1000.0, None, "gone"),)})
    outcomes, _ = replay("backfill", a_trace(limited("long", 1, 5000.0, 5000.0)), ONE_NODE, outages=for_ever)
    assert outcomes["long"].end_s == -1.0


def test_events_are_for_the_honest_semantics() -> None:
    scenario = Scenario(a_trace(by("x")), {VC: 1}, semantics=Semantics.PUBLISHED, outages=WINDOW)
    with pytest.raises(ConfigError, match="--events is for --semantics honest"):
        simulate(scenario, "fifo")


@tried(8)
def test_no_run_overlaps_a_window(rng: random.Random) -> None:
    windows: dict[str, tuple[Window, ...]] = {}
    for i in range(3):
        begins = sorted(rng.sample(range(50, 5000, 50), rng.randint(0, 6)))
        windows[f"vc-{i + 1}"] = tuple(Window(at, at + rng.randint(1, 400), "w") for at in begins)
    items = []
    for k in range(30):
        seconds, gpus = rng.randint(1, 900), rng.choice([1, 2, 4, 8, 12])
        items.append(limited(f"j{k}", gpus, seconds, seconds * rng.choice([1.0, 1.5, 4.0]), rng.randint(0, 4000)))
    name, rules = rng.choice(["fifo", "backfill", "lucid", "srtf", "tiresias"]), {"profiling": {"enabled": False}}
    layout = {VC: nodes(3, prefix="vc-")}
    outcomes, tape = replay(name, a_trace(*items), layout, outages=Outages(windows), **rules)
    assert all(outcome.end_s >= 0 for outcome in outcomes.values())
    for snapshot, _, _ in tape.cycles:
        part = snapshot.partitions[VC]
        shut = {n.name for n in part.nodes if any(w.from_s <= snapshot.now_s < w.end_s for w in windows[n.name])}
        assert shut == {n.name for n in part.nodes if not n.available}
        assert not any(part.node in shut for view in part.running for part in view.placement)
