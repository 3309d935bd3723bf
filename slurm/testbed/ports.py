"""A testbed's ports: a block that no other testbed of this machine has or takes meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from testbed.settings import BLOCK, Layout, TestbedError

__all__ = ["claimed"]


@contextmanager
def claimed(layout: Layout, noted: Callable[[], set[int]]) -> Iterator[int]:
    """The first port of this testbed's block: the one asked for, or the first free block from 17000 up. A large
    testbed takes one of 28000 to 31999. While the block of code runs, no other testbed gets any of these ports: it
    has to last until the daemons listen.

    Args:
        layout: The testbed.
        noted: Says which bases other testbeds have noted down (they may be between two daemons just now).

    Raises:
        TestbedError: no block is free.
    """
    bases = range(28000, 32000 - len(layout.hosts), BLOCK) if layout.large else range(17000, 27000, BLOCK)
    with ExitStack() as claims:
        for base in [layout.port] if layout.port else bases:
            needed = [base + offset for offset in (0, 1, 2, *range(10, 10 + len(layout.hosts)))]
            if _claim(claims, needed) and base not in noted() and all(_free(port) for port in needed):
                yield base
                return
            claims.close()
    raise TestbedError(
        f"no {BLOCK} ports are free at {layout.port or f'{bases.start}-{bases.stop}'}; set LUCID_TESTBED_PORT"
    )


def _claim(claims: ExitStack, ports: list[int]) -> bool:
    """Claim each hundred that the ports touch, by a socket's name. Such names are as wide as ports are: every process
    that could take one of these ports sees them, whichever folder its testbed lies in; and a claim falls with its
    process."""
    for hundred in sorted({port // 100 for port in ports}):
        claim = claims.enter_context(socket.socket(socket.AF_UNIX))
        try:
            claim.bind(f"\0lucid-testbed-ports-{hundred}00")
        except OSError:
            return False
    return True


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
