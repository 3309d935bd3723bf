"""What a policy states that it may do: the safety check holds its plans to this, and to the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from lucid.core.ports import Capability
from lucid.errors import ConfigError

__all__ = ["PolicyRules", "Preempts", "rules_of"]

Preempts = Literal["nobody", "elastic", "anybody"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRules:
    """What a policy does beyond starting waiting jobs, each alone on whole free GPUs and within the quota of its VC.

    A policy that states nothing may do nothing more. What the settings forbid is forbidden whatever is stated here.

    Raises:
        ConfigError: a value is none of those that its field takes.
    """

    pairs: bool = False
    """Start jobs in slots and beside others, as ``policy.packing`` lets them share, and part pairs."""
    profiles: bool = False
    """End profiling runs, or let the jobs carry on; start jobs of VCs on profiling nodes."""
    preempts: Preempts = "nobody"
    """Whom it takes off its GPUs to make room: elastic jobs, or anybody. Where a job that is not elastic would start
    over (on Slurm), ``policy.profiling.restarts`` must allow that, too."""
    claims: bool = False
    """Start jobs on GPUs of jobs that Slurm preempts for them (``Running.yields``)."""
    resizes: bool = False
    """Change the GPUs of elastic jobs that run."""
    interleaves: bool = False
    """Let running jobs go on in another group, or, in a replay, on other GPUs."""
    group_limit: int = 1
    """The most jobs that take turns on the same GPUs; more than 1 only where it interleaves."""
    quotas: bool = False
    """Plan a pool of VCs, each with a quota of GPUs."""
    borrows: bool = False
    """Start jobs beyond the quota of their VC, as far as ``policy.lending`` and ``policy.fairness`` let them."""
    reads_trust: bool = True
    """Look at ``Snapshot.trust``. A replay measures how well estimates rank jobs only where a policy does."""
    own: Mapping[str, PolicyRules] = field(default_factory=dict)
    """Rules of the partitions that have others, by name."""

    def __post_init__(self) -> None:
        switches = ("pairs", "profiles", "claims", "resizes", "interleaves", "quotas", "borrows", "reads_trust")
        wrong = [name for name in switches if not isinstance(getattr(self, name), bool)]
        if self.preempts not in get_args(Preempts):
            wrong.append("preempts")
        if type(self.group_limit) is not int or not 1 <= self.group_limit <= (99 if self.interleaves else 1):
            wrong.append("group_limit")
        if wrong:
            raise ConfigError(f"PolicyRules: {wrong[0]} cannot be {getattr(self, wrong[0])!r}")

    def of(self, partition: str) -> PolicyRules:
        """The rules of one partition."""
        return self.own.get(partition, self)


_STATED: Final[Mapping[Capability, tuple[str, Callable[[PolicyRules], bool]]]] = {
    Capability.SHARE: ("pairs", lambda rules: rules.pairs),
    Capability.PROFILE: ("profiles", lambda rules: rules.profiles),
    Capability.PREEMPT: ("preempts", lambda rules: rules.preempts != "nobody"),
    Capability.RESIZE: ("resizes", lambda rules: rules.resizes),
    Capability.INTERLEAVE: ("interleaves", lambda rules: rules.interleaves),
}
"""By what a policy needs of the cluster, the rule by which it says that it uses it."""
_ALWAYS: Final = frozenset({Capability.PREEMPT, Capability.RESIZE, Capability.INTERLEAVE})
"""Nobody uses these on a cluster that does not offer them. (Pairs and profiling nodes may be left from before.)"""
_GONE: Final = {
    "group_limit": "interleaves and group_limit",
    "restarts": "pairs, profiles or preempts",
    "lending": "borrows",
    "own_rules": "own",
    "keeps_quotas": "quotas",
}
"""Where rules were stated until 0.1, and where they are now."""


def rules_of(policy: Any) -> PolicyRules:
    """What a policy states, or that it may do nothing but start jobs.

    Raises:
        ConfigError: what it states is of another type, is stated as it was until 0.1, or does not fit what it needs
            of the cluster. The message names what is missing.
    """
    name, rules = policy.name, getattr(policy, "rules", None)
    see = "docs/write-a-policy.md says how a policy states its rules"
    if rules is None:
        old = next((old for old in _GONE if hasattr(policy, old)), None)
        if old is not None:
            raise ConfigError(
                f"policy {name!r} states its rules as {old!r}, which is read no more: it needs a member "
                f"rules = PolicyRules(...) with {_GONE[old]}; {see}"
            )
        rules = PolicyRules()
    if not isinstance(rules, PolicyRules) or not all(isinstance(own, PolicyRules) for own in rules.own.values()):
        raise ConfigError(f"policy {name!r}: its member rules has to be a PolicyRules, and is {rules!r}; {see}")
    every = (rules, *rules.own.values())
    for capability, (rule, states) in _STATED.items():
        stated = any(map(states, every))
        if capability in policy.needs and not stated:
            raise ConfigError(
                f"policy {name!r} needs {capability}, and does not state what for: its rules lack {rule}, as in "
                f"rules = PolicyRules({rule}=...); {see}"
            )
        if stated and capability in _ALWAYS and capability not in policy.needs:
            raise ConfigError(f"policy {name!r} states {rule}, and its needs lack {capability}; {see}")
    return rules
