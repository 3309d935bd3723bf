"""What may befall the Slurm commands that lucidd runs: no answer, a wrong one, a part of one."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from campaign.fault import Fault, Host, listed


class _Wound(Fault):
    """Every command goes through a script that reads what is to befall it."""

    touches = frozenset({"commands"})
    lasts_s = (6.0, 40.0)
    ways: ClassVar[tuple[str, ...]] = ()

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        way = dice.choice(self.ways).format(
            length=dice.choice([1, 100, 5000, 20000]), letter=dice.choice(['"', ":", "{", "1", "a"])
        )
        fresh = host.site.wound.with_suffix(".new")
        fresh.write_text(way + "\n")
        fresh.chmod(0o644)
        fresh.rename(host.site.wound)
        return {"way": way}

    def end(self, host: Host) -> None:
        host.site.wound.unlink(missing_ok=True)


@listed
class Hang(_Wound):
    name, what = "commands-hang", "Slurm's commands hang, or are slow"
    ways = ("hang 600", "hang 600", "slow 5")


@listed
class Fail(_Wound):
    name, what = "commands-fail", "Slurm's commands fail, with words known and unknown"
    ways = ("fail", "odd")


@listed
class Late(_Wound):
    name, what = "commands-late", "Slurm's commands do what they are told, and say that they failed"
    lasts_s = (4.0, 20.0)
    ways = ("late",)


@listed
class Cut(_Wound):
    name, what = "commands-cut", "answers are cut short, or empty"
    ways = ("cut {length}", "cut {length}", "empty")


@listed
class Bytes(_Wound):
    name, what = "commands-garbled", "answers with bytes in them that are no text"
    ways = ("bytes {letter}",)
