"""What a command loads: help and what only shows what lucidd has written load no library of numbers or settings."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pytest

from daemon_site import Site
from lucid.cli.main import _COMMANDS
from lucid.config.load import load_settings
from lucid.daemon.process import say_checked
from lucid.daemon.reporting.settings import told_settings
from lucid.places import told_in

HEAVY = ("numpy", "scipy", "pandas", "sklearn", "interpret", "matplotlib", "apscheduler", "jinja2", "rapidfuzz")

LIGHT = (
    "lucid.cli",
    "lucid.explain",
    "lucid.daemon",
    "lucid.slurm",
    "lucid.core",
    "lucid.orchestrator",
    "lucid.places",
    "lucid.accounting",
)
NOT_LIGHT = (
    "lucid.orchestrator.forecast.plan_ahead", "lucid.orchestrator.policy", "lucid.orchestrator.policies.",
    "lucid.daemon.policies",
    "lucid.daemon.reporting.replan", "lucid.daemon.start_log", "lucid.node",
    "lucid.slurm.client",
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
    assert not found & {*HEAVY, "pydantic", "sqlite3"}
    assert not found & {target.partition(":")[0] for target, _ in _COMMANDS.values()}


def test_status_loads_no_heavy_library(tmp_path: object) -> None:
    found = loaded("status", "--config", f"{tmp_path}/none.toml")
    assert "lucid.cli.jobs.queue" in found
    assert not found & set(HEAVY)
    assert "lucid.orchestrator.policies" not in found


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a lucidd that has left a plan, in which the job 3 waits."""
    site = Site(tmp_path_factory.mktemp("site"))
    for number in range(4):
        site.submit(f"{number}", 4, mark="lucid:vc=vc;share=0", run_s=5000.0)
    site.turns(400.0, every_s=10.0)
    path = site.folder / "lucid.toml"
    say_checked(path, path.read_bytes(), site.settings)
    return path


@pytest.mark.parametrize("words", [("status",), ("queue",), ("queue", "--json"), ("explain", "3"), ("history",)])
def test_what_shows_what_lucidd_wrote_loads_nothing_to_plan_with(words: tuple[str, ...], config: Path) -> None:
    found = loaded(*words, "--config", str(config))
    assert "lucid.cli.jobs.queue" in found
    assert not found & {*HEAVY, "pydantic", "textual"}
    assert not [name for name in found if name.startswith(NOT_LIGHT)]
    rooms = {".".join(name.split(".")[:2]) for name in found if name.startswith("lucid.")}
    assert rooms <= {*LIGHT, "lucid.errors", "lucid.text", "lucid.files", "lucid.left_out", "lucid.store"}


def test_efficiency_loads_nothing_to_plan_with(config: Path) -> None:
    found = loaded("efficiency", "--config", str(config))
    assert "lucid.profiler.waste" in found
    assert not found & {*HEAVY, "pydantic", "textual", "lucid.config", "lucid.orchestrator.policy"}


@pytest.mark.parametrize("words", [("why-not", "3"), ("when", "--gpus", "4")])
def test_what_plans_again_loads_no_library_of_settings_and_none_that_trains(
    words: tuple[str, ...], config: Path
) -> None:
    found = loaded(*words, "--config", str(config))
    assert "lucid.orchestrator.policy" in found
    assert not found & {"pydantic", "textual", "lucid.config", *HEAVY} - {"numpy"}


def test_a_file_is_checked_by_the_command_unless_lucidd_has_checked_that_very_file(config: Path) -> None:
    found = told_in(config)
    assert found is not None
    assert found.daemon.partitions == {"vc": "pack"}
    assert found.daemon.profiling_partition == "prof"
    other = config.with_name("other.toml")
    other.write_text(config.read_text() + "\n")
    assert told_in(other) is None
    settings = load_settings(other)
    say_checked(other, other.read_bytes(), settings)
    assert told_in(other) is not None
    other.write_text("[daemon]\nstate_dir = 5\n")
    assert told_in(other) is None
    say_checked(config, b"what was there before", settings)
    assert told_in(config) is None, "it was written while it was read"
    say_checked(config, config.read_bytes(), settings)
    assert told_in(config) is not None


def test_a_command_has_the_same_settings_whether_or_not_lucidd_has_checked_the_file(config: Path) -> None:
    """Else it can come to need one that is there only until lucidd has run."""
    other = config.with_name("never.toml")
    other.write_text(config.read_text() + "\n")
    assert told_in(other) is None
    found, settings = told_settings(other), load_settings(other)
    say_checked(other, other.read_bytes(), settings)
    assert told_in(other) == told_settings(other) == found
    for name, section in asdict(found).items():
        assert section == {key: getattr(getattr(settings, name), key) for key in section}
    say_checked(config, config.read_bytes(), load_settings(config))


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_table_of_commands_says_what_each_command_says(name: str) -> None:
    target, about = _COMMANDS[name]
    module, _, attribute = target.partition(":")
    command = getattr(import_module(module), attribute)
    assert about == command.get_short_help_str(10_000)
