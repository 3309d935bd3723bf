"""Slurm's own fair-share factors, by account and user: the number that its priority is made with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lucid.adapters.bounded import text_of
from lucid.adapters.left_out import LeftOut
from lucid.adapters.slurm.records.json_values import number_of
from lucid.errors import ClusterError, ClusterUnavailable

__all__ = ["FairShares", "fair_shares_from"]


def fair_shares_from(document: Any, left_out: LeftOut | None = None) -> dict[tuple[str, str], float]:
    """The factors (0 to 1) of all users of all accounts, as ``sshare -a --json`` has
    them. Entries without a factor are left out.

    Raises:
        ClusterError: the document is another one.
    """
    try:
        entries = document["shares"]["shares"]
        if not isinstance(entries, list):
            raise TypeError("it is not a list")
    except (KeyError, TypeError, IndexError) as error:
        raise ClusterError(f"Slurm's list of shares is not as expected ({type(error).__name__}: {error})") from None
    with (left_out or LeftOut()).look("shares") as look:
        read = look.each(entries, _factor, lambda item: f"{item['parent']}/{item['name']}")
    return {item[0]: item[1] for item in read if item is not None}


def _factor(item: Mapping[str, Any]) -> tuple[tuple[str, str], float] | None:
    factor = item["fairshare"]["factor"]
    if "USER" not in item["type"]:
        return None
    if isinstance(factor, int | float):  # v0.0.40, of Slurm 23.11
        share = float(factor)
    elif not factor["set"]:
        return None
    else:
        share = number_of(factor, -1.0)
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"a factor of {share:g}")
    return (text_of(item["parent"]), text_of(item["name"])), share


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
