"""The folder through which nodes tell the daemon of their jobs: one small JSON file a job and node.

The sampler replaces its file as a whole; a reader sees the old one or the new. A job on one node is
``<job>.json``; a job over several nodes has ``<job>@<node>.json`` from each. Files that cannot be read are
reported, never fatal: a profile lost costs a job its chance of sharing, nothing more.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from lucid.adapters.checked import checked
from lucid.atomic import read_regular, write_atomic
from lucid.core.as_json import from_json, to_json
from lucid.core.frozen import dataclass
from lucid.core.job import JobProfile
from lucid.errors import MetricsError
from lucid.profiler.summary import Summary, merged_profile

__all__ = [
    "ProfileFiles",
    "profile_from_dict",
    "profile_to_dict",
    "prune_profiles",
    "read_profile_files",
    "read_summary",
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
            f"{path}: cannot be written ({error.strerror}); the sampler's user must be able to write the folder"
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


def prune_profiles(folder: Path, before_s: float) -> int:
    """Delete files that no sampler has written since then: their jobs have ended. Returns how many went; those that
    this user may not delete stay."""
    gone = 0
    for path in folder.glob("[!.]*.json") if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < before_s:
                path.unlink()
                gone += 1
    return gone


def _file_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} cannot name a file; a job id has letters, digits, '_' and '+'")
    return name


def profile_to_dict(profile: JobProfile) -> dict[str, Any]:
    """All fields by name."""
    data: dict[str, Any] = to_json(profile)
    return data


def profile_from_dict(data: Mapping[str, Any]) -> JobProfile:
    """The inverse; fields that this version does not know are left out.

    Raises:
        ValueError: a value is no share or no size.
        KeyError, TypeError: a field is missing or of a wrong type.
    """
    return _sound(checked(from_json(JobProfile, data)))


def _sound(profile: JobProfile) -> JobProfile:
    for name in ("gpu_util", "mem_util"):
        if not 0 <= getattr(profile, name) <= 100:
            raise ValueError(f"{name} is {getattr(profile, name)}, not a percentage")
    if not 0 <= profile.gpu_mem_mib < 1 << 30:
        raise ValueError(f"gpu_mem_mib is {profile.gpu_mem_mib}, not a size of memory")
    shares = profile.shares
    if shares is not None and not all(0 <= part <= 1 for part in (shares.storage or 0, shares.cpu, shares.gpu)):
        raise ValueError(f"shares are {shares}, not shares of time")
    return profile


def summary_to_dict(summary: Summary) -> dict[str, Any]:
    """All fields by name, nested."""
    return {"format": FORMAT, **to_json(summary)}


def summary_from_dict(data: Mapping[str, Any]) -> Summary:
    """The inverse.

    Raises:
        ValueError: it is of another format, or a value is out of range.
        KeyError, TypeError: a field is missing or of a wrong type.
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"format {data.get('format')!r}, this version reads {FORMAT}")
    summary = checked(from_json(Summary, data))
    _file_name(summary.job)
    if summary.profile is not None:
        _sound(summary.profile)
    return summary
