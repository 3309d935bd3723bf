"""``Reservation``: Slurm's reservations, read from its JSON.

A record that cannot be read is left out: its nodes then are as their states say (RESERVED and MAINTENANCE: nothing
starts there), and a job that Slurm does not start because of it waits and is tried again (``own.reasons``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lucid.core.placement import hosts_in
from lucid.left_out import LeftOut
from lucid.slurm.records.json import checked_list, number_of, words_of
from lucid.text import MOST_S, digits, moment, text_of


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation. Times in Unix seconds, as Slurm last showed them; those of a floating one move on.

    ``users``, ``accounts``: who may use it, as Slurm has it (``-bob``: all but bob). ``cores``: how many cores of
    each node it has, where it does not have whole nodes. ``gres``: whether it has only some generic resources of its
    nodes."""

    name: str
    nodes: tuple[str, ...]
    start_s: float
    end_s: float
    flags: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    cores: tuple[tuple[str, int], ...] = ()
    gres: bool = False
    node_list: str = ""
    """The nodes as Slurm writes them."""

    def admits(self, user: str, account: str) -> bool:
        """Whether jobs of this user and account may run in it. Where it names both, either suffices."""
        named = ((self.users, user), (self.accounts, account))
        if any(f"-{name}" in listed for listed, name in named):
            return False
        wanted = [name in listed for listed, name in named if any(not item.startswith("-") for item in listed)]
        return any(wanted) if wanted else bool(self.users or self.accounts)


def reservations_from(document: Any, left_out: LeftOut | None = None) -> list[Reservation]:
    """The reservations in an answer of ``scontrol show reservation --json``.

    Raises: ClusterError: the document is no answer, or says that it failed."""
    raws = checked_list(document, "reservations", "reservations")
    with (left_out or LeftOut()).reading("reservations") as look:
        return look.each(raws, _reservation, lambda raw: f"reservation {raw['name']}")


def _reservation(raw: Mapping[str, Any]) -> Reservation:
    name, node_list = text_of(raw["name"]), text_of(raw["node_list"])
    start_s, end_s = (moment(number_of(raw[key])) for key in ("start_time", "end_time"))
    if not (name and 0 < start_s < end_s < MOST_S):
        raise ValueError("no name, or no time that can be read")
    gres = "gres/" in text_of(raw.get("tres"))  # Slurm then names all cores that the job may choose from
    return Reservation(
        name=name,
        nodes=tuple(hosts_in(node_list)) if node_list else (),
        start_s=start_s,
        end_s=end_s,
        flags=frozenset(word.partition("=")[0] for word in words_of(raw["flags"])),
        users=_names(raw.get("users")),
        accounts=_names(raw.get("accounts")),
        cores=() if gres else tuple(_cores(raw.get("core_specializations") or [])),
        gres=gres,
        node_list=node_list,
    )


def _names(value: Any) -> tuple[str, ...]:
    return tuple(name for name in text_of(value).split(",") if name)


def _cores(parts: list[Any]) -> list[tuple[str, int]]:
    """How many cores of each node the reservation has, where it does not have whole nodes."""
    return [(text_of(part["node"]), _counted(text_of(part["core"]))) for part in parts]


def _counted(ranges: str) -> int:
    """How many numbers ``0-3,7`` names."""
    count = 0
    for item in ranges.split(","):
        first, _, last = item.partition("-")
        low, high = digits(first), digits(last or first)
        if low is None or high is None or high < low:
            raise ValueError(f"its cores cannot be read: {ranges[:60]!r}")
        count += high - low + 1
    return count
