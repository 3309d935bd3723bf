"""make release, and its supply: versions, locks, what the unit may do, what sdist and wheel hold."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tomllib
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import release
from lucid.cli.main import lucidctl
from sdists import REPO, built, tracked, unpacked_sdist

LOG = "# Changelog\n\n## Unreleased\n\n## 1.2.3 (2026-01-02)\n- All.\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "CHANGELOG.md").write_text(LOG)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CITATION.cff").write_text("title: Lucid\nversion: 1.2.3\ntype: software\n")
    (tmp_path / "Makefile").write_text("deb:\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(tree: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "-C", str(tree), *words], check=True, capture_output=True)


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "x")


def test_a_tree_that_is_ready_can_be_released(tree: Path) -> None:
    assert release.version_of(tree) == "1.2.3"
    assert release.obstacles(tree, "1.2.3") == []
    first, *steps = release.steps(tree, tree / "out", quick=False)
    assert first == ["make", "test"]
    assert (["make", "deb"] in steps, ["make", "rpm"] in steps) == (True, False)


def test_each_obstacle_is_named(tree: Path) -> None:
    (tree / "left").write_text("over")
    assert "not clean: 1 files" in release.obstacles(tree, "1.2.3")[0]
    (tree / "left").unlink()
    assert "1.2" in release.obstacles(tree, "1.2")[0]
    cited, logged = release.obstacles(tree, "1.2.4")
    assert cited == "CITATION.cff names another version than 1.2.4"
    assert "no '## 1.2.4 (YYYY-MM-DD)'" in logged
    (tree / "CHANGELOG.md").write_text(LOG.replace("Unreleased\n", "Unreleased\n- News.\n"))
    commit(tree)
    assert "under 'Unreleased'" in release.obstacles(tree, "1.2.3")[0]
    git(tree, "tag", "v1.2.3")
    assert any("there already" in words for words in release.obstacles(tree, "1.2.3"))
    with (tree / "pyproject.toml").open("a") as file:  # an address that is still to be filled in
        file.write('[project.urls]\nHomepage = "https://lucid.invalid/"\n')
    commit(tree)
    assert any("Homepage" in words for words in release.obstacles(tree, "1.2.3"))


def test_checksums_are_as_sha256sum_reads_them(tmp_path: Path) -> None:
    for name in ("b.whl", "a.deb"):
        (tmp_path / name).write_bytes(name[:1].encode())
    text = release.checksums(tmp_path)
    assert text.splitlines()[0] == f"{hashlib.sha256(b'a').hexdigest()}  a.deb"
    (tmp_path / "SHA256SUMS").write_text(text)
    assert release.checksums(tmp_path) == text
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path, check=True)


def test_the_version_stands_in_one_place() -> None:
    assert release.version_of(release.ROOT) == version("lucid-scheduler")
    assert version("lucid-scheduler") in CliRunner().invoke(lucidctl, ["--version"]).output


ROOT = Path(__file__).parents[2]
UNIT = ROOT / "slurm/systemd/lucidd.service"


def locked() -> dict[str, tuple[Version, int]]:
    """By name: version and how many hashes."""
    found, text = {}, (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE):
        if line := re.match(r"([a-z0-9.-]+)==(\S+)", block):
            found[canonicalize_name(line[1])] = (Version(line[2]), block.count("--hash=sha256:"))
    return found


def wanted() -> list[Requirement]:
    """Of the development environment, those of the extras that it names included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named, found = ["dev"], [Requirement(text) for text in project["dependencies"]]
    for extra in named:  # which grows meanwhile
        for one in map(Requirement, extras[extra]):
            if one.name == project["name"]:
                named += sorted(one.extras - {*named})
            else:
                found.append(one)
    return found


def test_the_lock_has_all_that_pyproject_asks_for_in_a_version_that_it_allows() -> None:
    there = locked()
    assert len(wanted()) > 20
    for one in wanted():
        version, _ = there.get(canonicalize_name(one.name), (None, 0))
        assert version is not None, f"{one.name} is not in the lock: make lock"
        assert one.specifier.contains(version, prereleases=True), f"{one}: the lock has {version}: make lock"


def test_everything_locked_has_hashes_and_what_is_locked_needs_is_locked() -> None:
    there = locked()
    assert [name for name, (_, hashes) in there.items() if not hashes] == []
    for name in there:
        try:
            needs = distribution(name).requires or []
        except ModuleNotFoundError:
            continue  # for another platform or Python
        for one in map(Requirement, needs):
            if one.marker is None or one.marker.evaluate({"extra": ""}):
                assert canonicalize_name(one.name) in there, f"{name} needs {one}: make lock"


def test_the_unit_keeps_its_sandbox() -> None:
    kept = {
        "UMask=0077", "StateDirectoryMode=0700", "RuntimeDirectoryMode=0755", "NoNewPrivileges=yes",
        "CapabilityBoundingSet=", "ProtectSystem=strict", "SystemCallFilter=@system-service",
        "RestrictNamespaces=yes",
    }  # fmt: skip
    assert kept - set(UNIT.read_text(encoding="utf-8").splitlines()) == set()


def test_every_process_of_the_repository_stands_in_the_threat_model() -> None:
    said = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    units = {path.stem for path in (ROOT / "slurm/systemd").glob("*.service")}
    hooks = {"job_submit.lua", "lucid-release", "task_prolog", "node_hook.sh", "lucidctl", "lucidd", "lucid-sampler"}
    assert [name for name in sorted(units | hooks) if name not in said] == []


# -- what the sdist and the wheel hold


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not (REPO / ".git").exists():
        pytest.skip("compares with what git has")
    return unpacked_sdist(tmp_path_factory.mktemp("sdist"))


def test_the_sdist_has_every_file_of_the_repository(source: Path) -> None:
    there = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert [name for name in tracked() if name not in there] == []
    more = {name for name in there - set(tracked()) if ".egg-info/" not in name}
    assert more == {"PKG-INFO", "setup.cfg"}
    programs = [name for name in tracked() if os.access(REPO / name, os.X_OK)]
    assert len(programs) > 5
    assert [name for name in programs if not os.access(source / name, os.X_OK)] == []


def test_make_can_start_from_it(source: Path) -> None:
    for target in ("deb", "rpm", "test"):
        done = subprocess.run(["make", "-n", target], cwd=source, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert target not in ("deb", "rpm") or f"packaging {target}" in done.stdout


def test_a_wheel_made_from_it_has_programs_and_files_for_slurm(source: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(built(source, "wheel", tmp_path / "wheel")) as wheel:
        names = wheel.namelist()
        said = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert [one for one in ("lucidctl", "lucidd", "lucid-sampler", "lucid-web") if f"{one} = " not in said] == []
    for file in ("job_submit/90_entry.lua", "systemd/lucidd.service"):
        assert any(name.endswith(f"/share/lucid/slurm/{file}") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "packaging/", "slurm/"))]
