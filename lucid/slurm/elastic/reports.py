"""``Reports``: the progress files that jobs write (lucid-report), read from their folder.

Anybody may write there, so nothing in a file is trusted. A file counts that lies in a folder of the job's user, is a
regular one of that user, is small and flat (``lucid.untrusted``), and holds finite numbers within bounds. Any other
file is refused, and the job's story says why. Times are this host's: when a file was first seen changed, never what
it or its node says."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lucid import untrusted
from lucid.core.job import Progress
from lucid.core.prediction import StageTimes
from lucid.text import MOST


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with the folder, in ``words``; empty where nothing is. ``blind``: no report can be read at
    all."""

    words: str = ""
    remedy: str = ""
    blind: bool = False


_NONE = Trouble()


def folder_trouble(folder: str) -> Trouble:
    """What is wrong with this folder; nothing where there is none."""
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


_LISTED_EVERY_S = 30.0
_LISTED_AT_ONCE_S = 0.2
"""Names that are not searched within this time follow at the next poll."""
_MOST_PAIRS = 1024
_MOST_EPOCHS, _MOST_EPOCH_S, _MOST_GPUS = 1e9, 1e7, 4096
_MOST_BATCH = 1 << 40
_MOST_ROWS = 64
_LEAST_STEP_S, _MOST_STEP_S = 1e-6, 1e5
_NOTHING_S = 1e-8
"""Stands for 0 in a model of step times: a model of nothing but zeros would be infinitely fast."""
STAGES = ("storage", "cpu", "gpu", "network")
"""Stages of an iteration, in the order of ``StageTimes``."""
_PARAMETERS = 7
"""Number of parameters of Pollux's model of step times; the last is gamma, from 1 to 10."""
Profile = tuple[tuple[int, int, int, float, float], ...]
"""Rows of nodes, GPUs, samples per GPU and pass, and mean seconds of a pass without a step and of the last pass of a
step."""
_Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Said:
    """The content of a report. ``batch_range``: the initial and the largest total batch size; ``atomic_range``:
    fewest and most samples on one GPU in one pass; ``None`` where the report does not say."""

    progress: Progress
    profile: Profile = ()
    batch_range: tuple[int, int] | None = None
    atomic_range: tuple[int, int] | None = None
    stages: StageTimes | None = None
    """Seconds of one iteration alone; ``None`` where the report does not say, or says what cannot be."""
    in_turns: tuple[float, int] | None = None
    """Seconds of one iteration beside others, and how many jobs take turns there; ``None`` as with ``stages``."""


@dataclass(frozen=True, slots=True)
class Report:
    """A job's report (``said``), or why its file is refused, and since when it is there, Unix s."""

    at_s: float
    said: Said | None = None
    refused: str = ""

    @property
    def progress(self) -> Progress | None:
        """The reported progress; ``None`` where the file is refused."""
        return None if self.said is None else self.said.progress


class Reports:
    """The folder of reports. ``report_of`` answers for one job; only files that have changed are read again."""

    def __init__(self, folder: str) -> None:
        """``folder``: empty where no job reports."""
        self._folder = folder
        self._others: dict[int, set[str]] = {}
        self._names: Iterator[tuple[int, str]] | None = None
        self._begun_s = self._went_on_s = -math.inf
        self._seen: dict[str, tuple[_Stamp | None, Report]] = {}
        self._polled_s, self._trouble = -math.inf, Trouble()

    def trouble(self, now_s: float) -> Trouble:
        """What is wrong with the folder, checked once a poll."""
        if now_s != self._polled_s:
            self._polled_s, self._trouble = now_s, folder_trouble(self._folder)
        return self._trouble

    def report_of(self, job_id: str, uid: int, now_s: float) -> Report | None:
        """The report of a job of the user with this number; ``None`` where there is none."""
        if not self._folder or not job_id.isascii() or not job_id.isdecimal():
            return None
        stamp = None
        try:
            fd, found = self._opened(f"{job_id}.json", uid, now_s)
            try:
                stamp = (found.st_mtime_ns, found.st_ino, found.st_size, found.st_uid)
                before = self._seen.get(job_id)
                if before is not None and before[0] == stamp:
                    return before[1]
                report = Report(now_s, said_in(untrusted.content(fd)))
            finally:
                os.close(fd)
        except FileNotFoundError:
            return None
        except (ValueError, untrusted.Refused) as error:
            report = Report(now_s, refused=f"its report is refused: {error}")
        self._seen[job_id] = stamp, report
        return report

    def forget_all_but(self, alive: Collection[str]) -> None:
        """Forget the reports of all jobs but these."""
        for job_id in [job_id for job_id in self._seen if job_id not in alive]:
            del self._seen[job_id]

    def _opened(self, name: str, uid: int, now_s: float) -> tuple[int, os.stat_result]:
        """A file of this name in a folder of the user, opened by ``untrusted.opened``."""
        folders = [untrusted.first_home(self._folder, uid)]
        if not untrusted.owned(folders[0], uid):
            if now_s != self._went_on_s:  # once a look, however many jobs
                self._went_on_s = now_s
                self._list(now_s)
            folders = sorted(self._others.get(uid, ()))[: untrusted.MOST_HOMES]
        for folder in folders:
            try:
                return untrusted.opened(f"{folder}/{name}", uid)
            except FileNotFoundError:
                continue
        raise FileNotFoundError(name)

    def _list(self, now_s: float) -> None:
        """Look for folders of users whose first name was taken, now and then and briefly: there may be millions of
        names."""
        if self._names is None and abs(now_s - self._begun_s) >= _LISTED_EVERY_S:
            self._begun_s, self._names = now_s, untrusted.other_names(self._folder)
        until = time.monotonic() + _LISTED_AT_ONCE_S
        try:
            for uid, path in self._names or ():
                if uid >= 0 and untrusted.owned(path, uid):
                    self._others.setdefault(uid, set()).add(path)
                if time.monotonic() > until:
                    return
        except OSError:
            pass
        self._names = None


def said_in(content: bytes) -> Said:
    """The content of a file.

    Raises: ValueError: saying by which rule it is refused."""
    try:
        data = untrusted.parsed(content)
    except untrusted.Refused as error:
        raise ValueError(str(error)) from None
    gradient = _numbers(data, "gradient", 0.0, 2)
    if len(gradient) not in (0, 2):
        raise ValueError("gradient is not two numbers")
    model = _numbers(data, "step_model", 0.0, _PARAMETERS)
    if model and (len(model) != _PARAMETERS or max(model) > _MOST_STEP_S or not 1.0 <= model[-1] <= 10.0):
        raise ValueError(f"step_model is not {_PARAMETERS} numbers up to {_MOST_STEP_S:g}, the last from 1 to 10")
    progress = Progress(
        epochs=_number(data.get("epochs", 0), "epochs", 0.0, _MOST_EPOCHS),
        epoch_s=tuple(
            (int(gpus), seconds)
            for gpus, seconds in _pairs(data, "epoch_s", (1.0, _MOST_GPUS), (1e-6, _MOST_EPOCH_S))
        ),
        losses=tuple(_pairs(data, "losses", (0.0, _MOST_EPOCHS), (-1e12, 1e12))),
        batch=int(_number(data.get("batch", 0), "batch", 0.0, 1e12)),
        step_model=tuple(max(value, _NOTHING_S) for value in model),
        gradient=(gradient[0], gradient[1]) if gradient else None,
    )
    stages = stages_in(data.get("stages"))
    ranges = _range(data, "batch_range"), _range(data, "atomic_range")
    return Said(progress, _profile(data), *ranges, stages, _in_turns(data.get("in_turns")))


def stages_in(value: Any) -> StageTimes | None:
    """The stage times in the object that a report has for ``stages``: seconds of one iteration alone on each
    resource; ``None`` for anything else. ``iteration`` is bounded by its parts: not less than the longest, for that
    much it takes, and not more than all of them, for no other job could use the rest."""
    if not isinstance(value, Mapping):
        return None
    try:
        times_s = tuple(_number(value.get(name, 0), name, 0.0, _MOST_STEP_S) for name in STAGES)
        iteration_s = _number(value.get("iteration", sum(times_s)), "iteration", 0.0, len(STAGES) * _MOST_STEP_S)
    except ValueError:
        return None
    if max(times_s) < _LEAST_STEP_S:
        return None
    return StageTimes(times_s, min(max(iteration_s, *times_s), sum(times_s)))


def _in_turns(value: Any) -> tuple[float, int] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    try:
        iteration_s = _number(value[0], "in_turns", _LEAST_STEP_S, len(STAGES) ** 2 * _MOST_STEP_S)
        jobs = _whole(value[1], "in_turns", len(STAGES))
    except ValueError:
        return None
    return (iteration_s, jobs) if jobs > 1 else None


def _number(value: Any, name: str, least: float, most: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is not a number from {least:g} to {most:g}")
    return float(value)


def _numbers(data: Mapping[str, Any], name: str, least: float, count: int) -> list[float]:
    values = data.get(name, [])
    if not isinstance(values, list) or len(values) > count:
        raise ValueError(f"{name} is not a list of at most {count} numbers")
    return [_number(value, name, least, float(MOST)) for value in values]


def _pairs(
    data: Mapping[str, Any], name: str, first: tuple[float, float], second: tuple[float, float]
) -> list[tuple[float, float]]:
    values = data.get(name, [])
    if not isinstance(values, list) or len(values) > _MOST_PAIRS:
        raise ValueError(f"{name} is not a list of at most {_MOST_PAIRS} pairs")
    if any(not isinstance(pair, list) or len(pair) != 2 for pair in values):
        raise ValueError(f"{name} is not a list of pairs")
    return [(_number(a, name, *first), _number(b, name, *second)) for a, b in values]


def _range(data: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    values = data.get(name)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != 2:
        raise ValueError(f"{name} is not two numbers")
    low, high = (_whole(value, name, _MOST_BATCH) for value in values)
    if low > high:
        raise ValueError(f"{name} begins with the larger number")
    return low, high


def _profile(data: Mapping[str, Any]) -> Profile:
    rows = data.get("profile", [])
    if not isinstance(rows, list) or len(rows) > _MOST_ROWS:
        raise ValueError(f"profile is not a list of at most {_MOST_ROWS} rows")
    found = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 5:
            raise ValueError("profile has a row that is not five numbers")
        nodes, gpus = (_whole(value, "profile", _MOST_GPUS) for value in row[:2])
        if nodes > gpus:
            raise ValueError("profile has a row with more nodes than GPUs")
        accumulation_s, step_s = (_number(value, "profile", _LEAST_STEP_S, _MOST_STEP_S) for value in row[3:])
        found.append((nodes, gpus, _whole(row[2], "profile", _MOST_BATCH), accumulation_s, step_s))
    return tuple(found)


def _whole(value: Any, name: str, most: int) -> int:
    number = _number(value, name, 1, most)
    if number != int(number):
        raise ValueError(f"{name} has {number:g} where a whole number is wanted")
    return int(number)
