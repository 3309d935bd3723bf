"""What a reader types."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence


def first_page(command: Sequence[str], within_s: float) -> str:
    """What a server of pages answers at the address that it prints; it is then ended by Ctrl-C."""
    until = time.monotonic() + within_s
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    said, page = "", ""
    try:
        for line in child.stderr:
            said += line
            if " at http://" in line:
                page = _answer(line.partition(" at ")[2].split()[0], until)
                break
    finally:
        child.send_signal(signal.SIGINT)
        try:
            said += child.communicate(timeout=20)[1]
        except subprocess.TimeoutExpired:
            child.kill()
            said += child.communicate()[1]
    assert page, f"{' '.join(command)} serves no page:\n{said[-2000:]}"
    assert "Traceback" not in said, said[-2000:]
    assert time.monotonic() < until + 20, f"{' '.join(command)} took {within_s:.0f} s and more"
    return page


def _answer(address: str, until: float) -> str:
    while True:
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return str(answer.read().decode("utf-8"))
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > until:
                return ""
            time.sleep(0.1)
