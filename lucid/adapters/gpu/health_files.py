"""The folder through which nodes tell lucidd of GPUs that are not well: ``health/NODE.json`` among the summaries.

The sampler replaces its file when there is something new, which moves the folder's time, and lucidd looks. In between
it only touches the file, to say that it still looks. What cannot be read is told, and says nothing of any GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lucid.adapters.checked import checked
from lucid.atomic import read_regular, write_atomic
from lucid.core.as_json import from_json, to_json
from lucid.core.gpu_health import MOST_NUMBER, CardHealth, GpuFault, NodeHealth
from lucid.errors import MetricsError

__all__ = ["ALIVE_S", "Evidence", "HealthFolder", "health_folder", "read_health", "touch_health", "write_health"]

FORMAT: Final = 1
ALIVE_S: Final = 60.0
"""A sampler that runs touches its file so often."""
_LARGEST_BYTES: Final = 1 << 18
_LARGEST_EVIDENCE: Final = 1 << 20
_MOST_CARDS: Final = 64


def health_folder(profiles: Path) -> Path:
    """Where nodes tell it, by the folder of summaries."""
    return profiles / "health"


def _path(folder: Path, node: str) -> Path:
    if not node or node.startswith(".") or "/" in node or "\0" in node:
        raise MetricsError(f"{node!r} cannot name a file: it is no node")
    return folder / f"{node}.json"


def write_health(folder: Path, health: NodeHealth) -> None:
    """Replace a node's file.

    Raises:
        MetricsError: the folder cannot be written.
    """
    path = _path(folder, health.node)
    try:
        folder.mkdir(exist_ok=True)
        write_atomic(path, json.dumps({"format": FORMAT, **to_json(health)}, separators=(",", ":")).encode())
    except OSError as error:
        raise MetricsError(f"{path}: cannot be written ({error.strerror})") from None


def touch_health(folder: Path, node: str) -> None:
    """Say that the sampler of this node still looks, and has seen nothing new."""
    with contextlib.suppress(OSError):
        os.utime(_path(folder, node))


def read_health(path: Path) -> NodeHealth:
    """One file.

    Raises:
        FileNotFoundError: it is not there.
        MetricsError: it tells of no node's GPUs.
    """
    try:
        content = read_regular(path, _LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise ValueError(f"larger than {_LARGEST_BYTES} bytes")
        data = json.loads(content)
        if data.get("format") != FORMAT:
            raise ValueError(f"format {data.get('format')!r}, this version reads {FORMAT}")
        health = checked(from_json(NodeHealth, data))
        for card in health.cards:
            _sound(checked(card))
        if f"{health.node}.json" != path.name or len(health.cards) > _MOST_CARDS:
            raise ValueError(f"it tells of {len(health.cards)} GPUs of node {health.node!r}")
        return health
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever is wrong with it
        raise MetricsError(
            f"{path}: tells of no node's GPUs ({error}); delete it, the sampler writes it anew"
        ) from None


def _sound(card: CardHealth) -> None:
    if not 0 <= card.index <= MOST_NUMBER:
        raise ValueError(f"a GPU has the number {card.index}")
    for fault in card.faults:
        one: GpuFault = checked(fault)
        if not 0 < one.since_s <= one.began_s <= one.last_s:
            raise ValueError(f"{one.kind} was seen from {one.since_s} to {one.last_s}")


class HealthFolder:
    """What all nodes told last. ``bad``: by file name, what is wrong with those that could not be read; what such a
    node told before still counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, int] = {}
        self._nodes: dict[str, NodeHealth] = {}
        self._alive_s: dict[str, float] = {}
        self.bad: dict[str, str] = {}

    def look(self) -> Mapping[str, NodeHealth]:
        """By node; the same objects as long as their files are the same."""
        try:
            entries = {entry.name: entry.stat() for entry in os.scandir(self.folder) if _is_file(entry.name)}
        except FileNotFoundError:
            entries = {}
        except OSError:
            return self._nodes
        for name, found in entries.items():
            node = name.removesuffix(".json")
            self._alive_s[node] = found.st_mtime
            if self._seen.get(name) == found.st_mtime_ns:
                continue
            try:
                self._nodes[node] = read_health(self.folder / name)
                self.bad.pop(name, None)
            except FileNotFoundError:
                continue
            except MetricsError as error:
                self.bad[name] = str(error)
            self._seen[name] = found.st_mtime_ns
        for name in self._seen.keys() - entries.keys():
            del self._seen[name]
            self.bad.pop(name, None)
            self._nodes.pop(name.removesuffix(".json"), None)
            self._alive_s.pop(name.removesuffix(".json"), None)
        return dict(self._nodes)

    def silent(self, now_s: float) -> list[str]:
        """Nodes whose sampler has not said for some minutes that it still looks."""
        return sorted(node for node, at_s in self._alive_s.items() if now_s - at_s > 5 * ALIVE_S)


def _is_file(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


class Evidence:
    """The series of what was seen of GPUs that are not well, a line of JSON for each look that showed something, in a
    file on the node; at 1 MiB it is put aside, and the one before goes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, lines: list[dict[str, Any]]) -> None:
        """Raises ``MetricsError`` where they cannot be written."""
        if not lines:
            return
        try:
            if self._path.exists() and self._path.stat().st_size > _LARGEST_EVIDENCE:
                self._path.replace(self._path.with_suffix(".1.jsonl"))
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        except OSError as error:
            raise MetricsError(f"{self._path}: cannot be written ({error.strerror})") from None
