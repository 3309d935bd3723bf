"""What holds for every test."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import settings

from json_schemas import FOLDER, Recorder, name_of, trouble_with

pytest_plugins = ["mutants.choice", "skips", "times.choice", "times.plugin"]

# A time limit for each example would make tests hang on how busy the machine is.
# LUCID_SAME_EXAMPLES=1 tries the same examples in every run: what a mutant is judged by must not be luck.
settings.register_profile("lucid", deadline=None, derandomize=os.environ.get("LUCID_SAME_EXAMPLES") == "1")
settings.load_profile("lucid")

# pytest-xdist tells its workers a width of 80 columns: stories would be folded there, and not in a run without it.
os.environ.pop("COLUMNS", None)

_RECORDER = Recorder(widen=True) if os.environ.get("LUCID_RECORD_SCHEMAS") == "1" else None
_INVOKE = CliRunner.invoke


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None  # a refusal, in words


def _invoke(self: CliRunner, cli: Any, args: Any = None, **rest: Any) -> Result:
    """As click's; and what a command prints with --json has to keep to its schema."""
    done = _INVOKE(self, cli, args, **rest)
    words = [str(word) for word in args] if isinstance(args, list | tuple) else []
    if "--json" in words and "--help" not in words:
        name = name_of(cli, words)
        document = _document(done.stdout)
        if name is not None and (document is not None or done.exit_code == 0):
            if _RECORDER is not None:
                _RECORDER.take(name, document)
            elif trouble := trouble_with(name, document):
                pytest.fail(f"lucidctl {name} --json, against docs/schemas:\n" + "\n".join(trouble))
    return done


CliRunner.invoke = _invoke  # type: ignore[assignment,method-assign]


@pytest.fixture(autouse=True)
def _no_handler_stays() -> Iterator[None]:
    """Commands and lucidd have their warnings written to a terminal; left there, a handler would lay out each warning
    of all later tests, too."""
    yield
    for name in ("lucid", "lucidd"):
        logging.getLogger(name).handlers.clear()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulated libnvidia-ml.so.1, loaded where pynvml finds it."""
    pytest.importorskip("pynvml")
    from nvml_emulator import build, load

    path = build(tmp_path_factory.mktemp("nvml"))
    load(path)
    return path


@pytest.fixture
def stage() -> Any:
    """A Slurm in memory (scenes.slurm.Scene)."""
    from scenes.slurm import Scene

    return Scene()


@pytest.fixture
def site(tmp_path: Path) -> Any:
    """A lucidd over such a Slurm (daemon_site.Site)."""
    from daemon_site import Site

    return Site(tmp_path)


@pytest.fixture(scope="module")
def app() -> Any:
    from applications import an_application

    return an_application()


def pytest_sessionfinish() -> None:
    if _RECORDER is not None:
        _RECORDER.write(FOLDER)
