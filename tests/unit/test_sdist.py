"""The sdist has all that builds and tests the project, and the wheel all that runs."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from sdists import REPO, built, tracked, unpacked_sdist

pytestmark = pytest.mark.skipif(not (REPO / ".git").exists(), reason="compares with what git has")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
        points = next(name for name in names if name.endswith("entry_points.txt"))
        said = wheel.read(points).decode()
    assert [one for one in ("lucidctl", "lucidd", "lucid-sampler", "lucid-web") if f"{one} = " not in said] == []
    assert any(name.endswith("/share/lucid/slurm/job_submit/90_entry.lua") for name in names)
    assert any(name.endswith("/share/lucid/slurm/systemd/lucidd.service") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "packaging/", "slurm/"))]
