"""Changes of files as a diff."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Change", "diff_of"]


@dataclass(frozen=True, slots=True)
class Change:
    """One file to write; *path* is where the bytes really lie, behind all links. ``own``: the file is Lucid's alone
    (lucid.toml): it stays until a purge. ``shipped``: its text is one of this version's files."""

    path: Path
    before: bytes | None
    after: bytes
    mode: int = 0o644
    own: bool = False
    shipped: bool = False


def diff_of(changes: Iterable[Change]) -> str:
    """All of them, as a unified diff."""
    return "".join(_diff(change) for change in changes)


def _diff(change: Change) -> str:
    old = (change.before or b"").decode("utf-8", "replace").splitlines(keepends=True)
    new = change.after.decode("utf-8", "replace").splitlines(keepends=True)
    lines = difflib.unified_diff(
        old, new, "/dev/null" if change.before is None else str(change.path), str(change.path)
    )
    return "".join(line if line.endswith("\n") else line + "\n\\ no line end\n" for line in lines)
