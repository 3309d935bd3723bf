"""Writing a file so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["read_regular", "write_atomic"]


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


def read_regular(path: Path, most: int) -> bytes:
    """At most so many bytes of a file. What is no file (a FIFO that nobody writes to) is not waited for.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with os.fdopen(os.dup(file), "rb") as content:
            return content.read(most)
    finally:
        os.close(file)
