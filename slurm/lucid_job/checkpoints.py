"""Checkpoint folders of jobs: made for lucid_run.py, found again after a requeue, cleaned by age. No dependency.

ROOT/uUID/JOB belongs to the job's user alone (0700). ROOT is a folder on a file system that all nodes share. Many
users write there, so nothing that lies there is trusted that is not the caller's own; ``untrusted`` finds ROOT/uUID.
"""

import contextlib
import json
import os
import re
import stat
import subprocess
import time
from pathlib import Path

from lucid_job import untrusted

MARK = ".lucid-run"
"""A file in each folder: which run of which job made it."""
_NAME = re.compile(r"(\d+)(\.old-\d+)?")
_HOME = re.compile(r"u[0-9]+(\.[0-9a-f]{16})?")


class Unsafe(Exception):
    """A folder that cannot be used; the text says why and what helps."""


def folder_of(root, environ):
    """This job's folder below ROOT, made where it is not there.

    Returns:
        Its path, and what its user should know, or "".

    Raises:
        Unsafe: others could change what lies there, or it cannot be made.
    """
    root, job = Path(root), environ.get("SLURM_JOB_ID", "")
    if not root.is_absolute() or not re.fullmatch("[0-9]+", job):
        raise Unsafe(f"a checkpoint folder needs an absolute path and a job of Slurm, not {str(root)!r} in {job!r}")
    run = {"started": environ.get("SLURM_JOB_START_TIME", ""), "restart": environ.get("SLURM_RESTART_COUNT") or "0"}
    path, says = root, ""
    try:
        _check_root(root)
        path = Path(untrusted.place(str(root), job))
        old = root / job  # where an earlier release kept it: a job that lived through the upgrade goes on
        if not path.exists() and untrusted.owned(str(old), os.geteuid()) and (old / MARK).is_file():
            old.rename(path)
        before = _mark(path)
        # Job numbers begin anew after a reinstallation: what an earlier job of that number left is not this one's.
        if before is not None and run["restart"] == "0" and before.get("started") != run["started"]:
            path.rename(path.with_name(f"{job}.old-{int(time.time())}"))
            says = f"{path} was there from an earlier job of this number; it is now named {job}.old-*"
            before = None
        if before is None and run["restart"] != "0":
            says = (
                f"{path} is new, though this job has started before: is {root} on a file system that all nodes share?"
            )
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        _check_own(path)
        fresh = path / (MARK + ".new")
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        with fresh.open("x") as file:
            json.dump(run, file)
        fresh.replace(path / MARK)
    except OSError as error:
        raise Unsafe(f"{path} cannot be used: {error.strerror}") from None
    return path, says


def _check_root(root):
    found = root.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise Unsafe(f"{root} is not a folder")
    shared = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    if shared or found.st_uid not in (0, os.getuid()):
        raise Unsafe(
            f"other users can rename what lies in {root}: it has to be root's or yours, with mode 1777 or 0755"
        )


def _check_own(path):
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Unsafe(f"{path} is not a folder of yours: remove it")
    path.chmod(0o700)


def _mark(path):
    """The run that made a folder; None: there is none, or it is empty."""
    try:
        _check_own(path)
        if not any(path.iterdir()):
            return None
    except FileNotFoundError:
        return None
    return untrusted.json_of(str(path / MARK), os.geteuid())


def clean(root, days, now_s=None):
    """Remove folders in which nothing has changed for so many days and whose jobs have ended: the caller's, root all.

    Returns:
        The paths that were removed.

    Raises:
        Unsafe: Slurm does not say which jobs live, or this Python cannot remove folders safely.
    """
    import shutil  # jobs go on under a small Python, too

    if not shutil.rmtree.avoids_symlink_attacks:
        raise Unsafe("this Python cannot remove folders safely")
    alive = _living()
    now_s = time.time() if now_s is None else now_s
    removed, root, here = [], Path(root).resolve(), os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        homes = sorted(path for path in root.iterdir() if _HOME.fullmatch(path.name))
    except OSError as error:
        raise Unsafe(f"{root} cannot be listed: {error.strerror}") from None
    # ROOT itself too: jobs had their folders there before they had one by user.
    for folder in [root, *homes]:
        try:
            # By descriptor: its owner may put a link in its place while root is at work.
            fd = os.open(str(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchdir(fd)
            finally:
                os.close(fd)
            paths = sorted(path for path in Path().iterdir() if _NAME.fullmatch(path.name))
        except OSError:
            continue  # another's, or no folder
        for path in paths:
            named = _NAME.fullmatch(path.name)
            if named.group(1) in alive and not named.group(2):
                continue
            try:
                found = path.lstat()
                own = stat.S_ISDIR(found.st_mode) and os.getuid() in (0, found.st_uid) and (path / MARK).is_file()
                if own and now_s - _newest_s(path) > days * 86400:
                    shutil.rmtree(str(path))
                    removed.append(folder / path)
            except (OSError, RecursionError):
                continue  # another's, it has just gone, or somebody has made it too deep
    os.fchdir(here)
    os.close(here)
    return removed


def _living():
    """Numbers of the jobs that Slurm has, those that wait included."""
    try:
        done = subprocess.run(  # noqa: UP022 - capture_output is of Python 3.7
            ["squeue", "--noheader", "--all", "--format=%A"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unsafe(f"squeue does not answer, so nothing is removed: {error}") from None
    if done.returncode:
        raise Unsafe("squeue failed, so nothing is removed: " + done.stderr.decode("utf-8", "replace").strip())
    return set(done.stdout.decode().split())


def _newest_s(path):
    """When something in a folder last changed, Unix seconds."""
    newest = path.lstat().st_mtime
    for _, folders, files, fd in os.fwalk(str(path)):  # by descriptor, too
        for name in folders + files:
            newest = max(newest, os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime)
    return newest
