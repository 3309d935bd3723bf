"""What commands tell of a daemon that runs: the queue, why-not, explain, when."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from builders import LIGHT
from daemon_site import Site
from kept import HERE, same_as
from lucid.cli.jobs import when as when_command
from lucid.cli.main import lucidctl
from lucid.config.load import settings_from
from lucid.daemon.learning.models import WithContention
from lucid.daemon.policies import live_models
from lucid.daemon.reporting.starts import START_TIMES, start_times_of
from lucid.errors import ConfigError, StoreError
from lucid.explain.queue_rows import outcome_words
from lucid.models.history import HistoryPredictor
from lucid.models.packing.pair_memory import PairMemoryFile


def refused(site: Site, words: str, kind: type[Exception] = ConfigError) -> str:
    with pytest.raises(kind) as told:
        site.ctl(*words.split())
    return str(told.value)


def _crowded(site: Site) -> str:
    """Three jobs that share with nobody, and room for two: which of them waits."""
    for n in range(3):
        site.submit(f"{n}", 4, mark="lucid:vc=vc;share=0", run_s=5000.0, name=f"j{n}")
    site.turns(400.0, every_s=10.0)
    (waiting,) = [r.id for r in site.slurm.records.values() if r.pending]
    return waiting


@pytest.mark.parametrize(
    ("users", "mps", "words"),
    [
        ("ada ada", True, "by MPS, where the node has it"),
        ("ada bob", True, "by time-slicing: MPS serves one user"),
        ("ada ada", False, "by time-slicing: there is no MPS here"),
    ],
)
def test_a_pair_is_told_by_what_it_shares(tmp_path: Path, users: str, mps: bool, words: str) -> None:
    site = Site(tmp_path, share_across_users=True, mps=mps)
    for number, user in zip("12", users.split(), strict=True):
        site.submit(number, 2, user=user)
    site.turns(200.0)
    told = " ".join(site.ctl("explain", "2").split())
    assert words in told
    assert bool(site.slurm.records["2"].extra) is mps


def test_why_not_plans_again_unless_it_cannot_plan_as_lucidd_did(site: Site) -> None:
    waiting = _crowded(site)
    told = site.ctl("why-not", waiting, "--gpus", "2", "--share")
    assert "as it is: waits (vc): " in told
    assert "with 2 GPUs: " in told
    assert json.loads(site.ctl("why-not", waiting, "--json"))["as_it_is"]["verb"] == "hold"
    assert "does not wait" in refused(site, "why-not 77")
    picture = site.store.view("snapshot")
    start = {"verb": "start", "reasons": [], "placement": "n1:0", "beside": None, "slots": False}
    picture["plan"]["vc"]["77"] = start
    site.store.put_view("snapshot", picture)
    told = site.ctl("why-not", waiting)
    assert "as it is: waits (vc): " in told
    assert "planning again here comes to another plan than lucidd's" in told
    assert "with 2 GPUs" not in told
    assert "why_no_if" in json.loads(site.ctl("why-not", waiting, "--json"))


def test_why_not_knows_what_pairs_were_seen_to_do(tmp_path: Path) -> None:
    """lucidd has seen such a pair crawl and does not make it again; the contention model would."""
    site = Site(tmp_path, restarts=None, profiling_partition="", partitions={"vc": "pack"}, share_across_users=True)
    memory = PairMemoryFile(tmp_path / "pairs.json")
    memory.note(("train", "train"), (0.4, 0.4), "1+2")
    site.predictor = live_models(site.settings, tmp_path / "lucid.toml", memory, 60.0)
    site.start()
    (tmp_path / "pairs.json").write_text(json.dumps([["train", "train", {"1+2": [0.4, 0.4]}]]))
    for name in ("1", "2", "3"):
        site.submit(name, 4, run_s=5000.0, name=f"j{name}")
        site.sampler.profiles[name] = replace(LIGHT, workload="train")
        site.turns(60.0)
    assert site.slurm.records["3"].pending
    assert "as it is: waits (vc): " in site.ctl("why-not", "3")
    assert json.loads(site.ctl("why-not", "3", "--share", "--json"))["if"]["willing to share"]["verb"] == "hold"


def test_queue_and_why_not_go_by_the_policy_that_lucidd_runs(tmp_path: Path) -> None:
    """Under fifo the long job that came first starts first, and nobody passes it, though two GPUs are free."""
    site = Site(tmp_path, restarts=None, policy="fifo", profiling_partition="")
    for name, gpus in (("1", 4), ("2", 2), ("3", 4), ("4", 1)):
        site.submit(name, gpus, run_s=5000.0, time_limit_s=1000.0 if name == "3" else 100.0)
        site.turns(5.0)
    rows = json.loads(site.ctl("queue", "--json"))["queue"]
    told = [(row["position"], row["job"], row["decision"]["verb"]) for row in rows]
    assert told == [(1, "3", "hold"), (2, "4", "hold")]
    first, second = (row["starts_in_s"][1] for row in rows)
    assert 0 < first <= second
    assert [reason["kind"] for reason in rows[1]["decision"]["reasons"]] == ["BehindHead"]
    assert "as it is: waits (vc): behind job 3" in site.ctl("why-not", "4", "--share")
    data = json.loads(site.ctl("why-not", "4", "--gpus", "1", "--json"))
    assert {data["as_it_is"]["verb"], data["if"]["with 1 GPU"]["verb"]} == {"hold"}


def test_pictures_are_drawn_on_after_the_clock_was_set_back_and_an_older_lucidds_is_no_answer(site: Site) -> None:
    site.submit("1")
    site.turns(20.0)
    site.slurm.now -= 3600.0
    site.submit("2")
    site.turns(20.0)
    drawn = site.store.view("snapshot")
    assert drawn["now_s"] < 1000.0
    assert "2" in json.dumps(drawn)
    site.store.put_view("snapshot", {key: value for key, value in drawn.items() if key != "policy"})
    assert "another version of lucidd wrote the last plan; restart lucidd" in refused(site, "queue", StoreError)


def test_a_job_that_slurm_started_at_once_is_told_as_that(tmp_path: Path) -> None:
    site = Site(tmp_path, partitions={"vc": "observe"})
    site.submit("1", 4, held=False, mark="none", run_s=30.0)
    site.slurm.advance(2.0)
    site.turns(20.0)
    assert "Slurm started it before lucidd saw it wait" in refused(site, "explain 1")
    site.turns(20.0)
    told = site.ctl("explain", "1")
    assert "ended after 30 s: COMPLETED" in told
    assert "Slurm started it before lucidd saw it wait" in told
    assert "asks for no GPU" in refused(site, "explain 99")


def test_an_array_is_explained_task_by_task(site: Site) -> None:
    site.submit("7_1")
    site.submit("7_0")
    site.turns(20.0)
    assert "job 7 is an array, and its 2 tasks are decided one by one: ask about 7_0, 7_1" in refused(
        site, "explain 7"
    )
    assert "starts" in site.ctl("explain", "7_0")


def test_slurms_fair_share_factor_counts_in_the_order_and_is_told(site: Site) -> None:
    policy = {"profiling": {"enabled": False}, "packing": {"gss": 0}, "fairness": {"share_bound": 4.0}}
    site.settings = site.settings.changed({"policy": settings_from({"policy": policy}, "test").policy})
    site.slurm.shares = {("over", "ada"): 0.1, ("under", "bob"): 0.9}
    site.start()
    for name in ("1", "2"):
        site.submit(name, 4, run_s=200.0)
    site.turns(20.0)
    site.submit("3", 4, account="over", user="ada", run_s=50.0)
    site.submit("4", 4, account="under", user="bob", run_s=50.0)
    site.submit("5", 4, account="over", user="ada", run_s=50.0)
    site.turns(300.0)
    order = [job for _, job, _ in site.slurm.starts]
    assert order == ["1", "2", "4", "3", "5"]
    assert "no_fair_share" in json.loads(site.ctl("status", "--json"))


def test_when_answers_before_anybody_submits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a profiling node free it starts there now; one that is not profiled waits behind the third."""
    _crowded(site)
    jobs = len(site.slurm.records)
    monkeypatch.setattr(when_command, "lives", lambda lease, now_s: lease is not None)
    found = json.loads(site.ctl("when", "--gpus", "8", "--time", "0:30:00", "--json"))
    answer = found["partitions"]["vc"]
    early_s, likely_s, late_s = answer["starts_in_s"]
    assert 0 < early_s <= likely_s <= late_s
    assert answer["estimate_s"] <= 1800.0
    assert "would start " in site.ctl("when", "--gpus", "8", "--partition", "vc")
    assert "vc: would start now" in site.ctl("when", "--gpus", "1")
    assert len(site.slurm.records) == jobs, "nothing is submitted"
    assert "fits nowhere" in refused(site, "when --gpus 99")
    assert "does not look after it" in refused(site, "when --gpus 1 --partition elsewhere")
    assert "no time limit" in refused(site, "when --gpus 1 --time soon")
    monkeypatch.undo()  # by the wall clock this daemon is long gone
    assert "systemctl start lucidd" in refused(site, "when --gpus 1", StoreError)


def test_every_command_tells_the_same_start_and_what_came_true_is_kept(site: Site) -> None:
    waiting = _crowded(site)
    (row,) = json.loads(site.ctl("queue", "--json"))["queue"]
    early_s, likely_s, late_s = row["starts_in_s"]
    assert 0 < early_s <= likely_s <= late_s
    for command in ("why-not", "explain", "when"):
        told = json.loads(site.ctl(command, waiting, "--json"))
        assert told["starts_in_s"] == row["starts_in_s"], command
        assert "starts: " in site.ctl(command, waiting)
    assert f"\nstarts: {told['starts']}\n" in site.ctl("when", waiting)
    assert "does not wait for Lucid" in refused(site, "when 77")
    for words in ((), (waiting, "--gpus", "1")):
        assert "name a JOB that waits, or --gpus" in site.ctl("when", *words)
    assert waiting in start_times_of(site.store.view(START_TIMES)).open
    site.start("two")  # a restart
    site.turns(12_000.0, every_s=20.0)
    assert site.slurm.records[waiting].state == "COMPLETED"
    assert not start_times_of(site.store.view(START_TIMES)).open
    rows = json.loads(site.ctl("history", "--json", "--days", "1e6"))["jobs"]
    told = {row["job"]: row["start_forecast"] for row in rows}[waiting]
    assert told["real_s"] > 0
    assert told["early_s"] <= told["likely_s"] <= told["late_s"]
    assert re.fullmatch(r"\S+ \S+ \(.* to .*\), was .+", outcome_words(told)), "a narrow terminal folds the cell"


def test_an_empty_queue_and_history_are_sentences_and_observed_starts_are_said_to_be(tmp_path: Path) -> None:
    site = Site(tmp_path, restarts=None, profiling_partition="", partitions={"vc": "observe"})
    site.turns(5.0)
    assert "no job waits for Lucid" in site.ctl("queue")
    assert "no job that lucidd looks after has ended" in site.ctl("history")
    for name in ("1", "2", "3"):
        site.submit(name, 4, run_s=5000.0)
    site.turns(60.0)
    for words in (["queue"], ["explain", "3"]):
        assert "Lucid only observes vc" in " ".join(site.ctl(*words).split())


@pytest.fixture(scope="module")
def reserved(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The job 8 has waited long for both nodes. The jobs 9 and 10, too long to end before, need a GPU of the three
    that are free on them."""
    folder = tmp_path_factory.mktemp("reserved")
    site = Site(folder, restarts=None, profiling_partition="", first_guess_s=30_000.0)
    site.predictor = WithContention(HistoryPredictor(30_000.0))
    site.start()
    alone: dict[str, str] = {"mark": "lucid:vc=vc;share=0"}
    site.submit("1", 4, run_s=90_000.0, time_limit_s=90_000.0, **alone)
    site.submit("2", 1, run_s=30_000.0, time_limit_s=90_000.0, **alone)
    site.turns(20.0)
    site.submit("8", 8, run_s=900.0, user="ada", **alone)
    site.turns(20_000.0, every_s=2000.0)
    for name in ("9", "10"):
        site.submit(name, 1, run_s=90_000.0, time_limit_s=400_000.0, user="bob", **alone)
    site.turns(30.0)
    return site


@pytest.mark.parametrize("words", ["queue", "explain 9", "explain 8", "explain 1", "why-not 8"])
def test_a_reservation_is_told_as_recorded(reserved: Site, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of 80 columns: the queue has a line for each job, and the reservation once above them."""
    monkeypatch.setattr(time, "time", lambda: reserved.slurm.now)
    asked = [*words.split(), "--config", str(reserved.folder / "lucid.toml")]
    told = CliRunner(env={"COLUMNS": "80"}).invoke(lucidctl, asked, catch_exceptions=False).output
    same_as(HERE / "words" / f"reserved-{words.replace(' ', '-')}.txt", told)


def test_what_would_help_ends_in_time_and_says_what_was_not_tried(
    reserved: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lucid.explain.what_if._MOST_S", 0.0)
    helps = json.loads(reserved.ctl("why-not", "8", "--json"))["helps"]["words"]
    assert helps == (
        "nothing that was tried would start it now (fewer GPUs); not all tried within 0 s: fewer GPUs, sharing, both"
    )
    assert "with 2 GPUs: " in reserved.ctl("why-not", "8", "--gpus", "2"), "what is asked for is tried"
    monkeypatch.undo()
    tried = json.loads(reserved.ctl("why-not", "8", "--json"))
    assert list(tried["if"]) == ["with 4 GPUs", "with 2 GPUs", "with 1 GPU", "willing to share"]


def test_the_other_vcs_are_tried_too(tmp_path: Path) -> None:
    site = Site(tmp_path, restarts=None, profiling_partition="", partitions={"vc": "pack", "prof": "pack"})
    for number in "123":
        site.submit(number, 4, mark="lucid:vc=vc;share=0", run_s=5000.0)
    site.turns(20.0)
    told = site.ctl("explain", "3")
    assert "what would help: in VC prof it would start now" in told
    assert json.loads(site.ctl("explain", "3", "--json"))["helps"]["now"] == ["in VC prof"]
