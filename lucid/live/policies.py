"""Which policies a live cluster can run at all: told when lucidd starts, not by a failure in every cycle."""

from __future__ import annotations

import difflib

from lucid.config import Settings
from lucid.core.ports import Capability
from lucid.errors import ConfigError
from lucid.live.modes import live_profiling, policy_settings
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.policies import BUILT_IN
from lucid.orchestrator.policy import known_policies, make_policy

__all__ = ["check_policy"]


def check_policy(settings: Settings, where: str) -> None:
    """``where``: the file that names the policy.

    Raises:
        ConfigError: there is no policy of that name, or it needs what no Slurm cluster with these settings offers.
    """
    name, able = settings.daemon.policy, _most(settings)
    if name not in known_policies():
        near = difflib.get_close_matches(name, _runnable(settings, able), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"{where}: daemon.policy = {name!r}: there is no such policy; {hint}{_known(settings, able)}"
        )
    lacking = _lacking(name, settings, able)
    if lacking == [Capability.PREEMPT] and settings.slurm.packs:
        raise ConfigError(
            f"{where}: daemon.policy = {name!r}: it stops running jobs, which then start over; "
            f'that takes policy.profiling.restarts = "allowed"; {_known(settings, able)}'
        )
    if lacking:
        raise ConfigError(
            f"{where}: daemon.policy = {name!r}: it needs {', '.join(lacking)}, which Slurm does not offer Lucid "
            f"with these settings, so it runs in simulations only; {_known(settings, able)}"
        )


def _most(settings: Settings) -> frozenset[Capability]:
    """What the cluster offers at most, whatever Slurm's version turns out to be."""
    if not settings.slurm.packs:
        return frozenset()
    able = {Capability.SHARE}
    if settings.daemon.profiling_partition:
        able.add(Capability.PROFILE)
    if live_profiling(settings.policy).restarts == "allowed":
        able.add(Capability.PREEMPT)  # whom it preempts is started over
    return frozenset(able)


def _lacking(name: str, settings: Settings, able: frozenset[Capability]) -> list[str]:
    policy = make_policy(name, policy_settings(settings, able), HistoryPredictor())
    return sorted(policy.needs - able)


def _runnable(settings: Settings, able: frozenset[Capability]) -> list[str]:
    """Lucid's own that can run, and those of installed packages, which are not loaded for that."""
    return [name for name in sorted(known_policies()) if name not in BUILT_IN or not _lacking(name, settings, able)]


def _known(settings: Settings, able: frozenset[Capability]) -> str:
    return f"lucidd can run: {', '.join(_runnable(settings, able))}"
