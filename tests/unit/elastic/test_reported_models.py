"""What policies see of the reports of jobs with an agent: limits, step models, measured restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_resizes import WHY, Stage

from builders import at
from lucid.config.policy import PolicySettings
from lucid.core.decision import Resize, Start
from lucid.core.job import Elastic, Running
from lucid.core.placement import placement_gpus
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.cycle import Cycle
from lucid.orchestrator.registry import make_policy
from lucid.slurm.elastic.jobs import StepModels

ROWS = [[1, 1, 256, 0.2, 0.21], [1, 2, 128, 0.11, 0.13], [1, 4, 64, 0.06, 0.09]]
AGENT = {"profile": ROWS, "gradient": [1.0, 20.0], "batch": 256, "epochs": 2.0, "epoch_s": [[2, 30.0]]}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def limits_of(stage: Stage, comment: str, **said: Any) -> Elastic | None:
    stage.running("1", comment=comment)
    stage.report("1", **said)
    return stage.entry("1").job.elastic


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


def test_a_batch_that_nobody_told_of_bounds_nothing(stage: Stage) -> None:
    found = limits_of(stage, "lucid:elastic=1-8", profile=ROWS, gradient=[1.0, 1.0])
    assert found.batch // found.atomic_min >= 8
    progress = stage.entry("1").progress
    assert progress.step_model == (), "a model of step times says nothing of unknown batches"


def test_a_step_model_is_fitted_to_rows_and_one_that_is_reported_wins(stage: Stage) -> None:
    stage.running("1", comment="lucid:elastic=1-8,batch=256:4096")
    stage.report("1", **AGENT)
    progress = stage.entry("1").progress
    assert len(progress.step_model) == 7
    assert sum(progress.step_model[:2]) > 0
    own = [0.1, 0.001, 0.0, 0.0, 0.02, 0.0, 1.5]
    stage.report("1", **AGENT, step_model=own)
    progress = stage.entry("1").progress
    assert progress.step_model == pytest.approx(own, abs=1e-7)
    assert "its step times and gradients are known" in stage.cluster.elastic()["1"]


def test_rows_are_fitted_once_and_within_a_bound_of_time() -> None:
    clock = iter(float(at_s) for at_s in range(100))
    models = StepModels(lambda: next(clock))
    rows = tuple(tuple(row) for row in ROWS)
    first = models.of("1", rows, 10.0)  # type: ignore[arg-type]
    assert len(first) == 7
    assert models.of("2", rows, 10.0) == (), "the second of this look has to wait"  # type: ignore[arg-type]
    assert models.of("2", rows, 11.0) == first  # type: ignore[arg-type]
    assert models.of("1", rows, 11.0) == first, "not fitted again"  # type: ignore[arg-type]
    assert next(clock) == 4.0
    models.forget_all_but(())
    assert models.of("1", (), 12.0) == ()


def test_rows_that_contradict_each_other_do_no_harm() -> None:
    absurd = ((1, 1, 1, 1e5, 1e-6), (1, 1, 1, 1e-6, 1e5), (4096, 4096, 1 << 40, 1e-6, 1e-6))
    assert len(StepModels().of("1", absurd, 0.0)) in (0, 7)


# -- pollux on Slurm -----------------------------------------------------------------------------------------


def cycle(stage: Stage, name: str = "pollux", **settings: Any) -> Cycle:
    rules = PolicySettings.model_validate(settings or {"pollux": {"interval_s": 10.0, "generations": 20}})
    return Cycle(
        stage.cluster, HistoryPredictor(), make_policy(name, rules, HistoryPredictor()), rules, tolerant=True
    )


def turns(stage: Stage, run: Cycle, count: int, seconds: float = 3.7) -> list[Any]:
    done: list[Any] = []
    for _ in range(count):
        stage.slurm.advance(seconds)
        result = run.run()
        stage.cluster.heal()
        done += [a for a in result.applied if a.refused is None]
    return done


COMMENT = "lucid:elastic=1-8,batch=256:4096,epochs=300"


def test_pollux_lets_a_job_with_an_agent_grow_beside_a_rigid_one(stage: Stage) -> None:
    stage.running("1", comment=COMMENT)
    stage.report("1", **AGENT)
    stage.slurm.submit("2", "vc", 2)
    done = turns(stage, cycle(stage), 12)
    kinds = [(a.action.job_id, type(a.action.decision)) for a in done]
    assert ("2", Start) in kinds
    assert ("1", Resize) in kinds
    entry, rigid = stage.entry("1"), stage.entry("2")
    assert isinstance(entry, Running)
    assert entry.gpus > 2
    assert isinstance(rigid, Running)
    assert placement_gpus(rigid.placement) == 2


@pytest.mark.parametrize("name", ["pollux", "optimus-fitted", "optimus-drf"])
def test_a_job_without_an_agent_is_served_too(stage: Stage, name: str) -> None:
    stage.running("1", comment="lucid:elastic=1-8,epochs=300", gpus=1, where="n1:0")
    stage.report("1", epoch_s=[[1, 10.0]], losses=[[1, 1.0], [2, 0.7]], epochs=2.0)
    section = name.partition("-")[0]
    done = turns(stage, cycle(stage, name, **{section: {"interval_s": 10.0}}), 12)
    assert all(a.action.job_id == "1" for a in done)
    assert any(isinstance(a.action.decision, Resize) for a in done), "8 idle GPUs, 298 epochs to go"


@pytest.mark.parametrize("name", ["elastic", "pollux", "optimus-drf"])
def test_nobody_is_resized_for_less_than_a_restart_costs(tmp_path: Path, name: str) -> None:
    """Two epochs of 30 s on two GPUs are left: no growth saves 90 s."""
    stage = Stage(tmp_path, restart_s=90.0)
    stage.running("1", comment="lucid:elastic=1-8,batch=256:4096,epochs=4")
    stage.report("1", **AGENT)
    section = "optimus" if name == "optimus-drf" else name
    rules = {} if name == "elastic" else {section: {"interval_s": 10.0}}
    assert turns(stage, cycle(stage, name, **rules), 12) == []
    cheap = stage.daemon.elastic.model_copy(update={"restart_s": 3.0})
    stage.daemon = stage.daemon.model_copy(update={"elastic": cheap})
    stage.restart()
    assert turns(stage, cycle(stage, name, **rules), 12), "for 3 s it is"


def test_the_measured_restart_replaces_the_guess(stage: Stage) -> None:
    stage.running("1")
    assert stage.entry("1").restart_s == 30.0  # type: ignore[union-attr]
    assert stage.do("1", Resize(at("n1:0-3"), WHY)) is None
    stage.round(1.0, 8)
    stage.running("2", "n2:0,1")
    entry, other = stage.entry("1"), stage.entry("2")
    assert isinstance(entry, Running)
    assert entry.restart_s is not None
    assert 1.0 < entry.restart_s < 10.0
    assert other.restart_s == entry.restart_s, "of a job that never was restarted: the median"  # type: ignore[union-attr]


def test_a_silent_job_is_left_alone_by_pollux(tmp_path: Path) -> None:
    stage = Stage(tmp_path, silent_s=20.0)
    stage.running("1", comment=COMMENT)
    stage.report("1", **AGENT)
    assert stage.entry("1").job.elastic is not None
    stage.slurm.advance(100.0)
    assert turns(stage, cycle(stage), 3) == []
    assert "no report for" in stage.cluster.elastic()["1"]
