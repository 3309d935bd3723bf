"""Sealing a few words with munge: only root on the cluster's hosts can open them, and nobody can change them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from typing import Final

from lucid.errors import ActionRefused

__all__ = ["MUNGE", "credential"]

MUNGE: Final = ("munge", "-u", "root", "-s")
"""The words before the text. The text is no secret: what counts is who made the credential."""
_CREDENTIAL: Final = re.compile(r"MUNGE:[A-Za-z0-9+/=]{16,1000}:")
_TIMEOUT_S: Final = 5.0


def credential(words: Sequence[str], timeout_s: float = _TIMEOUT_S) -> str:
    """What this munge command prints.

    Raises:
        ActionRefused: there is no munge there, or it does not answer in time, or not with a credential.
    """
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise ActionRefused(f"munge does not answer within {timeout_s:g} s") from None
    except OSError as error:
        raise ActionRefused(f"munge cannot be run ({error.strerror})") from None
    said = done.stdout.strip()
    if done.returncode or _CREDENTIAL.fullmatch(said) is None:
        words_said = " ".join((done.stderr or said).split())[:200]
        raise ActionRefused(f"munge cannot seal ({words_said or f'exit status {done.returncode}'})")
    return said
