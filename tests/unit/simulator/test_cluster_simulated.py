"""The simulated cluster: when jobs end, what policies may see, and what changes of state cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from builders import HEAVY, LIGHT, VC, a_cluster, a_trace, at, by, nodes, replay
from lucid.config.policy import OverheadSettings
from lucid.core.decision import Action, EndProfiling, Keep, Requeue, Start
from lucid.core.job import JobProfile, Pending, Running, Stage
from lucid.core.node import Node
from lucid.core.ports import Capability
from lucid.core.reasons.queue import FairOrder
from lucid.errors import ConfigError
from lucid.models.packing.pair_memory import PairMemory
from lucid.simulator.cluster.cluster import PROFILING, SimulatedCluster
from lucid.simulator.traces.record import TraceJob

WHY = (FairOrder(0.0),)


class Halves:
    """The first of a pair runs at half its speed, the second at a quarter."""

    def speeds(self, a: JobProfile, b: JobProfile) -> tuple[float, float]:
        return (0.5, 0.25) if a.workload < b.workload else (0.25, 0.5)


def known(name: str) -> JobProfile:
    return JobProfile(10.0, 10.0, 1000.0, workload=name)


def start(cluster: SimulatedCluster, job_id: str, where: str, beside: str | None = None, room: str = VC) -> None:
    (done,) = cluster.apply([Action(job_id, room, Start(at(where), WHY, beside))])
    assert done.refused is None


def pair(
    mend_survivors: bool = True, a_s: float = 1000.0, b_s: float = 400.0, memory: PairMemory | None = None
) -> SimulatedCluster:
    """Jobs a and b, both measured by running side by side on other GPUs first, then packed at 100 s.

    They are measured at 80 s and requeued at 100 s with all their work to do again.
    """
    trace = a_trace(by("a", 1, a_s, profile=known("a")), by("b", 1, b_s, profile=known("b")))
    cluster = a_cluster(
        trace,
        profiled=lambda job: False,
        interference=Halves(),
        overheads=OverheadSettings(requeue_s=0.0),
        mend_survivors=mend_survivors,
        memory=memory,
    )
    cluster.advance(0.0)
    start(cluster, "a", "vc-1:0")
    start(cluster, "b", "vc-1:1")
    cluster.advance(80.0)
    cluster.advance(100.0)
    cluster.apply([Action(j, VC, Requeue(WHY, part=True)) for j in "ab"])
    start(cluster, "a", "vc-1:0")
    start(cluster, "b", "vc-1:0", "a")
    return cluster


def alone(
    item: TraceJob, where: str = "vc-1:0", layout: dict[str, tuple[Node, ...]] | None = None
) -> SimulatedCluster:
    """One job, started at 0 s."""
    cluster = a_cluster(a_trace(item), layout, profiled=lambda job: False)
    cluster.advance(0.0)
    start(cluster, item.job.id, where)
    return cluster


def run_out(cluster: SimulatedCluster) -> None:
    while (at_s := cluster.next_event_s()) is not None:
        cluster.advance(at_s)


def test_a_job_alone_ends_after_its_duration() -> None:
    cluster = a_cluster(a_trace(by("a", 1, 123.0, 7.0)), profiled=lambda job: False)
    assert cluster.next_event_s() == 7.0
    cluster.advance(7.0)
    cluster.advance(10.0)
    start(cluster, "a", "vc-1:0")
    run_out(cluster)
    outcome = cluster.outcomes["a"]
    assert (outcome.start_s, outcome.end_s, outcome.queue_s, outcome.jct_s) == (10.0, 133.0, 3.0, 126.0)


def test_pair_speeds_move_the_ends_exactly() -> None:
    cluster = pair()
    run_out(cluster)
    # a at 0.5: 800 s of its 1000 s are done when b at 0.25 has done 400 s, at 100 + 1600; then 200 s alone
    assert cluster.outcomes["b"].end_s == pytest.approx(1700.0)
    assert cluster.outcomes["a"].end_s == pytest.approx(1900.0)


def test_the_survivor_of_a_pair_recovers() -> None:
    cluster = pair()
    cluster.advance(1700.0)
    (left,) = cluster.observe().partitions[VC].running
    assert (left.job.id, left.partner) == ("a", None)
    assert (cluster.busy_gpus, cluster.shared_gpus) == (1, 0)


def test_time_spent_packed_is_counted_for_both() -> None:
    cluster = pair()
    run_out(cluster)
    assert {j: o.packed_s for j, o in cluster.outcomes.items()} == {"a": 1600.0, "b": 1600.0}
    assert all(o.packed for o in cluster.outcomes.values())


def test_without_mending_the_survivor_of_the_first_placed_stays_slow() -> None:
    mended, slow = pair(True, 400.0, 1000.0), pair(False, 400.0, 1000.0)
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


@pytest.mark.parametrize("leaves", ["a", "b"])
def test_a_pair_that_parts_before_a_sampler_could_judge_it_leaves_nothing(leaves: str) -> None:
    memory = PairMemory()
    cluster = pair(memory=memory)
    cluster.advance(159.0)
    cluster.apply([Action(leaves, VC, Requeue(WHY, part=True))])
    cluster.advance(160.0)
    assert len(memory) == 0


def test_the_judgement_of_a_pair_says_nothing_of_the_next_partner() -> None:
    memory = PairMemory()
    cluster = pair(memory=memory)
    cluster.advance(130.0)
    cluster.apply([Action("a", VC, Requeue(WHY, part=True))])
    start(cluster, "a", "vc-1:0", "b")
    cluster.advance(160.0)
    assert len(memory) == 0
    cluster.advance(190.0)
    assert len(memory) == 1


@pytest.mark.parametrize(("gpus", "cost_s"), [(8, 40.0), (9, 60.0)])
def test_a_preempted_job_keeps_its_work_and_pays(gpus: int, cost_s: float) -> None:
    where = "n1:0-7" if gpus == 8 else "n1:0-7 n2:0"
    cluster = alone(by("a", gpus, 1000.0), where, {VC: nodes(2)})
    cluster.advance(300.0)
    cluster.apply([Action("a", VC, Requeue(WHY))])
    (waiting,) = cluster.observe().partitions[VC].pending
    assert (waiting.ran_s, waiting.restarts, waiting.alone) == (300.0, 1, False)
    start(cluster, "a", where)
    run_out(cluster)
    assert cluster.outcomes["a"].end_s == 300.0 + 700.0 + cost_s
    assert cluster.outcomes["a"].preemptions == 1


def in_profiling(item: TraceJob) -> SimulatedCluster:
    cluster = a_cluster(
        a_trace(item), profiling_nodes=nodes(1, prefix="p"), overheads=OverheadSettings(requeue_s=10.0)
    )
    cluster.advance(0.0)
    start(cluster, item.job.id, "p1:0", room=PROFILING)
    return cluster


def member(cluster: SimulatedCluster, room: str) -> Running:
    (entry,) = cluster.observe().partitions[room].running
    return entry


def test_a_released_job_starts_over_and_pays_for_the_requeue() -> None:
    cluster = in_profiling(by("a", 1, 500.0, profile=LIGHT))
    cluster.advance(80.0)
    cluster.apply([Action("a", PROFILING, EndProfiling(WHY))])
    assert cluster.moved
    (waiting,) = cluster.observe().partitions[VC].pending
    assert (waiting.profile, waiting.ran_s, waiting.since_s) == (LIGHT, 80.0, 80.0)
    cluster.advance(100.0)
    start(cluster, "a", "vc-1:0")
    run_out(cluster)
    outcome = cluster.outcomes["a"]
    assert (outcome.end_s, outcome.queue_s, outcome.profiled_s) == (100.0 + 500.0 + 10.0, 20.0, 80.0)


def test_a_kept_job_goes_on_where_it_is() -> None:
    cluster = in_profiling(by("a", 1, 500.0, profile=LIGHT))
    cluster.advance(80.0)
    cluster.apply([Action("a", PROFILING, Keep(WHY))])
    assert member(cluster, PROFILING).stage is Stage.MAIN
    run_out(cluster)
    assert cluster.outcomes["a"].end_s == 500.0
    assert not cluster.outcomes["a"].ended_in_profiling


@pytest.mark.parametrize(("cold", "t_prof_s"), [(False, 80.0), (True, 240.0)])
def test_readings_are_shown_only_after_t_prof(cold: bool, t_prof_s: float) -> None:
    cluster = in_profiling(by("a", 1, 500.0, profile=LIGHT, long_cold_start=cold))
    cluster.advance(t_prof_s - 0.001)
    assert member(cluster, PROFILING).profile is None
    cluster.advance(t_prof_s)
    assert member(cluster, PROFILING).profile == LIGHT


def test_a_job_that_was_not_profiled_is_measured_in_place() -> None:
    cluster = alone(by("a", 1, 500.0, profile=HEAVY))
    cluster.advance(79.0)
    assert member(cluster, VC).profile is None
    cluster.advance(80.0)
    assert (member(cluster, VC).profile, member(cluster, VC).stage) == (HEAVY, Stage.MAIN)


def test_a_job_that_left_its_gpus_before_t_prof_is_not_measured() -> None:
    cluster = alone(by("a", 1, 500.0, profile=HEAVY))
    cluster.advance(50.0)
    cluster.apply([Action("a", VC, Requeue(WHY))])
    cluster.advance(60.0)
    start(cluster, "a", "vc-1:0")
    cluster.advance(139.0)
    assert member(cluster, VC).profile is None
    cluster.advance(140.0)
    assert member(cluster, VC).profile == HEAVY


def test_ends_come_before_arrivals_at_the_same_instant() -> None:
    outcomes, _ = replay("fifo", a_trace(by("a", 1, 100.0), by("b", 1, 5.0, 100.0)), {VC: nodes(1, 1)})
    assert outcomes["b"].start_s == 100.0


def test_what_ended_is_reported_once() -> None:
    cluster = alone(by("a", 1, 30.0, state="FAILED"))
    cluster.advance(30.0)
    (ended,) = cluster.observe().ended
    assert (ended.job.id, ended.ran_s, ended.end_s, ended.state) == ("a", 30.0, 30.0, "FAILED")
    assert not cluster.observe().ended


def test_a_job_of_no_duration_ends_at_once() -> None:
    outcomes, _ = replay("fifo", a_trace(by("a", 1, 0.0, 5.0)), {VC: nodes(1, 1)})
    assert (outcomes["a"].end_s, outcomes["a"].jct_s) == (5.0, 0.0)


@pytest.mark.parametrize("rule", [lambda job: True, lambda job: job.gpus == 1], ids=["all", "small"])
def test_new_jobs_enter_where_job_submit_sends_them(rule: Callable[..., bool]) -> None:
    trace = a_trace(by("small"), by("large", 4))
    cluster = a_cluster(trace, profiled=rule, profiling_nodes=nodes(1, prefix="p"))
    cluster.advance(0.0)
    rooms = cluster.observe().partitions
    inside = {e.job.id for e in rooms[PROFILING].pending if isinstance(e, Pending)}
    assert inside == {item.job.id for item in trace.jobs if rule(item.job)}


def test_without_profiling_nodes_the_cluster_cannot_profile() -> None:
    trace = a_trace(by("a"))
    assert Capability.PROFILE not in a_cluster(trace).capabilities
    assert Capability.PROFILE in a_cluster(trace, profiling_nodes=nodes(1, prefix="p")).capabilities


def test_a_vc_named_like_the_profiling_partition_is_an_error_that_says_what_to_do() -> None:
    """Its nodes and its jobs would be the profiling partition's: the replay never ended."""
    trace, layout = a_trace(by("j", vc=PROFILING)), {PROFILING: nodes(2)}
    with pytest.raises(ConfigError, match=r"VC 'profiling'.*another name.*policy\.profiling\.enabled"):
        a_cluster(trace, layout, profiling_nodes=nodes(1, prefix="p"))
    assert a_cluster(trace, layout).observe().profiling is None


def test_a_vc_without_nodes_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"jobs of VC lost.*nodes are given for: vc"):
        a_cluster(a_trace(by("a"), by("b", vc="lost")), {VC: nodes(1)})
