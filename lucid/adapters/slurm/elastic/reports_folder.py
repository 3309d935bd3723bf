"""What is wrong with the folder in which elastic jobs report, as this process sees it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Trouble", "folder_trouble"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """``words``: what it is; empty where nothing is wrong. ``blind``: no report can be read at all."""

    words: str = ""
    remedy: str = ""
    blind: bool = False


_NONE = Trouble()


def folder_trouble(folder: str) -> Trouble:
    """Of this folder; of no folder there is nothing to say."""
    if not folder:
        return _NONE
    make = f"install -d -m 1777 {folder}, on a file system that the nodes and lucidd's host have"

    def blind(words: str, remedy: str = make) -> Trouble:
        return Trouble(
            f"daemon.elastic.reports_dir = {folder!r}: {words}; no job is resized, and none takes turns", remedy, True
        )

    try:
        found = Path(folder).stat()
    except FileNotFoundError:
        return blind("there is no such folder")
    except OSError as error:
        return blind(f"it cannot be looked at ({error.strerror})", f"is it mounted? {make}")
    if not stat.S_ISDIR(found.st_mode):
        return blind("it is no folder")
    if not os.access(folder, os.R_OK | os.X_OK):
        return blind(
            "this user may not read it", f"chmod 1777 {folder}, and let lucidd's user into the folders above"
        )
    mode = stat.S_IMODE(found.st_mode)
    if not mode & stat.S_IWOTH:
        words = f"not all users may write there (mode {mode:04o}), so not all jobs can report"
    elif not mode & stat.S_ISVTX:
        words = f"it has no sticky bit (mode {mode:04o}), so users may remove the reports of others"
    else:
        return _NONE
    return Trouble(f"daemon.elastic.reports_dir = {folder!r}: {words}", f"chmod 1777 {folder}")
