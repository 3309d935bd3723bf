"""VCs that lend GPUs on Slurm: in which partition a job starts, what lucidd makes of where jobs run, and refusals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builders import LIGHT, at
from fake_slurm import FakeSampler, FakeSlurm, fake_node
from lucid.cli.main import lucidctl
from lucid.config.live import PoolSettings
from lucid.config.load import settings_from
from lucid.core.decision import Start
from lucid.daemon.build import Parts
from lucid.daemon.learning.models import WithContention
from lucid.daemon.loop import Daemon
from lucid.daemon.policies import check_policy
from lucid.errors import ConfigError
from lucid.models.history import HistoryPredictor
from lucid.places import Mode
from lucid.slurm.client import Breaker
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.records.job import SlurmJob, SlurmNode
from lucid.slurm.view.observation import pool_of
from lucid.store.sqlite import SqliteStore

POOL = {"partition": "over", "quotas": {"a": 4, "b": 4}}
PACK = {"a": Mode.PACK, "b": Mode.PACK}


def own_nodes() -> list[SlurmNode]:
    """Layout 1: each VC has a node, and a partition over both."""
    return [fake_node("n1", "a", partitions=frozenset({"a", "over"})),
            fake_node("n2", "b", partitions=frozenset({"b", "over"}))]  # fmt: skip


def common_nodes() -> list[SlurmNode]:
    """Layout 2: three partitions over the same nodes."""
    return [fake_node(name, "a", partitions=frozenset({"a", "b", "over"})) for name in ("n1", "n2")]


class Lenders:
    """VCs a and b with a quota of 4 GPUs each."""

    def __init__(
        self, folder: Path, machines: list[SlurmNode], lending: str = "borrow", gss: int = 0, **daemon: Any
    ) -> None:
        self.folder = folder
        self.slurm = FakeSlurm(machines, now=1000.0)
        self.sampler = FakeSampler(self.slurm, {}, 5.0)
        data = {
            "policy": {"packing": {"gss": gss}, "lending": {"mode": lending}},
            "daemon": {
                "partitions": {"a": "pack", "b": "pack"}, "state_dir": str(folder), "first_guess_s": 500.0,
                "heartbeat": str(folder / "run/heartbeat"), "pool": POOL, **daemon,
            },
        }  # fmt: skip
        self.settings, self.predictor = settings_from(data, "test"), HistoryPredictor(500.0)
        pool = '[daemon.pool]\npartition = "over"\nquotas = { a = 4, b = 4 }\n'
        (folder / "lucid.toml").write_text(
            f'[policy.packing]\ngss = {gss}\n[policy.lending]\nmode = "{lending}"\n[daemon]\nstate_dir = "{folder}"\n'
            f'heartbeat = "{folder}/run/heartbeat"\n{pool}[daemon.partitions]\na = "pack"\nb = "pack"\n'
        )
        self.start()

    def start(self) -> None:
        """A new lucidd on the same store and Slurm."""
        slurm = self.slurm
        self.store = SqliteStore(self.folder / "lucid.db")
        self.daemon = Daemon(
            Parts(
                self.settings, slurm, Breaker(lambda: slurm.now), self.store, self.sampler, slurm,
                self.predictor, monotonic_s=lambda: slurm.now,
            ),
            "one",
        )  # fmt: skip

    def submit(self, name: str, vc: str, gpus: int, run_s: float = 400.0, limit_s: float = 500.0) -> None:
        """Each is decided about before the next comes."""
        mark = f"lucid:vc={vc};held=1;v=2"
        self.slurm.submit(name, vc, gpus, run_s=run_s, time_limit_s=limit_s, mark=mark)
        self.turns(2.0)

    def turns(self, seconds: float) -> None:
        until = self.slurm.now + seconds
        while self.slurm.now < until:
            self.slurm.advance(min(max(self.daemon.turn(), 0.5), until - self.slurm.now))

    def where(self) -> Mapping[str, tuple[str, str]]:
        """Partition and node of each running job."""
        found = self.slurm.records.values()
        return {r.id: (r.partition, r.placement[0].node) for r in found if r.state == "RUNNING"}

    def ctl(self, *words: str) -> str:
        return CliRunner().invoke(lucidctl, [*words, "--config", str(self.folder / "lucid.toml")]).output


def quota_of_slurm(slurm: FakeSlurm) -> None:
    """What a QOS with GrpTRES=gres/gpu=4 on each VC's partition does."""

    def full(job: SlurmJob) -> str:
        held = sum(r.gpus for r in slurm.records.values() if r.state == "RUNNING" and r.partition == job.partition)
        return "QOSGrpGRES" if job.partition != "over" and held + job.gpus > 4 else ""

    slurm.limits = full


@pytest.mark.parametrize("machines", [own_nodes, common_nodes])
def test_a_short_job_borrows_in_the_pools_partition_and_the_lender_gets_its_gpus_back_in_order(
    tmp_path: Path, machines: Any
) -> None:
    site = Lenders(tmp_path, machines())
    if machines is common_nodes:
        quota_of_slurm(site.slurm)
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
    site.turns(350.0)
    assert site.where()["3"][0] in ("b", "over")
    assert not [words for words in site.slurm.writes if "requeue" in words[1]]
    replayed = CliRunner().invoke(lucidctl, ["replay", "--config", str(tmp_path / "lucid.toml")])
    assert replayed.exit_code == 0, replayed.output[:300]


def test_with_quotas_alone_a_job_waits_for_its_own_and_says_so(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes(), "quota")
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    site.turns(50.0)
    assert site.where() == {"1": ("a", "n1")}
    told = site.ctl("explain", "2")
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


def test_lending_off_leaves_each_vc_to_itself(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes(), "off")
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    site.turns(100.0)
    assert site.where() == {"1": ("a", "n1")}
    assert "over" not in json.loads(site.ctl("status", "--json"))["partitions"]


def test_a_borrowing_job_that_is_let_go_goes_back_to_its_vc(tmp_path: Path) -> None:
    """Slurm does not start it in the pool's partition: it ends as its user wrote it, in its own."""
    site = Lenders(tmp_path, own_nodes())
    site.slurm.limits = lambda job: "ReqNodeNotAvail" if job.partition == "over" else ""
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    site.turns(60.0)
    record = site.slurm.records["2"]
    assert (record.partition, record.held, record.request.req_nodes) == ("a", False, "")
    site.turns(400.0)
    assert site.where()["2"] == ("a", "n1")


def test_a_start_under_way_goes_back_to_its_vc_when_that_is_no_longer_packed(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes())
    site.slurm.limits = lambda job: "Resources" if job.partition == "over" else ""
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    assert site.slurm.records["2"].partition == "over"
    site.ctl("mode", "a", "observe")
    site.turns(5.0)
    record = site.slurm.records["2"]
    assert (record.partition, record.held, record.request.req_nodes) == ("a", False, "")


def test_a_job_larger_than_its_quota_does_not_wait_for_ever(tmp_path: Path) -> None:
    site = Lenders(tmp_path, common_nodes())
    site.submit("1", "a", 5)
    site.turns(5.0)
    assert site.slurm.records["1"].state == "RUNNING"
    assert "it asks for 5 GPUs, and the quota of a is 4" in site.ctl("explain", "1")
    site.submit("2", "a", 4)
    site.turns(5.0)
    assert site.slurm.records["2"].held, "one that fits queues"


def test_where_the_pools_partition_lacks_nodes_vcs_keep_to_their_own(tmp_path: Path) -> None:
    machines = own_nodes()
    machines[1] = replace(machines[1], partitions=frozenset({"b"}))
    site = Lenders(tmp_path, machines)
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    site.turns(100.0)
    assert site.where() == {"1": ("a", "n1")}


def test_a_vc_that_only_observes_is_left_out_of_the_pool(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes(), partitions={"a": "pack", "b": "observe"})
    site.submit("1", "a", 4)
    site.submit("2", "a", 2)
    site.turns(50.0)
    assert site.where() == {"1": ("a", "n1")}, "b's GPUs are not Lucid's to lend"


@pytest.mark.parametrize("machines", [own_nodes, common_nodes])
@pytest.mark.parametrize("every", [1, 3])
def test_killed_again_and_again_it_loses_no_job_and_stays_within_what_may_be_lent(
    tmp_path: Path, machines: Any, every: int
) -> None:
    """Half the time the store is lost, too. VC a wants more than its quota, and some of its jobs may not borrow."""
    site = Lenders(tmp_path, machines())
    if machines is common_nodes:
        quota_of_slurm(site.slurm)
    for n in range(10):
        vc, gpus, long = "aab"[n % 3], 1 + n % 3, n % 4 == 0
        mark = f"lucid:vc={vc};held=1;v=2"
        site.slurm.submit(f"{n}", vc, gpus, run_s=1e5, time_limit_s=4000.0 if long else 400.0, mark=mark)
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
    site.predictor = WithContention(HistoryPredictor(500.0))
    site.start()
    site.sampler.profiles = dict.fromkeys("234", LIGHT)
    site.submit("1", "a", 4)
    site.submit("2", "b", 2)
    site.submit("3", "b", 2)
    site.turns(20.0)
    mark = "lucid:vc=a;held=1;v=2"
    site.slurm.submit("4", "a", 2, run_s=100.0, time_limit_s=500.0, mark=mark, name="2")  # measured as job 2 was
    site.turns(5.0)
    record = site.slurm.records["4"]
    assert (record.partition, record.request.shards) == ("over", True)
    assert record.placement in (site.slurm.records["2"].placement, site.slurm.records["3"].placement)
    assert json.loads(site.ctl("status", "--json"))["partitions"]["over"]["vcs"]["a"]["borrowed"] == 0


def test_the_heartbeat_names_the_pools_partition(tmp_path: Path) -> None:
    site = Lenders(tmp_path, own_nodes())
    site.turns(1.0)
    assert read_heartbeat(tmp_path / "run/heartbeat").pool == "over"


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
    ],
)
def test_lucidd_says_at_its_start_what_lending_lacks(daemon: dict[str, Any], words: str) -> None:
    data = {
        "policy": {"lending": {"mode": "borrow"}},
        "daemon": {"partitions": {"a": "pack", "b": "pack"}, "pool": POOL, **daemon},
    }
    with pytest.raises(ConfigError, match=words):
        check_policy(settings_from(data, "lucid.toml"), "lucid.toml")
