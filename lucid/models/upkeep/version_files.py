"""The files of a library: written whole, and refused where they do not check."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lucid.atomic import write_atomic
from lucid.errors import ModelError

__all__ = ["FORMAT", "digest", "last_line_start", "read_json", "read_version", "write_whole"]

FORMAT: Final = "lucid-model-version/1"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a crash leaves either the old content or the new, never a part.

    Raises:
        ModelError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode(), durable=True, mode=0o600)
    except OSError as error:
        raise ModelError(f"{path}: cannot be written ({error}); check space and permissions") from error


def read_version(path: Path) -> dict[str, Any]:
    """One stored version: when it was created, its facts, the model's own data.

    Raises:
        ModelError: the file is absent, is no version, or was changed since it was written.
    """
    content = read_json(path)
    kinds = {"created": str, "facts": dict, "data": dict}
    if content.get("format") != FORMAT or any(not isinstance(content.get(k), t) for k, t in kinds.items()):
        raise ModelError(f"{path}: is not a {FORMAT} file; restore it, or roll back to another version")
    if content.get("sha256") != digest({key: content[key] for key in kinds}):
        raise ModelError(
            f"{path}: was changed or damaged (checksum differs); restore it, or roll back to another version"
        )
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        ModelError: the file is absent, or holds no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: there is no such version; `lucidctl models list` shows those there are") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read ({error}); restore it, or roll back") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: is not a JSON object; restore it, or roll back to another version")
    return content


def digest(body: Mapping[str, Any]) -> str:
    """The checksum that is stored with a version."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode("utf-8")).hexdigest()


def last_line_start(path: Path) -> int:
    """Where the last line of a file begins, in bytes."""
    return path.read_bytes().rfind(b"\n") + 1
