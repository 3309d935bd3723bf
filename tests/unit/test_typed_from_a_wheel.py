"""What the pages tell a reader to type, typed: as processes, from the wheel, in environments of their own.

Each page gets an environment with the extras that it names, and nothing else. Commands that ask a running lucidd
read the store of the demonstration. A command may end in an error, since much of what pages name is not there (Slurm,
a log of sacct); it then says so in a line of its own. What would change this machine, needs a lucidd or takes minutes
is parsed by the wheel's programs instead.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import sdists
import typed
from typed import REPO, Command, bare, blocks_of, copy_data, first_page

# The groups are for two processes, each with fixtures of its own: make typed.
pytestmark = pytest.mark.slow  # three minutes: six environments, and some hundred processes
PARSED = re.compile(
    r"(lucidd|lucid-sampler|make|pip|python3?) "  # a daemon, a node's service, the checkout
    r"|lucidctl (setup|uninstall|slurm install|compare|tune)\b"
    r"|lucidctl demo $"  # demo --out is the same again
    r"|.* (/(etc|var|srv|opt|shared)/|@).*|.*\$"
)
MONTH = "lucidctl trace synth month-small --out month.csv --vcs-out vcs.csv --seed 1"
"""The line of docs/traces.md that makes the files which other pages go on with."""
ERROR = re.compile(r"^(lucidctl|lucid-web|Error): \S", re.MULTILINE)


def runnable(page: str) -> list[Command]:
    return [one for one in COMMANDS if one.page == page and not one.mention and not PARSED.match(line_of(one) + " ")]


def line_of(command: Command) -> str:
    return " ".join(command.words)


def extras_of(page: str) -> tuple[str, ...]:
    """What a page names, but for torch, 2 GB: what needs it is parsed."""
    return tuple(extra for extra in typed.extras_of(page) if extra != "calibrate")


COMMANDS = typed.typed()
PAGES = [page for page in (str(page.relative_to(REPO)) for page in typed.pages()) if runnable(page)]
BLOCKS = ("docs/tutorials/researcher.md", "docs/tutorials/models.md")
"""Pages whose blocks go on from each other: typed as a whole, and compared with what they show."""
DONE = {
    "trace", "status", "queue", "explain", "demo", "simulate", "when", "why-not", "history", "efficiency",
    "pause", "resume", "report", "slurm", "gpu",
}  # fmt: skip
"""Of these commands one at least ends well in a plain installation."""
EXTRAS = sorted({extras_of(page) for page in PAGES if page not in BLOCKS})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return sdists.built(sdists.copied(folder / "clone"), "wheel", folder / "dist")


class Environment:
    """A virtual environment with the wheel and some extras."""

    def __init__(self, folder: Path, wheel: Path, extras: tuple[str, ...]) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        self.pip(f"{wheel}[{','.join(extras)}]" if extras else str(wheel))

    def pip(self, what: str) -> None:
        words = [self.bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LUCID"))}
        return {**kept, "PATH": f"{self.bin}:{os.environ['PATH']}", "COLUMNS": "100", **more}

    def run(self, *words: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / words[0], *words[1:]], cwd=cwd, env=self.environ(**more),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Callable[[tuple[str, ...]], Environment]:
    """That with some extras: each is made once."""
    return cache(lambda extras: Environment(tmp_path_factory.mktemp("env") / "env", wheel, extras))


@pytest.fixture(scope="module")
def plain(environment: Callable[[tuple[str, ...]], Environment]) -> Environment:
    return environment(())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, plain: Environment) -> Iterator[dict[str, str]]:
    """The store of the demonstration, which lives while commands ask it: what the environment of a command names,
    and the number of a job that waits."""
    folder = tmp_path_factory.mktemp("site")
    write = "import pathlib, sys, lucid.web.demo as at; at.write_settings(pathlib.Path(sys.argv[1]))"
    assert plain.run("python", "-c", write, folder, cwd=folder).returncode == 0
    words = [plain.bin / "python", "-m", "lucid.web.demo", folder]
    with subprocess.Popen(words, cwd=folder, env=plain.environ(), stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            named = {"LUCID_CONFIG": str(folder / "lucid.toml")}
            queue = json.loads(plain.run("lucidctl", "queue", "--json", cwd=folder, **named).stdout)["queue"]
            yield {**named, "JOB": queue[0]["job"]}
        finally:
            child.terminate()


@pytest.mark.xdist_group("others")
def test_the_wheel_parses_every_command_of_every_page(plain: Environment, tmp_path: Path) -> None:
    done = plain.run("python", REPO / "tests/typed.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "extras",
    [
        pytest.param(each, id=",".join(each) or "plain", marks=pytest.mark.xdist_group("others" if each else "plain"))
        for each in EXTRAS
    ],
)
def test_commands_of_pages_run(
    tmp_path: Path,
    environment: Callable[[tuple[str, ...]], Environment],
    site: dict[str, str],
    extras: tuple[str, ...],
) -> None:
    commands = {tuple(MONTH.split()): MONTH}
    for page in PAGES:
        if page not in BLOCKS and extras_of(page) == extras:
            commands |= {one.words: str(one) for one in runnable(page) if one.words not in commands}
    wrong, done = [], set()
    for words, where in commands.items():
        status, why = typed_out(environment(extras), words, tmp_path, site, extras)
        if why:
            wrong.append(f"{where}: {why}")
        if status == 0:
            done.add(words[1])
    assert wrong == []
    assert done >= (DONE if not extras else {"web"} if "web" in extras else set())


def typed_out(
    environment: Environment, words: tuple[str, ...], at: Path, site: dict[str, str], extras: tuple[str, ...]
) -> tuple[int, str]:
    """Types a command; its exit status, and what is wrong with how it ended, or nothing."""
    if words[1:3] == ("web", "--demo") and "web" in extras:
        first_page([str(environment.bin / words[0]), *words[1:], "--port", "0"], 120)
        return 0, ""
    job = site["JOB"]
    if "--run" in words:
        with (at / "month.csv").open(encoding="utf-8") as lines:
            job = next(csv.DictReader(line for line in lines if not line.startswith("#")))["job_id"]
    given = [job if word in ("JOB", "17", "job-42") else word for word in words]
    done = environment.run(*given, cwd=at, LUCID_CONFIG=site["LUCID_CONFIG"])
    print(f"{done.returncode} {' '.join(given)}: {(done.stderr or done.stdout).strip()[-160:]!r}")
    if "Traceback" in done.stderr or (done.returncode and words[1] != "doctor" and not ERROR.search(done.stderr)):
        return done.returncode, f"{done.returncode}\n{done.stderr[-1500:]}"
    return done.returncode, ""


@pytest.mark.xdist_group("others")
@pytest.mark.parametrize(("page", "commands"), [("researcher.md", 7), ("models.md", 5)])
def test_every_command_of_a_tutorial_prints_what_the_page_shows(
    tmp_path: Path, environment: Callable[[tuple[str, ...]], Environment], page: str, commands: int
) -> None:
    copy_data(tmp_path)
    installed = environment(extras_of(f"docs/tutorials/{page}"))
    installed.pip("setuptools>=77")  # as the page says; make install has it
    blocks = blocks_of(page)
    assert [language for language, _ in blocks].count("sh") >= commands
    printed: list[str] = []
    for language, text in blocks:
        if language == "sh":
            exported = {"PYTHONPATH": str(tmp_path / "packages")} if (tmp_path / "packages").exists() else {}
            done = subprocess.run(
                ["sh", "-eu", "-c", text], cwd=tmp_path, env=installed.environ(**exported),
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            printed = [bare(line) for line in done.stdout.splitlines()]
        else:
            assert [line for line in text.splitlines() if bare(line) not in printed] == [], "\n".join(printed)


@pytest.mark.xdist_group("others")
def test_an_extra_is_added_as_the_error_says(tmp_path: Path, plain: Environment, site: dict[str, str]) -> None:
    at = {"LUCID_CONFIG": site["LUCID_CONFIG"]}
    said = plain.run("lucidctl", "metrics", cwd=tmp_path, **at).stderr
    named = re.search(r"pip install '(lucid-scheduler\[web\])'", said)
    assert named is not None, said
    plain.pip(named[1])
    assert plain.run("lucidctl", "metrics", cwd=tmp_path, **at).returncode == 0
