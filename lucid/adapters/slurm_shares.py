"""Slurm's own fair-share factors, by account and user: the number that its priority is made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lucid.errors import ClusterError, ClusterUnavailable

__all__ = ["FairShares", "fair_shares_from"]


def fair_shares_from(document: Any) -> dict[tuple[str, str], float]:
    """The factors (0 to 1) of all users of all accounts, as ``sshare -a --json`` and slurmrestd's ``shares`` have
    them. Entries without a factor are left out.

    Raises:
        ClusterError: the document is another one.
    """
    try:
        found: dict[tuple[str, str], float] = {}
        for item in document["shares"]["shares"]:
            factor = item["fairshare"]["factor"]
            if "USER" in item["type"] and factor["set"]:
                found[str(item["parent"]), str(item["name"])] = float(factor["number"])
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"Slurm's list of shares is not as expected ({type(error).__name__}: {error})") from None


class FairShares:
    """Factors as they were at most ``every_s`` ago. A Slurm that does not tell them (no accounting, no priority
    plugin) is asked again after that time, and meanwhile there are none."""

    def __init__(self, ask: Callable[[], Mapping[tuple[str, str], float]], every_s: float) -> None:
        self._ask = ask
        self._every_s = every_s
        self._due_s = float("-inf")
        self._shown: Mapping[tuple[str, str], float] = {}
        self.why_none = ""
        """Slurm's words where it does not tell."""

    def __call__(self, now_s: float) -> Mapping[tuple[str, str], float]:
        """The same object until it says something else.

        Raises:
            ClusterUnavailable: Slurm does not answer at present.
        """
        if now_s >= self._due_s:
            try:
                fresh, self.why_none = self._ask(), ""
            except ClusterUnavailable:
                raise
            except ClusterError as error:
                fresh, self.why_none = {}, str(error)
            self._due_s = now_s + self._every_s
            if fresh != self._shown:
                self._shown = fresh
        return self._shown
