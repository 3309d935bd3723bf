"""Records of plans, the recorder, and what plans leave for the next, which outlives the daemon."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec import to_builtins

from builders import HEAVY, LIGHT, VC, FixedPredictor, at, nodes, part, policy, runs, settings, snap, waits
from daemon_site import Site
from fake_slurm import fake_node
from lucid.binder.candidates import CalmSince
from lucid.binder.contention import contention_speeds
from lucid.cli.main import lucidctl
from lucid.core.decision import Hold, PartitionPlan, Plan
from lucid.core.job import Progress, Stage
from lucid.core.placement import NodeGpus
from lucid.core.reason import Reason
from lucid.core.reasons.queue import FreeGpus
from lucid.core.reasons.sharing import SameGpus, SameUser
from lucid.core.snapshot import Snapshot
from lucid.daemon import policies as policy_memory
from lucid.daemon.policies import PolicyMemory
from lucid.errors import StoreError
from lucid.orchestrator.planner import PolicyHost
from lucid.orchestrator.policies.lucid.plan import promise_kept
from lucid.orchestrator.policies.shadow import Kept
from lucid.places import Mode
from lucid.store.lease import IN_MEMORY
from lucid.store.plan_records import PlanRecorder, prune_records, read_record, record_bytes, record_files, replan
from lucid.store.recorder import StoreRecorder
from lucid.store.sqlite import SqliteStore
from lucid.store.values import value_from_json, value_to_json


@dataclass(frozen=True)
class Foreign:
    """A noun of another package: readable where its module is loaded."""

    at_s: float = 0.0


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.1 + 0.2, math.inf, "ü", (), (1, (2.0, "x")), [1, (2,)], {"a": (1,), (1, 2): None},
        frozenset({"a", "b"}), Stage.PROFILE, NodeGpus("n1", 5), at("n1:0-3 n2:1"), LIGHT, CalmSince(5.0),
        waits("a", 2, profile=HEAVY), runs("b", "n1:0", partner="c"), Progress(1.5, ((1, 2.0),), gradient=(1.0, 2.0)),
        np.float64(1.5), np.int32(7), Foreign(2.0),
    ],
)  # fmt: skip
def test_a_noun_comes_back_as_it_was(value: Any) -> None:
    again = value_from_json(json.loads(json.dumps(value_to_json(value))))
    assert again == value
    assert type(again) is type(value)


def test_an_array_comes_back_to_the_bit_and_what_is_no_noun_is_refused() -> None:
    value = np.arange(6, dtype=np.int32).reshape(2, 3)
    again = value_from_json(json.loads(json.dumps(value_to_json(value))))
    assert (again.dtype, again.tolist()) == (value.dtype, value.tolist())
    with pytest.raises(StoreError, match="cannot be recorded"):
        value_to_json(object())
    for name in ("os:system", "subprocess:Popen", "lucid.nowhere:Noun", "pathlib:Path"):
        with pytest.raises((StoreError, ImportError)):
            value_from_json({"is": name})


def scene(now_s: float = 100.0) -> Snapshot:
    """Two jobs run, one may be joined; a third waits, and one is too large for now."""
    running = [runs("a", "n1:0-1", profile=LIGHT), runs("b", "n1:2-3", profile=HEAVY)]
    return snap(now_s, part(nodes(1, 4), [waits("c", 2, 50.0, profile=LIGHT), waits("d", 4, 60.0)], running))


RULES = settings(profiling={"enabled": False})


def watched(predictor: Any = None) -> PolicyHost:
    made = predictor or FixedPredictor(speed=contention_speeds)
    return PolicyHost(lambda heard: policy("lucid", heard, profiling={"enabled": False}), made)


def written(folder: Path, predictor: Any = None) -> Path:
    made = watched(predictor)
    plan = made.plan(scene())
    path = folder / "0000000000100.000.plan.gz"
    path.write_bytes(record_bytes(plan, made.made_from(), made.name, RULES))
    return path


@pytest.mark.parametrize("said", ["failed", None])
def test_that_the_predictor_said_no_speeds_is_part_of_it(tmp_path: Path, said: Any) -> None:
    record = read_record(written(tmp_path, predictor=FixedPredictor(speed=lambda a, b: said)))
    assert set(record.contexts[0].answers.values()) == {said}
    assert replan(record) == record.plans


def record_cycles(folder: Path, times_s: list[float], every_s: float, most_mib: float = 10.0) -> PlanRecorder:
    made = watched()
    recorder = PlanRecorder(folder, made, RULES, every_s, most_mib)
    for now_s in times_s:
        snapshot = scene(now_s)
        recorder.record(snapshot, made.plan(snapshot), ())
    return recorder


def times_of(folder: Path) -> list[float]:
    return [float(path.name.removesuffix(".plan.gz")) for path in record_files(folder)]


def test_records_are_no_more_often_than_asked_and_nothing_new_is_not_recorded(tmp_path: Path) -> None:
    record_cycles(tmp_path, [0.0, 10.0, 2000.0, 2010.0, 4000.0], every_s=1000.0)
    assert times_of(tmp_path) == [0.0, 2000.0, 4000.0]
    made = watched()
    recorder = PlanRecorder(tmp_path / "new", made, RULES, 0.0, 10.0)
    same = snap(0.0, part(nodes(1, 1), [waits("b")], [runs("a", "n1:0")]))
    for now_s in (0.0, 10_000.0):
        later = Snapshot(now_s, same.partitions, (), same.predictions)
        recorder.record(later, made.plan(later), ())
    assert times_of(tmp_path / "new") == [0.0]


def test_the_oldest_go_when_there_is_no_more_room(tmp_path: Path) -> None:
    size = written(tmp_path).stat().st_size
    record_files(tmp_path)[0].unlink()
    record_cycles(tmp_path, [i * 1e5 for i in range(6)], 0.0, most_mib=3.5 * size / (1 << 20))
    assert times_of(tmp_path) == [3e5, 4e5, 5e5]
    assert prune_records(tmp_path, 4e5) == 1
    assert times_of(tmp_path) == [4e5, 5e5]


def test_neither_a_full_disk_nor_memory_that_cannot_be_written_ends_a_cycle(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "plans").write_text("a file where the folder should be")
    recorder = record_cycles(tmp_path / "plans", [0.0, 1e5], 0.0)
    assert sum("plan not recorded" in line.message for line in caplog.records) == 1
    (tmp_path / "plans").unlink()
    recorder.record(scene(), Plan(2e5, {VC: PartitionPlan({}, (), None, object())}), ())
    assert times_of(tmp_path / "plans") == []


def run(*words: Any) -> Any:
    return CliRunner().invoke(lucidctl, ["replay", *map(str, words)])


def changed(path: Path, change: Mapping[str, Any]) -> None:
    data = json.loads(gzip.decompress(path.read_bytes()))
    data.update(change)
    path.write_bytes(gzip.compress(json.dumps(data).encode()))


def test_the_command_says_what_differs(tmp_path: Path) -> None:
    path, other = written(tmp_path), settings(profiling={"enabled": False}, packing={"gss": 0})
    changed(path, {"settings": to_builtins(other), "code": "1+x"})
    done = run(path)
    assert done.exit_code == 1
    for words in ("job c\n    was: starts on n1:0-1, sharing GPUs with job a", "1 DIFFER", "recorded by 1+x"):
        assert words in done.output
    data = json.loads(run(path, "--json").output)
    assert data["same"] == 0
    assert data["found"][0]["differs"][VC][0]["what"] == "job c"


def test_what_is_no_record_is_told(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(b"{}"))
    assert isinstance(run(tmp_path / "x").exception, StoreError)
    assert isinstance(run(tmp_path / "none").exception, StoreError)
    (tmp_path / "empty").mkdir()
    assert "no record of a plan in" in str(run(tmp_path / "empty").exception)
    path = written(tmp_path)
    changed(path, {"format": 99})
    assert "format 99" in str(run(path).exception)


def recording(store: SqliteStore | None = None) -> tuple[SqliteStore, StoreRecorder]:
    store = store or SqliteStore(IN_MEMORY)
    token = store.take_lease("me", 0.0, 60.0).token
    return store, StoreRecorder(store, token, lambda: {"vc": Mode.PACK}, policy={"name": "lucid"})


FULL = FreeGpus(1, 0, 0, False)
NOBODY, OTHERS = SameGpus(1, 0), SameUser("ada", 3)


SECOND = [((NOBODY, OTHERS, FULL), 1), ((NOBODY, FreeGpus(1, 0, 2, False)), 1), ((FULL,), 2)]
"""Other users' jobs come and go."""


@pytest.mark.parametrize(("second", "kept"), SECOND)
def test_a_wait_is_kept_when_the_kinds_of_its_reasons_change(second: tuple[Reason, ...], kept: int) -> None:
    store, recorder = recording()
    for at_s, reasons in enumerate([(NOBODY, FULL), second, second]):
        plan = Plan(float(at_s), {"vc": PartitionPlan({"1": Hold(reasons)})})
        recorder.record(snap(plan.now_s), plan, [])
    assert len(store.decisions("1")) == kept
    _, again = recording(store)
    last = Plan(9.0, {"vc": PartitionPlan({"1": Hold(second)})})
    again.record(snap(9.0), last, [])
    assert len(store.decisions("1")) == kept, "after a restart it is no news either"


def test_what_the_store_did_not_take_is_kept_in_the_next_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    store, recorder = recording()
    part_plan = PartitionPlan({"1": Hold((NOBODY,))})

    def locked(*_: object) -> None:
        raise StoreError("database is locked")

    with monkeypatch.context() as broken:
        broken.setattr(store, "put_decisions", locked)
        with pytest.raises(StoreError):
            recorder.record(snap(0.0), Plan(0.0, {"vc": part_plan}), [])
    recorder.record(snap(1.0), Plan(1.0, {"vc": part_plan}), [])
    assert [row.at_s for row in store.decisions("1")] == [1.0]


def test_the_picture_has_the_last_plan_and_is_a_minute_old_at_the_most_where_nothing_changes() -> None:
    store, recorder = recording()
    partition, drawn = part(nodes(1), [waits("1")]), []
    first, then = (PartitionPlan({"1": Hold((why,))}) for why in (NOBODY, FULL))
    for at_s in (0.0, 10.0, 20.0, 69.0, 71.0, 110.0, 140.0):
        recorder.record(snap(at_s, partition), Plan(at_s, {"vc": then if at_s else first}), [])
        picture = store.view("snapshot")
        drawn.append(picture["now_s"])
    assert drawn == [0.0, 10.0, 10.0, 10.0, 71.0, 71.0, 140.0], "at 10 s nothing changed but the plan"
    (made,) = picture["plan"]["vc"].values()
    assert (made["position"], made["reasons"][0]["kind"]) == (1, "FreeGpus")
    assert picture["policy"] == {"name": "lucid"}


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "lucid.db")


CALM = {"vc": CalmSince(12.5)}


def test_it_is_written_when_due_and_at_the_end(store: SqliteStore) -> None:
    memory = PolicyMemory(store, "lucid")
    memory.keep({})
    assert store.view("policy_memory") is None  # most policies leave nothing
    memory.keep(CALM)
    later = {"vc": CalmSince(None)}
    memory.keep(later)
    assert PolicyMemory(store, "lucid").load() == CALM
    assert PolicyMemory(store, "fifo").load() == {}, "another policy left it"
    memory.keep(later, now=True)
    assert PolicyMemory(store, "lucid").load() == later
    memory.keep({}, now=True)
    assert PolicyMemory(store, "lucid").load() == {}


def test_what_cannot_be_kept_of_one_partition_costs_no_other(store: SqliteStore, caplog: Any) -> None:
    memory = PolicyMemory(store, "lucid")
    for _ in range(2):
        memory.keep({**CALM, "odd": object()}, now=True)
    assert PolicyMemory(store, "lucid").load() == CALM
    assert ["not kept" in record.message for record in caplog.records] == [True]


class Promised(Site):
    """A VC of one node, with a promise of two hours beyond plain order."""

    def __init__(self, folder: Path) -> None:
        rules = {"profiling": {"enabled": False}, "fairness": {"beyond_plain_s": 7200.0}}
        super().__init__(folder, machines=[fake_node("n1", "vc")], rules=rules)

    def turn(self, count: int) -> None:
        for _ in range(count):
            self.daemon.turn()
            self.slurm.advance(5.0)

    @property
    def kept(self) -> Kept | None:
        return promise_kept(memory(self))


def memory(site: Promised) -> Mapping[str, object]:
    return site.daemon._cycles.memory


@pytest.fixture
def site(tmp_path: Path) -> Promised:
    made = Promised(tmp_path)
    for name in "123":
        made.slurm.submit(name, "vc", 1, run_s=9000.0)
    made.turn(3)
    assert made.kept == Kept(7200.0, 3)
    return made


@pytest.mark.parametrize(("promised_s", "tally"), [(7200.0, 3), (3600.0, 0)], ids=["the same", "another"])
def test_the_shadow_and_its_tally_outlive_a_restart(site: Promised, promised_s: float, tally: int) -> None:
    assert site.daemon._cycles._make_cycle().memory is memory(site), "another cycle goes on with it, too"
    site.daemon.stop()
    site.settings = site.settings.changed({"policy.fairness.beyond_plain_s": promised_s})
    site.start()
    site.turn(1)
    assert site.kept == Kept(promised_s, tally)


def test_they_outlive_a_kill_but_for_what_was_not_yet_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_memory, "_LEAST_EVERY_S", 0.0)
    monkeypatch.setattr(policy_memory, "_COST", 0.0)
    site = Promised(tmp_path)
    site.slurm.submit("1", "vc", 1, run_s=9000.0)
    site.turn(3)
    site.slurm.submit("2", "vc", 1, run_s=9000.0)  # while nobody looks
    site.start()
    site.turn(3)
    assert site.kept == Kept(7200.0, 2)


def test_a_full_disk_at_the_end_does_not_keep_the_lease(site: Promised, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, data: object) -> None:
        raise StoreError("no space left")

    site.turn(1)
    site.slurm.submit("4", "vc", 1, run_s=9000.0)
    site.turn(1)
    monkeypatch.setattr(site.store, "put_view", full)
    site.daemon.stop()
    assert site.store.lease() is None
