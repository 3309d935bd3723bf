"""What lucidd may do in each partition: the modes of lucid.toml, and switches set by ``lucidctl mode``.

Also the policy's settings as this cluster can honour them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct

from lucid.config.load import Settings
from lucid.config.policy import LIVE_DEFAULTS, PolicySettings, ProfilingSettings, with_defaults
from lucid.core.ports import Capability
from lucid.errors import Finding, warn
from lucid.places import Mode
from lucid.store.sqlite import SqliteStore
from lucid.text import digits, moment

KEY = "mode."


class Switch(Struct, frozen=True):
    """A mode that ``lucidctl mode`` set by hand. ``was``: the mode of the partition in lucid.toml at that time;
    ``since_s``: that time (Unix). Both are ``None`` in a switch that an earlier Lucid set."""

    mode: str
    was: str | None = None
    since_s: float | None = None

    def text(self) -> str:
        """The switch as the store keeps it: ``order was=pack since=1732182345``."""
        was = "" if self.was is None else f" was={self.was}"
        return f"{self.mode}{was}" + ("" if self.since_s is None else f" since={self.since_s:.0f}")

    def since(self) -> str:
        """When it was set, in words."""
        if self.since_s is None:
            return "an unknown time"
        return time.strftime("%F %T", time.localtime(self.since_s))


def switches_of(stored: Mapping[str, str]) -> dict[str, Switch]:
    """The switches of modes among what the store keeps, by partition."""
    return {key.removeprefix(KEY): _switch(text) for key, text in stored.items() if key.startswith(KEY)}


def _switch(text: str) -> Switch:
    mode, *rest = text.split() or [""]
    facts = dict(word.split("=", 1) for word in rest if "=" in word)
    since = facts.get("since", "")
    return Switch(mode, facts.get("was"), None if (at := digits(since)) is None else moment(float(at)))


def overtaken(settings: Settings, stored: Mapping[str, str]) -> dict[str, Switch]:
    """The switches that lucid.toml has overtaken: it now has another mode for the partition than when they were set,
    or no longer names it. The file is the administrator's last word."""
    configured = settings.daemon.partitions
    return {
        name: switch
        for name, switch in switches_of(stored).items()
        if switch.was is not None and switch.was != str(configured.get(name, ""))
    }


def settle_switches(settings: Settings, store: SqliteStore, now_s: float) -> list[str]:
    """Drop the switches that lucid.toml has overtaken; lucidd does so when it starts. A switch that an earlier Lucid
    set stays, and is from now on compared with the file as it is now. Returns a line for the log of each.

    Raises: StoreError: the store cannot be read or written."""
    stored = store.settings()
    gone = overtaken(settings, stored)
    told = []
    for name, switch in switches_of(stored).items():
        configured = settings.daemon.partitions.get(name)
        if name in gone:
            store.set_setting(KEY + name, None)
            says = f"{configured} now" if configured else "nothing about it now"
            told.append(
                f"{name}: lucid.toml said {switch.was} when it was switched to {switch.mode} by hand, and says "
                f"{says}: the file counts, and the switch is dropped"
            )
        elif configured is not None and switch.mode != configured:
            if switch.was is None:
                store.set_setting(KEY + name, Switch(switch.mode, str(configured), now_s).text())
            told.append(
                f"{name}: {switch.mode}, switched by hand since {switch.since()}, and not {configured} as lucid.toml "
                f"says; lucidctl mode {name} configured takes that back"
            )
    return told


def words_of_switches(
    settings: Settings, stored: Mapping[str, str], configured_there: Mapping[str, str]
) -> Iterator[Finding]:
    """Findings for an administrator on the switches that differ from lucid.toml, each with how to take it back.
    ``configured_there``: the modes that the running lucidd read from its file when it started, if one runs."""
    gone = overtaken(settings, stored)
    for name, switch in switches_of(stored).items():
        configured = settings.daemon.partitions.get(name)
        back = f"lucidctl mode {name} configured"
        if configured is None or switch.mode not in set(Mode):
            yield warn(f"a switch {KEY}{name} = {switch.mode} names no known partition or mode", back)
        elif name in gone:
            yield warn(
                f"{name} was switched to {switch.mode} by hand since {switch.since()}, when lucid.toml said "
                f"{switch.was}; it says {configured} now",
                f"restart lucidd, which then follows the file; or at once: {back}",
            )
        elif switch.mode != configured:
            yield warn(
                f"{name} is in mode {switch.mode} by hand since {switch.since()}; lucid.toml says {configured}",
                f"{back} takes that back",
            )
    for name in dict.fromkeys([*settings.daemon.partitions, *configured_there]):
        says, read = str(settings.daemon.partitions.get(name, "nothing")), configured_there.get(name, "nothing")
        if configured_there and says != read and name not in gone:
            yield warn(
                f"lucid.toml says {says} for {name}, but the lucidd that runs read {read} when it started",
                "restart lucidd, which reads its file only at the start",
            )


def modes_from(settings: Settings, switches: Mapping[str, str], released: Collection[str] = ()) -> dict[str, Mode]:
    """The mode of each partition: that of the configuration, overruled by what ``lucidctl mode`` set. All are
    ``observe`` while paused, as are those ``released``, of which no plan can be made (with a pool, all of its VCs).
    At most ``order`` where the client cannot write what ``pack`` needs."""
    modes: dict[str, Mode] = {}
    pool = settings.daemon.pool
    observed = {*released, *(pool.quotas if pool.partition in released else ())}
    set_by_hand = switches_of(switches)
    paused = switches.get("paused") == "1"
    for name, configured in settings.daemon.partitions.items():
        text = set_by_hand[name].mode if name in set_by_hand else str(configured)
        modes[name] = Mode.OBSERVE if paused or name in observed or text not in set(Mode) else Mode(text)
        if modes[name] is Mode.PACK and not settings.slurm.packs:
            modes[name] = Mode.ORDER
    return modes


def policy_settings(settings: Settings, able: frozenset[Capability]) -> PolicySettings:
    """The policy's settings as this cluster can honour them, with the daemon's rule on whose jobs may share."""
    here: dict[str, Any] = {
        "packing.same_user_only": not settings.daemon.share_across_users,
        "packing.mps": settings.daemon.mps,
    }
    if Capability.SHARE not in able:
        here["packing.gss"] = 0
    if Capability.PROFILE not in able:
        here["profiling.enabled"] = False
    return with_defaults(settings.policy, LIVE_DEFAULTS, settings.given).changed(here)


def live_profiling(settings: Settings) -> ProfilingSettings:
    """The live settings of profiling: only jobs whose users asked for it are started over, unless the file says
    otherwise, so a script that works on plain Slurm works under Lucid."""
    return with_defaults(settings.policy, LIVE_DEFAULTS, settings.given).profiling
