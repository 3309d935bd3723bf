"""What is stored or written comes back: records, traces, memory; and a plan is made again from its record alone."""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, structs
from test_elastic_jobs import NAMES, SECTIONS
from test_elastic_jobs import some_job as some_elastic_job
from test_elastic_jobs import some_nodes as some_elastic_nodes
from test_safety import VARIANTS, Scene, some_scene, with_stages
from test_starvation_bound import some_pool, wrong

from examples import examples, tried
from lucid.accounting.values import ENDED, NOT_ENDED
from lucid.config.policy import PolicySettings
from lucid.core.codec import field_names, from_json, from_text, has_fields, to_json
from lucid.core.decision import Action, Decided, Decision, Hold, PartitionPlan, Plan, decision_to_dict
from lucid.core.job import Elastic, Ended, Job, JobProfile, Pending, Progress, Running, TimeShares, Work, Yields
from lucid.core.node import Node, Window
from lucid.core.placement import NodeGpus
from lucid.core.ports import Applied, Predictor
from lucid.core.prediction import Prediction
from lucid.core.reason import REASONS, Reason, reason_to_dict
from lucid.core.reasons.queue import Unranked
from lucid.core.snapshot import ArrivalForecast, Partition, Snapshot
from lucid.models.throughput.model import ArrivalForecaster
from lucid.orchestrator.planner import PolicyHost
from lucid.orchestrator.registry import BUILT_IN, make_policy
from lucid.orchestrator.safety.check import SafetyCheck
from lucid.simulator.cluster.application import Application
from lucid.simulator.cluster.truth import OraclePredictor
from lucid.simulator.engine import run
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.store.plan_records import plan_bytes, read_record, record_bytes, replan
from lucid.store.port import JobNote, note_of
from lucid.store.values import value_from_json, value_to_json
from lucid.store.view import view_from, view_to_dict
from scenes.jobs import VC, elastic, nodes
from scenes.plans import FixedPredictor
from scenes.plans import settings as rules
from scenes.replays import Tape, a_cluster, a_trace, replay

_TEXTS = ("", "n1", "a-b_0.c", 'two "words"\n', "ü", "0:1")
_NUMBERS = (0, 1, -1, 7, 1 << 40)
_REASONS = [kind for name, kind in sorted(REASONS.items()) if kind.__module__.startswith("lucid.")]
_DECISIONS = get_args(Decision)


_BY_VERB = re.compile("Reason|Start|Decision|Action|PartitionPlan|_Entry")


def _values(kind: type, *rooms: str) -> Iterator[Any]:
    """The classes of values derived from this one in some rooms. Those that hold decisions or reasons go by verbs and
    kinds, and are left out."""
    for own in kind.__subclasses__():
        yield from _values(own, *rooms)
        if own.__module__.startswith(rooms) and not _BY_VERB.search(f"{own.__annotations__}"):
            yield own


_STORED = [
    *_values(Struct, "lucid.core.", "lucid.profiler.", "lucid.store.port"),
    *(Elastic, Ended, Job, JobProfile, Node, Pending, Progress, Running, TimeShares, Window, Work, Yields),
]


def anything(rng: random.Random, hint: Any) -> Any:
    """Some value of this type."""
    origin, of = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return anything(rng, rng.choice(of))
    if origin is Literal:
        return rng.choice(of)
    if origin is tuple and of[1:] == (...,):
        return tuple(anything(rng, of[0]) for _ in range(rng.choice((0, 1, 2))))
    if origin is tuple:
        return tuple(anything(rng, item) for item in of)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {anything(rng, of[0]): anything(rng, of[1]) for _ in range(rng.choice((0, 1, 2)))}
    if hint is NodeGpus:
        return NodeGpus(rng.choice(("n1", "gpu-01.site", "a:b")), rng.randrange(1, 1 << rng.choice((1, 8, 16))))
    if hint is Reason:
        return anything(rng, rng.choice(_REASONS))
    if has_fields(hint):
        return _noun(rng, hint)
    if issubclass(hint, Enum):
        return rng.choice([*hint])
    plain = {
        bool: rng.random() < 0.5,
        int: rng.choice(_NUMBERS),
        float: rng.choice((float(rng.choice(_NUMBERS)), rng.uniform(-9.0, 2e9))),
        str: rng.choice(_TEXTS),
        NoneType: None,
    }
    return plain[hint]


def _noun(rng: random.Random, kind: Any) -> Any:
    hints = get_type_hints(kind)
    needed = signature(kind).parameters
    while True:
        given = {
            name: anything(rng, hints[name])
            for name in field_names(kind)
            if needed[name].default is Parameter.empty or rng.random() < 0.6
        }
        try:
            return kind(**given)
        except ValueError:  # some classes take no limits that contradict each other
            continue


def _through_text(data: Any) -> Any:
    return json.loads(json.dumps(data))


@tried(100, 20)
def test_a_plan_and_what_it_was_made_of_come_back_from_a_picture(rng: random.Random) -> None:
    """Read in one go, or piece by piece; of predictions without what they were made of."""
    room = anything(rng, Partition)
    ids = [entry.job.id for entry in room.listed()]
    known = {i: structs.replace(anything(rng, Prediction), duration_terms=None, share_splits=()) for i in ids}
    shares, trust, arrivals = {("physics", "ann"): 0.25}, anything(rng, Unranked), anything(rng, ArrivalForecast)
    seen = Snapshot(7.0, {room.name: room}, (), known, {}, arrivals, shares, {trust.vc: trust})
    made = {f"{n}": anything(rng, rng.choice(_DECISIONS)) for n in range(4)}
    acts = tuple(Action(i, room.name, one) for i, one in made.items() if not isinstance(one, Hold))
    plan = Plan(7.0, {room.name: PartitionPlan(made, acts, 9.0)})
    text = json.dumps(view_to_dict(seen, plan))
    for view in (view_from(json.loads(text)), view_from(text)):
        again, part = view.snapshot(), view.plan().partitions[room.name]
        assert (part.decisions, part.actions, part.wake_s) == (made, acts, 9.0)
        assert _values(again.partitions[room.name]) == _values(room)
        assert (again.now_s, again.predictions, again.fair_share) == (7.0, known, shares)
        assert (again.arrivals, again.trust) == (arrivals, {trust.vc: trust})


def _values(noun: Any) -> dict[str, Any]:
    """Of a noun that is only equal to itself."""
    return {name: getattr(noun, name) for name in field_names(type(noun))}


def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("kind", _STORED, ids=lambda kind: kind.__name__)
@tried(20)
def test_what_is_stored_comes_back(kind: Any, rng: random.Random) -> None:
    """Where the reader knows the class, and where the record names it."""
    made = anything(rng, kind)
    assert from_json(kind, _through_text(to_json(made))) == made
    assert from_text(kind, json.dumps(to_json(made))) == made
    assert value_from_json(_through_text(value_to_json(made))) == made


@tried(40)
def test_what_names_itself_comes_back(rng: random.Random) -> None:
    """A decision from a picture, too."""
    for kind in _REASONS:
        why = anything(rng, kind)
        assert Reason.from_json(_through_text(reason_to_dict(why))) == why
    for kind in _DECISIONS:
        decision = anything(rng, kind)
        assert value_from_json(_through_text(value_to_json(decision))) == decision
        assert Decided.from_json(_through_text(decision_to_dict(decision))) == decision
    note = anything(rng, JobNote)
    assert note_of(note.job_id, json.dumps(to_json(note)), _fail) == note


KEEPS_MEMORY = [name for name, (policy, made) in VARIANTS.items() if policy == "tiresias" or "fairness" in made] + [
    "lucid, time-aware"
]


def some_cancelled(rng: random.Random, snapshot: Snapshot) -> Snapshot:
    """The same without some of the jobs that wait, and without some that run alone."""
    if rng.random() < 0.3:
        return snapshot
    parts = {}
    for name, part in snapshot.partitions.items():
        pending = tuple(entry for entry in part.pending if rng.random() < 0.6)
        running = tuple(e for e in part.running if e.partner is not None or e.group or rng.random() < 0.8)
        parts[name] = replace(part, pending=pending, running=running)
    return replace(snapshot, partitions=parts)


def plan_by_old_memory(
    rng: random.Random, tape: Tape, name: str, sections: Mapping[str, Any], predictor: Predictor, times: int = 6
) -> int:
    """Plans of policies that have no past, each at some cycle by what some earlier plan left. How many left any?"""
    left = 0
    for _ in range(times):
        then, now = sorted(rng.choices(range(len(tape.cycles)), k=2))
        memory = value_from_json(value_to_json(dict(tape.cycles[then][1].memory)))
        left += bool(memory)
        snapshot = replace(some_cancelled(rng, tape.cycles[now][0]), memory=memory)
        fresh = make_policy(name, rules(**sections), predictor)
        plan = fresh.plan(snapshot)
        SafetyCheck(fresh.rules, rules(**sections))(snapshot, plan)
        decided = [job for part in plan.partitions.values() for job in part.decisions]
        waiting = {entry.job.id for part in snapshot.partitions.values() for entry in part.pending}
        assert waiting <= set(decided)
        assert value_to_json(dict(plan.memory))
    return left


def taped(scene: Scene, variant: str) -> tuple[str, Mapping[str, Any], Predictor, Tape]:
    """The policy of a variant of test_safety, its settings and predictor, and a replay of a scene by it."""
    (name, sections), predictor, tape = VARIANTS[variant], scene.predictor(), Tape()
    if not scene.profiling_nodes:
        sections = {**sections, "profiling": {**sections.get("profiling", {}), "enabled": False}}
    chosen = make_policy(name, rules(**sections), predictor)
    run(scene.cluster(chosen, rules(**sections)), chosen, predictor, tape, settings=rules(**sections))
    return name, sections, predictor, tape


@pytest.mark.parametrize("variant", KEEPS_MEMORY)
@pytest.mark.parametrize("other", [False, True], ids=["older", "of another cluster"])
def test_any_other_memory_makes_a_safe_plan(variant: str, other: bool) -> None:
    """Job numbers begin anew after Slurm was installed anew: the same ids are other jobs."""
    left = 0
    for seed in range(examples(15, 3)):
        rng = random.Random(seed)
        scene = replace(some_scene(rng, 30), profiling_nodes=())
        name, sections, predictor, tape = taped(scene, variant)
        if other:
            *_, elsewhere = taped(replace(some_scene(rng), profiling_nodes=()), variant)
            tape.cycles = [(seen, rng.choice(elsewhere.cycles)[1], done) for seen, _, done in tape.cycles]
        left += plan_by_old_memory(rng, tape, name, sections, predictor)
    assert left > 5, "else no memory is tried"


@tried(25)
def test_any_older_memory_of_vcs_that_lend_makes_a_safe_plan(rng: random.Random) -> None:
    (trace, layout), machines = some_pool(rng), rng.choice([(), nodes(1, 4, "p")])
    sections: dict[str, Any] = {
        "lending": {"mode": rng.choice(["quota", "borrow"])},
        "fairness": {"beyond_plain_s": 400.0},
        "profiling": {"enabled": bool(machines)},
    }
    predictor = wrong(rng, trace)
    _, tape = replay("lucid", trace, layout, predictor=predictor, profiling_nodes=machines, **sections)
    plan_by_old_memory(rng, tape, "lucid", sections, predictor)


@pytest.mark.parametrize("name", NAMES)
@tried(8)
def test_any_older_memory_of_rounds_makes_a_safe_plan(name: str, rng: random.Random, app: Application) -> None:
    machines = some_elastic_nodes(rng)
    most = max(m.gpus for m in machines if m.available)
    trace = a_trace(*(some_elastic_job(rng, i, app, most) for i in range(rng.randint(2, 9))), elastic("last"))
    predictor = OraclePredictor(trace) if name == "optimus" else FixedPredictor()
    chosen, tape = make_policy(name, rules(**SECTIONS), predictor), Tape()
    cluster = a_cluster(trace, {VC: machines}, agents=name == "pollux")
    run(cluster, chosen, predictor, tape, settings=rules(**SECTIONS))
    plan_by_old_memory(rng, tape, name, SECTIONS, predictor, times=3)


NASTY = st.sampled_from(
    ['"', ",", "\r", "\n", "\r\n", "#", "|", "\x00", " ", "\ufeff", "\u2028", "\x85", "'", "=1", "é"]
)
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.lists(NASTY, max_size=6).map("".join)
)
AMOUNT = st.floats(0, 1e15, allow_nan=False)
SECONDS = st.floats(0, 3e8, allow_nan=False)
PER_CENT = st.floats(0, 100, allow_nan=False)
COUNT = st.integers(0, 10**12)
FLAG = st.booleans()
MAYBE = st.none() | FLAG
PROFILES = st.builds(
    JobProfile, gpu_util=PER_CENT, mem_util=PER_CENT, gpu_mem_mib=AMOUNT, amp=MAYBE, unstable=FLAG, workload=TEXT
)
_SAID: Mapping[str, Any] = {
    **dict.fromkeys(["vc", "user", "account", "name"], TEXT),
    **dict.fromkeys(["rank", "cpus", "mem_mib"], COUNT),
    **dict.fromkeys(["requeueable", "long_cold_start", "shareable"], FLAG),
}
NAMED = st.builds(Job, id=TEXT.filter(str.strip), gpus=st.integers(0, 4096), submit_s=SECONDS, amp=MAYBE, **_SAID)
JOBS = st.builds(replace, NAMED, time_limit_s=st.none() | AMOUNT)
ITEMS = st.builds(
    TraceJob,
    job=JOBS,
    duration_s=SECONDS,
    state=st.sampled_from(["", *sorted(ENDED | NOT_ENDED)]),
    profile=st.none() | PROFILES,
    share_label=st.none() | st.integers(0, 9),
    waited_s=st.none() | AMOUNT,
)
TRACES = st.builds(
    Trace,
    name=TEXT,
    jobs=st.lists(ITEMS, min_size=1, max_size=6, unique_by=lambda item: item.job.id).map(
        lambda items: tuple(sorted(items, key=lambda item: (item.job.submit_s, item.job.rank)))
    ),
    epoch_s=st.none() | st.floats(-1e12, 1e12, allow_nan=False),
    skipped=st.lists(st.tuples(TEXT, COUNT), max_size=3).map(lambda items: tuple(sorted(items))),
)


@settings(max_examples=examples(300))
@given(TRACES)
def test_round_trip(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(trace, path)
        assert read_trace(path) == trace
        first = path.read_bytes()
        write_trace(read_trace(path), path)
        assert path.read_bytes() == first


# -- a plan is made again from its record alone, byte for byte: every policy, every cycle ---------------------------

RULES: dict[str, dict[str, Any]] = {
    **SECTIONS,
    "profiling": {"t_prof_s": 60.0},
    "tiresias": {"threshold_gpu_s": 200.0},
}
MOST_CYCLES = 25


class Again:
    """A recorder that plans every cycle again from its record, and compares."""

    def __init__(self, watched: PolicyHost, rules: PolicySettings, path: Path) -> None:
        self.watched, self.rules, self.path, self.cycles, self.kept = watched, rules, path, 0, 0

    def record(self, snapshot: Snapshot, plan: Plan, applied: Sequence[Applied]) -> None:
        self.cycles += 1
        if self.cycles > MOST_CYCLES:
            return
        self.path.write_bytes(record_bytes(plan, self.watched.made_from(), self.watched.name, self.rules))
        found = read_record(self.path)
        assert found.plans == {name: plan_bytes(part) for name, part in plan.partitions.items()}
        assert replan(found) == found.plans
        self.kept += sum(found.contexts[i].snapshot.now_s != plan.now_s for i in found.context.values())


def cycles(policy: str, rng: random.Random, app: Application, path: Path, **profiling: Any) -> Again:
    scene = replace(some_scene(rng), profiling_nodes=nodes(1, 4, "p"))
    if policy.startswith(("pollux", "optimus", "elastic")):
        jobs = a_trace(*(some_elastic_job(rng, i, app, 4) for i in range(rng.randint(3, 12))))
        scene = Scene({VC: nodes(2, 4)}, (), crowded=False, oracle=True, trace=jobs)
    elif policy.startswith("muri"):
        scene = replace(scene, trace=with_stages(scene.trace))
    predictor, made = scene.predictor(), rules(**{**RULES, "profiling": {**RULES["profiling"], **profiling}})
    watched = PolicyHost(lambda heard: make_policy(policy, made, heard), predictor)
    again = Again(watched, made, path)
    run(scene.cluster(watched, made), watched, predictor, again, forecaster=ArrivalForecaster(), settings=made)
    return again


@pytest.mark.parametrize("policy", BUILT_IN)
def test_every_cycle_of_every_policy_can_be_planned_again(policy: str, app: Application, tmp_path: Path) -> None:
    """Random histories by seed: a failing one is small already, and shrinking it would take minutes."""
    for seed in range(examples(2, 2)):
        assert cycles(policy, random.Random(seed), app, tmp_path / "r").cycles > 0


def test_what_looks_ahead_and_plans_that_are_kept_can_be_planned_again(app: Application, tmp_path: Path) -> None:
    """Of a partition that was not planned anew there is what it was planned from, earlier."""
    made = [cycles("lucid", random.Random(seed), app, tmp_path / "r", time_aware=seed < 2) for seed in range(6)]
    assert any(again.kept for again in made)
