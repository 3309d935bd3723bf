"""Faults come and go as planned: a thread for each lane breaks, waits, mends."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from campaign.facts import Broken
from campaign.fault import Fault, Host
from campaign.plan import LANES, Due

_AFTER_S = 20.0
"""What was just mended counts as broken for a little longer: lucidd has to start, or to see that Slurm is back."""


class Lanes:
    """Two faults that touch the same are kept apart by locks, also where one takes longer than was planned."""

    def __init__(
        self, faults: Mapping[str, type[Fault]], due: Sequence[Due], host: Host, note: Callable[..., None]
    ) -> None:
        self._faults, self._host, self._note = faults, host, note
        self.done: list[Broken] = []
        """Every fault that has begun, in order."""
        self.errors: list[str] = []
        """Where the campaign itself could not break or mend what it meant to."""
        self._locks = {name: threading.Lock() for kind in faults.values() for name in kind.touches}
        self._stop = threading.Event()
        self._began = time.monotonic()
        lanes = [[d for d in due if d.lane == n] for n in range(LANES)]
        self._threads = [threading.Thread(target=self._live, args=(lane,), daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()

    def in_force(self, touches: str = "", after_s: float = 0.0) -> list[Broken]:
        """Faults in force now, or mended less than ``after_s`` ago; only those that touch this, if it is named."""
        now_s = time.time()
        return [
            b
            for b in list(self.done)
            if (b.ended_s is None or now_s - b.ended_s < after_s)
            and (not touches or touches in self._faults[b.name].touches)
        ]

    def broken(self) -> tuple[str, ...]:
        """Names of those in force or just over."""
        return tuple(b.name for b in self.in_force(after_s=_AFTER_S))

    def close(self) -> None:
        """Nothing more breaks; what is broken is mended."""
        self._stop.set()
        for thread in self._threads:
            thread.join(300)

    def _live(self, due: Sequence[Due]) -> None:
        for item in due:
            if self._stop.wait(max(item.at_s - (time.monotonic() - self._began), 0.0)):
                return
            kind = self._faults[item.name]
            with ExitStack() as stack:
                for name in sorted(kind.touches):
                    stack.enter_context(self._locks[name])
                if not self._stop.is_set():
                    self._befall(kind(), item)

    def _befall(self, fault: Fault, item: Due) -> None:
        broken = Broken(fault.name, time.time())
        self.done.append(broken)
        try:
            broken.facts = fault.begin(self._host, random.Random(item.seed)) or {}
        except Exception as error:  # whatever it is, what was broken is to be mended
            self._trouble(fault, "begin", error)
        self._note("fault begins", name=fault.name, lasts_s=round(item.until_s - item.at_s, 1), **broken.facts)
        self._stop.wait(item.until_s - item.at_s)
        try:
            facts = fault.end(self._host) or {}
        except Exception as error:
            self._trouble(fault, "end", error)
            facts = {}
        broken.ended_s = time.time()
        self._note("fault ends", name=fault.name, after_s=round(broken.ended_s - broken.began_s, 1), **facts)

    def _trouble(self, fault: Fault, when: str, error: Exception) -> None:
        said = f"{fault.name} {when}: {type(error).__name__}: {error}"
        self.errors.append(said)
        self._note("campaign trouble", said=said)
