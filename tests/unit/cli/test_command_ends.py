"""How commands begin and end: light, with clear errors, demo included."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import demo
from daemon_site import Site
from demo_stream import GPUS_PER_NODE, NODES, VC, stream, trace_of
from json_schemas import every_command
from lucid.cli.main import _COMMANDS, _GONE, lucidctl
from lucid.cli.options import job_number
from lucid.config.load import load_settings
from lucid.errors import ConfigError, ModelError, TraceError
from lucid.explain.formatting import ago
from lucid.simulator.cluster.state import Semantics
from lucid.simulator.layout import NodeShape
from lucid.simulator.metrics import run_metrics
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.read import read_trace
from lucid.slurm.view.failed_pairs import failed_pairs_in

INTERRUPTED = """
import os, signal, sys
import lucid.simulator.traces as traces
import lucid.cli.replay.trace as command
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
def stop(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)
    raise AssertionError("never reached")
command.read_trace = stop
sys.argv = ["lucidctl", "trace", "describe", "any.csv"]
from lucid.cli.main import main
main()
"""


def test_ctrl_c_ends_with_the_status_of_shells() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr.strip().splitlines()[-1] == "lucidctl: interrupted"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("library", ["interpret.glassbox", "lucid.gone"])
def test_a_missing_library_names_its_extra_and_a_missing_module_of_our_own_is_none(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    import lucid.cli.replay.trace as command

    def absent(*_: object, **__: object) -> None:
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    monkeypatch.setattr(command, "read_trace", absent)
    said = typed("trace", "describe", "x.csv").exception
    assert isinstance(said, ModuleNotFoundError if library == "lucid.gone" else ModelError)
    words = f"needs {library}, of the extra 'models'; pip install 'lucid-scheduler[models]'"
    assert (words in str(said)) is isinstance(said, ModelError)


@pytest.mark.parametrize("out", ["philly.csv", "link.csv"])
def test_convert_does_not_write_over_what_it_reads(tmp_path: Path, out: str) -> None:
    path, text = (
        tmp_path / "philly.csv",
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,a\n",
    )
    path.write_text(text)
    (tmp_path / "link.csv").symlink_to(path)
    said = typed("trace", "convert", str(path), str(tmp_path / out)).exception
    assert isinstance(said, TraceError)
    assert "give OUT another name" in str(said)
    assert path.read_text() == text


HEAVY = ("numpy", "scipy", "pandas", "sklearn", "interpret", "matplotlib", "apscheduler", "jinja2", "rapidfuzz")

LIGHT = {
    "lucid.cli", "lucid.explain", "lucid.daemon", "lucid.slurm", "lucid.core", "lucid.orchestrator", "lucid.places",
    "lucid.accounting", "lucid.errors", "lucid.text", "lucid.files", "lucid.left_out", "lucid.store", "lucid.config",
}  # fmt: skip
NOT_LIGHT = (
    "lucid.orchestrator.forecast.plan_ahead", "lucid.orchestrator.policy", "lucid.orchestrator.policies.",
    "lucid.daemon.policies",
    "lucid.daemon.reporting.replan", "lucid.daemon.start_log", "lucid.node",
    "lucid.slurm.client", "lucid.slurm.records",
)  # fmt: skip
"""Whose names begin so plan, or talk to Slurm or GPUs."""


def loaded(*words: str) -> set[str]:
    """Modules there after ``lucidctl WORDS``, in a process of its own."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('LOADED', *sys.modules))\n"
        "from lucid.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    return set(done.stdout.rpartition("LOADED")[2].split())


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("nothing-like-it",)])
def test_help_loads_no_command_and_no_heavy_library(words: tuple[str, ...]) -> None:
    found = loaded(*words)
    assert "click" in found
    assert not found & {*HEAVY, "lucid.config", "sqlite3", "rich.progress"}
    assert not found & {target.partition(":")[0] for target, _ in _COMMANDS.values()}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Of a lucidd that has left a plan: of four jobs for all GPUs of a node, two run and the job 4 waits."""
    made = Site(tmp_path_factory.mktemp("site"))
    for number in range(1, 5):
        made.submit(str(number), 4, mark="lucid:vc=vc;share=0", run_s=5000.0)
    made.turns(400.0, every_s=10.0)
    (made.folder / "profiles").mkdir()
    return made


@pytest.mark.parametrize("words", [("status",), ("queue",), ("queue", "--json"), ("when", "4"), ("history",)])
def test_what_shows_what_lucidd_wrote_loads_nothing_to_plan_with(words: tuple[str, ...], site: Site) -> None:
    found = loaded(*words, "--config", str(site.folder / "lucid.toml"))
    assert "lucid.cli.jobs.queue" in found
    assert not found & {*HEAVY, "textual"}
    assert not [name for name in found if name.startswith(NOT_LIGHT)]
    rooms = {".".join(name.split(".")[:2]) for name in found if name.startswith("lucid.")}
    assert rooms <= LIGHT


@pytest.mark.parametrize("words", ["efficiency", "explain 2", "why-not 4", "when --gpus 4", "explain 4"])
def test_what_tells_of_use_or_plans_again_loads_none_that_trains(words: str, site: Site) -> None:
    """What tells how GPUs were used needs nothing to plan with either."""
    found = loaded(*words.split(), "--config", str(site.folder / "lucid.toml"))
    of_use, plans = words in ("efficiency", "explain 2"), "lucid.orchestrator.policy"
    assert ("lucid.profiler.waste" if of_use else plans) in found
    assert not found & {"textual", *HEAVY, plans} - (set() if of_use else {"numpy", plans})


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_table_of_commands_says_what_each_command_says(name: str) -> None:
    target, about = _COMMANDS[name]
    module, _, attribute = target.partition(":")
    assert about == getattr(import_module(module), attribute).get_short_help_str(10_000)


def test_the_trace_of_the_stream_is_read_back_and_replayed_under_the_demonstrations_settings(tmp_path: Path) -> None:
    pieces = stream(60, 1)
    assert pieces == stream(60, 1) != stream(60, 2)
    trace = trace_of(pieces)
    write_trace(trace, tmp_path / "trace.csv")
    assert read_trace(tmp_path / "trace.csv").jobs == trace.jobs
    (tmp_path / "lucid.toml").write_text(demo.SETTINGS)
    settings = load_settings(tmp_path / "lucid.toml")
    how = {"settings": settings, "profiling_nodes": 1, "semantics": Semantics.AS_LIVE}
    replayed = Scenario(trace, {VC: NODES}, NodeShape(GPUS_PER_NODE), **how)
    found = {policy: run_metrics(simulate(replayed, policy)) for policy in ("backfill", "lucid")}
    assert found["lucid"]["jobs"] == found["backfill"]["jobs"] == 60
    assert found["lucid"]["packed_share"] > 0.5 > found["backfill"]["packed_share"] == 0


def typed(*words: str, site: Site | None = None) -> Result:
    config = [] if site is None else ["--config", str(site.folder / "lucid.toml")]
    return CliRunner().invoke(lucidctl, [*words, *config])


EVERY = [(tuple(name.split()), command) for name, command in every_command()]
OF_A_JOB = [
    (*words, *(["--job"] if isinstance(one, click.Option) else []))
    for words, command in EVERY
    for one in command.params
    if one.name == "job_id"
]


# -- numbers of jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [*OF_A_JOB, ("efficiency", "--time-limits", "--job")], ids=" ".join)
@pytest.mark.parametrize("word", ["abc", "49469_", "49469.batch", "１"])
def test_what_is_no_job_number_is_told_as_that(words: tuple[str, ...], word: str, site: Site) -> None:
    done = typed(*words, word, site=site)
    assert isinstance(done.exception, ConfigError)
    assert done.exception.exit_code == 2
    assert str(done.exception) == f"{word} is no job number; 49469, 49469_3 and 49469+1 are"


def test_the_commands_that_take_a_job_are_these_and_a_part_of_a_heterogeneous_one_is_a_job(site: Site) -> None:
    assert set(OF_A_JOB) == {("explain",), ("why-not",), ("when",), ("efficiency", "--job")}
    assert [job_number(word) for word in ("49469", "49469_3", "49469+1")] == ["49469", "49469_3", "49469+1"]
    assert "nothing was decided about job 49469+1" in str(typed("explain", "49469+1", site=site).exception)


# -- did you mean -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("words", "group"), [(w, c) for w, c in EVERY if isinstance(c, click.Group)])
def test_a_mistyped_command_is_told_which_one_it_may_mean(words: tuple[str, ...], group: click.Group) -> None:
    for name in group.list_commands(click.Context(group)):
        mistyped = f"{name[:-1]}{name[-1] * 2}x"
        done = typed(*words, mistyped)
        assert done.exit_code == 2
        assert f"No such command {mistyped!r}; did you mean '{name}'?" in done.output


def test_a_mistyped_option_is_told_which_one_it_may_mean() -> None:
    for words, command in EVERY:
        for option in command.params:
            if isinstance(option, click.Option) and option.opts[0].startswith("--"):
                done = typed(*words, f"{option.opts[0]}xq")
                assert done.exit_code == 2
                assert re.search("[Dd]id you mean ", done.output), (words, option.opts[0], done.output)


@pytest.mark.parametrize(
    "words", ["mode vcc", "mode vcc order", "when --gpus 1 --partition vcc", "why-not 4 --vc vcc"]
)
def test_a_mistyped_partition_is_told_which_one_it_may_mean(
    words: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: site.slurm.now)
    said = typed(*words.split(), site=site).exception
    assert isinstance(said, ConfigError)
    assert "; did you mean 'vc'?" in str(said)


def test_a_word_on_the_mode_lets_pairs_be_made_again(site: Site) -> None:
    told = {"node": "n1", "since_s": 1.0, "job": "7", "reason": "Prolog error", "partitions": ["vc"]}
    site.store.set_setting("pairs.off.n1", json.dumps(told))
    assert "pairs on n1 again" in typed("mode", "vc", "configured", site=site).output
    assert not failed_pairs_in(site.store.settings())


# -- clocks -------------------------------------------------------------------------------------------------


AHEAD_S = 57_000.0


def test_nothing_is_told_to_be_older_than_the_future(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store and the heartbeat are written by a host whose clock is 15.8 h ahead of this one's."""
    assert ago(-AHEAD_S) == "15.8 h from now: the clock that wrote it and this one differ"
    assert [ago(age_s) for age_s in (-2.0, 0.4, 120.0)] == ["0 s ago", "0 s ago", "2 min ago"]
    monkeypatch.setattr(time, "time", lambda: site.slurm.now - AHEAD_S)
    for words in (("status",), ("when", "--gpus", "1"), ("why-not", "4")):
        assert "15.8 h from now" in " ".join(typed(*words, site=site).output.split())


@pytest.mark.parametrize(("command", "instead"), _GONE.items())
def test_a_command_that_was_taken_out_says_what_took_its_place(command: str, instead: str) -> None:
    said = typed(command, "--json")
    assert said.exit_code == 2
    assert f"{command} was taken out; {instead}" in " ".join(said.output.split())
