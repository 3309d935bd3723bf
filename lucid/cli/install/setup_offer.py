"""The pool that ``lucidctl setup`` offers: its diff, and what it would have brought on this cluster's own past."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lucid.cli.console import say
from lucid.cli.install.setup_machine import Machine, Running
from lucid.cli.install.setup_past import Past, past_of
from lucid.cli.install.setup_plan import TOML, Options, Plan, make_plan
from lucid.cli.install.setup_pool import Pool
from lucid.cli.progress import progress
from lucid.config import settings_from
from lucid.slurmconf.diff import Change, diff_of
from lucid.slurmconf.install import programs_here

__all__ = ["Offer", "offer_of"]


@dataclass(frozen=True, slots=True)
class Offer:
    """``plan``: with the pool. ``more``: what that changes beside the plan without it; nothing where the pool is
    asked for already."""

    pool: Pool
    plan: Plan
    more: tuple[Change, ...]
    past: Past

    def told(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "partition": self.pool.partition,
            "quotas": dict(self.pool.quotas),
            "left_out": list(self.pool.left_out),
            "offered": bool(self.more),
            "files": [{"path": str(c.path), "new": c.before is None, "diff": diff_of([c])} for c in self.more],
            "past": self.past.told(),
        }

    def show(self) -> None:
        """In words."""
        if self.more:
            vcs = ", ".join(f"{vc} {gpus}" for vc, gpus in self.pool.quotas.items())
            say(f"\noffered: these VCs could lend each other idle GPUs, each with its own as its quota ({vcs})")
            say(diff_of(self.more), nl=False)
            for words in self.pool.left_out:
                say(f"note: {words}")
        say(f"on this cluster's past: {self.past.words()}")
        if self.more:
            say("taken with --lending borrow; --lending off: it is offered no more\n")


def offer_of(root: Path, machine: Machine, running: Running, options: Options, plan: Plan, pool: Pool) -> Offer:
    """Of a plan that offers or makes the pool."""
    lends = (
        plan
        if options.lending
        else make_plan(root, machine, running, replace(options, lending="borrow"), programs_here(root))
    )
    before = {change.path: change.after for change in plan.changes}
    pairs = [(change, before.get(change.path, change.before)) for change in lends.changes]
    more = tuple(replace(change, before=was) for change, was in pairs if was != change.after)
    toml = next((change.after for change in lends.changes if change.path == (root / TOML).resolve()), b"")
    settings = settings_from(tomllib.loads(toml.decode("utf-8", "surrogateescape")), str(root / TOML))
    with progress("replaying this cluster's past") as report:
        return Offer(pool, lends, more, past_of(pool, settings, machine, report))
