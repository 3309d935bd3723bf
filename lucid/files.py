"""Writes files in one step, so that a reader sees the old content or the new, never a part; and names a user."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path


@contextmanager
def closed_to_others() -> Iterator[None]:
    """A context in which new files are for their owner alone: Lucid's files name people and their programs. A file
    that others need is written with its ``mode``."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def write_atomic(path: Path, content: bytes, *, durable: bool = False, mode: int | None = None) -> None:
    """Replace ``path`` by ``content`` in one step: a temporary file beside it, then a rename.

    ``mode``: its permissions, whatever the umask, from the first moment. With ``durable`` both are flushed to disk
    first, so that the new content survives a power failure.

    Raises:
        OSError: the folder cannot be written; the old file is untouched."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
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
    """At most so many bytes of a regular file. Other things (a FIFO that nobody writes to) are not waited for.

    Raises: OSError: it cannot be read, or is no regular file."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with os.fdopen(os.dup(file), "rb") as content:
            return content.read(most)
    finally:
        os.close(file)


def write_public(path: Path, content: bytes) -> None:
    """Write as ``write_atomic`` does, for everybody to read, whatever the umask; a folder that is made for it may be
    entered.

    Raises: OSError: the folder cannot be made or written."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
    write_atomic(path, content, mode=0o644)


@lru_cache(maxsize=4096)
def user_name(uid: int) -> str:
    """The name of the user with this uid; the uid itself, as text, where no user has it."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
