"""Golden files: what must not change unless a commit says why.

``LUCID_WRITE_GOLDEN=1 make golden`` writes them anew.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

HERE = Path(__file__).parent / "golden"
_LINES = 80


def same_as(path: Path, text: str) -> None:
    if os.environ.get("LUCID_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def shortened(text: str) -> str:
    """A long text as its first lines and a digest of the whole."""
    lines = text.splitlines(keepends=True)
    if len(lines) <= _LINES:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return "".join(lines[:_LINES]) + f"... {len(lines)} lines in all, sha256 {digest}\n"
