"""What cannot be read, of what is stored and of what others wrote: it is left out, and the rest is read without it.
Answers of Slurm are in tests/unit/slurm/test_left_out.py, whatever else there may be in tests/fuzz."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import nodes, part, snap
from lucid.core.decision import Plan
from lucid.daemon.barrier import lives_in_trouble
from lucid.daemon.plan_errors import plan_errors_of
from lucid.daemon.policies import PolicyMemory
from lucid.daemon.reporting.counters import Counters
from lucid.daemon.reporting.starts import starts_from_view
from lucid.left_out import LeftOut
from lucid.models.packing.pair_memory import PairMemoryFile
from lucid.slurm.records.configuration import reservations_from
from lucid.slurm.view.failed_pairs import failed_pairs_in, unpaired
from lucid.slurm.view.power_saving import Power
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore

Reads = Callable[[Path, Any, LeftOut], Any]
"""What is left of a row, and what was left out of it."""


def policy_memory(folder: Path, row: Any, left_out: LeftOut) -> Any:
    store = SqliteStore(IN_MEMORY)
    store.put_view("policy_memory", row)
    return PolicyMemory(store, "lucid").load()


def trouble(folder: Path, text: str, left_out: LeftOut) -> Any:
    (folder / "trouble.x").write_text(text, encoding="latin-1")
    return lives_in_trouble(folder / "heartbeat", 1000.0)


GOOD_PAIR = ["u/a", "u/b", {"1 2": [0.5, 0.75]}]
WINDOW = {"name": "w", "node_list": "n[1-2]", "start_time": 100, "end_time": 200, "flags": ["MAINT"]}


def pairs(folder: Path, row: Any, left_out: LeftOut) -> Any:
    path = folder / "pairs.json"
    path.write_text(json.dumps([row, GOOD_PAIR]))
    return PairMemoryFile(path, left_out).speeds("u/a", "u/b"), left_out.summary()["pairs.json"]["now"]


def whole_file_of_pairs(folder: Path, content: bytes, left_out: LeftOut) -> Any:
    """It is kept for whoever wants to look at it."""
    path = folder / "pairs.json"
    path.write_bytes(content)
    left = len(PairMemoryFile(path, left_out)), left_out.summary()["pairs.json"]["now"]
    return *left, path.with_name("pairs.json.damaged").exists(), path.exists()


def reservation(folder: Path, row: Any, left_out: LeftOut) -> Any:
    found = reservations_from({"reservations": [row, {**WINDOW, "name": "other"}, 7]}, left_out)
    return [one.name for one in found], left_out.summary()["reservations"]["now"]


BROKEN_WINDOWS = [
    {"node_list": "n[1-"}, {"start_time": None}, {"end_time": 50}, {"end_time": 1e300}, {"name": ""}, {"name": 5},
    {"core_specializations": [{"node": "n1", "core": "x"}]}, {"core_specializations": [5]},
]  # fmt: skip
WINDOWS = [
    None, *({**WINDOW, **harm} for harm in BROKEN_WINDOWS),
    *({k: v for k, v in WINDOW.items() if k != gone} for gone in WINDOW if gone != "name"),
]  # fmt: skip
PAIRS = [["u/a", "u/c", {"1 3": [1e400, 1]}], ["u/a", "u/d", {"1": [float("nan"), 1]}], 5, [1], ["a", "b", []]]
OTHER_MEMORY = {"policy": "lucid", "memory": {"is": "lucid.gone.Nothing"}}


TOLD: dict[str, Callable[[Any], Any]] = {
    "promises": lambda row: Counters(row).to_dict()["promises"],
    "plan errors": lambda row: plan_errors_of({"plan_errors": row}),
    "starts": lambda row: starts_from_view(row, snap(100.0, part(nodes(1, 8), [])), Plan(100.0, {})),
    "boots": lambda row: Power(row).boots,
    "failed pairs": lambda row: (failed_pairs_in({"pairs.off.vc": row, "paused": "1"}), unpaired({})),
}
"""Where what was left out is not told."""
TABLE: list[tuple[Reads | str, list[Any], Any]] = [
    ("promises", [None, 3, [], {"promises": 3}, {"promises": {"a": 3}}, {"promises": {"a": ["b", "x", 1]}}], {}),
    ("plan errors", [None, [], {"a": 1}, {"a": {"other": 1}}, "x"], {}),
    ("starts", [None, {}, [], {"at_s": "x", "starts": {}, "own_ahead_s": {}, "ahead_s": 1.0}], None),
    ("boots", [{"n1": "x", "n2": [1, "y", -4, 1e9], "n3": None, 4: [3]}], {"n2": [1.0]}),
    ("failed pairs", ["", "x", "1", "[]", "1 2 3 4", "{}", "\0"], ({}, set())),
    (policy_memory, [OTHER_MEMORY], {}),
    (trouble, ["", "[", "[]", "{}", '{"host": 1}', "[" * 100_000, '{"at_s": 1e999}', "\xff"], []),
    (pairs, PAIRS, ((0.5, 0.75), 1)),
    (whole_file_of_pairs, [b"{}", b"nil", b"[" * 100_000, b"\xff"], (0, 1, True, False)),
    (reservation, WINDOWS, (["other"], 2)),
]


@pytest.mark.parametrize(
    ("reads", "spoilt", "left"),
    [(reads, row, left) for reads, rows, left in TABLE for row in rows],
    ids=lambda value: getattr(value, "__name__", repr(value))[:40],
)
def test_what_cannot_be_read_is_left_out(tmp_path: Path, reads: Reads | str, spoilt: Any, left: Any) -> None:
    found = TOLD[reads](spoilt) if isinstance(reads, str) else reads(tmp_path, spoilt, LeftOut())
    assert found == left


def test_a_memory_of_another_version_is_said_to_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    policy_memory(Path(), OTHER_MEMORY, LeftOut())
    assert "begins anew" in caplog.text
