"""Jobs whose GPUs do nothing: whom the steps meet, in the past and at a running lucidd."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from builders import runs
from daemon_site import Site
from fake_slurm import FakeSlurm, fake_node
from lucid.adapters.gpu.profile_files import write_summary
from lucid.adapters.store.leased import IN_MEMORY
from lucid.adapters.store.port import SEEN
from lucid.adapters.store.sqlite import SqliteStore
from lucid.cli.live.idle import dry_run
from lucid.config import IdleSettings, Settings, profiles_folder
from lucid.efficiency.ladder import Step, meets
from lucid.errors import ConfigError
from lucid.live.idle_jobs import IdleJobs, Message, teller
from lucid.profiler.summary import Summary
from lucid.profiler.use import GpuUse, IdleStretch
from waste_readings import H, MadeJob, Phase, ordinary

RULES = IdleSettings(tell="mail", cancel=("vc",))


def a_month() -> list[MadeJob]:
    """Ordinary jobs, and jobs that stand idle for a while, on all of their GPUs or some."""
    draw, made = random.Random(5), [ordinary(number, seed=5) for number in range(40)]
    for number in range(30):
        gpus, user = draw.choice((1, 1, 2, 4)), f"idler-{number % 7}"
        idle_s, at_start = draw.uniform(0.5 * H, 9 * H), draw.random() < 0.3
        shape = [Phase(draw.uniform(0.3 * H, 3 * H), 60.0), Phase(idle_s, 0.0)]
        shape = shape[::-1] if at_start else [*shape, Phase(draw.choice((0.0, H)), 60.0)]
        works_on = draw.random() < 0.2
        phases = [[replace(one, util=60.0) for one in shape] if works_on and gpu else shape for gpu in range(gpus)]
        made.append(MadeJob(f"i{number}", phases, user=user))
    made.append(MadeJob("unread", [[Phase(6 * H, 0.0, known=False)]]))
    return made


def by_hand(job: MadeJob) -> tuple[int, float]:
    """Steps that meet a job, and GPU-hours after its end would have come: minute by minute over its phases."""
    idle_s, steps, back_s, cancelled = 0.0, 0, 0.0, False
    measured_s = 0.0
    for second in range(0, int(job.ran_s), 60):
        here, at = [], 0.0
        for phases in job.phases:
            at = 0.0
            for phase in phases:
                at += phase.seconds
                if second < at:
                    break
            here.append(phase)
        measured_s += 60.0 * all(one.known for one in here)
        idle_s = idle_s + 60.0 if all(one.known and one.util <= 1.0 for one in here) else 0.0
        back_s += 60.0 * cancelled
        if not cancelled and idle_s in (2 * H, 3 * H, 4 * H) and measured_s >= H:
            steps, cancelled = steps + 1, idle_s == 4 * H
    return steps, back_s * len(job.phases) / H


def test_the_dry_run_of_a_month_equals_a_count_by_hand() -> None:
    jobs, month = [], a_month()
    for made in month:
        jobs.append(made.job_use())
        found = meets(jobs[-1], RULES)
        steps, back_h = by_hand(made)
        assert sum(len(met.steps) for met in found) == steps, made.job_id
        assert sum(met.back_gpu_h for met in found) == pytest.approx(back_h, abs=0.1 * len(made.phases)), made.job_id
    told = {made.job_id: made.user for made in month if by_hand(made)[0]}
    assert told
    assert not any(job_id.startswith("o") for job_id in told)
    total = dry_run(jobs, [met for job in jobs for met in meets(job, RULES)], 30.0, RULES)["total"]
    assert (total["jobs_told"], total["users_told"]) == (len(told), len(set(told.values())))
    assert total["back_gpu_h"] == pytest.approx(sum(by_hand(made)[1] for made in month), abs=3.0)
    assert total["jobs_cancelled"] == sum(by_hand(made)[0] == 3 for made in month)
    elsewhere = [met for job in jobs for met in meets(job, IdleSettings(tell="mail", cancel=("other",)))]
    assert elsewhere
    assert not any(met.back_gpu_h or met.steps[-1][0] is Step.CANCEL for met in elsewhere), "no VC of theirs cancels"


def test_nobody_is_told_of_a_job_that_was_measured_for_less_than_an_hour() -> None:
    use = GpuUse("g", 0.0, 9000.0, 3599.0, 0.0, (IdleStretch(0.0, 9000.0),))
    job = replace(MadeJob("j", [[Phase(9000.0, 0.0)]]).job_use(0.0), use=(use,))
    assert meets(job, RULES) == []
    assert len(meets(replace(job, use=(replace(use, measured_s=3600.0),)), RULES)) == 1
    with pytest.raises(ValidationError, match="greater than or equal to 3600"):
        IdleSettings(tell_after_s=1800.0)
    with pytest.raises(ValidationError, match="two messages before"):
        IdleSettings(cancel=("vc",))


class Scene:
    """A job that runs since 0 s, and a lucidd that looks at it."""

    def __init__(self, rules: IdleSettings = RULES) -> None:
        self.slurm = FakeSlurm([fake_node("n1", "vc")])
        self.store = SqliteStore(IN_MEMORY)
        self.lease = self.store.take_lease("me", 0.0, 1e9)
        assert self.lease is not None
        self.rules, self.sent, self.cancelled, self.trouble = rules, list[Message](), list[str](), ""
        self.idle: tuple[IdleStretch, ...] = ()
        self.comment = "my project"
        self.restart()

    def restart(self) -> None:
        assert self.lease is not None
        self.jobs = IdleJobs(
            self.rules, self.store, self.lease.token, lambda: {"7": self.use}, self._tell, self.cancelled.append
        )

    def _tell(self, sent: Message) -> None:
        if self.trouble:
            raise ConfigError(self.trouble)
        self.sent.append(sent)

    def look(self, at_h: float, idle_from_h: float | None, packed: bool = True, fresh: bool = True) -> None:
        read_s = at_h * H - (10.0 if fresh else 900.0)
        idle = () if idle_from_h is None else (IdleStretch(idle_from_h * H, read_s),)
        self.use = (GpuUse("GPU-0", 0.0, read_s, read_s, 100.0, idle),)
        entry = replace(runs("7", "n1:0"), start_s=0.0)
        entry = replace(entry, job=replace(entry.job, user="ada", name="train"))
        self.jobs.look([entry], {"7": self.comment}, ["vc"] if packed else [], at_h * H)

    @property
    def steps(self) -> list[str]:
        return [step for step, _ in (self.store.view("idle") or {}).get("7", (0, []))[1]]


def test_told_twice_then_cancelled_each_once_whatever_dies_in_between() -> None:
    scene = Scene()
    for at_h in (1.0, 2.9):
        scene.look(at_h, 1.0)
        assert scene.steps == []
    scene.look(3.01, 1.0)
    scene.restart()
    scene.look(3.5, 1.0)
    assert [sent.subject for sent in scene.sent] == ["Job 7 does nothing on its GPUs"]
    assert "scancel 7" in scene.sent[0].text
    assert "If its GPUs still do nothing in 2.0 h, it is cancelled." in scene.sent[0].text
    scene.restart()
    scene.look(4.1, 1.0)
    scene.look(4.9, 1.0)
    assert (len(scene.sent), scene.cancelled) == (2, [])
    scene.look(5.2, 1.0, packed=False)
    assert scene.cancelled == [], "lucidd only observes there, or is paused"
    scene.look(5.3, 1.0)
    scene.look(9.0, 1.0)
    assert (len(scene.sent), scene.cancelled) == (2, ["7"])
    told = [(action.verb, action.result) for action in scene.store.actions("7")]
    assert sorted(told) == [("cancel", "done"), ("does", SEEN), ("does", SEEN)]


def test_work_begins_the_count_anew_and_silence_of_the_sampler_stops_it() -> None:
    scene = Scene()
    scene.look(3.1, 1.0)
    scene.look(4.2, 1.0)
    scene.look(6.0, 1.0, fresh=False)
    assert scene.cancelled == [], "nothing is known of the last quarter of an hour"
    assert scene.steps == [Step.TELL, Step.TELL_AGAIN]
    scene.look(6.5, None)
    assert scene.steps == [], "it works"
    scene.look(9.0, 6.6)
    assert (len(scene.sent), scene.cancelled, scene.steps) == (3, [], [Step.TELL])


def test_a_message_that_could_not_be_sent_leads_to_no_further_step() -> None:
    scene = Scene()
    scene.trouble = "MailProg ended with status 1"
    for at_h in (3.1, 3.15, 5.0, 8.0):
        scene.look(at_h, 1.0)
    assert (scene.steps, scene.cancelled) == ([], [])
    scene.trouble = ""
    scene.look(8.5, 1.0)
    assert scene.steps == [Step.TELL]


def test_who_said_off_and_who_switched_nothing_on_meet_no_step() -> None:
    scene = Scene()
    scene.comment = "lucid:off"
    scene.look(9.0, 1.0)
    assert scene.sent == []
    quiet = Scene(IdleSettings())
    quiet.look(9.0, 1.0)
    assert quiet.sent == []


def test_a_program_of_the_site_is_called_as_mailprog_is(tmp_path: Path) -> None:
    program, out = tmp_path / "tell", tmp_path / "out"
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{out}\ncat >>{out}\n[ "$3" != eve ] || exit 3\n')
    program.chmod(0o755)
    settings = Settings.model_validate({"idle": {"tell": str(program)}})
    tell = teller(settings, FakeSlurm([]))
    tell(Message("ada", "Job 7", "text"))
    assert out.read_text() == "-s|Job 7|ada|text"
    with pytest.raises(ConfigError, match="status 3"):
        tell(Message("eve", "Job 7", "text"))
    with pytest.raises(ConfigError, match="cannot be given"):
        tell(Message("-oX", "Job 7", "text"))


def test_the_command_lists_idle_jobs_and_what_steps_would_have_met_them(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.submit("1", user="ada")
    site.submit("2", user="bob")
    site.turns(120.0)
    site.turns(5 * H, every_s=600.0)
    now_s = site.slurm.now
    folder = profiles_folder(site.settings)
    folder.mkdir(parents=True, exist_ok=True)
    for job, idle in (("1", (IdleStretch(now_s - 4.5 * H, now_s),)), ("2", ())):
        use = (GpuUse("n1/0", now_s - 5 * H, now_s, 5 * H, 600.0, idle),)
        write_summary(folder, Summary(job, "n1", (), now_s - 5 * H, now_s, 30, use=use))
    listed = json.loads(site.ctl("idle", "--json"))
    assert [row["job"] for row in listed["jobs"]] == ["1"]
    assert "idle.tell is empty" in site.ctl("idle")
    past = json.loads(site.ctl("idle", "--dry-run", "--cancel-in", "vc", "--json"))
    assert [(row["user"], len(row["steps"])) for row in past["jobs"]] == [("ada", 3)]
    assert past["total"]["back_gpu_h"] == pytest.approx(0.4, abs=0.2)
    said = site.ctl("idle", "--dry-run")
    assert "Messages about 1 jobs would have gone to 1 users" in said
    assert "No VC cancels." in said
