"""Reads files that others may have written, and finds a user's folder where everybody may write.

Python 3.6 or later, no dependency: jobs have this file as ``lucid_job/untrusted.py`` (a link to it), lucidd as
``lucid.untrusted``. A neighbour can guess the number of the next job, so nothing is looked up by number in a folder
that everybody may write to. What belongs to a job lies in ROOT/uUID, which the user's first job makes, or, where
somebody else has taken that name, in ROOT/uUID.RANDOM: it counts for its owner, not for its name."""

import binascii
import errno
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

LARGEST = 1 << 16
"""Most bytes of a file that is read."""
DEEPEST = 16
"""Most brackets within brackets of a JSON text that is read."""
LISTED_S = 60.0
"""Seconds within which a job searches the names in a common folder."""
MOST_HOMES = 8
"""Most folders of one user that are read."""
_HOME = re.compile(r"u(0|[1-9][0-9]{0,9})\.[0-9a-f]{16}\Z")
_OUTSIDE_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?|([\[{])|([\]}])', re.DOTALL)


class Refused(Exception):
    """A file that is not read; the text says why."""


def opened(path: str, uid: int, dir_fd: "int | None" = None) -> "tuple[int, os.stat_result]":
    """A descriptor of a regular file of this user, and what fstat says of it. It never waits.

    Raises:
        FileNotFoundError: nothing is there.
        Refused: something else is."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        words = "it is a link" if error.errno == errno.ELOOP else f"it cannot be opened ({error.strerror})"
        raise Refused(words) from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("it is not a regular file")
        if found.st_uid != uid:
            raise Refused("it is not a file of the job's user")
    except OSError as error:
        os.close(fd)
        raise Refused(f"it cannot be read ({error.strerror})") from None
    except Refused:
        os.close(fd)
        raise
    return fd, found


def content(fd: int) -> bytes:
    """All bytes of a small file that is open.

    Raises:
        Refused: it has more than LARGEST, or cannot be read."""
    try:
        found = os.read(fd, LARGEST + 1)
    except OSError as error:
        raise Refused(f"it cannot be read ({error.strerror})") from None
    if len(found) > LARGEST:
        raise Refused(f"it has more than {LARGEST} bytes")
    return found


def read(path: str, uid: int) -> bytes:
    """All bytes of a small regular file of this user. Raises as ``opened`` and ``content``."""
    fd, _ = opened(path, uid)
    try:
        return content(fd)
    finally:
        os.close(fd)


def parsed(text: bytes) -> "dict[str, object]":
    """The JSON object in a text.

    Raises: Refused: it holds none, or one with more than DEEPEST brackets within each other."""
    depth = 0
    for one in _OUTSIDE_STRINGS.finditer(text):
        depth += 1 if one.group(1) else -1 if one.group(2) else 0
        if depth > DEEPEST:
            raise Refused(f"it has more than {DEEPEST} brackets within brackets")
    try:
        data = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError, MemoryError):
        raise Refused("it is not JSON") from None
    if not isinstance(data, dict):
        raise Refused("it is not a JSON object")
    return data


def json_of(path: str, uid: int) -> "dict[str, object]":
    """The JSON object in a small regular file of this user; empty where it is anything else."""
    try:
        return parsed(read(path, uid))
    except Exception:  # whatever lies there, who asks goes on
        return {}


def first_home(root: str, uid: int) -> str:
    """The path of a user's folder, unless somebody else has taken that name."""
    return str(Path(root) / f"u{uid}")


def owned(path: str, uid: int) -> bool:
    """Whether it is a folder of this user, no link, and nobody else may write there. (One that others may write to
    they could have moved here.)"""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & 0o022


def other_names(root: str) -> "Iterator[tuple[int, str]]":
    """The user's number in each name, and its path, for all that could be the folder of one whose first name was
    taken; -1 for every other name. There may be millions, so the caller stops in time. Raises OSError."""
    with os.scandir(root) as entries:
        for entry in entries:
            named = _HOME.match(entry.name)
            yield (int(named.group(1)) if named else -1), entry.path


def homes(root: str, uid: int, owner: int) -> "list[str]":
    """This user's folders below a common one: mostly one, none before the first job.

    ``owner``: the user's number as this process sees it; in a container it may be 0.

    Raises:
        OSError: the names there cannot be listed within LISTED_S."""
    first, found, until = first_home(root, uid), [], time.monotonic() + LISTED_S
    if owned(first, owner):
        return [first]
    for number, path in other_names(root):
        if time.monotonic() > until:
            raise OSError(errno.E2BIG, f"more names than can be looked through in {LISTED_S:g} s", root)
        if number == uid and owned(path, owner):
            found.append(path)
    return sorted(found)[:MOST_HOMES]


def made_homes(root: str) -> "list[str]":
    """The caller's folders below a common one, made where there is none; all may read them, whatever the umask.

    Raises:
        OSError: it cannot be made."""
    owner = os.geteuid()
    job_uid = os.environ.get("SLURM_JOB_UID", "")
    uid = int(job_uid) if job_uid.isdigit() else owner  # a container's root is some user outside of it
    found = homes(root, uid, owner)
    if not found:
        first = first_home(root, uid)
        for path in (first, f"{first}.{binascii.hexlify(os.urandom(8)).decode()}"):
            try:
                Path(path).mkdir(mode=0o755)
            except FileExistsError:
                if owned(path, owner):  # another job of this user was faster
                    break
                continue
            if not owned(path, owner):
                Path(path).rmdir()
                raise OSError(errno.EPERM, "a folder made there belongs to somebody else (root_squash?)", root)
            break
        found = homes(root, uid, owner) or [path]
    for path in found:  # each time: whoever made it may have been killed before this
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            now = os.fstat(fd)
            if now.st_uid == owner and now.st_mode & 0o055 != 0o055:
                os.fchmod(fd, 0o755)
        finally:
            os.close(fd)
    return found


def place(root: str, name: str) -> str:
    """The path of this name, which may not exist, in a folder of the caller's, which is made. Raises OSError."""
    paths = [str(Path(home) / name) for home in made_homes(root)]
    return next((path for path in paths if os.path.lexists(path)), paths[0])
