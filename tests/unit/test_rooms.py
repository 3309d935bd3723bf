"""The table of ``make e2e FOR=path…`` has no gap: no part of the product is without a room."""

from __future__ import annotations

import subprocess

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
