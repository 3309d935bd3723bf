"""What a command loads before it does anything: help and ``status`` load no library of numbers or learning."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from lucid.cli.main import _COMMANDS

HEAVY = ("numpy", "scipy", "pandas", "sklearn", "interpret", "matplotlib", "apscheduler", "jinja2", "rapidfuzz")


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
    assert "lucid.cli.live" in found
    assert not found & set(HEAVY)
    assert "lucid.orchestrator.policies" not in found


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_table_of_commands_says_what_each_command_says(name: str) -> None:
    target, about = _COMMANDS[name]
    module, _, attribute = target.partition(":")
    command = getattr(import_module(module), attribute)
    assert about == command.get_short_help_str(10_000)
