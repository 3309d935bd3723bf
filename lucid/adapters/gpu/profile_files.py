"""The folder through which nodes tell the daemon of their jobs: one small JSON file a job and node.

The sampler replaces its file as a whole; a reader sees the old one or the new. A job on one node is
``<job>.json``; a job over several nodes has ``<job>@<node>.json`` from each. Files that cannot be read are
reported, never fatal: a profile lost costs a job its chance of sharing, nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from lucid.adapters.checked import checked
from lucid.atomic import read_regular, write_atomic
from lucid.core.job import JobProfile
from lucid.errors import MetricsError
from lucid.profiler.shape import MemoryTrend, Steadiness
from lucid.profiler.summary import Phase, Spell, Summary, merged_profile

__all__ = [
    "ProfileFiles",
    "profile_from_dict",
    "profile_to_dict",
    "read_profile_files",
    "read_summary",
    "remove_profile",
    "summary_from_dict",
    "summary_to_dict",
    "write_summary",
]

FORMAT: Final = 1
_LARGEST_BYTES: Final = 1 << 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ProfileFiles:
    """What the folder held: summaries by job (one a node), and files that were no summaries, with the reason."""

    summaries: Mapping[str, tuple[Summary, ...]]
    bad: tuple[str, ...] = ()

    @property
    def profiles(self) -> dict[str, JobProfile]:
        """By job, of those that are measured on all the nodes that reported."""
        merged = {job: merged_profile(nodes) for job, nodes in self.summaries.items()}
        return {job: profile for job, profile in merged.items() if profile is not None}


def write_summary(folder: Path, summary: Summary, *, several_nodes: bool = False) -> Path:
    """Replace a job's file in ``folder`` by this summary.

    Raises:
        MetricsError: the folder cannot be written, or the job's name is no file name.
    """
    try:
        name = _file_name(f"{summary.job}@{summary.node}" if several_nodes else summary.job)
    except ValueError as error:
        raise MetricsError(str(error)) from None
    path = folder / f"{name}.json"
    try:
        write_atomic(path, json.dumps(summary_to_dict(summary), separators=(",", ":")).encode())
    except OSError as error:
        raise MetricsError(
            f"{path}: cannot be written ({error.strerror}); does the sampler own the folder?"
        ) from None
    return path


def read_profile_files(folder: Path) -> ProfileFiles:
    """Every summary in ``folder``; one that does not exist holds none."""
    found: dict[str, list[Summary]] = {}
    bad: list[str] = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        if path.name.startswith("."):
            continue
        try:
            summary = read_summary(path)
        except FileNotFoundError:
            continue  # its job ended between the listing and the reading
        except MetricsError as error:
            bad.append(str(error))
            continue
        found.setdefault(summary.job, []).append(summary)
    return ProfileFiles({job: tuple(nodes) for job, nodes in found.items()}, tuple(bad))


def read_summary(path: Path) -> Summary:
    """One file.

    Raises:
        FileNotFoundError: it is not there.
        MetricsError: it is no summary; the message names file and fault.
    """
    try:
        content = read_regular(path, _LARGEST_BYTES + 1)
        if len(content) > _LARGEST_BYTES:
            raise ValueError(f"larger than {_LARGEST_BYTES} bytes")
        return summary_from_dict(json.loads(content))
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever is wrong with it
        raise MetricsError(f"{path}: not a job's summary ({error}); delete it, the sampler writes it anew") from None


def remove_profile(folder: Path, job: str) -> None:
    """Delete the files of a job that has ended, on whichever node; nothing happens if there are none."""
    try:
        name = _file_name(job)
    except ValueError:
        return  # no file was ever written under such a name
    (folder / f"{name}.json").unlink(missing_ok=True)
    for path in folder.glob("*@*.json"):
        if path.name.startswith(f"{name}@"):
            path.unlink(missing_ok=True)


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot name a file; a job id has letters, digits, '_' and '+'")
    return name


def profile_to_dict(profile: JobProfile) -> dict[str, Any]:
    """All fields by name."""
    return asdict(profile)


def profile_from_dict(data: Mapping[str, Any]) -> JobProfile:
    """The inverse; fields that this version does not know are left out.

    Raises:
        ValueError: a value is no share or no size.
        TypeError: a field is missing or of a wrong type.
    """
    profile = checked(_known(JobProfile, data))
    for name in ("gpu_util", "mem_util"):
        if not 0 <= getattr(profile, name) <= 100:
            raise ValueError(f"{name} is {getattr(profile, name)}, not a percentage")
    if not 0 <= profile.gpu_mem_mib < 1 << 30:
        raise ValueError(f"gpu_mem_mib is {profile.gpu_mem_mib}, not a size of memory")
    return profile


def summary_to_dict(summary: Summary) -> dict[str, Any]:
    """All fields by name, nested."""
    return {"format": FORMAT, **asdict(summary)}


def summary_from_dict(data: Mapping[str, Any]) -> Summary:
    """The inverse.

    Raises:
        ValueError: it is of another format, or a value is out of range.
        TypeError: a field is missing or of a wrong type.
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"format {data.get('format')!r}, this version reads {FORMAT}")
    job = data["job"]
    if not isinstance(job, str) or not isinstance(data["node"], str):
        raise TypeError("job and node are names")
    _file_name(job)
    rest = {f.name: data[f.name] for f in fields(Summary) if f.name in data}
    rest["profile"] = None if rest.get("profile") is None else profile_from_dict(rest["profile"])
    for name, kind in _PARTS.items():
        rest[name] = None if rest.get(name) is None else _known(kind, rest[name])
    rest["phases"] = tuple(_known(Phase, item) for item in _list(rest.get("phases")))
    rest["gpus"] = tuple(str(item) for item in _list(rest.get("gpus")))
    rest["notes"] = tuple(str(item) for item in _list(rest.get("notes")))
    return checked(Summary(**rest))


_PARTS: Final[dict[str, type[Any]]] = {
    "steadiness": Steadiness,
    "memory": MemoryTrend,
    "recent": Spell,
    "alone": Spell,
    "together": Spell,
    "beside": Steadiness,
}


def _list(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _known(kind: type[_T], data: Mapping[str, Any]) -> _T:
    if not isinstance(data, Mapping):
        raise TypeError(f"{data!r} is no {kind.__name__}")
    return kind(**{f.name: data[f.name] for f in fields(kind) if f.name in data})  # type: ignore[arg-type]
