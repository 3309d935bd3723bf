"""Word to systemd (Type=notify): ready, still alive, stopping. Without systemd nothing happens."""

from __future__ import annotations

import os
import socket

__all__ = ["tell_systemd"]


def tell_systemd(words: str) -> bool:
    """Send ``READY=1``, ``WATCHDOG=1`` or ``STOPPING=1`` to the socket that systemd named; False where there is
    none, or it does not take it (a daemon never fails over that)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(words.encode(), address)
    except OSError:
        return False
    return True
