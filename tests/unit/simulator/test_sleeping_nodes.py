"""Nodes that sleep, in replays; how many stay ready; who waits for a node that is awake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import HEAVY, LIGHT, VC, a_cluster, a_trace, by, nodes
from lucid.config import SleepSettings
from lucid.core.decision import Hold, Start
from lucid.core.job import Pending, Running
from lucid.core.node import Node
from lucid.core.placement import NodeGpus
from lucid.core.reason import Rests
from lucid.core.snapshot import Partition
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.capacity.ready_nodes import ready_nodes
from lucid.simulator.cluster import SimulatedCluster
from lucid.simulator.engine import run
from lucid.simulator.metrics import run_metrics
from lucid.simulator.power import Power
from lucid.simulator.scenario import Scenario, Semantics, simulate
from scenes.jobs import a_job, runs, waits
from scenes.plans import FixedPredictor, guess, part, policy, snap

SLEEPS = Power(600.0, boot_s=240.0, idle_w=500.0)


def sleeping(*items: object, power: Power = SLEEPS, count: int = 1, **sections: object) -> SimulatedCluster:
    return a_cluster(a_trace(*items), {VC: nodes(count, prefix="vc-")}, profiled=lambda job: False, power=power)  # type: ignore[arg-type]


def test_a_start_on_a_sleeping_node_boots_it_and_begins_when_it_is_awake() -> None:
    result = run(sleeping(by("a", 1, 100.0), by("b", 1, 100.0, 1000.0)), policy("fifo"), HistoryPredictor())
    a, b = result.outcomes
    assert (a.start_s, a.end_s) == (0.0, 100.0)
    assert (b.start_s, b.end_s, b.queue_s) == (1240.0, 1340.0, 240.0)
    awake_s = 700.0 + 340.0  # asleep from 600 s after the first job's end until the second comes
    assert run_metrics(result)["power"] == {
        "node_h_awake": pytest.approx(awake_s / 3600),
        "node_h_idle": pytest.approx((600.0 + 240.0) / 3600),
        "idle_kwh": pytest.approx((600.0 + 240.0) / 3600 * 0.5),
        "boots": 1,
    }


def test_a_job_that_joins_while_the_node_boots_waits_for_the_rest_of_it() -> None:
    cluster = sleeping(by("a", 1, 100.0, 1000.0), by("b", 1, 100.0, 1100.0))
    result = run(cluster, policy("fifo"), HistoryPredictor())
    assert [outcome.end_s for outcome in result.outcomes] == [1340.0, 1340.0]
    assert run_metrics(result)["power"]["boots"] == 1


def test_jobs_are_put_together_on_nodes_that_are_awake() -> None:
    items = [by("long", 1, 5000.0), by("late", 4, 100.0, 2000.0)]
    result = run(sleeping(*items, count=2), policy("fifo"), HistoryPredictor())
    assert {outcome.placement[0].node for outcome in result.outcomes} == {"vc-1"}
    assert run_metrics(result)["power"]["boots"] == 0


def test_free_nodes_sleep_at_once_where_nothing_is_forecast() -> None:
    ready = replace(SLEEPS, ready=SleepSettings())
    cluster = sleeping(by("a", 8, 100.0), by("b", 8, 100.0, 1000.0), power=ready)
    result = run(cluster, policy("fifo"), HistoryPredictor())
    assert run_metrics(result)["power"]["node_h_awake"] == pytest.approx((160.0 + 340.0) / 3600)


def ready(gpus_per_hour: float, *running: Running, boot_s: float = 240.0, share: float = 0.9) -> int:
    partition = Partition(VC, nodes(3), running=running)
    return ready_nodes(partition, gpus_per_hour, boot_s, SleepSettings(ready_share=share)).nodes


def test_as_many_nodes_stay_ready_as_the_forecast_asks_for() -> None:
    assert ready(0.0) == ready(2.0) == 0  # next to nothing comes while a node boots
    assert ready(60.0) == 1
    assert ready(400.0) == 3  # all there are
    assert ready(60.0, share=0.0) == 0
    assert ready(60.0, boot_s=0.0) == 0


def test_gpus_beside_running_jobs_count_as_ready() -> None:
    small, full = (Running(a_job(f"r{mask}"), 0.0, (NodeGpus("n1", mask),)) for mask in (0b1, 0xFF))
    assert ready(20.0, small) == 0
    assert ready(20.0, full) == 1


def asleep_beside_full(share: float) -> tuple[Partition, dict[str, object]]:
    full = Running(a_job("full", 4), 0.0, (NodeGpus("a", 0b1111),))
    partition = part([Node("a", 4), Node("s", 4, boot_s=240.0)], [Pending(a_job("waits", 1, 900.0), 900.0)], [full])
    return partition, {"sleep": {"wake_share": share}}


@pytest.mark.parametrize(("share", "now_s", "starts"), [(0.0, 900.0, True), (0.1, 900.0, False), (0.1, 1000.0, True)])
def test_a_node_is_woken_once_a_job_has_waited_for_its_share(share: float, now_s: float, starts: bool) -> None:
    partition, sections = asleep_beside_full(share)
    predictions = {"full": guess(5000.0), "waits": guess(1000.0)}
    made = policy("lucid", FixedPredictor(), **sections).plan(snap(now_s, partition, predictions=predictions))
    decision = made.partitions[VC].decisions["waits"]
    assert isinstance(decision, Start if starts else Hold)
    assert (Rests(now_s - 900.0, 1000.0, share) in decision.reasons) == (share > 0)
    assert starts or made.wake_s == 1000.0


@pytest.mark.parametrize("boot_s", [0.0, 240.0])
def test_a_job_shares_before_a_node_is_woken_for_it(boot_s: float) -> None:
    """A pair too slow for one that finds free GPUs, and fast enough for one that would wait otherwise."""
    machines = [Node("a", 4, 24000), Node("s", 4, 24000, boot_s=boot_s)]
    first = runs("first", "a:0-3", profile=HEAVY)
    partition = part(machines, [waits("second", 4, profile=LIGHT)], [first])
    lucid = policy(
        "lucid", FixedPredictor(speed=lambda a, b: (0.8, 0.8)), packing={"gss": 4, "waiting_pair_speed": 0.7}
    )
    predictions = {"first": guess(90000.0, 1), "second": guess(9000.0, 1)}
    start = lucid.plan(snap(900.0, partition, predictions=predictions)).partitions[VC].decisions["second"]
    assert isinstance(start, Start)
    assert start.beside == ("first" if boot_s else None)


def test_sleep_is_for_the_honest_semantics() -> None:
    scenario = Scenario(a_trace(by("x")), {VC: 1}, semantics=Semantics.PUBLISHED, power=SLEEPS)
    with pytest.raises(ConfigError, match="--power is for --semantics honest"):
        simulate(scenario, "fifo")
