"""Packages and extras."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from builders import FixedPredictor
from lucid.cli.options import EXAMPLES
from lucid.config.policy import PolicySettings
from lucid.errors import ConfigError
from lucid.orchestrator import registry as built_in
from lucid.orchestrator.registry import BUILT_IN, adding_policy, make_policy
from lucid.setup.install import FILES
from lucid.store.file import MIGRATIONS
from sdists import REPO

PARTS = ("staging", "scripts", "manual")


@pytest.fixture(scope="module")
def made() -> Iterator[dict[str, ModuleType]]:
    """The modules of packaging/, which are a program's and not a package's."""
    sys.path.insert(0, str(REPO / "packaging"))
    try:
        yield {name: __import__(name) for name in PARTS}
    finally:
        sys.path.remove(str(REPO / "packaging"))
        for name in PARTS:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def man_pages(made: dict[str, ModuleType]) -> dict[str, str]:
    found: dict[str, str] = made["manual"].man_pages(REPO)
    return found


def test_a_program_of_a_package_is_what_the_project_says(made: dict[str, ModuleType], tmp_path: Path) -> None:
    """As it is typed: its own help. lucidd's had another module than the wheel's."""
    (tmp_path / "bin").mkdir()
    for name in tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["scripts"]:
        made["staging"]._launcher(tmp_path, tmp_path / "bin" / name, "/usr/lib/lucid")
        program = (tmp_path / "bin" / name).read_text().partition("\n")[2]
        words = [sys.executable, "-c", f"import sys; sys.argv[1:] = ['--help']\n{program}"]
        done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=False)
        assert (done.returncode, "usage" in done.stdout.lower()) == (0, True), done.stderr


@pytest.mark.parametrize("family", ["deb", "rpm"])
@pytest.mark.parametrize("package", ["lucid", "lucid-node"])
def test_what_runs_as_root_is_sound_shell(made: dict[str, ModuleType], package: str, family: str) -> None:
    target = made["staging"].Target(family, "3.13", "x86_64")
    checked = 0
    for part, head in getattr(made["scripts"], family.upper()).values():
        text = made["scripts"].script(target, package, part, head)
        assert not re.search(r"@[A-Z]+@", text)
        if text:
            done = subprocess.run(
                [Path(sys.executable).with_name("shellcheck"), "--shell=sh", "--exclude=SC2043", "-"],
                input=f"#!/bin/sh\nset -e\n{text}", capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{part}:\n{done.stdout}"
            checked += 1
    assert checked == (4 if package == "lucid" else 3)


def preinst(made: dict[str, ModuleType], store: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """An upgrade's first script over the store in this folder."""
    target = made["staging"].Target("deb", "3.13", "x86_64")
    assert target.schema == len(MIGRATIONS)
    words = ["sh", "-ec", made["scripts"].script(target, "lucid", *made["scripts"].DEB["preinst"])]
    return subprocess.run(
        [*words, "preinst", "upgrade", "9.9"], capture_output=True, text=True, check=False,
        env={"LUCID_STATE": str(store), **environ},
    )  # fmt: skip


@pytest.mark.parametrize("more", [-1, 0, 1, 300])
def test_a_package_refuses_a_store_of_a_later_version(made: dict[str, ModuleType], tmp_path: Path, more: int) -> None:
    schema = len(MIGRATIONS) + more
    header = b"SQLite format 3\0" + bytes(44) + schema.to_bytes(4, "big") + bytes(36)
    (tmp_path / "lucid.db").write_bytes(header)
    done = preinst(made, tmp_path, PATH="/usr/bin:/bin")
    assert done.returncode == (1 if more > 0 else 0), done.stderr
    assert (f"schema {schema}; this version reads {len(MIGRATIONS)}" in done.stderr) is (more > 0)


def test_a_later_version_is_seen_while_somebody_reads_the_store(made: dict[str, ModuleType], tmp_path: Path) -> None:
    """Then the schema stands in the log beside the file, and not in the file's header."""
    with closing(sqlite3.connect(tmp_path / "lucid.db")) as db:
        db.execute("PRAGMA journal_mode = wal")
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
        assert preinst(made, tmp_path, **{**os.environ, "LUCID_STATE": str(tmp_path)}).returncode == 1


def test_every_command_and_program_has_a_man_page(made: dict[str, ModuleType], man_pages: dict[str, str]) -> None:
    wanted = {f"{'-'.join(['lucidctl', *words.split()])}.1" for words in EXAMPLES}  # each command has some
    wanted |= {"lucidd.8", "lucid-web.8", "lucid-sampler.8", "lucid-release.8"}
    assert man_pages.keys() == wanted | {"lucid.toml.5", *made["manual"].PAGES_OF_DOCS}
    known = re.compile(r"\.(TH|SH|SS|PP|TP|IP|B|BR|nf|fi|RS|RE|br)\b")
    for name, text in man_pages.items():
        assert text.startswith(".TH"), name
        assert "\n\n" not in text.split(".nf")[0], name
        assert [line for line in text.splitlines() if line.startswith((".", "'")) and not known.match(line)] == []
    assert "Read " not in man_pages["lucid-release.8"].split(".SH DESCRIPTION")[0]
    said = {"lucid-release": "\\-\\-all", "lucid.toml": "policy.packing", "lucidd": "Schedule GPU jobs"}
    assert [page for page, words in said.items() if words not in man_pages[f"{page}.{5 if '.' in page else 8}"]] == []
    assert man_pages["lucid-web.8"].startswith('.TH "LUCID\\-WEB" 8')


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_has_nothing_to_say_about_a_page(man_pages: dict[str, str], tmp_path: Path) -> None:
    for name, text in man_pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    words = ["groff", "-k", "-t", "-man", "-ww", "-Tutf8", "-Z", *man_pages]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    # lines that cannot be filled without gaps are matters of taste
    assert [line for line in done.stderr.splitlines() if "adjust" not in line and "break" not in line] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_is_sound(made: dict[str, ModuleType], shell: str) -> None:
    text = made["manual"].completions()[shell]
    assert "_LUCIDCTL_COMPLETE=" + shell in text
    if shutil.which(shell):
        assert subprocess.run([shell, "-n", "-"], input=text, text=True, check=False).returncode == 0


def pins(name: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9.-]+==[^ ]+)", (REPO / name).read_text(), re.MULTILINE))


def test_the_packages_hold_what_the_tests_ran_with() -> None:
    tested = pins("requirements-dev.lock")
    for lock, some in (("requirements-dev.lock", 40), ("requirements.lock", 40), ("requirements-node.lock", 2)):
        assert len(pins(lock)) >= some
        assert pins(lock) <= tested, f"{lock}: make lock"
        text = (REPO / lock).read_text()
        assert text.count("==") - text.count("== '") <= text.count("--hash=sha256:")
        assert not re.search(r"https?://|file:|/opt/|--index-url|--find-links", text), "a place of one machine"
    assert {one.partition("==")[0] for one in pins("requirements-node.lock")} == {"nvidia-ml-py", "msgspec"}


def test_lucid_node_needs_nothing_but_python_msgspec_and_nvml(made: dict[str, ModuleType]) -> None:
    paths = made["staging"]._modules("lucid.node")
    assert REPO / "lucid/node/nvml.py" in paths
    assert REPO / "lucid/node/dcgm.py" in paths, "imported when it is asked for"
    assert REPO / "lucid/config/live.py" not in paths
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    outside = {name.partition(".")[0] for name in names}
    outside -= {"numpy"}  # of tables of numbers alone, which no sampler has (test_the_sampler_loads_nothing_large)
    assert outside - sys.stdlib_module_names - {"lucid"} <= {"msgspec", "pynvml"}, "by name, or by importlib"


def test_lucid_node_brings_all_that_runs_on_nodes(made: dict[str, ModuleType]) -> None:
    files = {f"slurm/{file.source}" for file in FILES if not file.daemon and not file.site_may_have}
    assert not [name for name in files if not made["staging"].OF_NODES.match(name)]
    assert files <= set(made["staging"].source_files()), "links, too"


PLAIN = """
import sys
import tomllib
EXTRAS = "scipy rustworkx threadpoolctl matplotlib pandas sklearn interpret rapidfuzz optuna tomlkit".split()

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def plain(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run as where only what all need is installed."""
    command = [sys.executable, "-c", PLAIN + code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


CODE = """
import lucid.daemon.process, lucid.daemon.learning.models, lucid.daemon.policies, lucid.tuner.proposal
import lucid.setup.doctor_state
from lucid.cli.main import lucidctl, main
trace, *policies = sys.argv[1:]
lucidctl(["trace", "synth", "month-small", "--jobs", "60", "--out", trace], standalone_mode=False)
sys.argv[1:] = ["simulate", trace, *(f"--policy={name}" for name in policies)]
main()
"""


def test_lucidd_and_a_replay_need_no_extra_and_a_command_that_needs_one_names_it(tmp_path: Path) -> None:
    done = plain(CODE, str(tmp_path / "month.csv"), "lucid", "backfill")
    assert done.returncode == 0, done.stderr[-2000:]
    done = plain(CODE, str(tmp_path / "month.csv"), "muri-l")
    assert "of the extra 'peers'; pip install 'lucid-scheduler[peers]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policy_by_solvers_says_so_when_it_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built_in, "find_spec", lambda _: None)
    solves = name.startswith(("muri", "elastic", "pollux", "optimus"))
    told = "needs scipy, rustworkx, threadpoolctl, of the extra 'peers'"
    with pytest.raises(ConfigError, match=told) if solves else nullcontext():
        make_policy(name, PolicySettings(), FixedPredictor({}))


@settings(max_examples=15)
@given(st.sampled_from([*BUILT_IN]), st.text("-abcmes0", max_size=4), st.text("-abcmes0", max_size=4))
@example("sia", "", "mese")
@example("pollux", "", "-lite")
def test_what_a_third_partys_policy_needs_does_not_hang_on_its_name(name: str, before: str, after: str) -> None:
    called = f"{before}{name}{after}"
    assume(called not in BUILT_IN)
    with pytest.MonkeyPatch.context() as patch, adding_policy(called, BUILT_IN["fifo"]):
        patch.setattr(built_in, "find_spec", lambda _: None)
        assert make_policy(called, PolicySettings(), FixedPredictor({})).name == "fifo"
