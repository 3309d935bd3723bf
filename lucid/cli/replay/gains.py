"""Who gains and who loses under a policy, as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from lucid.cli.console import Console, Table
from lucid.explain.quantities import duration
from lucid.simulator.gains import Gains, Party, gains_headline, loss_text

__all__ = ["print_gains"]

_LISTED = 5


def print_gains(console: Console, found: Gains) -> None:
    """All VCs, the users that lose most and gain most, and the jobs that lose most with the reasons."""
    console.print(f"Who gains, who loses: {found.policy} against {found.baseline}", style="bold", highlight=False)
    console.print(gains_headline(found), highlight=False)
    console.print(_table("VC", found, found.vcs))
    users = found.users if len(found.users) <= 2 * _LISTED else (*found.users[:_LISTED], *found.users[-_LISTED:])
    if len(users) > 1:
        console.print(_table("user", found, users))
        if len(users) < len(found.users):
            between = len(found.users) - len(users)
            said = f"the {_LISTED} users that lose most and gain most; --json has the {between} between"
            console.print(said, highlight=False)
    for one in found.losing[:_LISTED]:
        told = f"job {one.job} ends {duration(one.lost_s)} later: {loss_text(one, duration)}"
        console.print(told, highlight=False, markup=False, soft_wrap=True)


def _table(title: str, found: Gains, parties: Sequence[Party]) -> Table:
    table = Table()
    table.add_column(title)
    for column in ("jobs", f"JCT, {found.baseline}", f"JCT, {found.policy}", "ratio", "jobs later"):
        table.add_column(column, justify="right")
    for party in parties:
        times = (duration(party.baseline_s), duration(party.jct_s))
        table.add_row(party.name or "(no name)", f"{party.jobs:,}", *times, f"{party.ratio:.3f}", f"{party.later:,}")
    return table
