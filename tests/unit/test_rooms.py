"""The table of ``make e2e FOR=path…`` has no gap: no part of the product is without a room."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import rooms

if not (rooms.REPO / ".git").exists():
    pytest.skip("no checkout: git says which files there are", allow_module_level=True)
TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=rooms.REPO, capture_output=True, text=True, check=True
).stdout.splitlines()
FILES = {path.name for path in rooms.HERE.glob("test_*.py")}


def test_every_path_of_the_product_leads_to_a_live_test_or_says_why_it_needs_none() -> None:
    product = [path for path in TRACKED if path.startswith(("lucid/", "slurm/"))]
    assert product
    gaps = [path for path in product if not any(room.has(path) for room in rooms.rooms())]
    assert gaps == []


def test_a_room_has_files_that_there_are_or_a_reason_and_every_live_test_is_in_some_room() -> None:
    table = rooms.rooms()
    assert all(bool(room.ask) != bool(room.none) for room in table)
    named = {file for room in table for file in room.ask} | {*rooms.STORY}
    assert named == FILES


def test_every_pattern_is_for_something() -> None:
    table = rooms.rooms()
    first = {path: next((room for room in table if room.has(path)), None) for path in TRACKED}
    idle = [
        pattern
        for room in table
        for pattern in room.of
        if pattern not in first
        and not any(found is room and rooms.Room((pattern,)).has(path) for path, found in first.items())
    ]
    assert idle == []


@pytest.mark.parametrize(
    ("word", "some", "others"),
    [
        (
            "lucid/slurm/view/snapshot.py",
            {"test_lucidd.py", "test_story.py"},
            {"test_packages.py", "test_muri_live.py"},
        ),
        ("slurm/job_submit/80_submit.lua", {"test_plugin.py"}, {"test_setup_live.py"}),
        ("tests/e2e/test_hooks.py", {"test_hooks.py"}, {"test_lucidd.py"}),
        ("tests/e2e/elastic_box.py", {"test_elastic_live.py"}, {"test_lucidd.py"}),
        ("tests/e2e/box.py", {"test_elastic_live.py", "test_packages.py", "test_testbed.py"}, set()),
        ("lucid/web", {"test_setup_live.py"}, {"test_lucidd.py"}),
    ],
)
def test_a_path_asks_for_its_own_files_and_for_the_story(
    word: str, some: set[str], others: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rooms.main([word])
    chosen = {Path(name).name for name in capsys.readouterr().out.split()}
    assert some | {*rooms.STORY} <= chosen
    assert not others & chosen


def test_where_nothing_goes_with_it_nothing_is_run_and_the_reason_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    rooms.main(["lucid/simulator/engine.py", "README.md"])
    told = capsys.readouterr()
    assert told.out == ""
    assert "lucid/simulator/engine.py: none; nothing of it talks to Slurm" in told.err


def test_a_revision_means_what_differs_from_it() -> None:
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=all", "--no-renames"],
        cwd=rooms.REPO, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert set(rooms.paths_of("HEAD")) == {line[3:] for line in changed.splitlines()}
