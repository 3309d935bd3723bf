"""What a job reports of its progress, and what of it is believed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from test_resizes import Stage

from lucid.core.decision import Action, Resize, Start
from lucid.core.job import Elastic, Progress, Running
from lucid.core.placement import placement_gpus
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.registry import make_policy
from lucid.slurm.elastic.jobs import StepModels
from lucid.slurm.elastic.report_check import AGREES, ReportCheck, Run, Verdict
from scenes.plans import settings

SILENT_S = 900.0
Told = tuple[float, Progress | None]
"""When a report was written, and what it says."""


@dataclass
class Honest:
    """Trains an epoch of ``epoch_s(gpus)`` seconds, gives ``pause_s`` to each for evaluation, and now and then
    ``long_s`` more; reports after every ``every`` epochs."""

    one_s: float
    scaling: float
    pause_s: float = 0.0
    long_s: float = 0.0
    long_every: int = 10
    every: int = 1
    noise: float = 0.0
    boot_s: float = 0.0
    lot: random.Random = field(default_factory=lambda: random.Random(0))
    epochs: float = 0.0
    times: dict[int, float] = field(default_factory=dict)

    def epoch_s(self, gpus: int) -> float:
        return self.one_s / (1 + self.scaling * (gpus - 1)) * self.lot.uniform(1 - self.noise, 1 + self.noise)

    def reports(self, start_s: float, gpus: int) -> Iterator[Told]:
        """Of a run that starts then; it goes on in the middle of an epoch, as from a checkpoint."""
        now_s, part = start_s + self.boot_s, self.lot.random() if self.epochs else 1.0
        while True:
            took_s = self.epoch_s(gpus)
            now_s += took_s * part
            self.epochs += 1
            if part == 1.0:
                self.times[gpus] = took_s
            part = 1.0
            now_s += self.pause_s
            if self.epochs % self.every == 0:
                yield now_s, Progress(self.epochs, tuple(self.times.items()))
            if self.epochs % self.long_every == 0:
                now_s += self.long_s


@dataclass
class Looks:
    """lucidd's looks at one job, which asked for ``written`` GPUs."""

    look_s: float = 5.0
    written: int = 1
    now_s: float = 0.0
    progress: Progress | None = None
    told_s: float = 0.0
    said: list[Verdict] = field(default_factory=list)
    check: ReportCheck = field(default_factory=lambda: ReportCheck(SILENT_S))

    def runs(
        self, reports: Iterator[Told], gpus: int, until_s: float, worked: Callable[[float], float] | None = None,
        waited: bool = True,
    ) -> None:  # fmt: skip
        """A run from now on, after a restart of 10 s, until then. ``waited``: lucidd saw it before."""
        if waited:
            self.check.check("1", None, self.now_s)
        start_s = self.now_s = self.now_s + 10.0
        coming = next(reports)
        while self.now_s < until_s:
            self.now_s += self.look_s
            while coming[0] <= self.now_s:
                self.progress, self.told_s = coming[1], self.now_s
                coming = next(reports)
            use = None if worked is None else (self.now_s - start_s, worked(self.now_s - start_s))
            run = Run(start_s, gpus, self.written, self.progress, self.told_s, use)
            self.said.append(self.check.check("1", run, self.now_s))


@pytest.mark.parametrize("seed", range(40))
def test_honest_jobs_are_left_alone(seed: int) -> None:
    """Pauses of up to an epoch each time, longer ones now and then, noise, slow starts, resizes, a lucidd that is
    started anew."""
    lot = random.Random(seed)
    one_s = 10 ** lot.uniform(0.3, 3.3)
    job = Honest(
        one_s, lot.choice((0.0, 0.3, 0.9, 1.0)), lot.choice((0.0, 0.1, 0.8)) * one_s,
        lot.choice((0.0, 3.0, 12.0)) * min(one_s, SILENT_S / 10), lot.choice((5, 20)), lot.choice((1, 1, 5)),
        lot.choice((0.0, 0.15)), lot.choice((0.0, 20.0, 600.0)), lot,
    )  # fmt: skip
    scene, grows = Looks(lot.uniform(1.0, 8.0)), True
    for gpus in (1, lot.choice((2, 4)), 8, 3):
        size = gpus if grows and scene.progress is not None else 1
        length_s = job.boot_s + lot.choice((6, 12, 30)) * job.every * (one_s + job.pause_s)
        looks = min(length_s / scene.look_s, 3000)
        scene.runs(job.reports(scene.now_s + 10.0, size), size, scene.now_s + looks * scene.look_s)
        grows = scene.said[-1].grows
    mostly = job.pause_s + job.long_s / job.long_every > one_s
    assert mostly or {verdict.words for verdict in scene.said} == {""}, job
    scene.check, scene.said = ReportCheck(SILENT_S), []
    scene.runs(job.reports(scene.now_s + 10.0, 8), 8, scene.now_s + 600 * scene.look_s, waited=False)
    scene.runs(job.reports(scene.now_s + 10.0, 4), 4, scene.now_s + 600 * scene.look_s)
    assert all(verdict.elastic for verdict in scene.said), "nor by a lucidd that comes later, and knows less of it"


def test_a_job_that_mostly_evaluates_is_not_grown_and_an_hour_that_told_nothing_is_forgotten_once_it_goes_on() -> (
    None
):
    job, scene = Honest(10.0, 1.0, pause_s=30.0), Looks()
    scene.runs(job.reports(10.0, 1), 1, 2000.0)
    assert scene.said[-1] == Verdict(False, True, "it says that an epoch takes 10 s, and 40 s go by for each")
    job, scene = Honest(60.0, 1.0), Looks()
    scene.runs(job.reports(10.0, 1), 1, 1000.0)
    scene.check.check("1", None, scene.now_s)
    late = ((at_s + 3600.0, told) for at_s, told in job.reports(scene.now_s + 10.0, 4))
    scene.runs(late, 4, scene.now_s + 3600.0 + 1500.0)
    assert not all(verdict.elastic for verdict in scene.said)
    assert scene.said[-1] == AGREES


def lies(says: Callable[[float], Progress | None], start_s: float = 0.0) -> Iterator[Told]:
    """One that writes anew every 2 s, by the time since its start."""
    for at_s in count(2.0, 2.0):
        yield start_s + at_s, says(at_s)


def table(square: float) -> tuple[tuple[int, float], ...]:
    return tuple((gpus, square / gpus**2) for gpus in range(1, 9))


LIARS: dict[str, Callable[[float], Progress | None]] = {
    "no progress": lambda _: Progress(0.1, table(1000.0)),
    "no time at all": lambda _: Progress(0.0),
    "as slow as ever": lambda t: Progress(t // 10, table(10.0)),
    "as slow as ever, with half of it pauses": lambda t: Progress(t // 10, table(5.0)),
    "more than can be": lambda t: Progress(t / 2, table(400.0)),
    "one great leap": lambda t: Progress(1.0 + (t > 20) * 999999, table(100.0)),
    "back and forth": lambda t: Progress(5.0 * (t % 8 < 4), table(100.0)),
    "backwards": lambda t: Progress(max(20.0 - t, 0.0), table(100.0)),
    "one size only": lambda t: Progress(0.1 + t / 1e9, ((1, 50.0),)),
}


@pytest.mark.parametrize("how", LIARS)
def test_liars_lose_what_they_got(how: str) -> None:
    """They grow at their first report, as under a policy that believes them."""
    scene = Looks(look_s=1.0)
    scene.runs(lies(LIARS[how]), 1, 60.0)
    begun = len(scene.said)
    scene.runs(lies(LIARS[how], scene.now_s + 10.0), 5, scene.now_s + 2500.0)
    ended = next(number for number, verdict in enumerate(scene.said) if not verdict.elastic)
    assert not all(verdict.grows for verdict in scene.said[: ended + 1])
    assert ended - begun < (2000 if how == "no time at all" else 420)
    before = [verdict.elastic for verdict in scene.said[ended:]]
    assert not any(after and not was for was, after in pairwise(before)) or how == "one great leap"


@pytest.mark.parametrize("silent", ["says nothing more", "takes its report away"])
def test_who_grows_and_then_falls_silent_gives_it_back(silent: str) -> None:
    scene = Looks()
    scene.runs(lies(LIARS["no progress"]), 1, 60.0)
    if silent == "takes its report away":
        scene.progress = None
    scene.runs(iter([(1e9, None)]), 5, 4000.0)
    assert not scene.said[-1].elastic
    assert scene.said[-1].words.startswith("it has told no progress for")


def test_progress_is_told_while_no_gpu_works() -> None:
    job, scene = Honest(10.0, 1.0), Looks()
    scene.runs(job.reports(10.0, 1), 1, 400.0, worked=lambda _: 0.0)
    assert not scene.said[-1].elastic
    assert "its GPUs have not worked for 60 s" in scene.said[-1].words
    little, agent = Looks(), Looks()
    little.runs(Honest(10.0, 1.0).reports(10.0, 1), 1, 400.0, worked=lambda t: t // 50)
    assert little.said[-1] == AGREES
    knows = Progress(0.0, step_model=(0.1,) * 7, gradient=(1.0, 1.0))
    agent.runs(lies(lambda _: knows), 4, 4000.0)
    assert agent.said[-1] == AGREES, "an agent that tells no epochs is not held to them"


def test_the_same_look_twice_says_the_same() -> None:
    check = ReportCheck(SILENT_S)
    run = Run(0.0, 1, 1, Progress(1.0, ((1, 10.0),)), 5.0)
    for at_s in (10.0, 20.0):
        assert check.check("1", run, at_s) == check.check("1", None, at_s)
    assert check.doubted() == {}
    check.forget_all_but(())
    assert check.doubted() == {}


ROWS = [[1, 1, 256, 0.2, 0.21], [1, 2, 128, 0.11, 0.13], [1, 4, 64, 0.06, 0.09]]
AGENT = {"profile": ROWS, "gradient": [1.0, 20.0], "batch": 256, "epochs": 2.0, "epoch_s": [[2, 30.0]]}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def limits_of(stage: Stage, comment: str, name: str = "1", **said: Any) -> Elastic | None:
    stage.running(name, f"n{name}:0,1", comment=comment)
    stage.report(name, **said)
    found: Elastic | None = stage.entry(name).job.elastic
    return found


@pytest.mark.parametrize(
    ("comment", "said", "batches"),
    [
        ("batch=256:4096", {}, (256, 4096, 1, 4096)),
        ("batch=256:4096", {"batch_range": [256, 1024], "atomic_range": [16, 128]}, (256, 1024, 16, 128)),
        ("batch=256:4096", {"batch_range": [8, 10**9], "atomic_range": [10**8, 10**9]}, (256, 4096, 4096, 4096)),
        ("batch=256:4096", {"batch_range": [10**9, 10**9]}, (4096, 4096, 1, 4096)),
        ("epochs=3", {"batch_range": [64, 512]}, (64, 512, 1, 512)),
        ("epochs=3", {"batch": 64}, (64, 64, 1, 64)),
    ],
)
def test_reports_narrow_what_the_comment_says(
    stage: Stage, comment: str, said: dict[str, Any], batches: tuple[int, ...]
) -> None:
    found = limits_of(stage, f"lucid:elastic=1-8,{comment}", **said)
    assert (found.init_batch, found.most_batch, found.atomic_min, found.atomic_max) == batches
    assert found.batch == batches[0]
    assert (found.min_gpus, found.max_gpus) == (1, 8), "GPUs are as the user said"


def test_a_step_model_is_fitted_to_rows_and_one_that_is_reported_wins(stage: Stage) -> None:
    limits_of(stage, "lucid:elastic=1-8,batch=256:4096", **AGENT)
    fitted = stage.entry("1").progress.step_model
    assert (len(fitted), sum(fitted[:2]) > 0) == (7, True)
    own = [0.1, 0.001, 0.0, 0.0, 0.02, 0.0, 1.5]
    stage.report("1", **AGENT, step_model=own)
    assert stage.entry("1").progress.step_model == pytest.approx(own, abs=1e-7)
    assert "its step times and gradients are known" in stage.story
    found = limits_of(stage, "lucid:elastic=1-8", "2", profile=ROWS, gradient=[1.0, 1.0])
    assert found.batch // found.atomic_min >= 8, "a batch that nobody told of bounds nothing"
    assert stage.entry("2").progress.step_model == (), "a model of step times says nothing of unknown batches"


def test_rows_are_fitted_once_and_within_a_bound_of_time() -> None:
    clock = iter(float(at_s) for at_s in range(100))
    models = StepModels(lambda: next(clock))
    rows = tuple(tuple(row) for row in ROWS)
    first = models.model_of("1", rows, 10.0)  # type: ignore[arg-type]
    assert len(first) == 7
    assert models.model_of("2", rows, 10.0) == (), "the second of this look has to wait"  # type: ignore[arg-type]
    assert models.model_of("2", rows, 11.0) == first  # type: ignore[arg-type]
    assert models.model_of("1", rows, 11.0) == first, "not fitted again"  # type: ignore[arg-type]
    assert next(clock) == 4.0
    models.forget_all_but(())
    assert models.model_of("1", (), 12.0) == ()
    absurd = ((1, 1, 1, 1e5, 1e-6), (1, 1, 1, 1e-6, 1e5), (4096, 4096, 1 << 40, 1e-6, 1e-6))
    assert len(StepModels().model_of("1", absurd, 0.0)) in (0, 7), "rows that contradict each other do no harm"


# -- pollux on Slurm -----------------------------------------------------------------------------------------


def turns(stage: Stage, name: str = "pollux", rounds: int = 12, **sections: Any) -> list[Action]:
    """What so many turns with the policy did."""
    rules = settings(**(sections or {"pollux": {"interval_s": 10.0, "generations": 20}}))
    predictor = HistoryPredictor()
    run = Cycle(stage.cluster, predictor, make_policy(name, rules, predictor), rules, tolerant=True)
    done: list[Action] = []
    for _ in range(rounds):
        stage.slurm.advance(3.7)
        done += [one.action for one in run.run().applied if one.refused is None]
        stage.cluster.heal()
    return done


COMMENT = "lucid:elastic=1-8,batch=256:4096,epochs=300"


def test_pollux_lets_a_job_with_an_agent_grow_beside_a_rigid_one(stage: Stage) -> None:
    limits_of(stage, COMMENT, **AGENT)
    stage.slurm.submit("2", "vc", 2)
    assert {("2", Start), ("1", Resize)} <= {(one.job_id, type(one.decision)) for one in turns(stage)}
    assert stage.entry("1", Running).gpus > 2
    assert placement_gpus(stage.entry("2", Running).placement) == 2


@pytest.mark.parametrize("name", ["pollux", "optimus-fitted", "optimus-drf"])
def test_a_job_without_an_agent_is_served_too(stage: Stage, name: str) -> None:
    stage.running("1", comment="lucid:elastic=1-8,epochs=300", gpus=1, where="n1:0")
    stage.report("1", epoch_s=[[1, 10.0]], losses=[[1, 1.0], [2, 0.7]], epochs=2.0)
    done = turns(stage, name, **{name.partition("-")[0]: {"interval_s": 10.0}})
    assert {one.job_id for one in done} == {"1"}
    assert any(isinstance(one.decision, Resize) for one in done), "8 idle GPUs, 298 epochs to go"


@pytest.mark.parametrize("name", ["elastic", "pollux", "optimus-drf"])
def test_nobody_is_resized_for_less_than_a_restart_costs(tmp_path: Path, name: str) -> None:
    """Two epochs of 30 s on two GPUs are left: no growth saves 90 s."""
    stage = Stage(tmp_path, restart_s=90.0)
    limits_of(stage, "lucid:elastic=1-8,batch=256:4096,epochs=4", **AGENT)
    rules = {} if name == "elastic" else {name.partition("-")[0]: {"interval_s": 10.0}}
    assert turns(stage, name, **rules) == []
    stage.daemon = stage.daemon.changed({"elastic.restart_s": 3.0})
    stage.restart()
    assert turns(stage, name, **rules), "for 3 s it is"


def test_the_measured_restart_replaces_the_guess(stage: Stage) -> None:
    stage.running("1")
    assert stage.entry("1").restart_s == 30.0
    stage.resized("1", "n1:0-3", rounds=8)
    stage.running("2", "n2:0,1")
    restart_s = stage.entry("1", Running).restart_s
    assert 1.0 < restart_s < 10.0
    assert stage.entry("2").restart_s == restart_s, "of a job that never was restarted: the median"
