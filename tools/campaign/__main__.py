"""``make campaign SEED=n MINUTES=m``: see that nothing gets lost while things break. docs/checks.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(REPO / "tools"), str(REPO / "tests"), str(REPO / "tests/e2e"), str(REPO / "slurm"), str(REPO)]

from campaign import faults_commands, faults_lucidd, faults_slurm, faults_store, faults_week, told  # noqa: E402, F401
from campaign.fault import FAULTS  # noqa: E402
from campaign.run import Campaign, Wanted, bad  # noqa: E402
from campaign.site import Site  # noqa: E402
from lucid.errors import LucidError  # noqa: E402
from testbed import cli, tree  # noqa: E402
from testbed.lifetime import kept  # noqa: E402
from testbed.settings import TestbedError, layout_from  # noqa: E402

LAYOUT = {
    "LUCID_TESTBED_VARIANT": "ha",
    "LUCID_TESTBED_NODES": "n[1-4]:gpus=4,cpus=16,mem=64000,type=a100",
}
"""Two hosts for slurmctld and lucidd; nodes and partitions of the smallest testbed."""


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 nothing lost, doubled, stuck or killed; 1 something was; 2 it cannot be done here; 130 stopped
    early."""
    parser = argparse.ArgumentParser(prog="campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--faults", default="all", help="all, none, or names separated by commas")
    parser.add_argument("--quiet-s", type=float, default=180.0, help="nothing moves for so long: the rest is stuck")
    parser.add_argument("--out", type=Path, help="default: out/campaign/seed-SEED")
    parser.add_argument("--name", help="of its testbed; default: campaign-SEED")
    parser.add_argument("--sabotage", action="store_true", help="do harm once of each kind: all four must be found")
    parser.add_argument("--list", action="store_true", help="what may break, and end")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    if given.list:
        for name, kind in sorted(FAULTS.items()):
            print(f"{name:22} {kind.what}")
        return 0
    wanted = {"all": set(FAULTS), "none": set()}.get(given.faults, set(given.faults.split(",")))
    if unknown := wanted - FAULTS.keys():
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; --list names them all")
    faults = {name: FAULTS[name] for name in FAULTS if name in wanted}
    out = (given.out or REPO / f"out/campaign/seed-{given.seed}").absolute()
    layout = layout_from({**os.environ, **LAYOUT, "LUCID_TESTBED_NAME": given.name or f"campaign-{given.seed}"})
    # nobody's limits are tried here; nodes may sleep, and do so when they are told to
    layout = replace(layout, enforced=False, suspend_s=86400)
    say = lambda text: print(text, file=sys.stderr if given.json else sys.stdout, flush=True)  # noqa: E731
    try:
        if reason := cli.unfit(layout):
            raise TestbedError(reason)
        with tree.locked(layout.cache / f"{layout.name}.session.lock", lambda: _taken(layout.name)):
            campaign = Campaign(
                Site(layout), Wanted(given.seed, given.minutes, faults, out, given.quiet_s, given.sabotage), say
            )

            def stop(_: int) -> None:
                say("stopping; this takes a few seconds")
                campaign.stop.set()

            with kept(layout, stop=stop):
                result = campaign.go()
    except (TestbedError, LucidError, TimeoutError) as error:
        print(f"campaign: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result, indent=1) if given.json else told.as_text(result))
    return 1 if bad(result) else 130 if campaign.stop.is_set() else 0


def _taken(name: str) -> None:
    raise TestbedError(f"a campaign called {name} runs already; another SEED has a testbed of its own")


if __name__ == "__main__":
    sys.exit(main())
