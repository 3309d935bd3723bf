"""How policies are found by name, and what the one cycle does with them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from lucid.config.policy import PolicySettings
from lucid.core.decision import Hold
from lucid.core.job import Ended, Running
from lucid.core.ports import Capability
from lucid.core.prediction import Prediction
from lucid.core.reasons.queue import AsksForGpus
from lucid.core.snapshot import Snapshot
from lucid.errors import ConfigError, ModelError
from lucid.models.history import HistoryPredictor
from lucid.orchestrator import registry as policies
from lucid.orchestrator.annotate import Annotator
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.planner import make_policies
from lucid.orchestrator.policies.queue import QueuePolicy
from lucid.orchestrator.policy import PolicyRules, rules_of
from lucid.orchestrator.registry import BUILT_IN, known_policies, make_policy
from lucid.orchestrator.safety.check import SafetyCheck
from scenes.jobs import LIGHT, a_job, by, nodes, runs, waits
from scenes.plans import ANYTHING, FixedPredictor, part, policy, settings, snap
from scenes.replays import Tape, a_cluster, a_trace


def made_elsewhere(settings: PolicySettings, predictor: object) -> QueuePolicy:
    """A policy of another package."""
    return QueuePolicy("lifo", "last come", lambda entries, _known, _now_s: [-e.job.submit_s for e in entries])


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package adds ``lifo``, and tries to replace ``fifo``."""
    points = EntryPoints(
        EntryPoint(name, f"{__name__}:made_elsewhere", "lucid.policies") for name in ("lifo", "fifo")
    )
    monkeypatch.setattr("importlib.metadata.entry_points", points.select)


@pytest.mark.usefixtures("installed")
def test_a_policy_of_another_package_is_found_by_its_entry_point_and_replaces_none_of_ours() -> None:
    found = make_policy("lifo", PolicySettings(), FixedPredictor())
    plan = found.plan(snap(5.0, part(nodes(1, 1), [waits("old", 1, 0.0), waits("new", 1, 1.0)])))
    assert [a.job_id for a in plan.actions] == ["new"]
    assert known_policies()["fifo"] is BUILT_IN["fifo"]


@pytest.mark.parametrize(("name", "hint"), [("lucd", "; did you mean 'lucid'?"), ("xyzzy", "no policy 'xyzzy'")])
def test_an_unknown_policy_is_an_error_that_lists_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=rf"{re.escape(hint)}; known: {', '.join(sorted(known_policies()))}"):
        policy(name)


BARE = {"profiling": {"enabled": False}}


def test_policies_name_what_they_need_and_are_refused_where_the_cluster_cannot_do_it() -> None:
    assert policy("fifo").needs == set()
    assert policy("tiresias").needs == {Capability.PREEMPT}
    assert policy("lucid").needs == {Capability.PROFILE, Capability.SHARE}
    assert policy("lucid", packing={"gss": 0}).needs == {Capability.PROFILE}
    assert policy("lucid", **BARE).needs == {Capability.SHARE}
    assert [name for name in BUILT_IN if policy(name).profiled(a_job("a"))] == ["lucid"]
    cluster = a_cluster(a_trace(by("a")))
    with pytest.raises(ConfigError, match=r"'lucid' needs profile, which this cluster does not offer"):
        Cycle(cluster, FixedPredictor(), policy("lucid"), settings())
    Cycle(cluster, FixedPredictor(), policy("lucid", **BARE), settings())


def test_a_cycle_observes_annotates_plans_applies_and_records_and_learns_of_each_ended_job_once() -> None:
    cluster, tape = a_cluster(a_trace(by("a", 1, 10.0)), profiled=lambda job: False), Tape()
    predictor = FixedPredictor()
    cycle = Cycle(cluster, predictor, policy("fifo"), settings(), tape)
    cluster.advance(0.0)
    result = cycle.run()
    assert result.snapshot.predictions["a"].duration_source == "fixed"
    assert [(item.action.job_id, item.refused) for item in result.applied] == [("a", None)]
    assert tape.cycles == [(result.snapshot, result.plan, result.applied)]
    assert [e.job.id for e in cluster.observe().partitions["vc"].running] == ["a"]
    for now_s in (10.0, 20.0):
        cluster.advance(now_s)
        cycle.run()
    assert [item.job.id for item in predictor.learnt] == ["a"]


def predicted(annotate: Annotator, *jobs: Any, **others: Sequence[Any]) -> Mapping[str, Prediction]:
    """By job, in VC ``vc`` and in other partitions."""
    rooms = {"vc": jobs, **others}
    return annotate(Snapshot(0.0, {name: part(nodes(1), some) for name, some in rooms.items()})).predictions


def test_a_job_is_predicted_when_first_seen_and_when_its_profile_comes_or_its_request_changes() -> None:
    predictor = FixedPredictor()
    annotate = Annotator(predictor)
    for gpus, profile, score, asked in ((1, None, None, 1), (1, None, None, 1), (1, LIGHT, 0, 2), (8, LIGHT, 0, 3)):
        assert predicted(annotate, waits("a", gpus, profile=profile))["a"].share_score == score
        assert predictor.asked == asked


def test_jobs_that_leave_without_having_run_are_forgotten() -> None:
    """Cancelled while they waited: no adapter tells them as ended."""
    annotate, (a, b, c) = Annotator(FixedPredictor(), naive=FixedPredictor()), map(waits, "abc")
    for n in range(50):
        assert predicted(annotate, waits(f"{n}")).keys() == {f"{n}"}
    assert predicted(annotate, a, b, other=[c]).keys() == {"a", "b", "c"}
    assert predicted(annotate, a, other=[b]).keys() == {"a", "b"}, "moved to another partition"
    assert predicted(annotate, a).keys() == {"a"}, "the partition is no longer looked after"
    assert predicted(annotate, a, other=[a]).keys() == {"a"}
    assert predicted(annotate, other=[a]).keys() == {"a"}, "another partition shows it still"
    assert predicted(annotate, other=[]).keys() == set()


def test_a_predictor_that_fails_leaves_no_job_unpredicted_and_none_remembered() -> None:
    class Fails(FixedPredictor):
        fails = True

        def predict(self, job: Any, profile: Any, now_s: float) -> Prediction:
            if job.id == "b" and self.fails:
                raise ModelError("no such column")
            return super().predict(job, profile, now_s)

    annotate = Annotator(predictor := Fails())
    predicted(annotate, waits("gone"))
    with pytest.raises(ModelError):
        predicted(annotate, waits("a"), waits("b"))
    predictor.fails = False
    assert predicted(annotate, waits("a"), waits("b")).keys() == {"a", "b"}


def test_a_kept_snapshot_keeps_its_predictions() -> None:
    annotate = Annotator(FixedPredictor({"a": 1.0, "b": 2.0}))
    first = annotate(Snapshot(0.0, {"vc": part(nodes(1), [waits("a")])}))
    gone = Snapshot(1.0, {"vc": part(nodes(1), [waits("b")])}, (Ended(a_job("a"), 1.0, 1.0),))
    for seen, known in ((annotate(gone), {"b": 2.0}), (first, {"a": 1.0})):
        assert {job: found.duration_s for job, found in seen.predictions.items()} == known


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_job_that_asks_for_no_gpu_is_left_to_slurm_and_holds_up_nobody(name: str) -> None:
    pending = [waits("a", 0), waits("b", profile=LIGHT), waits("c", 0)]
    running = [runs("r", "n1:0", profile=LIGHT), Running(a_job("z", 0), 0.0, ())]
    snapshot = snap(600.0, part(nodes(1, 2), pending, running))
    plan = policy(name).plan(snapshot)
    SafetyCheck(ANYTHING, settings())(snapshot, plan)
    decisions = plan.partitions["vc"].decisions
    assert decisions["a"] == decisions["c"] == Hold((AsksForGpus(0),))
    assert [action.job_id for action in plan.actions] == ["b"]


def test_a_trace_with_a_job_that_asks_for_no_gpu_is_not_replayed() -> None:
    with pytest.raises(ConfigError, match=r"1 jobs ask for no GPU \(the first is 'a'\)"):
        a_cluster(a_trace(by("a", 0), by("b")))


def foreign(*needs: Capability, **members: Any) -> Any:
    """A policy of another package."""
    return type("Foreign", (), {"name": "theirs", "needs": frozenset(needs), **members})()


def test_who_states_nothing_may_only_start_jobs_and_every_policy_of_ours_states_what_it_needs() -> None:
    assert rules_of(foreign()) == PolicyRules()
    for name in BUILT_IN:
        made = make_policy(name, PolicySettings(), HistoryPredictor())
        assert rules_of(made) is made.rules


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (foreign(Capability.PREEMPT), "needs preempt, and does not state what for: its rules lack preempts"),
        (foreign(Capability.SHARE), "its rules lack pairs"),
        (foreign(Capability.PROFILE), "its rules lack profiles"),
        (foreign(Capability.RESIZE, Capability.PREEMPT, rules=PolicyRules(preempts="elastic")), "lack resizes"),
        (foreign(Capability.INTERLEAVE), "its rules lack interleaves"),
        (foreign(rules=PolicyRules(resizes=True)), "states resizes, and its needs lack resize"),
        (foreign(rules=PolicyRules(preempts="anybody")), "states preempts, and its needs lack preempt"),
        (foreign(group_limit=3), "states its rules as 'group_limit', which is read no more: it needs a member rules"),
        (foreign(restarts="asked"), "'restarts', which is read no more"),
        (foreign(lending=None), "PolicyRules(...) with borrows"),
        (foreign(rules={"pairs": True}), "its member rules has to be a PolicyRules, and is {'pairs': True}"),
        (foreign(rules=PolicyRules(own={"main": "anything"})), "has to be a PolicyRules"),  # type: ignore[dict-item]
    ],
)
def test_what_is_missing_is_named(policy: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "known_policies", lambda: {"theirs": lambda settings, predictor: policy})
    for make in (make_policy, lambda name, *rest: make_policies("fifo", {"main": name}, *rest)):
        with pytest.raises(ConfigError, match=rf"policy 'theirs'.*{re.escape(words)}.*docs/write-a-policy\.md"):
            make("theirs", PolicySettings(), HistoryPredictor())


def test_a_value_that_a_rule_does_not_take_is_an_error() -> None:
    wrong = ({"pairs": 1}, {"borrows": "yes"}, {"preempts": "all"}, {"group_limit": 4})
    for rules in (*wrong, {"group_limit": 0, "interleaves": True}):
        with pytest.raises(ConfigError, match=r"PolicyRules: .* cannot be"):
            PolicyRules(**rules)
