"""``LeftOut``: records that could not be read, left out, counted by source, and logged once each.

One unreadable record must never end a poll. Every reader of lists takes a `LeftOut` and reads each record behind its
barrier: a record that raises, whatever it raises, is left out, and the rest is read as if it were not there.
``lucidctl status`` and ``lucidctl doctor`` name what is left out now. What a record says of itself is shown, never
trusted."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, TypeVar

from lucid.text import shown

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_R = TypeVar("_R")
_MOST_NAMED: Final = 1000
"""Most records remembered of one source, so that each is logged once within bounded memory."""
_SHOWN: Final = 5
"""Most records of one source that ``status`` names."""
_LONGEST: Final = 200


def short(text: str) -> str:
    """Anybody's text made safe for a log or a terminal: as ``shown``, at most 200 characters."""
    return shown(text[:_LONGEST])[:_LONGEST] + ("…" if len(text) > _LONGEST else "")


def _words(error: BaseException | str) -> str:
    if isinstance(error, str):
        return short(error)
    said = f"{error}"
    return short(f"{type(error).__name__}: {said}" if said else type(error).__name__)


class Reading:
    """One reading of one source, used in a ``with`` statement. At its end the records it left out replace those of
    the previous reading."""

    def __init__(self, home: LeftOut, source: str) -> None:
        self._home, self._source = home, source
        self._found: dict[str, str] = {}
        self.count = 0

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._home.replace(self._source, self._found, self.count)

    def add(self, which: str, error: BaseException | str) -> None:
        """Leave a record out. ``which`` names it to an administrator."""
        self.count += 1
        if len(self._found) < _MOST_NAMED:
            self._found[short(which)] = _words(error)

    def each(self, items: Iterable[_T], read: Callable[[_T], _R], name: Callable[[_T], str]) -> list[_R]:
        """The results of ``read`` for all items, without those that it cannot read."""
        found: list[_R] = []
        for item in items:
            try:
                found.append(read(item))
            except Exception as error:
                self.add(_named(item, name), error)
        return found


def _named(item: Any, name: Callable[[Any], str]) -> str:
    try:
        return name(item)
    except Exception:
        return "a record that says not even what it is"


class LeftOut:
    """The records that are left out now, by source. Readers in several threads may share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: dict[str, dict[str, str]] = {}
        self._counts: dict[str, int] = {}
        self._ever: Counter[str] = Counter()

    def reading(self, source: str) -> Reading:
        """A new reading of a source."""
        return Reading(self, source)

    def replace(self, source: str, found: Mapping[str, str], count: int | None = None) -> None:
        """Set what a reading left out: ``found`` says why, by record; ``count``: how many, where not all are
        named."""
        count = len(found) if count is None else count
        with self._lock:
            before = self._named.get(source, {})
            new = {which: why for which, why in found.items() if which not in before}
            self._ever[source] += len(new)
            if count:
                self._named[source], self._counts[source] = dict(found), count
            else:
                self._named.pop(source, None)
                self._counts.pop(source, None)
        for which, why in new.items():
            _LOG.warning("left out: cannot be read", extra={"facts": {"source": source, "which": which, "why": why}})

    def one(self, source: str, which: str, error: BaseException | str) -> None:
        """Leave one record out beside those that are left out already, for a source that is not read as a whole."""
        with self._lock:
            found = dict(self._named.get(source, {}))
            count = self._counts.get(source, 0)
        name = short(which)
        if name not in found:
            while len(found) >= _MOST_NAMED:
                found.pop(next(iter(found)))
            found[name], count = _words(error), count + 1
        self.replace(source, found, count)

    def summary(self) -> dict[str, dict[str, Any]]:
        """The counts for ``status``: by source, how many records are left out now (``now``), how many were since the
        daemon's start (``ever``), and the first few with the reason (``first``)."""
        with self._lock:
            return {
                source: {
                    "now": self._counts.get(source, 0),
                    "ever": max(ever, self._counts.get(source, 0)),
                    "first": dict(list(self._named.get(source, {}).items())[:_SHOWN]),
                }
                for source, ever in sorted(self._ever.items())
                if ever
            }
