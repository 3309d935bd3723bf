"""A loop of plain Python that always does the same work: CPU seconds as multiples of it compare across machines."""

from __future__ import annotations

import time

__all__ = ["fixed_loop_s"]

_ROUNDS = 400_000
_TRIES = 5


def _work() -> int:
    """Integers, a dictionary, calls and a list: what the scheduler itself does most of the time."""
    counts: dict[int, int] = {}
    seen: list[int] = []
    state = 1
    for _ in range(_ROUNDS):
        state = (state * 1103515245 + 12345) % 2147483648
        counts[state % 1024] = counts.get(state % 1024, 0) + 1
        if state % 16 == 0:
            seen.append(state)
    return len(seen) + max(counts.values())


def fixed_loop_s(tries: int = _TRIES) -> float:
    """CPU seconds of the loop on this machine now: the least of ``tries``, since others only ever slow it down."""
    spent = []
    for _ in range(tries):
        begin = time.process_time()
        _work()
        spent.append(time.process_time() - begin)
    return min(spent)
