"""The lock of the development environment, and the unit's sandbox."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "slurm/systemd/lucidd.service"


def locked() -> dict[str, tuple[Version, int]]:
    """By name: version and how many hashes."""
    blocks = re.split(
        r"^(?=[a-z0-9])", (ROOT / "requirements-dev.lock").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    found = {}
    for block in blocks:
        line = re.match(r"([a-z0-9.-]+)==(\S+)", block)
        if line:
            found[canonicalize_name(line[1])] = (Version(line[2]), block.count("--hash=sha256:"))
    return found


def wanted() -> list[Requirement]:
    """Of the development environment, those of the extras that it names included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    left, seen, found = ["dev"], set(), [Requirement(text) for text in project["dependencies"]]
    while left:
        extra = left.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for one in map(Requirement, extras[extra]):
            if one.name == project["name"]:
                left += sorted(one.extras)
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


def test_the_lock_names_no_place_of_the_machine_that_made_it() -> None:
    text = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    assert not re.search(r"https?://|file:|/opt/|--index-url|--find-links", text)


@pytest.mark.parametrize(
    "line",
    [
        "UMask=0077", "StateDirectoryMode=0700", "RuntimeDirectoryMode=0755", "NoNewPrivileges=yes",
        "CapabilityBoundingSet=", "ProtectSystem=strict", "SystemCallFilter=@system-service",
        "RestrictNamespaces=yes",
    ],
)  # fmt: skip
def test_the_unit_keeps_its_sandbox(line: str) -> None:
    assert line in UNIT.read_text(encoding="utf-8").splitlines()


def test_every_process_of_the_repository_stands_in_the_threat_model() -> None:
    said = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    units = {path.stem for path in (ROOT / "slurm/systemd").glob("*.service")}
    hooks = {"job_submit.lua", "lucid-release", "task_prolog", "node_hook.sh", "lucidctl", "lucidd", "lucid-sampler"}
    assert [name for name in sorted(units | hooks) if name not in said] == []
