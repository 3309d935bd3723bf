"""The JSON web token with which slurmrestd is asked over HTTP: read from its file, and what can be told of it."""

from __future__ import annotations

import base64
import binascii
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lucid.adapters.bounded import finite
from lucid.errors import ClusterUnavailable

__all__ = ["Token"]


class Token:
    """A file with a token in it, bare or as ``scontrol token`` prints it (``SLURM_JWT=…``)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self) -> str:
        """The token.

        Raises:
            ClusterUnavailable: the file cannot be read or has none.
        """
        try:
            text = self.path.read_text(encoding="ascii", errors="replace").strip()
        except OSError as error:
            raise ClusterUnavailable(
                f"slurm.rest_token_file {self.path}: cannot be read ({error.strerror}); "
                "scontrol token username=lucid lifespan=… prints a token"
            ) from None
        text = text.removeprefix("SLURM_JWT=")
        if not text or not text.isprintable() or not text.isascii() or " " in text:
            raise ClusterUnavailable(
                f"slurm.rest_token_file {self.path}: holds no token (one line, as scontrol token)"
            )
        return text

    def headers(self) -> dict[str, str]:
        """What goes with each request."""
        text = self.text()
        user = self.claims().get("sun") or self.claims().get("username")
        return {"X-SLURM-USER-TOKEN": text, **({"X-SLURM-USER-NAME": user} if isinstance(user, str) else {})}

    def claims(self) -> Mapping[str, Any]:
        """What the token says about itself, not verified; empty where it cannot be read."""
        parts = self.text().split(".")
        if len(parts) != 3:
            return {}
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except (ValueError, binascii.Error, RecursionError):
            return {}
        return claims if isinstance(claims, dict) else {}

    def left_s(self, now_s: float) -> float | None:
        """Seconds until it expires, negative once it has; ``None`` where it does not say."""
        until_s = finite(self.claims().get("exp"), -1.0)
        return until_s - now_s if until_s >= 0 else None

    def story(self, now_s: float) -> str:
        """Why it may not be taken, in words, with the remedy."""
        left_s = self.left_s(now_s)
        renew = f"renew it: scontrol token username=… lifespan=… > {self.path}"
        if not self.claims():
            return f"{self.path} does not hold a Slurm token; {renew}"
        if left_s is not None and left_s <= 0:
            return f"the token in {self.path} expired {-left_s:.0f} s ago; {renew}"
        return f"the token in {self.path} was not signed with this cluster's key, or the clocks differ; {renew}"

    @property
    def readable_by_others(self) -> bool:
        """May others than its owner and group read it?"""
        return bool(self.path.stat().st_mode & stat.S_IROTH)
