"""What Lucid does with a job that Slurm does not start, or never will, and with one whose user changed something."""

from __future__ import annotations

from contextlib import suppress

import pytest

from builders import at
from lucid.core.decision import Action, Requeue, Start
from lucid.core.snapshot import Partition
from lucid.errors import ActionRefused, ClusterUnavailable
from lucid.places import Mode
from lucid.slurm.client import Changes, declined
from lucid.slurm.own.reasons import Outlook, outlook, with_cause
from lucid.slurm.records.job import SlurmJob
from lucid.slurm.records.request import Request
from lucid.store.port import JobNote
from scenes.slurm import MINE, WHY, Scene

LIMIT = "QOSMaxJobsPerUserLimit"
ONE = Request(tres_per_node="gres/gpu:1")


def limited(stage: Scene, most: int = 1) -> None:
    """Slurm runs at most so many jobs of a user."""

    def limit(job: SlurmJob) -> str:
        theirs = [r for r in stage.slurm.records.values() if (r.state, r.user) == ("RUNNING", job.user)]
        return LIMIT if len(theirs) >= most else ""

    stage.slurm.limits = limit


def barred(stage: Scene) -> dict[str, str]:
    return {entry.job.id: entry.barred for entry in stage.look().pending}


def test_a_job_over_a_limit_waits_with_slurms_words_and_holds_no_gpus(stage: Scene) -> None:
    limited(stage)
    stage.jobs("1 2 3", run_s=10.0)
    assert stage.start("1", "n1:0") is None
    assert stage.start("2", "n1:1") is None
    assert [e.job.id for e in stage.look().running] == ["1"], "what Slurm bars holds nothing in the books"
    assert stage.mend() == [f"job 2: Slurm does not start it now ({LIMIT}); waits"]
    assert stage.slurm.records["2"].held
    assert stage.request("2") == ONE
    assert barred(stage) == {"2": LIMIT, "3": LIMIT}, "nor is the next of the same user tried in vain"
    assert f"did not start this job, or one like it ({LIMIT})" in (stage.start("3", "n1:2") or "")
    stage.slurm.advance(10.0)
    assert barred(stage) == {"2": "", "3": ""}, "one of theirs has ended, and 30 s have not passed"


def test_only_one_of_many_is_tried_when_the_limit_may_have_given_way(stage: Scene) -> None:
    limited(stage)
    stage.jobs("1 2 3 4", run_s=100.0)
    stage.start("1", "n1:0")
    stage.start("2", "n1:1")
    stage.mend()
    stage.slurm.advance(100.0)
    stage.cluster.observe()
    done = stage.cluster.apply([Action(n, "vc", Start(at(f"n1:{n}"), WHY)) for n in ("2", "3", "4")])
    assert [bool(item.refused) for item in done] == [False, True, True]
    assert stage.slurm.records["2"].state == "RUNNING"
    assert barred(stage) == {"3": "", "4": ""}, "it gave way: more are tried"
    assert stage.start("3", "n1:3") is None
    stage.mend()
    assert barred(stage) == {"3": LIMIT, "4": LIMIT}


def test_a_barred_job_is_tried_again_after_a_time_that_doubles(stage: Scene) -> None:
    stage.slurm.limits = lambda job: "Licenses"
    stage.jobs("1")
    waits = []
    for _ in range(7):
        assert stage.start("1", "n1:0") is None
        stage.mend()
        (entry,) = stage.look().pending
        assert entry.barred == "Licenses"
        waits.append(entry.retry_s - stage.slurm.now)
        stage.slurm.advance(waits[-1])
    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    assert stage.store.notes()["1"].tries == 0, "a limit is no fault of its request: it stays Lucid's"


def test_another_users_jobs_are_not_barred_nor_smaller_ones_by_a_limit_on_gpus(stage: Scene) -> None:
    stage.slurm.limits = lambda job: "QOSMaxGRESPerUser" if job.gpus > 2 else ""
    for name, gpus, user in (("1", 4, "ada"), ("2", 4, "bob"), ("3", 2, "ada"), ("4", 3, "ada")):
        stage.jobs(name, gpus, user=user)
    stage.start("1", "n1:0-3")
    stage.mend()
    assert barred(stage) == {"1": "QOSMaxGRESPerUser", "2": "", "3": "", "4": ""}
    stage.start("4", "n1:0-2")
    stage.mend()
    stage.jobs("5", 3)
    assert barred(stage) == {**dict.fromkeys("145", "QOSMaxGRESPerUser"), "2": "", "3": ""}


def test_in_order_mode_slurms_own_reason_is_read_before_anything_is_planned(stage: Scene) -> None:
    stage.modes["vc"] = Mode.ORDER
    stage.slurm.limits = lambda job: LIMIT if job.id == "1" else "Priority"
    stage.jobs("1 2", held=False, mark="none")
    assert barred(stage) == {"1": LIMIT, "2": ""}


UNAVAILABLE = ["ReqNodeNotAvail", "ReqNodeNotAvail, UnavailableNodes:n4", "ReqNodeNotAvail(Unavailable:n4)"]


@pytest.mark.parametrize(
    ("reasons", "found"),
    [
        (["Resources"], Outlook.WAITS),
        (["AssocGrpGRES", "Reservation", "PartitionTimeLimit", "ALimitOfALaterSlurm"], Outlook.BARRED),
        (["QOSMinGRES", "PartitionNodeLimit", *UNAVAILABLE], Outlook.UNFIT),
    ],
)
def test_reasons(reasons: list[str], found: Outlook) -> None:
    assert {reason: outlook(reason) for reason in reasons} == dict.fromkeys(reasons, found)


@pytest.mark.parametrize("silent", ["look", "order", "slow order"])
def test_a_start_that_met_a_silent_slurm_says_nothing_about_the_job(stage: Scene, silent: str) -> None:
    stage.slurm.limits = lambda job: "Priority"
    stage.jobs("1 2", 4, mark=MINE)
    stage.cluster.observe()
    release = stage.slurm.release

    def late(job_id: str) -> None:
        release(job_id)
        stage.slurm.now += 40.0
        if silent == "order":
            raise ClusterUnavailable("slurmctld does not answer")

    if silent != "look":
        stage.slurm.release = late  # type: ignore[method-assign]
    with suppress(ClusterUnavailable):
        assert stage.start("1", "n1:0-3") is None
    if silent == "look":
        stage.slurm.advance(40.0)
        stage.slurm.down = True
        with pytest.raises(ClusterUnavailable):
            stage.cluster.observe()
        stage.slurm.down = False
    assert stage.mend() == []
    assert barred(stage) == {"2": ""}
    stage.slurm.advance(31.0)
    assert "did not start" in "".join(stage.mend()), "Slurm had its time since"
    assert barred(stage)["2"]


def test_a_job_that_slurm_refuses_twice_is_released_as_its_user_wrote_it(stage: Scene) -> None:
    stage.jobs("1", mark=MINE, light=True)
    why = "Invalid generic resource (gres) specification"

    def refuse(job_id: str, changes: Changes) -> None:
        if changes.tres_per_node and "shard" in changes.tres_per_node:
            raise ActionRefused(why)
        update(job_id, changes)

    update, stage.slurm.update = stage.slurm.update, refuse  # type: ignore[method-assign]
    assert "tried again in 10 s" in (stage.start("1", "n1:0") or "")
    assert barred(stage) == {"1": why}
    stage.slurm.advance(10.0)
    assert barred(stage) == {"1": ""}
    assert "did not start 2 times" in (stage.start("1", "n1:0") or "")
    (words,) = stage.mend()
    assert words == f"job 1: let go as its user wrote it, Slurm did not start it 2 times as Lucid asked ({why})"
    assert (stage.slurm.records["1"].state, stage.request("1")) == ("RUNNING", ONE)
    assert stage.mend() == []
    verbs = [(row.verb, row.result.partition(":")[0]) for row in stage.store.actions("1")]
    assert verbs == [("start", "refused"), ("start", "refused"), ("let go", "done")]


def test_a_job_that_slurm_accepts_and_never_starts_is_let_go_too_and_nobody_waits_for_its_gpus(stage: Scene) -> None:
    stage.slurm.limits = lambda job: "PartitionNodeLimit" if job.request.req_nodes else "Resources"
    stage.jobs("1", 2)
    for _ in range(2):
        assert stage.start("1", "n1:0-1") is None
        assert stage.look().running == ()
        stage.mend()
        stage.slurm.advance(10.0)
    stage.mend()
    record = stage.slurm.records["1"]
    assert (record.held, record.request, record.reason) == (False, Request(tres_per_node="gres/gpu:2"), "Resources")
    assert (stage.look().running, stage.look().pending) == ((), ())
    assert stage.store.notes()["1"].given_up == "PartitionNodeLimit"


def given_up(stage: Scene, reason: str, tries: int) -> None:
    stage.slurm.limits = lambda job: reason
    for _ in range(tries):
        assert stage.start("1", "n1:0-3") is None
        stage.mend()
        stage.slurm.advance(10.0)
    stage.mend()
    assert not stage.slurm.records["1"].held


def test_a_job_let_go_for_a_reason_outside_of_it_comes_back_when_that_has_ended(stage: Scene) -> None:
    reason = "ReqNodeNotAvail, UnavailableNodes:n1"
    stage.jobs("1", 4, mark=MINE)
    given_up(stage, reason, 2)
    stage.slurm.advance(3600.0)
    assert stage.mend() == [], "it lasts"
    assert "it queues again once that has ended" in stage.cluster.aside()["1"]
    pauses = []
    for _ in range(8):
        stage.slurm.limits = lambda job: "Resources"
        since_s = stage.slurm.now
        while not (said := stage.mend()):
            stage.slurm.advance(10.0)
        assert said == [f"job 1: held again: what kept it from starting may have ended ({reason})"]
        pauses.append(stage.slurm.now - since_s)
        assert [(e.job.id, e.since_s) for e in stage.look().pending] == [("1", 0.0)], "at its old place in the queue"
        given_up(stage, reason, 1)
    assert pauses == [10.0, 110.0, 230.0, 470.0, 950.0, 1910.0, 3590.0, 3590.0], "Slurm has ever more time for it"


@pytest.mark.parametrize("reason", ["PartitionNodeLimit", "BadConstraints", "Invalid generic resource (gres)"])
def test_a_job_let_go_for_what_it_asks_for_stays_slurms(stage: Scene, reason: str) -> None:
    stage.jobs("1", 4, mark=MINE)
    stage.cluster._writer.put(with_cause(JobNote("1", tries=2, given_up=reason, released=True)))
    stage.slurm.limits = lambda job: "Resources"
    stage.slurm._set("1", held=False)
    stage.slurm.advance(7200.0)
    assert stage.mend() == []


def test_a_let_go_that_slurm_refuses_is_tried_ever_more_rarely(stage: Scene) -> None:
    stage.jobs("1", comment="lucid:off")
    stage.slurm.fails_at_write = lambda n: ActionRefused("no")
    tried = []
    for second in range(200):
        stage.slurm.now = float(second)
        tried += [second] if stage.mend() else []
    assert tried == [0, 1, 3, 7, 15, 31, 63, 127]


def test_what_slurm_says_of_a_job_that_is_completing_does_not_count(stage: Scene) -> None:
    stage.jobs("1")
    stage.start("1", "n1:0")
    stage.do("1", Requeue(WHY))
    stage.slurm.fails_at_write = lambda n: declined("Job is pending execution")
    stage.slurm.advance(6.0)
    for _ in range(3):
        assert "has not left its nodes yet" in (stage.start("1", "n1:0") or "")
    assert stage.store.notes()["1"].tries == 0


def test_a_job_that_the_profiling_partition_does_not_take_goes_home_unprofiled(stage: Scene) -> None:
    """A limit of its user does not cost a job its profiling run."""
    stage.new = {"1", "2"}
    stage.jobs("1")
    stage.jobs("2", user="bob")
    stage.slurm.limits = lambda job: LIMIT if job.user == "bob" else "AccountNotAllowed" * (job.partition == "prof")
    assert [e.job.id for e in stage.look("prof").pending] == ["1", "2"]
    assert stage.start("1", "p1:0", room="prof") is None
    assert stage.start("2", "p1:1", room="prof") is None
    stage.mend()
    assert [(e.job.id, e.barred) for e in stage.look("prof").pending] == [("2", LIMIT)]
    assert barred(stage) == {"1": ""}
    assert stage.start("1", "n1:0") is None
    assert stage.slurm.records["1"].partition == "vc"


def test_a_job_whose_start_gave_less_than_it_asks_for_is_slurms_at_its_turn(stage: Scene) -> None:
    """slurm/task_prolog sends it back before its first line, and says so in the comment."""
    stage.jobs("1", mark=MINE, light=True)
    stage.start("1", "n1:0")
    stage.mend()
    wrong = {"comment": "mine lucid:wrong=2-of-4-tasks", "restarts": 1, "reason": "BeginTime"}
    stage.slurm._set("1", state="PENDING", placement=(), eligible_s=stage.slurm.now + 120, **wrong)
    assert stage.mend() == ["job 1: was requeued, not by Lucid; waits again"]
    assert stage.mend() == [], "Slurm's begin time has not come"
    stage.slurm.advance(121.0)
    why = "its start gave less than the job asks for: 2 of 4 tasks"
    assert stage.mend() == [f"job 1: let go at its turn as its user wrote it: {why}"]
    assert (stage.slurm.records["1"].state, stage.request("1")) == ("RUNNING", ONE)
    assert stage.mend() == []


def test_a_job_that_no_node_can_hold_is_slurms_at_its_turn(stage: Scene) -> None:
    """4 GPUs with 20 GiB each: Slurm spreads it over nodes of 64 GiB, and Lucid would look for one node for ever."""
    stage.jobs("1", 4, mark=MINE)
    stage.slurm.advance(5.0)
    stage.jobs("2", 4, mark=MINE, mem_mib=10**9)
    assert stage.mend() == [], "it is not its turn"
    stage.start("1", "n1:0-3")
    stage.slurm.advance(5.0)
    why = "no node has the CPUs and the memory that it asks for beside its GPUs"
    assert f"job 2: let go at its turn as its user wrote it: {why}" in stage.mend()
    assert stage.mend() == []


def test_whoever_says_so_without_a_start_gains_nothing(stage: Scene) -> None:
    stage.jobs("1", 4, mark=MINE)
    stage.slurm.advance(5.0)
    stage.jobs("2", 4, mark=MINE, comment="lucid:wrong=2-of-4-tasks")
    assert stage.mend() == []
    assert stage.slurm.records["2"].state == "PENDING"


def test_starts_leave_a_share_of_the_writes_for_mending() -> None:
    stage = Scene(writes_per_cycle=12)
    stage.jobs("1 2 3 4 5 6", mark=MINE)
    stage.jobs("7", mark=MINE, reservation="maint")
    stage.cluster.observe()
    stage.cluster.apply([Action(f"{n}", "vc", Start(at(f"n1:{n - 1}"), WHY)) for n in range(1, 5)])
    assert [record.held for record in stage.slurm.records.values()].count(False) == 3
    assert stage.cluster.heal() == ["job 7: let go as its user wrote it, it asks for reservation maint"]


def test_what_was_not_mended_in_one_cycle_is_first_in_the_next() -> None:
    stage = Scene(writes_per_cycle=8)
    stage.jobs("1 2 3 4 5 6", mark=MINE)
    stage.modes["vc"] = Mode.OBSERVE
    served = []
    for _ in range(3):
        served.append([words.partition(":")[0] for words in stage.mend()])
        for record in list(stage.slurm.records.values()):
            stage.slurm._set(record.id, held=True, state="PENDING", placement=())  # to be mended again
    assert served == [[f"job {(5 * n + i) % 6 + 1}" for i in range(5)] for n in range(3)]


def test_a_job_that_its_user_holds_is_nobodys_to_start(stage: Scene) -> None:
    stage.jobs("1", mark=MINE)
    assert [*barred(stage)] == ["1"]
    stage.slurm._set("1", comment="my run lucid:held")
    assert not stage.look().pending
    assert "Lucid does not hold it" in (stage.start("1", "n1:0") or "")
    assert stage.mend() == []
    stage.slurm._set("1", comment="my run")
    assert [*barred(stage)] == ["1"], "released by its user, it is Lucid's again"


def test_a_hold_while_the_start_is_under_way_counts_and_ends_when_its_user_says_so(stage: Scene) -> None:
    stage.slurm.limits = lambda job: "Resources"
    stage.jobs("1", mark=MINE, light=True)
    stage.start("1", "n1:0")
    stage.slurm._set("1", held=True, comment="lucid:held", reason="JobHeldUser")
    assert stage.look().running == ()
    assert stage.mend() == ["job 1: given back the request that its user wrote"]
    assert stage.request("1") == ONE
    stage.slurm._set("1", comment="")  # job_submit.lua turns the user's release into this
    assert [*barred(stage)] == ["1"]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("reservation", "maint", "it asks for reservation maint"),
        ("partition", "elsewhere", "partition 'elsewhere' is not packed"),
    ],
)
def test_a_change_lets_a_waiting_job_go(stage: Scene, field: str, value: str, why: str) -> None:
    stage.jobs("1", mark=MINE)
    assert [*barred(stage)] == ["1"]
    stage.slurm._set("1", **{field: value})
    assert not stage.look().pending
    assert stage.mend() == [f"job 1: let go as its user wrote it, {why}"]
    record = stage.slurm.records["1"]
    assert (record.held, getattr(record, field)) == (False, value), "and the change stands"
    assert stage.mend() == []


def test_a_job_that_its_user_moves_to_another_vc_waits_there(stage: Scene) -> None:
    stage.modes["other"] = stage.cluster._daemon.partitions["other"] = Mode.PACK
    stage.jobs("1", mark=MINE)
    stage.slurm._set("1", partition="other")
    assert not stage.look().pending
    assert [e.job.vc for e in stage.look("other").pending] == ["other"]


def test_uninstall_gives_a_held_job_back_without_releasing_it(stage: Scene) -> None:
    stage.jobs("1", mark=MINE)
    stage.jobs("2", mark=MINE, comment="lucid:held")
    stage.cluster.observe()
    assert stage.cluster.still_ours() == ["1"]
    stage.modes["vc"] = Mode.OBSERVE
    stage.mend()
    assert (stage.slurm.records["1"].held, stage.slurm.records["2"].held) == (False, True)


def test_mending_leaves_alone_what_was_started_since_the_last_look(stage: Scene) -> None:
    stage.jobs("1", mark=MINE, light=True)
    stage.cluster.observe()
    (done,) = stage.cluster.apply([Action("1", "vc", Start(at("n1:0"), WHY))])
    assert not done.refused
    assert stage.cluster.heal() == []
    assert stage.store.notes()["1"].where == "n1:0"
    assert [e.job.id for e in stage.look().running] == ["1"]


def test_who_waits_and_not_for_lucid_is_told(stage: Scene) -> None:
    for name, says in (("1", {}), ("2", {"comment": "lucid:held"}), ("3", {"reservation": "maint"})):
        stage.jobs(name, mark=MINE, **says)
    stage.look()
    assert stage.cluster.aside() == {"2": "its user or an administrator holds it (scontrol release ends that)"}
    stage.slurm.limits = lambda job: "None"
    stage.mend()
    stage.look()
    assert stage.cluster.aside()["3"] == "Slurm alone decides about it (None)"


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("reason", ["Priority", LIMIT])
@pytest.mark.parametrize("ahead_s", [600.0, 86400.0])
def test_what_a_clock_said_that_was_ahead_holds_no_job(stage: Scene, anew: bool, reason: str, ahead_s: float) -> None:
    """Seen by the campaign: held, and not tried again before that time had come."""
    started_ahead(stage, reason, ahead_s)
    stage.slurm.advance(stage.settings.start_grace_s + 1)
    assert stage.mend()
    assert barred(stage) == {"1": reason}
    stage.slurm.now -= ahead_s
    stage.slurm._set("1", eligible_s=0.0)  # slurmctld's clock was right
    stage.slurm.limits = lambda job: ""
    if anew:
        stage.restart()
    assert barred(stage) == {"1": ""}
    assert stage.start("1", "n1:0") is None
    assert stage.slurm.records["1"].state == "RUNNING"


def started_ahead(stage: Scene, reason: str, ahead_s: float = 86400.0) -> None:
    stage.slurm.limits = lambda job: reason
    stage.jobs("1")
    stage.slurm.advance(ahead_s)
    assert stage.start("1", "n1:0") is None


def test_a_start_of_a_clock_that_was_a_day_ahead_is_taken_back_all_the_same(stage: Scene) -> None:
    started_ahead(stage, "Priority")
    stage.slurm.now -= 86400.0
    assert any("did not start" in words for words in stage.mend())


NEVER = "BadConstraints"


class Site(Scene):
    """Slurm holds the jobs of ``never`` itself as soon as it is to start them."""

    def __init__(self) -> None:
        super().__init__()
        self.never = {"1"}
        self.slurm.limits = lambda job: NEVER if job.id in self.never else ""

    def turn(self, seconds: float = 1.0) -> Partition:
        """One look, what it leads to, and a while of Slurm's own."""
        seen = self.look()
        self.mend()
        self.slurm.advance(seconds)
        for job_id in self.never:
            record = self.slurm.records[job_id]
            if record.pending and not record.held:
                self.slurm._set(job_id, held=True, reason=NEVER)
        return seen

    def released(self, job_id: str) -> int:
        return sum(action.verb == "let go" for action in self.store.actions(job_id))

    def runs_once_it_may(self) -> bool:
        """It was a passing state of the cluster."""
        self.never.clear()
        for _ in range(700):
            self.turn()
        return self.slurm.records["1"].state == "RUNNING"


@pytest.fixture
def site() -> Site:
    return Site()


OPTED_OUT = "lucid:vc=vc;held=1;skip=socket;v=2"


def test_an_opt_out_that_never_runs_is_let_go_at_growing_pauses(site: Site) -> None:
    site.jobs("1", mark=OPTED_OUT)
    for _ in range(3600):
        site.turn()
    assert 4 <= site.released("1") <= 12, "seconds to minutes, not every look, and not never"
    assert site.runs_once_it_may()


def test_an_opt_out_that_never_runs_keeps_nobody_waiting(site: Site) -> None:
    site.jobs("1 2", mark=OPTED_OUT)
    site.jobs("3", mark="lucid:vc=vc;held=1;wait=1;v=2")
    for _ in range(10):
        seen = site.turn()
    assert site.released("2") == 1
    assert [entry.job.id for entry in seen.pending] == ["3"], "and who joined late is in the queue"


def test_an_ordinary_job_that_never_runs_is_given_up_and_tried_again_at_growing_pauses(site: Site) -> None:
    site.jobs("1", mark=MINE)
    starts = 0
    for _ in range(3600):
        if barred(site) == {"1": ""}:
            starts += 1
            assert site.start("1", "n1:0") is None
        site.turn()
    assert starts == 2, "START_TRIES; then Slurm alone decides"
    assert 4 <= site.released("1") <= 12
    assert site.look().pending == ()
    assert "Slurm holds it itself (BadConstraints)" in site.cluster.aside()["1"]
    assert site.runs_once_it_may()


def test_a_job_that_breaks_the_mending_leaves_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.never.clear()
    site.jobs("1", 2, mark=OPTED_OUT)
    site.jobs("2", mark=OPTED_OUT)
    done = site.slurm.release

    def release(job_id: str) -> None:
        if job_id == "1":
            raise OverflowError("a number of no size")
        done(job_id)

    monkeypatch.setattr(site.slurm, "release", release)
    told = site.turns(5)
    assert site.slurm.records["2"].state == "RUNNING"
    assert "job 1: cannot be repaired yet (OverflowError: a number of no size)" in told
