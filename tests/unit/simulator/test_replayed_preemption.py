"""Jobs that may be preempted, in replays: the file of rules, who goes, what each loses, and the figures."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders import LIGHT, a_cluster, a_job, a_trace, at, by, elastic, nodes, part
from examples import tried
from lucid.config import OverheadSettings
from lucid.core.decision import Plan, Start
from lucid.core.job import Running, Yields
from lucid.core.ledger import Ledger
from lucid.core.node import Window
from lucid.core.placement import placement_gpus
from lucid.core.ports import Applied
from lucid.core.snapshot import Snapshot
from lucid.errors import ConfigError, TraceError
from lucid.explain.replayed_story import run_story, story_teller
from lucid.orchestrator.capacity.placement import consolidated
from lucid.orchestrator.policies.shadow.advance import without_yielding
from lucid.simulator.cluster import SimulatedCluster
from lucid.simulator.engine import run
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import run_metrics
from lucid.simulator.outages import Outages
from lucid.simulator.power import Power
from lucid.simulator.preemption import Group, Preemption, read_preemption
from lucid.simulator.record import DecisionLog, write_decisions, write_jobs
from lucid.simulator.scenario import Scenario, Semantics, simulate
from lucid.simulator.slurm_victims import slurm_claim
from lucid.simulator.traces import Trace, TraceJob
from scenes.plans import FixedPredictor, policy

NODES = {"own": nodes(2, gpus=4)}
SCAV = Preemption({"scav": Group(("n1", "n2"))})
FREE = OverheadSettings(requeue_s=0.0)


def scav(name: str, gpus: int, seconds: float, submit_s: float = 0.0, **rest: Any) -> TraceJob:
    return by(name, gpus, seconds, submit_s, vc="scav", **rest)


def own(name: str, gpus: int, seconds: float, submit_s: float = 0.0, **rest: Any) -> TraceJob:
    return by(name, gpus, seconds, submit_s, vc="own", **rest)


def rules(**traits: Any) -> Preemption:
    return Preemption({"scav": Group(("n1", "n2"), **traits)})


def predictor(trace: Trace) -> FixedPredictor:
    return FixedPredictor({item.job.id: item.duration_s for item in trace.jobs})


def ran(
    name: str, trace: Trace, preemption: Preemption = SCAV, slurm_chooses: bool = False, **options: Any
) -> tuple[dict[str, tuple[float, float]], dict[str, Any]]:
    """When each job first started and ended, and the figures of preemption."""
    cluster = a_cluster(
        trace, NODES, profiled=lambda job: False, preemption=preemption, slurm_chooses=slurm_chooses,
        overheads=FREE, **options,
    )  # fmt: skip
    result = run(cluster, policy(name, profiling={"enabled": False}), predictor(trace))
    outcomes = {o.job.id: (o.start_s, o.end_s) for o in result.outcomes}
    return outcomes, run_metrics(result)["preempt"]


# -- the file ------------------------------------------------------------------------------------------------

TRACE = a_trace(
    own("a", 1, 10.0, user="anna"), own("b", 1, 10.0, user="bert"), scav("s", 1, 10.0), own("c", 1, 9.0, account="x")
)


def read(tmp_path: Path, *lines: str, head: str = "", trace: Trace = TRACE) -> tuple[Preemption, Trace]:
    path = tmp_path / "preempt.csv"
    path.write_text("\n".join([head or "name,jobs,nodes,mode,tier,exempt,grace,checkpoint", *lines]) + "\n")
    return read_preemption(path, trace, lambda owners: dict.fromkeys(owners.vcs, NODES["own"]))


def test_groups_are_partitions_over_nodes_of_others(tmp_path: Path) -> None:
    found, trace = read(
        tmp_path, "scav,,*,REQUEUE,,0:10:00,,1:00:00", '"guests","user=anna account=x",n2,cancel,2,,30,'
    )
    assert found == Preemption(
        {
            "scav": Group(("n1", "n2"), exempt_s=600.0, checkpoint_s=3600.0),
            "guests": Group(("n2",), True, 2, grace_s=30.0),
        }
    )
    assert {item.job.id: item.job.vc for item in trace.jobs} == {
        "a": "guests",
        "b": "own",
        "c": "guests",
        "s": "scav",
    }


def test_without_nodes_they_are_qos(tmp_path: Path) -> None:
    found, trace = read(tmp_path, "low,user=anna,REQUEUE,0", "mid,user=bert,CANCEL,5", head="name,jobs,mode,tier")
    assert found.by_qos
    assert found.qos_over("low") == ("mid", "normal")
    assert found.qos_over("mid") == ("normal",)
    assert {item.job.id: item.job.qos for item in trace.jobs} == {
        "a": "low",
        "b": "mid",
        "c": "normal",
        "s": "normal",
    }
    assert {item.job.vc for item in trace.jobs} == {"own", "scav"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("scav,,*,SUSPEND,,,,", "line 2: column mode: 'SUSPEND' keeps the memory of its GPUs, so it cannot"),
        ("scav,,*,kill,,,,", "line 2: column mode: 'kill' is unknown; write REQUEUE or CANCEL"),
        ("scav,,*,,,,,", "line 2: column mode: '' is unknown"),
        ("scav,,*,REQUEUE,-1,,,", "line 2: column tier: '-1' is not a PriorityTier"),
        ("scav,,*,REQUEUE,,soon,,", "line 2: column exempt: 'soon' is no time; write seconds, or 0:10:00"),
        ("scav,,*,REQUEUE,,,-5,", "line 2: column grace: '-5' is no time"),
        ("scav,,*,REQUEUE,,,,0", "line 2: column checkpoint: must be above 0"),
        ("scav,,n9,REQUEUE,,,,", "line 2: column nodes: there is no VC or node 'n9'; write *, or of these: own (n1"),
        ("scav,,n1,n2,REQUEUE,,,,", "line 2: more values than columns; quote a list of nodes"),
        (",,*,REQUEUE,,,,", "line 2: column name: '' is empty"),
        ("normal,user=anna,,REQUEUE,,,,", "line 2: column name: 'normal' is empty, twice in the file, or the name"),
        ("none,,*,REQUEUE,,,,", "line 2: column jobs: the trace has no job of 'none'; write VCs, user=NAME or"),
        ("g,user=nobody,*,REQUEUE,,,,", "line 2: column jobs: the trace has no job of 'user=nobody'"),
        ("own,user=anna,*,REQUEUE,,,,", "line 2: column name: VC 'own' has other jobs, too"),
        ("scav,own scav,*,REQUEUE,,,,", "every job of the trace may be preempted"),
        ("scav,,*,REQUEUE,,,,\nscav,,*,REQUEUE,,,,", "line 3: column name: 'scav' is empty, twice"),
        ("scav,,*,REQUEUE,,,,\nlow,own,,REQUEUE,,,,", "line 3: column nodes: is empty, and not in every line"),
        ("scav,,*,REQUEUE,,,,\ng,user=bert scav,*,REQUEUE,,,,", "line 3: column jobs: job s is in group 'scav'"),
        ("", "names no jobs"),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_with_its_place(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(tmp_path, *line.split("\n"))
    assert says in str(caught.value)
    assert str(tmp_path / "preempt.csv") in str(caught.value)


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1: its columns are job_id,when; write name,jobs,nodes,mode"):
        read(tmp_path, head="job_id,when")
    with pytest.raises(TraceError, match="cannot be read"):
        read_preemption(tmp_path / "none.csv", TRACE, lambda owners: NODES)


# -- who goes, and what it costs -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lucid", "backfill", "fifo", "sjf", "qssf"])
def test_an_owner_starts_at_once_and_the_one_goes_that_loses_least(name: str) -> None:
    trace = a_trace(scav("old", 4, 1000.0), scav("young", 4, 1000.0, 50.0), own("owner", 2, 10.0, 100.0))
    jobs, figures = ran(name, trace)
    assert jobs == {"old": (0.0, 1000.0), "owner": (100.0, 110.0), "young": (50.0, 1110.0)}
    assert figures == {
        "preempted": 1,
        "jobs_preempted": 1,
        "cancelled": 0,
        "lost_gpu_h": pytest.approx(4 * 50 / 3600),
        "owners": 1,
        "owners_avg_queue_s": 0.0,
        "owners_p999_queue_s": 0.0,
        "owners_avg_jct_s": 10.0,
        "scavengers": 2,
        "scavengers_avg_queue_s": pytest.approx(5.0),
        "scavengers_avg_jct_s": pytest.approx((1000 + 1060) / 2),
    }


def test_slurms_own_choice_is_by_the_number_of_the_job() -> None:
    trace = a_trace(scav("old", 4, 1000.0), scav("young", 4, 1000.0, 50.0), own("owner", 2, 10.0, 100.0))
    jobs, figures = ran("backfill", trace, slurm_chooses=True)
    assert jobs == {"old": (0.0, 1110.0), "owner": (100.0, 110.0), "young": (50.0, 1050.0)}
    assert figures["lost_gpu_h"] == pytest.approx(4 * 100 / 3600)
    _, figures = ran("backfill", trace, replace(SCAV, youngest_first=True), slurm_chooses=True)
    assert figures["lost_gpu_h"] == pytest.approx(4 * 50 / 3600)


def test_a_scavenger_preempts_nobody_and_two_tiers_are_kept() -> None:
    both = Preemption({"scav": Group(("n1", "n2")), "mid": Group(("n1",), tier=2)})
    trace = a_trace(
        own("owner", 4, 500.0),
        scav("low", 4, 500.0),
        by("mid", 4, 100.0, 10.0, vc="mid"),
        scav("next", 4, 100.0, 20.0),
    )
    jobs, figures = ran("fifo", trace, both)
    assert jobs["owner"] == (0.0, 500.0)  # on n1
    assert jobs["mid"] == (500.0, 600.0)  # which has no other node
    assert jobs["low"] == (0.0, 500.0)
    assert figures["preempted"] == 0
    jobs, figures = ran("fifo", a_trace(scav("low", 4, 500.0), scav("low2", 4, 500.0), *trace.jobs[2:]), both)
    assert jobs["mid"] == (10.0, 110.0)
    assert figures["preempted"] == 1


def test_what_is_lost_is_the_run_or_what_came_after_the_last_checkpoint() -> None:
    trace = a_trace(scav("s", 8, 1000.0), own("owner", 4, 10.0, 250.0))
    jobs, figures = ran("lucid", trace)
    assert jobs["s"] == (0.0, 260.0 + 1000.0)
    assert figures["lost_gpu_h"] == pytest.approx(8 * 250 / 3600)
    jobs, figures = ran("lucid", trace, rules(checkpoint_s=100.0))
    assert jobs["s"] == (0.0, 260.0 + 800.0)
    assert figures["lost_gpu_h"] == pytest.approx(8 * 50 / 3600)
    twice = a_trace(*trace.jobs, own("again", 4, 10.0, 260.0 + 330.0))
    jobs, figures = ran("lucid", twice, rules(checkpoint_s=100.0))
    assert jobs["s"] == (0.0, 600.0 + 500.0)
    assert (figures["preempted"], figures["jobs_preempted"]) == (2, 1)
    assert figures["lost_gpu_h"] == pytest.approx(8 * 80 / 3600)


def test_a_cancelled_job_is_submitted_again_and_begins_from_nothing() -> None:
    trace = a_trace(scav("s", 8, 1000.0), scav("next", 8, 10.0, 5.0), own("owner", 4, 10.0, 250.0))
    for preemption in (rules(ends=True, checkpoint_s=100.0), SCAV):
        stays = preemption.groups["scav"].ends
        seen = trace if stays else replace(
            trace, jobs=tuple(replace(i, job=replace(i.job, requeueable=False)) for i in trace.jobs)
        )  # fmt: skip
        jobs, figures = ran("fifo", seen, preemption)
        assert jobs["next"] == (260.0, 270.0)  # it was submitted before
        assert jobs["s"] == (0.0, 270.0 + 1000.0)
        assert figures["cancelled"] == 1
        assert figures["scavengers_avg_jct_s"] == pytest.approx((1270.0 + 265.0) / 2)


def test_an_elastic_job_keeps_its_work_unless_it_is_cancelled() -> None:
    item = elastic("s", 8, epochs=10.0, table=[100.0] * 8, limits={"min_gpus": 8}, vc="scav")
    trace = a_trace(item, own("owner", 4, 10.0, 500.0))
    costs = OverheadSettings()
    jobs, figures = ran("fifo", trace)
    assert figures["lost_gpu_h"] == 0.0
    assert jobs["s"][1] == pytest.approx(1000.0 + 10.0 + costs.elastic_start_s + costs.rescale_s)
    jobs, figures = ran("fifo", trace, rules(ends=True))
    assert figures["lost_gpu_h"] == pytest.approx(8 * 500 / 3600)
    assert jobs["s"][1] == pytest.approx(510.0 + 1000.0 + costs.elastic_start_s)


def test_exempt_and_grace_times_are_kept() -> None:
    trace = a_trace(scav("s", 8, 1000.0), own("owner", 4, 10.0, 50.0))
    jobs, figures = ran("fifo", trace, rules(exempt_s=200.0))
    assert jobs["owner"] == (200.0, 210.0)
    assert figures["lost_gpu_h"] == pytest.approx(8 * 200 / 3600)
    jobs, figures = ran("fifo", trace, rules(grace_s=30.0))
    assert jobs["owner"] == (80.0, 90.0)
    assert figures["lost_gpu_h"] == pytest.approx(8 * 50 / 3600)
    assert figures["owners_avg_queue_s"] == 30.0


def test_both_of_a_pair_go() -> None:
    pair = [scav(name, 4, 2000.0, submit_s, profile=LIGHT) for name, submit_s in (("a", 0.0), ("b", 900.0))]
    trace = a_trace(own("first", 4, 2000.0), *pair, own("owner", 1, 10.0, 950.0))
    jobs, figures = ran("lucid", trace, measured_before=True)
    assert jobs["owner"] == (950.0, 960.0)
    assert figures["preempted"] == 2
    assert figures["lost_gpu_h"] == pytest.approx((4 * 950 + 4 * 50) / 3600)


def test_by_qos_jobs_give_way_within_their_vc() -> None:
    low = Preemption({"low": Group()}, by_qos=True)
    trace = a_trace(
        own("low", 8, 1000.0, qos="low"),
        own("other", 1, 10.0, 40.0, qos="low"),
        own("high", 1, 10.0, 50.0, qos="normal"),
    )
    jobs, figures = ran("lucid", trace, low)
    assert jobs["high"] == (50.0, 60.0)
    assert jobs["other"] == (50.0, 60.0)  # nobody goes for it
    assert (figures["preempted"], figures["owners"], figures["scavengers"]) == (1, 1, 2)


def test_what_both_layers_would_take_goes_to_the_owners_and_the_other_is_planned_anew_at_once() -> None:
    trace = a_trace(
        own("first", 8, 100.0), own("owner", 4, 50.0, 10.0), scav("s", 4, 50.0, 20.0), scav("t", 4, 9.0, 30.0)
    )
    jobs, _ = ran("fifo", trace)
    assert jobs == {"first": (0.0, 100.0), "owner": (100.0, 150.0), "s": (100.0, 150.0), "t": (150.0, 159.0)}


def test_windows_and_sleep_hold_for_both_layers() -> None:
    closed = Outages({"n2": (Window(100.0, 200.0, "m"),)})
    trace = a_trace(scav("s", 4, 50.0, 60.0, time_limit_s=50.0), own("owner", 4, 500.0, time_limit_s=500.0))
    jobs, _ = ran("fifo", trace, outages=closed)
    assert jobs == {"owner": (0.0, 500.0), "s": (200.0, 250.0)}
    jobs, _ = ran("fifo", trace, power=Power(10.0, 40.0))
    assert jobs["s"] == (100.0, 150.0)  # n2 boots


# -- Slurm's order ---------------------------------------------------------------------------------------------


def entry(name: str, where: str, submit_s: float, start_s: float) -> Running:
    placement = at(where)
    return Running(a_job(name, placement_gpus(placement), submit_s), start_s, placement, yields=Yields())


def test_slurm_takes_few_nodes_first_then_looks_again_on_the_chosen_node() -> None:
    wide = entry("wide", "n1:0-1 n2:0-1", 0.0, 0.0)
    first, second, third = (
        entry("first", "n1:2-3", 1.0, 50.0), entry("second", "n2:2", 2.0, 1.0), entry("third", "n2:3", 3.0, 90.0)
    )  # fmt: skip
    partition = part(NODES["own"], [], [wide, first, second, third])

    def gone(gpus: int, youngest_first: bool = False) -> set[str]:
        found = slurm_claim(a_job("o", gpus, 99.0), partition, 99.0, lambda job: 1, youngest_first)
        assert found is not None
        assert placement_gpus(found[0]) == gpus
        return {victim.job.id for victim in found[1]}

    assert gone(1) == {"first"}
    assert gone(1, youngest_first=True) == {"third"}
    # first, second and third go before n2 has three; then second (which made it fit last) and third, without first
    assert gone(2) == {"first"}
    assert gone(4) == {"wide", "first"}
    assert slurm_claim(a_job("o", 9, 99.0), partition, 99.0, lambda job: 1) is None


# -- what is refused -------------------------------------------------------------------------------------------


def test_a_policy_that_claims_nothing_is_refused() -> None:
    scenario = Scenario(a_trace(own("a", 1, 10.0), scav("s", 1, 10.0)), {"own": 2}, NodeShape(4), preemption=SCAV)
    with pytest.raises(ConfigError, match="policy 'srtf' claims no GPUs of jobs that may be preempted"):
        simulate(scenario, "srtf")
    with pytest.raises(ConfigError, match="--preempt is for --semantics honest"):
        simulate(replace(scenario, semantics=Semantics.PUBLISHED), "lucid")


def test_a_group_is_not_called_as_the_simulators_own_partitions() -> None:
    with pytest.raises(ConfigError, match="a group of jobs that may be preempted is called 'pool'"):
        a_cluster(a_trace(own("a", 1, 1.0)), NODES, preemption=Preemption({"pool": Group(("n1",))}))


def test_backfill_and_fifo_replay_slurms_own_choice() -> None:
    trace = a_trace(scav("old", 4, 1000.0), scav("young", 4, 1000.0, 50.0), own("owner", 2, 10.0, 100.0))
    rules = Preemption({"scav": Group(("own-000", "own-001"))})
    scenario = Scenario(trace, {"own": 2}, NodeShape(4), preemption=rules)
    lost = {
        name: run_metrics(simulate(scenario, name))["preempt"]["lost_gpu_h"] * 3600 / 4
        for name in ("backfill", "fifo", "sjf")
    }
    assert lost == {"backfill": pytest.approx(100), "fifo": pytest.approx(100), "sjf": pytest.approx(50)}


# -- whatever happens ------------------------------------------------------------------------------------------


class Watch:
    """A recorder that holds each cycle against the one before: who was preempted, what that cost, who had to wait."""

    def __init__(self, cluster: SimulatedCluster, slurm_chooses: bool, waits: bool) -> None:
        """``waits``: an owner may wait for GPUs of a job that is not to be preempted yet."""
        self.cluster, self.slurm_chooses, self.waits = cluster, slurm_chooses, waits
        self.lost_gpu_s, self.preempted = 0.0, 0

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        self._nobody_holds_what_another_holds()
        ran = {e.job.id: e for p in snapshot.partitions.values() for e in p.running if e.job.vc == p.name}
        for job_id, before in ran.items():
            now = self.cluster._live[job_id].view
            if not isinstance(now, Running) or now.start_s != before.start_s:
                assert before.job.vc == "scav"
                self.preempted += 1
                self.lost_gpu_s += before.gpus * before.elapsed_s(snapshot.now_s)
        refused = [one for one in applied if one.refused is not None]
        assert self.slurm_chooses or {one.action.partition for one in refused} <= {"scav"}
        owners = snapshot.partitions["own"]
        if owners.pending and not self.waits:  # the first of a queue waits for nobody who gives way
            first = min(owners.pending, key=lambda e: (e.job.submit_s, e.job.rank)).job
            room = consolidated(Ledger(without_yielding(owners)), first)
            assert room is None or isinstance(plan.partitions["own"].decisions[first.id], Start)

    def _nobody_holds_what_another_holds(self) -> None:
        running = [view for room in self.cluster._rooms.values() for view in room.running.values()]
        held: dict[str, int] = {}
        for placement in {view.placement for view in running}:  # a pair has one
            for name, mask in placement:
                assert not held.get(name, 0) & mask
                held[name] = held.get(name, 0) | mask


def a_scene(rng: random.Random) -> list[TraceJob]:
    jobs = []
    for i in range(rng.randint(2, 16)):
        kind = rng.choice([scav, scav, own])
        gpus, seconds = rng.choice([1, 1, 2, 3, 4, 8]), rng.choice([5.0, 40.0, 300.0, rng.uniform(1, 500)])
        profile = rng.choice([None, LIGHT])
        jobs.append(kind(f"j{i}", gpus, seconds, float(rng.randint(0, 300)), rank=i, profile=profile))
    return jobs


@tried(120, least=25)
def test_no_job_is_lost_and_what_victims_lose_is_counted(rng: random.Random) -> None:
    name = rng.choice(["lucid", "backfill", "fifo", "sjf", "qssf"])
    slurm_chooses = name in ("backfill", "fifo") and rng.random() < 0.5
    ends, exempt_s = rng.random() < 0.2, rng.choice([0.0, 0.0, 30.0])
    preemption = replace(rules(ends=ends, exempt_s=exempt_s), youngest_first=rng.random() < 0.3)
    trace = a_trace(*a_scene(rng))
    cluster = a_cluster(
        trace, NODES, profiled=lambda job: False, preemption=preemption, slurm_chooses=slurm_chooses,
        measured_before=rng.random() < 0.5, overheads=FREE,
    )  # fmt: skip
    watch = Watch(cluster, slurm_chooses, waits=exempt_s > 0.0 or name not in ("backfill", "fifo"))
    result = run(cluster, policy(name, profiling={"enabled": False}), predictor(trace), watch)
    figures = result.preempt
    assert figures is not None
    assert figures.preempted == watch.preempted
    assert figures.lost_gpu_s == pytest.approx(watch.lost_gpu_s)
    for outcome in result.outcomes:  # each was done, from its beginning to its end
        assert outcome.jct_s >= outcome.duration_s - 1e-6
    if not any(outcome.packed for outcome in result.outcomes):
        work_s = sum(outcome.duration_s * outcome.job.gpus for outcome in result.outcomes)
        assert result.series.busy_gpu_s == pytest.approx(work_s + figures.lost_gpu_s)


def test_the_story_of_a_victim_says_to_whom_it_gave_way(tmp_path: Path) -> None:
    trace = a_trace(scav("old", 4, 1000.0), scav("young", 4, 1000.0, 50.0), own("owner", 2, 10.0, 100.0))
    rules = Preemption({"scav": Group(("own-000", "own-001"))})
    scenario = Scenario(trace, {"own": 2}, NodeShape(4), preemption=rules)
    log = DecisionLog()
    result = simulate(scenario, "backfill", log)
    (tmp_path / "backfill").mkdir()
    write_jobs(tmp_path / "backfill" / "jobs.csv", result)
    write_decisions(tmp_path / "backfill" / "decisions.jsonl", log)
    told, _ = run_story(tmp_path / "backfill", "old")
    assert "day 0 00:01:40  gives way to job owner, and waits again" in told.text()
    by_id = {outcome.job.id: outcome for outcome in result.outcomes}
    assert "gives way to job owner" in story_teller({"backfill": log})(result, by_id["old"])
    assert "gives way" not in story_teller({"backfill": log})(result, by_id["young"])
