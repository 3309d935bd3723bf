"""What lucidd catches up on after it was away."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from builders import VC, nodes, part, snap, waits
from daemon_site import Site
from fake_slurm import FakeSlurm
from lucid.config.live import DaemonSettings
from lucid.core.codec import from_json, to_json
from lucid.core.decision import Action, Hold, PartitionPlan, Plan
from lucid.core.job import Ended, Job
from lucid.core.reasons.queue import FreeGpus, Reserved
from lucid.daemon.learning.child import ended_from
from lucid.daemon.learning.models import WithContention
from lucid.daemon.loop import Daemon
from lucid.daemon.reporting.starts import Span, StartsAhead, as_foreseen, starts_from_view
from lucid.errors import ActionRefused, ClusterError, ClusterUnavailable
from lucid.models.history import HistoryPredictor
from lucid.slurm.accounting import Accounted, accounted_from
from lucid.store.port import JobNote
from lucid.store.sqlite import SqliteStore
from scenes.hostile import start

RECORDED = Path(__file__).parents[2] / "assets/slurm/24.11/sacct.json"


def recorded() -> Any:
    return json.loads(RECORDED.read_text())


def test_what_accounting_answers_is_translated() -> None:
    found = {one.ended.job.name: one.ended for one in accounted_from(recorded())}
    asked = {"slots": (2, 1, 1000), "guest": (2, 1, 1000), "cancelled": (1, 1, 1000), "gpus": (2, 2, 2000)}
    asked["no gpu; rm -rf `$HOME` 'ü' \\"] = (0, 1, 1000)  # those that were cancelled before they ran are left out
    assert {name: (one.job.gpus, one.job.cpus, one.job.mem_mib) for name, one in found.items()} == asked
    one = found["cancelled"]
    assert (one.job.id, one.job.vc, one.job.user, one.state) == ("3", "vc", "root", "CANCELLED")
    assert 1 <= one.ran_s <= 60
    assert one.job.submit_s <= one.end_s - one.ran_s


def test_a_task_of_an_array_goes_by_its_own_id_and_types_are_not_counted_twice() -> None:
    raw = next(job for job in recorded()["jobs"] if job["name"] == "gpus")
    raw["array"] = {"job_id": 26, "task_id": {"set": True, "infinite": False, "number": 3}}
    gres = [("gpu", 4), ("gpu:a100", 4)]
    raw["tres"]["requested"] = [{"type": "gres", "name": name, "count": count} for name, count in gres]
    raw["comment"]["administrator"] = "lucid:vc=vc;held=1"
    (one,) = accounted_from({"jobs": [raw]})
    assert (one.ended.job.id, one.ended.job.gpus, one.tag) == ("26_3", 4, "lucid:vc=vc;held=1")
    raw["tres"]["requested"] = raw["tres"]["requested"][1:]
    assert accounted_from({"jobs": [raw]})[0].ended.job.gpus == 4


@pytest.mark.parametrize("document", [None, {}, {"jobs": 5}, {"jobs": [], "errors": [{"error": "no slurmdbd"}]}])
def test_an_answer_that_is_none_is_an_error(document: Any) -> None:
    with pytest.raises(ClusterError):
        accounted_from(document)
    assert accounted_from({"jobs": [{}, "x", {"state": {"current": ["RUNNING"]}}]}) == []


JOB = accounted_from(recorded())[0]


def other(tag: str = JOB.tag, **changes: Any) -> Accounted:
    return Accounted(replace(JOB.ended, job=replace(JOB.ended.job, **changes)), tag)


SETTINGS = DaemonSettings(partitions={"vc": "pack"}, profiling_partition="prof")


@pytest.mark.parametrize(
    ("job", "note", "home"),
    [
        (JOB, None, "vc"), (other("lucid:vc=vc;held=1", vc="prof"), None, "vc"), (other(vc="prof"), None, None),
        (other(vc="prof"), JobNote("3", home="vc", submit_s=5.0), "vc"), (other(vc="other"), None, None),
        (other("lucid:vc=gone;held=1"), None, "vc"), (other(gpus=0), None, None),
    ],
)  # fmt: skip
def test_a_job_belongs_to_the_vc_that_is_noted_or_tagged(job: Accounted, note: JobNote | None, home: str) -> None:
    found = ended_from(job, note, SETTINGS)
    assert (found and found.job.vc) == home
    if found is not None:
        assert found.job.submit_s == (5.0 if note else JOB.ended.job.submit_s)
        assert found.ran_s == JOB.ended.ran_s


@dataclass
class Books:
    """Accounting over the slurmctld in memory; remembers what that forgets."""

    slurm: FakeSlurm
    error: Exception | None = None
    asked: list[float] = field(default_factory=list)
    takes_s: float = 0.0

    def ended(self, past_s: float, partitions: Sequence[str]) -> list[Accounted]:
        self.asked.append(past_s)
        if self.error is not None:
            raise self.error
        since_s = self.slurm.now - past_s
        self.slurm.advance(self.takes_s)
        past = [one for one in self.slurm.kept.values() if one.ended and one.end_s >= since_s]
        found = []
        for r in [one for one in past if one.partition in partitions]:
            job = Job(r.id, r.partition, r.gpus, r.submit_s, r.number, r.user, r.account, r.name)
            found.append(Accounted(Ended(job, r.end_s, r.end_s - r.start_s, r.state), r.admin_comment))
        return found


class Forgetful(FakeSlurm):
    """Forgets jobs when it is told to, as slurmctld does after MinJobAge."""

    @property
    def kept(self) -> Any:
        self.__dict__.setdefault("_kept", {}).update(self.records)
        return self.__dict__["_kept"]

    def forget(self) -> None:
        for job_id in [r.id for r in self.kept.values() if r.ended]:
            self.records.pop(job_id, None)


class Absent(Site):
    def __init__(self, folder: Path, **daemon: Any) -> None:
        super().__init__(folder, slurm=Forgetful, **daemon)

    def lucidd(self, holder: str, store: SqliteStore | None = None, **parts: Any) -> Daemon:
        if "books" not in self.__dict__:
            self.books, self.slurm.now = Books(self.slurm), 1e6
        self.predictor = WithContention(HistoryPredictor(2000.0))
        return super().lucidd(holder, store, accounting=self.books, **parts)

    def away(self, seconds: float) -> None:
        """The daemon is killed; Slurm goes on, and forgets."""
        self.store.close()
        self.slurm.advance(seconds)
        self.slurm.forget()

    def back(self, seconds: float = 30.0) -> None:
        self.start(f"after {self.slurm.now}")
        self.turns(seconds)

    def known(self) -> list[tuple[str, float]]:
        return [(item.job.id, item.ran_s) for item in self.store.ended()]


@pytest.fixture
def site(tmp_path: Path) -> Absent:
    return Absent(tmp_path)


def test_jobs_that_ended_and_were_forgotten_are_learned_from_once(site: Absent) -> None:
    for n, run_s in enumerate((100.0, 200.0, 4000.0)):
        site.submit(f"{n}", 4, run_s=run_s, name="train", mark="lucid:vc=vc;share=0")
    site.turns(100.0)
    before = dict(site.known())
    site.away(2000.0)
    site.back()
    found = dict(site.known())
    assert found.keys() > before.keys()
    assert found["1"] == 200.0
    jobs = "job" if len(found) == 1 else "jobs"
    assert f"mean of {len(found)} {jobs} with the same user and name" in mean_of(site, "train")
    asked = len(site.books.asked)
    site.slurm.advance(700.0)
    site.turns(10.0)
    assert len(site.books.asked) == asked, "one request"
    assert json.loads(site.ctl("history", "--json", "--days", "1e6"))["summary"]["jobs"] == len(dict(site.known()))


def mean_of(site: Absent, name: str) -> str:
    """By how many jobs the predictor goes for one like that."""
    return site.predictor.predict(Job("x", "vc", 4, 0.0, user="ada", name=name), None, 0.0).duration_source


def test_a_job_is_counted_once_whoever_saw_it_end(site: Absent) -> None:
    """Before the daemon was killed; by slurmctld afterwards; and between a look at it and accounting's answer."""
    share = "lucid:vc=vc;share=0"
    site.submit("before", 4, run_s=50.0, mark=share)
    site.submit("meanwhile", 4, run_s=200.0, mark=share, held=False, name="meanwhile")
    site.submit("between", 4, run_s=405.0, mark=share, held=False, name="between")
    site.turns(100.0)
    assert [job for job, _ in site.known()] == ["before"]
    site.away(0.0)
    site.slurm.advance(300.0)  # one ends and is still shown
    site.books.takes_s = 20.0  # the other ends while accounting is asked
    site.back(60.0)
    assert len(site.books.asked) == 2
    assert site.slurm.records["between"].ended
    for name in ("before", "meanwhile", "between"):
        assert "mean of 1 job with the same user and name" in mean_of(site, name), name


def test_how_far_back_it_asks_is_bounded(tmp_path: Path) -> None:
    off = Absent(tmp_path, catch_up_days=0)
    off.turns(10.0)
    assert off.books.asked == []
    (tmp_path / "on").mkdir()
    site = Absent(tmp_path / "on", catch_up_days=0.5)
    site.turns(10.0)
    for away_s in (30.0, 3600.0, 86400.0):
        site.away(away_s)
        site.back()
    first, *later = site.books.asked
    assert first == 43200.0, "a daemon that was never there begins with that"
    assert later == [pytest.approx(3660.0, abs=30.0), 43200.0], "slurmctld still knows what ended a minute ago"


def test_jobs_that_borrowed_are_asked_for_too(tmp_path: Path) -> None:
    site = Absent(tmp_path, pool={"partition": "over", "quotas": {"vc": 4}})
    site.turns(10.0)
    site.slurm.node("n1", partitions=frozenset({"vc", "over"}))
    site.slurm.submit("lent", "over", 4, run_s=50.0, mark="lucid:vc=vc;share=0", held=False)
    site.away(900.0)
    site.back()
    assert [job for job, _ in site.known()] == ["lent"]


@pytest.mark.parametrize("error", [ClusterUnavailable("slurmdbd is away"), ActionRefused("no accounting")])
def test_accounting_that_does_not_answer_holds_up_nothing(site: Absent, error: Exception) -> None:
    site.books.error = error
    site.submit("1", 1, run_s=100.0)
    site.turns(50.0)
    assert len(site.books.asked) == 1
    assert site.slurm.starts
    assert json.loads(site.ctl("status", "--json"))["last_error"] == ""
    for _ in range(5):
        site.slurm.advance(700.0)
        site.turns(10.0)
    assert len(site.books.asked) == 3, "at most so many times"


def test_a_second_try_that_succeeds_is_learned_from(site: Absent) -> None:
    site.turns(10.0)
    site.slurm.submit("7", "vc", 1, run_s=50.0, held=False, mark="none")
    site.away(500.0)
    site.books.error = ClusterUnavailable("slurmdbd is away")
    site.back(100.0)
    assert site.known() == []
    site.books.error = None
    site.slurm.advance(700.0)
    site.turns(10.0)
    assert site.known() == [("7", 50.0)]


FORESEEN: dict[str, tuple[float, str, dict[str, Span | None], dict[str, Span | None] | None]] = {
    "of now": (100.0, "", {"a": (5, 10, 20), "b": None}, {"a": (5, 10, 20), "b": None}),
    "nearer": (90.0, "", {"a": (5, 15, 20), "b": (100, 110, 120)}, {"a": (1, 5, 10), "b": (90, 100, 110)}),
    "starts now": (95.0, "a", {"a": (5, 15, 20), "b": (1, 1, 1)}, {"a": (0, 0, 0), "b": (1, 1, 1)}),
    "was to start and waits": (95.0, "", {"a": (0, 0, 0), "b": None}, None),
    "old": (39.0, "", {"a": None, "b": None}, None),
    "not all who wait": (100.0, "", {"a": (5, 10, 20)}, None),
}
"""The forecast's time, the jobs that the plan of 100 s starts, the forecast, and what is shown of it at 100 s."""


@pytest.mark.parametrize("case", FORESEEN)
def test_what_was_foreseen_is_told_where_it_holds(case: str) -> None:
    at_s, starting, foreseen, told = FORESEEN[case]
    snapshot = snap(100.0, part(nodes(1, 8), [waits("a", 8, 0.0), waits("b", 8, 1.0)]))
    actions = tuple(Action(job_id, VC, start("n1:0-7")) for job_id in starting)
    plan = Plan(100.0, {VC: PartitionPlan({action.job_id: action.decision for action in actions}, actions)})
    found = starts_from_view(json.loads(json.dumps(to_json(StartsAhead(at_s, foreseen)))), snapshot, plan)
    assert (found and dict(found.starts_in_s)) == told


def test_a_reservation_has_the_date_of_its_jobs_start_on_every_page() -> None:
    """Nodes are kept for ``a`` until 900 s by estimates; forecasts, which were off so far, say 400 s."""
    kept, other = Reserved("a", 900.0, 60.0, 4), FreeGpus(8, 0, 0, False)
    plan = Plan(100.0, {VC: PartitionPlan({"a": Hold((other, kept)), "b": Hold((kept,)), "c": Hold((other,))})})
    found = as_foreseen(plan, StartsAhead(100.0, {"a": (200, 300, 500), "b": None})).partitions[VC].decisions
    dates = {job: [r.until_s for r in made.reasons if isinstance(r, Reserved)] for job, made in found.items()}
    assert dates == {"a": [400.0], "b": [400.0], "c": []}
    assert as_foreseen(plan, None) is plan
    assert as_foreseen(plan, StartsAhead(100.0, {"a": None})) is plan, "the plan's own date is all that is known"


def test_how_far_was_planned_ahead_is_kept() -> None:
    written = json.dumps(to_json(StartsAhead(1.0, {}, 50.0, {"a": 20.0, "b": None})))
    assert [from_json(StartsAhead, json.loads(written)).ahead_of(job) for job in "abc"] == [20.0, math.inf, 50.0]
