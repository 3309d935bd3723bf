"""What the daemon may do in each partition, and the policy's settings as this cluster can honour them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from lucid.core.ports import Capability
from lucid.live.switches import switches_of
from lucid.places import Mode

if TYPE_CHECKING:
    from lucid.config import PolicySettings, ProfilingSettings, Settings

__all__ = ["live_profiling", "modes_from", "policy_settings"]


def modes_from(settings: Settings, switches: Mapping[str, str], let_go: Collection[str] = ()) -> dict[str, Mode]:
    """The mode of each partition: from the configuration, overruled by what ``lucidctl mode`` set; all of them
    ``observe`` while paused, and those in ``let_go``, of which no plan can be made (with a pool, all of its VCs); at
    most ``order`` where the client cannot write what ``pack`` needs."""
    modes: dict[str, Mode] = {}
    pool = settings.daemon.pool
    observed = {*let_go, *(pool.quotas if pool.partition in let_go else ())}
    set_by_hand = switches_of(switches)
    paused = switches.get("paused") == "1"
    for name, configured in settings.daemon.partitions.items():
        text = set_by_hand[name].mode if name in set_by_hand else str(configured)
        modes[name] = Mode.OBSERVE if paused or name in observed or text not in set(Mode) else Mode(text)
        if modes[name] is Mode.PACK and not settings.slurm.packs:
            modes[name] = Mode.ORDER
    return modes


def policy_settings(settings: Settings, able: frozenset[Capability]) -> PolicySettings:
    """The policy's settings as this cluster can honour them, and with the daemon's rule on whose jobs may share."""
    from lucid.config import LIVE_DEFAULTS, with_defaults

    policy = with_defaults(settings.policy, LIVE_DEFAULTS)
    packing: dict[str, Any] = {
        "same_user_only": not settings.daemon.share_across_users,
        "mps": settings.daemon.mps,
    }
    if Capability.SHARE not in able:
        packing["gss"] = 0
    profiling = policy.profiling
    if Capability.PROFILE not in able:
        profiling = profiling.model_copy(update={"enabled": False})
    return policy.model_copy(
        update={"packing": policy.packing.model_copy(update=packing), "profiling": profiling},
    )


def live_profiling(policy: PolicySettings) -> ProfilingSettings:
    """How jobs are profiled live: only jobs whose users asked for it are started over, unless the file says which may
    be. A script that works on plain Slurm works under Lucid."""
    from lucid.config import LIVE_DEFAULTS, with_defaults

    return with_defaults(policy, LIVE_DEFAULTS).profiling
