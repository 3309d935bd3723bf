"""The week's account as plain text of at most 78 columns, to be mailed or kept."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from lucid.efficiency.judge import JobAccount
from lucid.efficiency.kinds import ADVICE, HELD, TITLES, WasteKind
from lucid.efficiency.totals import total_of, totals
from lucid.escaping import shown

__all__ = ["letter"]

_WIDE: Final = 78
_USERS: Final = 10
_JOBS: Final = 5


def letter(accounts: Sequence[JobAccount], now_s: float, days: float) -> str:
    """The text. ``now_s``: Unix time of its end; ``days``: how far it goes back."""
    whole = total_of("", accounts)
    begin, end = (datetime.fromtimestamp(at_s, UTC).date() for at_s in (now_s - days * 86400.0, now_s))
    share = whole.wasted_share
    lines = [
        f"GPU-hours from {begin} to {end}",
        "",
        *_wrapped(
            f"{whole.jobs} jobs held {whole.held_gpu_h:,.0f} GPU-hours. Their GPUs worked {whole.worked_gpu_h:,.0f} "
            f"of these; {whole.all_wasted_gpu_h:,.0f} were wasted"
            + ("." if share is None else f", {share:.0%} of what was measured.")
        ),
    ]
    if whole.not_measured_jobs:
        lines += _wrapped(
            f"{whole.not_measured_jobs} jobs with {whole.not_measured_gpu_h:,.0f} GPU-hours were not measured, and "
            "nothing is said of these."
        )
    for kind in WasteKind:
        lines += _kind(kind, accounts)
    rows = [one for one in totals(accounts, lambda account: account.job.user) if one.all_wasted_gpu_h > 0]
    if rows:
        lines += ["", "By user (GPU-hours)", f"  {'user':<24}{'held':>10}{'worked':>10}{'wasted':>10}{'share':>8}"]
        for one in rows[:_USERS]:
            part = one.wasted_share
            lines.append(
                f"  {_short(one.name, 24):<24}{one.held_gpu_h:>10,.0f}{one.worked_gpu_h:>10,.0f}"
                f"{one.all_wasted_gpu_h:>10,.0f}{'' if part is None else f'{part:.0%}':>8}"
            )
        if len(rows) > _USERS:
            lines.append(f"  and {len(rows) - _USERS} more: lucidctl efficiency")
    lines += ["", "One job: lucidctl efficiency --job NUMBER", "What counts as waste: docs/efficiency.md"]
    return "\n".join(lines) + "\n"


def _kind(kind: WasteKind, accounts: Sequence[JobAccount]) -> list[str]:
    some = sorted(
        ((one.gpu_h, account, one.words) for account in accounts for one in account.waste if one.kind is kind),
        key=lambda item: (-item[0], item[1].job.job_id),
    )
    if not some:
        return []
    head = f"{TITLES[kind]}: {sum(item[0] for item in some):,.0f} GPU-hours in {len(some)} jobs"
    lines = ["", head[0].upper() + head[1:] + ("" if kind in HELD else " (not held)"), *_wrapped(ADVICE[kind])]
    for gpu_h, account, words in some[:_JOBS]:
        job = account.job
        lines += _wrapped(f"{gpu_h:,.1f}  job {job.job_id} of {_short(job.user, 24)}: {words}", "    ", "  ")
    return [*lines, f"  and {len(some) - _JOBS} more"] if len(some) > _JOBS else lines


def _wrapped(text: str, later: str = "", first: str = "") -> list[str]:
    return textwrap.wrap(shown(text), _WIDE, initial_indent=first, subsequent_indent=later)


def _short(name: str, most: int) -> str:
    name = shown(name)
    return name if len(name) <= most else f"{name[: most - 1]}…"
