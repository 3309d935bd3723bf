"""Files that a node's sampler leaves for lucidd: profiles, use and health of GPUs; written and read here.

There is one small JSON file a job and node, ``<job>.json``; a job over several nodes has ``<job>@<node>.json`` from
each. ``health/NODE.json`` among them reports GPUs that are not well: the sampler replaces it when there is something
new, which moves the folder's time, and in between only touches it, to show that it still watches. Every file is
replaced as a whole, so a reader sees the old one or the new. Files that cannot be read are reported, never fatal: a
profile lost costs a job its chance of sharing, nothing more."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from lucid.core.codec import from_others, to_json
from lucid.core.gpu import MOST_NUMBER, NodeHealth
from lucid.core.job import JobProfile, sound_profile
from lucid.errors import MetricsError
from lucid.files import read_regular, write_atomic
from lucid.profiler.summary import Summary, merged_profile
from lucid.profiler.use import GpuUse

FORMAT: Final = 1
_LARGEST_BYTES: Final = 1 << 20
_T = TypeVar("_T")


class ProfileFiles(Struct, frozen=True):
    """The content of the folder: summaries by job (one a node), and files that are no summaries, with the reason."""

    summaries: Mapping[str, tuple[Summary, ...]]
    bad: tuple[str, ...] = ()

    @property
    def profiles(self) -> dict[str, JobProfile]:
        """Profiles by job, for jobs that are measured on all the nodes that reported."""
        merged = {job: merged_profile(nodes) for job, nodes in self.summaries.items()}
        return {job: profile for job, profile in merged.items() if profile is not None}


def write_summary(folder: Path, summary: Summary, *, several_nodes: bool = False) -> Path:
    """Replace a job's file in ``folder`` by this summary.

    Raises:
        MetricsError: the folder cannot be written, or the job's name is no file name."""
    try:
        name = _file_name(f"{summary.job}@{summary.node}" if several_nodes else summary.job)
    except ValueError as error:
        raise MetricsError(str(error)) from None
    path = folder / f"{name}.json"
    try:
        write_atomic(path, json.dumps(summary_to_dict(summary), separators=(",", ":")).encode())
    except OSError as error:
        raise MetricsError(
            f"{path}: cannot be written ({error.strerror}); the sampler's user must be able to write the folder"
        ) from None
    return path


class ReportFiles(Generic[_T]):
    """The files of a folder that samplers write, each read once, and again when it was replaced."""

    def __init__(self, folder: Path, read: Callable[[Path], _T], names: str = "[!.]*.json") -> None:
        self.folder = folder
        self._read = read
        self._names = names
        self.items: dict[str, _T] = {}
        """What each file holds, by its name. Of a file that cannot be read any more the earlier content counts."""
        self.versions: dict[str, int] = {}
        """When each file was written, in nanoseconds."""
        self.bad: dict[str, str] = {}
        """By file name, what is wrong with those that could not be read."""

    def news(self) -> list[str]:
        """Read what is new; returns the names of files that were read, or are gone. Where the folder cannot be
        listed, all that is known stays."""
        there, news = dict[str, int](), list[str]()
        try:
            for entry in os.scandir(self.folder):
                if fnmatchcase(entry.name, self._names):
                    with suppress(FileNotFoundError):
                        there[entry.name] = entry.stat().st_mtime_ns
        except FileNotFoundError:
            there = {}
        except OSError:
            return news
        for name in sorted(there):
            if self.versions.get(name) == there[name]:
                continue
            try:
                self.items[name] = self._read(self.folder / name)
                self.bad.pop(name, None)
                news.append(name)
            except FileNotFoundError:
                continue  # its job ended meanwhile
            except (MetricsError, OSError) as error:
                self.bad[name] = str(error)
            self.versions[name] = there[name]
        gone = self.versions.keys() - there.keys()
        for name in gone:
            del self.versions[name]
            self.items.pop(name, None)
            self.bad.pop(name, None)
        return [*news, *gone]


def by_job(summaries: Iterable[Summary]) -> dict[str, tuple[Summary, ...]]:
    """The summaries by job."""
    found: dict[str, tuple[Summary, ...]] = {}
    for summary in summaries:
        found[summary.job] = (*found.get(summary.job, ()), summary)
    return found


def read_profile_files(folder: Path) -> ProfileFiles:
    """Every summary in ``folder``; none where the folder does not exist."""
    files = ReportFiles(folder, read_summary)
    files.news()
    return ProfileFiles(by_job(files.items.values()), tuple(files.bad.values()))


def read_summary(path: Path) -> Summary:
    """The summary in one file.

    Raises: FileNotFoundError: it is not there. MetricsError: it is no summary; the message names file and fault."""
    return _read(path, _LARGEST_BYTES, summary_from_dict, "not a job's summary")


def _read(path: Path, most: int, made: Callable[[dict[str, Any]], _T], what: str) -> _T:
    """What ``made`` makes of the JSON of a file of at most so many bytes; ``what``: it is, if that cannot be made."""
    try:
        content = read_regular(path, most + 1)
        if len(content) > most:
            raise ValueError(f"larger than {most} bytes")
        return made(json.loads(content))
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever is wrong with it
        raise MetricsError(f"{path}: {what} ({error}); delete it, the sampler writes it anew") from None


def prune_profiles(folder: Path, before_s: float) -> int:
    """Delete files that no sampler has written since then: their jobs have ended. Returns how many went; those that
    this user may not delete stay."""
    gone = 0
    for path in folder.glob("[!.]*.json") if folder.is_dir() else ():
        with suppress(OSError):
            if path.stat().st_mtime < before_s:
                path.unlink()
                gone += 1
    return gone


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot name a file; a job id has letters, digits, '_' and '+'")
    return name


def summary_to_dict(summary: Summary) -> dict[str, Any]:
    """All fields by name, nested."""
    return {"format": FORMAT, **to_json(summary)}


def summary_from_dict(data: Mapping[str, Any]) -> Summary:
    """The summary that ``summary_to_dict`` wrote.

    Raises: ValueError: it is of another format, a field is missing or of a wrong type, or a value is out of range."""
    if data.get("format") != FORMAT:
        raise ValueError(f"format {data.get('format')!r}, this version reads {FORMAT}")
    summary = from_others(Summary, data)
    _file_name(summary.job)
    if summary.profile is not None:
        sound_profile(summary.profile)
    return summary


HEALTH_FORMAT: Final = 1
ALIVE_S: Final = 60.0
"""How often a running sampler touches its file."""
_LARGEST_HEALTH_BYTES: Final = 1 << 18
_LARGEST_EVIDENCE: Final = 1 << 20
_MOST_CARDS: Final = 64


def health_folder(profiles: Path) -> Path:
    """The folder of health files, within the folder of summaries."""
    return profiles / "health"


def _path(folder: Path, node: str) -> Path:
    if not node or node.startswith(".") or "/" in node or "\0" in node:
        raise MetricsError(f"{node!r} cannot name a file: it is no node")
    return folder / f"{node}.json"


def write_health(folder: Path, health: NodeHealth) -> None:
    """Replace a node's file.

    Raises:
        MetricsError: the folder cannot be written."""
    path = _path(folder, health.node)
    try:
        folder.mkdir(exist_ok=True)
        write_atomic(path, json.dumps({"format": HEALTH_FORMAT, **to_json(health)}, separators=(",", ":")).encode())
    except OSError as error:
        raise MetricsError(f"{path}: cannot be written ({error.strerror})") from None


def touch_health(folder: Path, node: str) -> None:
    """Touch the node's file, since its sampler still watches and has seen nothing new."""
    with suppress(OSError):
        os.utime(_path(folder, node))


def read_health(path: Path) -> NodeHealth:
    """The health of a node's GPUs from one file.

    Raises: FileNotFoundError: it is not there. MetricsError: it reports on no node's GPUs."""

    def made(data: dict[str, Any]) -> NodeHealth:
        if data.get("format") != HEALTH_FORMAT:
            raise ValueError(f"format {data.get('format')!r}, this version reads {HEALTH_FORMAT}")
        health = from_others(NodeHealth, data)
        for card in health.cards:
            if not 0 <= card.index <= MOST_NUMBER:
                raise ValueError(f"a GPU has the number {card.index}")
            for one in card.faults:
                if not 0 < one.since_s <= one.began_s <= one.last_s:
                    raise ValueError(f"{one.kind} was seen from {one.since_s} to {one.last_s}")
        if f"{health.node}.json" != path.name or len(health.cards) > _MOST_CARDS:
            raise ValueError(f"it tells of {len(health.cards)} GPUs of node {health.node!r}")
        return health

    return _read(path, _LARGEST_HEALTH_BYTES, made, "tells of no node's GPUs")


class HealthFolder:
    """The last health reports of all nodes. ``bad``: by file name, what is wrong with those that could not be read;
    the earlier report of such a node still counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = ReportFiles(folder, read_health)
        self.bad = self._files.bad

    def read(self) -> Mapping[str, NodeHealth]:
        """The health by node; the same objects as long as their files are the same."""
        self._files.news()
        return {health.node: health for health in self._files.items.values()}

    def silent(self, now_s: float) -> list[str]:
        """Nodes whose sampler has not touched its file for some minutes."""
        since_ns = (now_s - 5 * ALIVE_S) * 1e9
        return sorted(name.removesuffix(".json") for name, at_ns in self._files.versions.items() if at_ns < since_ns)


class Evidence:
    """The series of readings of GPUs that are not well, in a file on the node: a line of JSON for each reading that
    showed something. At 1 MiB the file is put aside, and the one before it deleted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, lines: list[dict[str, Any]]) -> None:
        """Append lines; raises ``MetricsError`` where they cannot be written."""
        if not lines:
            return
        try:
            if self._path.exists() and self._path.stat().st_size > _LARGEST_EVIDENCE:
                self._path.replace(self._path.with_suffix(".1.jsonl"))
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        except OSError as error:
            raise MetricsError(f"{self._path}: cannot be written ({error.strerror})") from None


class UseFolder:
    """How jobs used their GPUs, from the summaries below one folder: each is read once, and again when it changes. It
    may be asked from several threads. ``job``: only this job's."""

    def __init__(self, folder: Path, job: str = "") -> None:
        self._files = ReportFiles(folder, _use_in, f"{escape(job)}[.@]*json" if job else "[!.]*.json")
        self._lock = threading.Lock()

    def uses(self) -> dict[str, tuple[GpuUse, ...]]:
        """The use by job id, over all nodes of the job. Files that are no summaries, or of samplers that did not
        record it yet, have none: lucidd and ``lucidctl doctor`` report files that cannot be read."""
        with self._lock:
            self._files.news()
            found: dict[str, tuple[GpuUse, ...]] = {}
            for job, use in self._files.items.values():
                found[job] = found.get(job, ()) + use
            return found


def _use_in(path: Path) -> tuple[str, tuple[GpuUse, ...]]:
    """The job that a summary is of, and its use: all that is kept of so many."""
    summary = read_summary(path)
    return summary.job, summary.use
