"""Pollux's workloads and profiles: reading, and the truth that lies between what was measured."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from applications import EPOCHS, INIT, PERF, learning, step_s, write_application
from builders import a_job
from lucid.cli.main import lucidctl
from lucid.core.job import Elastic
from lucid.errors import ConfigError, TraceError
from lucid.simulator.cluster.application import Application
from lucid.simulator.cluster.training import Training
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.read import read_trace, sniff

HEADER = "name,time,application,num_replicas,batch_size\n"


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_application(tmp_path_factory.mktemp("workload") / "made").parent


def workload(profiles: Path, text: str, name: str = "workload.csv") -> Path:
    path = profiles / name
    path.write_text(text)
    return path


def test_a_workload_is_known_by_its_header_and_its_jobs_are_elastic(profiles: Path) -> None:
    path = workload(profiles, f"{HEADER}late,90,made,4,512\nfirst,30,made,1,128\n")
    assert sniff(path) == "pollux"
    trace = read_trace(path)
    found = [(j.job.id, j.job.submit_s, j.job.gpus, j.job.name) for j in trace.jobs]
    assert found == [("first", 30.0, 1, "made"), ("late", 90.0, 4, "made")]
    late, batches = trace.jobs[1], {"batch": 512, "init_batch": 128, "most_batch": 1024}
    assert late.job.elastic == Elastic(max_gpus=24, atomic_min=16, atomic_max=128, **batches)
    assert trace.evaluated_with["tiresias.threshold_gpu_s"] == 16 * 3600
    assert late.duration_s == pytest.approx(late.learning.epochs * late.learning.epoch_s(4)[3])


BAD_ROWS = {
    "a,0,made,99,128\n": "line 2, column 'num_replicas'",
    "a,0,made,1,64\n": "line 2, column 'batch_size'",
    "a,0,../made,1,128\n": "not the name of a folder",
    "a,0,other,1,128\n": "other: there is no such folder.* --applications, or put them beside",
    "a,0,made,1,128\na,1,made,1,128\n": "line 2 has already",
}
BAD_PROFILES = [
    ("placements.csv", "placement,local_bsz\n1,2\n", "no column step_time, sync_time"),
    ("placements.csv", "placement,local_bsz,step_time,sync_time\n1,16,x,0\n", "line 2, column 'step_time': 'x'"),
    ("scalability.csv", "num_nodes,num_replicas,local_bsz,step_time,sync_time\n", "has no rows"),
    ("validation-128.csv", "progress,iteration,metric,grad_sqr,grad_var\n1,1,2,-3,4\n", "'-3' is not a number"),
    ("validation-x.csv", "progress,iteration,metric,grad_sqr,grad_var\n1,1,2,3,4\n", "must end in a batch size"),
]


@pytest.mark.parametrize("text", BAD_ROWS)
def test_what_is_wrong_is_named(profiles: Path, text: str) -> None:
    with pytest.raises(TraceError, match=BAD_ROWS[text]):
        read_trace(workload(profiles, HEADER + text, "bad.csv"))


@pytest.mark.parametrize(("file", "text", "words"), BAD_PROFILES)
def test_a_bad_profile_is_named(profiles: Path, tmp_path: Path, file: str, text: str, words: str) -> None:
    shutil.copytree(profiles / "made", tmp_path / "made")
    (tmp_path / "made" / file).write_text(text)
    with pytest.raises(TraceError, match=words) as raised:
        read_trace(workload(tmp_path, f"{HEADER}a,0,made,1,128\n"))
    assert file in str(raised.value)


def test_the_profiles_may_lie_in_a_folder_that_is_named(profiles: Path, tmp_path: Path) -> None:
    path = workload(tmp_path, f"{HEADER}a,0,made,1,128\n")
    with pytest.raises(TraceError, match="made: there is no such folder"):
        read_trace(path)
    there, beside = read_trace(path, applications=profiles), read_trace(workload(profiles, path.read_text()))
    assert [(j.job, j.duration_s) for j in there.jobs] == [(j.job, j.duration_s) for j in beside.jobs]
    simulate = f"simulate {path} --nodes 1 --policy optimus --json --applications"
    for words in (f"trace describe {path} --json --applications", simulate):
        assert CliRunner().invoke(lucidctl, [*words.split(), str(profiles)], catch_exceptions=False).exit_code == 0
    refused = CliRunner().invoke(lucidctl, [*simulate.split(), str(tmp_path / "nowhere")])
    assert "nowhere/made: there is no such folder" in str(refused.exception)


def test_a_measured_run_is_counted_by_its_own_steps_after_the_present_epoch(app: Application) -> None:
    """The evaluation of Optimus by Pollux's authors: 100 steps an epoch were written into the made profiles."""
    job = learning(app, 256)
    found = job.measured(4)
    steps = app.samples / 256
    assert found.left == pytest.approx([300 / steps, 200 / steps, 100 / steps, 1 / steps])
    assert found.left[0] < job.epochs, "the truth follows the noise of the gradient"
    truth = job.epoch_s(4)
    assert [found.epoch_s[g] for g in (0, 1, 3)] == pytest.approx([truth[g] for g in (0, 1, 3)])
    assert found.epoch_s[2] > truth[2], "three GPUs take 258 samples a step, and so fewer steps in truth"


def test_elastic_jobs_have_no_row_in_our_own_format_and_profiles_are_for_workloads_of_pollux(
    profiles: Path, tmp_path: Path
) -> None:
    trace = read_trace(workload(profiles, f"{HEADER}a,0,made,1,128\n"))
    with pytest.raises(TraceError, match="elastic"):
        write_trace(trace, tmp_path / "out.csv")
    path = workload(tmp_path, "job_id,user,vc,gpu_num,submit_time,duration\n1,u,v,1,0,10\n")
    with pytest.raises(ConfigError, match="is for workloads of Pollux"):
        read_trace(path, applications=profiles)


MEASURED = [((1,), 16), ((4,), 128), ((2, 1), 32), ((1, 2), 32), ((4, 1, 2), 64), ((2, 2, 2, 2), 64), ((4,) * 6, 16)]
BETWEEN = [((3,), 50, 0.02), ((3, 2, 2, 2), 64, 0.05), ((8,), 64, 0.1), ((8,) * 8, 64, 0.1), ((1,) * 5, 100, 0.1)]


@pytest.mark.parametrize(("layout", "local", "within"), [*((*row, 1e-9) for row in MEASURED), *BETWEEN])
def test_what_was_measured_is_found_again_and_the_rest_lies_between_or_follows_the_model(
    app: Application, layout: tuple[int, ...], local: int, within: float
) -> None:
    whole, sync = app.times(layout, local)
    assert whole == pytest.approx(step_s(len(layout), sum(layout), local), rel=within)
    if (layout, local) in MEASURED:
        assert whole - sync == pytest.approx(PERF.alpha_c + PERF.beta_c * local, rel=1e-9)


def test_gradients_lie_between_batch_sizes_and_change_by_epoch(app: Application) -> None:
    assert [app.gradient(128, e) for e in range(EPOCHS)] == [(1.0, 2.0 * (e + 1)) for e in range(EPOCHS)]
    assert app.gradient(300, 1) == pytest.approx((1.0, 4.0))


def test_a_batch_is_split_into_passes_that_fit(app: Application) -> None:
    passes = {(128, 1): (128, 0), (256, 1): (128, 1), (512, 2): (128, 1), (512, 4): (128, 0), (1000, 3): (112, 2)}
    assert {asked: app.passes(*asked) for asked in passes} == passes


def finish(training: Training) -> float:
    """Seconds that it takes on its GPUs, milestone by milestone."""
    total = 0.0
    while not training.done:
        left = training.left_s()
        assert left > 0
        total += left
        training.advance(left)
    return total


def test_an_agent_fits_its_step_times_chooses_a_batch_and_is_done_sooner(app: Application) -> None:
    truth = learning(app, INIT)
    without, agent = truth.begin(a_job("a"), False), truth.begin(a_job("a"), True)
    without.place((4,), 0.0)
    agent.place((4,), 0.0)
    assert agent.progress().batch == INIT, "nothing is known yet"
    while not agent.progress().step_model:
        agent.advance(agent.left_s())
    agent.advance(agent.left_s())
    report = agent.progress()
    assert report.batch > INIT
    assert report.gradient == app.gradient(report.batch, 1), "the second epoch by now"
    agent.place((4,), 0.0)
    assert finish(agent) < 0.9 * finish(without)


def test_the_command_says_which_settings_come_with_the_trace(profiles: Path) -> None:
    path = workload(profiles, f"{HEADER}a,0,made,2,256\nb,30,made,2,256\n", "two.csv")
    words = f"simulate {path} --nodes 2 --gpus-per-node 4 --policy optimus --policy tiresias"
    result = CliRunner().invoke(lucidctl, words.split(), catch_exceptions=False)
    assert result.exit_code == 0
    assert "optimus.interval_s = 60.0, optimus.epochs_left = measured" in " ".join(result.output.split())
