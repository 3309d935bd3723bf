"""Writing a file so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_atomic"]


def write_atomic(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Replace ``path`` by ``content`` in one step: a temporary file beside it, then a rename.

    With ``durable`` both are flushed to the disk first, so that the new content survives a power failure.

    Raises:
        OSError: the folder cannot be written; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
