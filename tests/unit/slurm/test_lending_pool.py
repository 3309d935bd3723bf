"""VCs that lend GPUs on Slurm: in which partition a job starts, what lucidd makes of that, refusals; and jobs
that stay in their partition, by their own word or by its setting, where others are moved."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from click.testing import CliRunner

from builders import LIGHT, at
from daemon_site import Site
from examples import tried
from fake_slurm import FakeSlurm, fake_node
from lucid.cli.main import lucidctl
from lucid.config.live import PoolSettings
from lucid.config.load import settings_from
from lucid.core.decision import Start
from lucid.core.ports import Predictor
from lucid.daemon.learning.models import WithContention
from lucid.daemon.policies import check_policy
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.places import Mode
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.view.observation import pool_of
from scenes.slurm import MINE, Scene

Machines = Callable[[], list[SlurmNode]]
POOL = {"partition": "over", "quotas": {"a": 4, "b": 4}}
PACK = {"a": Mode.PACK, "b": Mode.PACK}


def own_nodes() -> list[SlurmNode]:
    """Layout 1: each VC has a node, and a partition over both."""
    return [fake_node("n1", "a", partitions=frozenset({"a", "over"})),
            fake_node("n2", "b", partitions=frozenset({"b", "over"}))]  # fmt: skip


def common_nodes() -> list[SlurmNode]:
    """Layout 2: three partitions over the same nodes."""
    return [fake_node(name, "a", partitions=frozenset({"a", "b", "over"})) for name in ("n1", "n2")]


class Lenders(Site):
    """VCs a and b with a quota of 4 GPUs each."""

    def __init__(
        self, folder: Path, machines: list[SlurmNode], lending: str = "borrow", gss: int = 0, **daemon: Any
    ) -> None:
        super().__init__(
            folder, machines=machines, rules={"packing": {"gss": gss}, "lending": {"mode": lending}},
            **{"partitions": {"a": "pack", "b": "pack"}, "first_guess_s": 500.0, "pool": POOL, **daemon},
        )  # fmt: skip
        self.sampler.after_s = 5.0
        if any({"a", "b"} <= node.partitions for node in machines):
            quota_of_slurm(self.slurm)
        self.predicting(WithContention(HistoryPredictor(500.0)) if gss else HistoryPredictor(500.0))

    def predicting(self, predictor: Predictor) -> None:
        """A new lucidd that goes by this one."""
        self.predictor = predictor
        self.start()

    def submit(self, job_id: str, vc: str, gpus: int, comment: str = "", after_s: float = 2.0, **rest: Any) -> None:  # type: ignore[override]
        """Each is decided about before the next comes."""
        given = {"run_s": 400.0, "time_limit_s": 500.0, "mark": f"lucid:vc={vc};held=1;v=2", **rest}
        self.slurm.submit(job_id, vc, gpus, comment=comment, **given)
        self.turns(after_s)

    def where(self) -> Mapping[str, tuple[str, str]]:
        """Partition and node of each running job."""
        found = self.slurm.records.values()
        return {r.id: (r.partition, r.placement[0].node) for r in found if r.state == "RUNNING"}


def quota_of_slurm(slurm: FakeSlurm) -> None:
    """What a QOS with GrpTRES=gres/gpu=4 on each VC's partition does."""

    def full(job: SlurmJob) -> str:
        held = sum(r.gpus for r in slurm.records.values() if r.state == "RUNNING" and r.partition == job.partition)
        return "QOSGrpGRES" if job.partition != "over" and held + job.gpus > 4 else ""

    slurm.limits = full


@pytest.mark.parametrize("machines", [own_nodes, common_nodes])
def test_a_short_job_borrows_in_the_pools_partition_and_the_lender_gets_its_gpus_back_in_order(
    tmp_path: Path, machines: Machines
) -> None:
    site = Lenders(tmp_path, machines())
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    site.turns(10.0)
    assert site.where()["1"][0] == "a"
    assert site.where()["2"][0] == "over", "beyond the quota"
    assert "borrows 2 GPUs of VC b until it ends" in site.ctl("explain", "2")
    assert "VC a holds its quota of 4 GPUs and borrows 2" in site.ctl("status")
    site.submit("3", "b", 4)
    site.submit("4", "a", 1)
    site.turns(100.0)
    assert site.where().keys() == {"1", "2", "4"}, "b's job waits for what is lent; nobody is stopped for it"
    assert read_heartbeat(tmp_path / "run/heartbeat").pool == "over"
    site.turns(350.0)
    assert site.where()["3"][0] in ("b", "over")
    assert not [words for words in site.slurm.writes if "requeue" in words[1]]
    replayed = CliRunner().invoke(lucidctl, ["replay", "--config", str(tmp_path / "lucid.toml")])
    assert replayed.exit_code == 0, replayed.output[:300]


def not_all_nodes() -> list[SlurmNode]:
    """The pool's partition lacks a node."""
    first, second = own_nodes()
    return [first, replace(second, partitions=frozenset({"b"}))]


@pytest.mark.parametrize(
    ("machines", "lending", "daemon"),
    [
        (own_nodes, "quota", {}),
        (own_nodes, "off", {}),
        (not_all_nodes, "borrow", {}),
        (own_nodes, "borrow", {"partitions": {"a": "pack", "b": "observe"}}),
    ],
    ids=["quotas alone", "off", "the pool lacks nodes", "the lender only observes"],
)
def test_where_nothing_may_be_lent_a_job_waits_for_its_own(
    tmp_path: Path, machines: Machines, lending: str, daemon: dict[str, Any]
) -> None:
    site = Lenders(tmp_path, machines(), lending, **daemon)
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    site.turns(50.0)
    assert site.where() == {"1": ("a", "n1")}
    told = site.ctl("explain", "2")
    if lending == "quota":
        assert "VC a holds 4 of its quota of 4 GPUs: no room for the 2 of this job" in told
        assert "borrow" not in told


def test_what_a_vc_has_borrowed_is_worked_out_anew_after_a_restart_without_a_store(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes())
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    site.turns(10.0)
    for path in tmp_path.glob("lucid.db*"):
        path.unlink()
    site.start()
    site.turns(60.0)  # by the heartbeat another lucidd may act, until that is old
    site.submit("3", "b", 2)
    site.turns(10.0)
    status = json.loads(site.ctl("status", "--json"))["partitions"]["over"]["vcs"]
    assert status["a"] == {"quota": 4, "held": 6, "borrowed": 2, "pending": 0}
    assert status["b"] == {"quota": 4, "held": 2, "borrowed": 0, "pending": 0}


@pytest.mark.parametrize(("reason", "packed"), [("ReqNodeNotAvail", True), ("Resources", False)])
def test_a_borrowing_job_that_is_let_go_goes_back_to_its_vc(tmp_path: Path, reason: str, packed: bool) -> None:
    """Slurm does not start it in the pool's partition, or its start is under way as its VC is no longer packed: it
    ends as its user wrote it, in its own."""
    site = Lenders(tmp_path, own_nodes())
    site.slurm.limits = lambda job: reason if job.partition == "over" else ""
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    assert site.slurm.records["2"].partition == "over"
    if not packed:
        site.ctl("mode", "a", "observe")
    site.turns(60.0 if packed else 5.0)
    record = site.slurm.records["2"]
    assert (record.partition, record.held, record.request.req_nodes) == ("a", False, "")
    site.turns(400.0)
    assert site.where()["2"] == ("a", "n1")


@pytest.mark.parametrize("machines", [own_nodes, common_nodes])
@pytest.mark.parametrize("every", [1, 3])
def test_killed_again_and_again_it_loses_no_job_and_stays_within_what_may_be_lent(
    tmp_path: Path, machines: Machines, every: int
) -> None:
    """Half the time the store is lost, too. VC a wants more than its quota, and some of its jobs may not borrow."""
    site = Lenders(tmp_path, machines())
    for n in range(10):
        limit_s = 400.0 if n % 4 else 4000.0
        site.submit(f"{n}", "aab"[n % 3], 1 + n % 3, after_s=0.0, run_s=1e5, time_limit_s=limit_s)
    site.predictor = HistoryPredictor(2000.0)
    for life in range(16):
        if life % 2:
            for path in tmp_path.glob("lucid.db*"):
                path.unlink()
        fatal = len(site.slurm.writes) + every
        site.slurm.fails_at_write = lambda n, fatal=fatal: KeyboardInterrupt() if n == fatal else None  # type: ignore[misc,return-value]
        (tmp_path / "run/heartbeat").unlink(missing_ok=True)
        site.start()
        site.slurm.advance(16.0)
        try:
            site.turns(20.0)
        except KeyboardInterrupt:
            site.store.close()
        running = [r for r in site.slurm.records.values() if r.state == "RUNNING"]
        for vc in "ab":
            mine = sorted((r for r in running if f"vc={vc};" in r.admin_comment), key=lambda r: r.start_s)
            long_s = [sum(r.gpus for r in mine[: i + 1]) for i, r in enumerate(mine) if r.time_limit_s == 4000.0]
            assert all(gpus <= 4 for gpus in long_s), "a long job started beyond the quota"
    site.slurm.fails_at_write = lambda n: None
    (tmp_path / "run/heartbeat").unlink(missing_ok=True)
    site.slurm.advance(16.0)
    since = {r.id: site.slurm.now - r.start_s if r.start_s else 0.0 for r in site.slurm.records.values()}
    site.slurm.run_s = {job_id: ran_s + 50.0 for job_id, ran_s in since.items()}
    site.start()
    site.turns(400.0)
    assert {r.state for r in site.slurm.records.values()} == {"COMPLETED"}
    assert len(site.slurm.starts) == 10


def test_a_guest_on_gpus_of_another_vc_starts_in_the_pools_partition_in_slots(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes(), gss=2)
    site.sampler.profiles = dict.fromkeys("234", LIGHT)
    site.submit("1", "a", 4)
    site.submit("2", "b", 2)
    site.submit("3", "b", 2)
    site.turns(20.0)
    site.submit("4", "a", 2, run_s=100.0, name="2", after_s=5.0)  # measured as job 2 was
    record = site.slurm.records["4"]
    assert (record.partition, record.request.shards) == ("over", True)
    assert record.placement in (site.slurm.records["2"].placement, site.slurm.records["3"].placement)
    assert json.loads(site.ctl("status", "--json"))["partitions"]["over"]["vcs"]["a"]["borrowed"] == 0


def test_in_which_partition_a_start_goes() -> None:
    settings = PoolSettings(**POOL)  # type: ignore[arg-type]
    pool = pool_of(settings, PACK, own_nodes())
    assert pool.start_in("a", Start(at("n1:0"), ())) == "a", "no QOS stops it on its own nodes"
    assert pool.start_in("a", Start(at("n2:0"), (), within_quota=True)) == "over"
    pool = pool_of(settings, PACK, common_nodes())
    assert pool.start_in("a", Start(at("n2:0"), (), within_quota=True)) == "a"
    assert pool.start_in("a", Start(at("n2:0"), ())) == "over", "beyond its quota, or a guest, which counts there"
    assert pool_of(settings, {"a": Mode.OBSERVE, "b": Mode.PACK}, common_nodes()).quotas == {"b": 4}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("daemon", "words"),
    [
        ({"pool": {}}, "needs both daemon.pool.partition"),
        ({"pool": {"partition": "over"}}, "needs both daemon.pool.partition"),
        ({"pool": {"partition": "a", "quotas": {"a": 4}}}, "is a VC or the profiling partition"),
        ({"pool": {"partition": "over", "quotas": {"c": 4}}}, "daemon.pool.quotas.c: not in daemon.partitions"),
        ({"policy": "no-such"}, "there is no such policy"),
        ({"stay": ["c"]}, r"daemon\.stay names 'c': not in daemon\.partitions"),
    ],
)
def test_lucidd_says_at_its_start_what_lending_lacks(daemon: dict[str, Any], words: str) -> None:
    data = {
        "policy": {"lending": {"mode": "borrow"}},
        "daemon": {"partitions": {"a": "pack", "b": "pack"}, "pool": POOL, **daemon},
    }
    with pytest.raises(ConfigError, match=words):
        check_policy(settings_from(data, "lucid.toml"), "lucid.toml")


def test_a_job_over_its_quota_queues_again_when_the_quota_has_grown(tmp_path: Path) -> None:
    site = Lenders(tmp_path, common_nodes())
    site.slurm.limits = lambda job: "Resources"
    site.submit("1", "a", 5)
    site.turns(5.0)
    assert not site.slurm.records["1"].held
    assert "it asks for 5 GPUs, and the quota of a is 4" in site.ctl("explain", "1")
    site.turns(300.0)
    assert not site.slurm.records["1"].held, "it lasts"
    assert "it queues again once that has ended" in site.daemon.cluster.aside()["1"]  # type: ignore[union-attr]
    site.settings = site.settings.changed({"daemon.pool.quotas": {"a": 8, "b": 0}})
    site.start()
    site.turns(30.0)  # until the lease of the one before has run out
    assert "take up" in [row.verb for row in site.store.actions("1")]
    site.slurm.limits = lambda job: ""
    site.turns(60.0)
    assert site.slurm.records["1"].state == "RUNNING"


@pytest.mark.parametrize("machines", [own_nodes, common_nodes])
def test_a_job_that_says_so_waits_for_its_own_partition_and_its_twin_borrows(
    tmp_path: Path, machines: Machines
) -> None:
    site = Lenders(tmp_path, machines())
    site.submit("1", "a", 4, run_s=100.0)
    site.submit("2", "a", 2, "project x lucid:stay")
    site.submit("3", "a", 2)
    site.turns(20.0)
    assert site.where().keys() == {"1", "3"}
    assert site.where()["3"][0] == "over"
    told = site.ctl("explain", "2")
    assert "stays: in partition a, by its own word (lucid:stay)" in told
    assert ("(asked: -p a)" if machines is own_nodes else "VC a holds 4 of its quota of 4 GPUs: no room") in told
    site.turns(100.0)
    assert site.where()["2"][0] == "a"
    assert "stays: in partition a" in site.ctl("explain", "2")
    assert "stays" not in site.ctl("explain", "3")
    site.turns(500.0)
    assert "stays: in partition a" in site.ctl("explain", "2"), "once it has ended, too"


def test_a_partition_keeps_its_jobs_by_its_setting(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes(), stay=["a"], profiling_partition="prof")
    for name, vc in (("1", "a"), ("2", "a"), ("3", "b"), ("4", "b")):
        site.submit(name, vc, 3, run_s=100.0)
    assert site.where() == {"1": ("a", "n1"), "3": ("b", "n2")}
    assert "stays: in partition a, by the partition's setting (daemon.stay)" in site.ctl("explain", "2")
    assert read_heartbeat(tmp_path / "run/heartbeat").unrouted == ("a",)


def test_others_leave_it_the_nodes_that_it_waits_for_where_they_find_room_elsewhere(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes())
    site.submit("1", "b", 3, run_s=100.0)
    site.submit("2", "a", 2, "lucid:stay")
    site.submit("3", "b", 1)
    assert site.where() == {"1": ("over", "n1"), "3": ("b", "n2")}
    site.turns(100.0)
    assert site.where()["2"] == ("a", "n1")


def test_one_that_stays_is_paired_on_its_own_node_and_on_no_other(tmp_path: Path) -> None:
    """The twin of what ``test_a_guest_on_gpus_of_another_vc...`` shows without the word."""
    site = Lenders(tmp_path, own_nodes(), gss=2)
    site.sampler.profiles = dict.fromkeys("1234", LIGHT)
    for name, vc in (("1", "a"), ("3", "a"), ("2", "b"), ("5", "b")):
        site.submit(name, vc, 2)
    site.turns(20.0)
    site.submit("4", "a", 2, "lucid:stay", 5.0, run_s=100.0, name="2")
    record = site.slurm.records["4"]
    assert (record.state, record.partition, record.request.shards) == ("RUNNING", "a", True)
    assert record.placement in (site.slurm.records["1"].placement, site.slurm.records["3"].placement)


@pytest.mark.parametrize("asks", [{"features": "h100"}, {"features": "a100"}, {"excludes": "n1"}])
def test_what_its_user_asks_of_nodes_holds_beside_it(tmp_path: Path, asks: dict[str, Any]) -> None:
    machines = own_nodes()
    machines[0] = fake_node("n1", "a", partitions=frozenset({"a", "over"}), features=frozenset({"a100"}))
    site = Lenders(tmp_path, machines)
    site.submit("1", "a", 2, "lucid:stay", 20.0, mark="lucid:vc=a;held=1;v=2;share=0;why=nodes", **asks)
    assert site.slurm.records["1"].partition == "a"
    assert site.where().get("1", ("a", "n1")) == ("a", "n1"), "what no node of its own meets is Slurm's to refuse"


def test_it_is_not_moved_to_be_profiled_and_its_twin_is() -> None:
    stage = Scene()
    stage.new |= {"mine", "other"}
    stage.jobs("mine", mark=MINE, comment="lucid:stay")
    stage.jobs("other", mark=MINE)
    parts = stage.cluster.observe().partitions
    assert [e.job.id for e in parts["prof"].pending] == ["other"]
    assert [(e.job.id, e.home_only) for e in parts["vc"].pending] == [("mine", True)]


def test_no_profiling_node_takes_it_in_where_its_own_are_full(tmp_path: Path) -> None:
    machines = [*own_nodes(), fake_node("p1", "prof")]
    site = Lenders(tmp_path, machines, "quota", profiling_partition="prof")
    site.submit("1", "a", 4)
    site.submit("2", "a", 1, "lucid:stay")
    site.submit("3", "a", 1)
    site.turns(10.0)
    assert site.where() == {"1": ("a", "n1"), "3": ("prof", "p1")}


@pytest.mark.slow
@pytest.mark.parametrize("machines", [own_nodes, common_nodes])
@tried(6, 3)
def test_one_that_stays_is_never_given_nodes_outside_its_partition(machines: Machines, rng: random.Random) -> None:
    """Of a day of jobs by lot each runs, and those that stay run in their own partition."""
    with TemporaryDirectory() as folder:
        site = Lenders(Path(folder), [*machines(), fake_node("p1", "prof")], gss=2, profiling_partition="prof")
        for number in range(1, rng.randint(4, 15)):
            site.sampler.profiles[f"{number}"] = LIGHT
            site.turns(rng.choice([0.0, 0.0, 3.0, 40.0]))
            comment, run_s = rng.choice(("", "lucid:stay", "lucid:stay")), float(rng.choice([20, 60, 200]))
            site.submit(f"{number}", rng.choice("ab"), rng.choice([1, 1, 2, 3, 4]), comment, 0.0, run_s=run_s)
        for _ in range(60):
            site.turns(20.0)
            for record in (one for one in site.slurm.records.values() if one.comment):
                assert record.partition == record.admin_comment[len("lucid:vc=")], record
                own = {m.name for m in site.slurm.machines if record.partition in m.partitions}
                assert own >= {part.node for part in record.placement}, record
        assert all(record.ended for record in site.slurm.records.values()), "every job runs"
