"""What a campaign says in the end, and now and then on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from campaign.facts import Broken
from campaign.judge import KINDS, Finding
from campaign.watch import Standstill


def totals(findings: Sequence[Finding]) -> dict[str, int]:
    """How many jobs each thing befell; ``excused_…``: plain Slurm's, or a documented window's."""
    return {
        f"{word}{kind}": len({f.key for f in findings if f.kind == kind and bool(f.excuse) is excused})
        for word, excused in (("", False), ("excused_", True))
        for kind in KINDS
    }


def per_fault(
    broken: Sequence[Broken],
    back_s: Mapping[int, float],
    begins: Sequence[float],
    findings: Sequence[tuple[float, Finding]],
) -> list[dict[str, Any]]:
    """Of each kind: how often, how long, how many jobs began meanwhile, when lucidd decided again, what was found.

    ``findings`` come with the time of the run that they are about."""
    rows = []
    for name in sorted({b.name for b in broken}):
        mine = [(n, b) for n, b in enumerate(broken) if b.name == name]
        within = [at for at in begins if any(b.over(at) for _, b in mine)]
        backs = [back_s[n] for n, _ in mine if n in back_s]
        near = Counter(f.kind for at, f in findings if not f.excuse and any(b.over(at, 60.0) for _, b in mine))
        rows.append(
            {
                "fault": name,
                "times": len(mine),
                "seconds": round(sum((b.ended_s or b.began_s) - b.began_s for _, b in mine), 1),
                "began_meanwhile": len(within),
                "back_s": round(max(backs), 1) if backs else None,
                "findings": dict(near),
            }
        )
    return rows


def as_text(result: Mapping[str, Any]) -> str:
    """The table."""
    jobs, found, still = result["jobs"], result["totals"], result["standstill"]
    lines = [
        "",
        f"seed {result['seed']}, {result['minutes']:g} minutes, {result['faults_begun']} faults of "
        f"{len(result['faults'])} kinds; it ended {result['ended']}",
        "",
        f"  jobs submitted      {jobs['submitted']:6d}   sbatch took them; {jobs['refused']} were refused, "
        f"{jobs['unanswered']} never answered",
        f"  ended as asked      {jobs['as_asked']:6d}   {jobs['states']}",
        f"  lost                {found['lost']:6d}",
        f"  doubled             {found['doubled']:6d}",
        f"  stuck               {found['stuck']:6d}",
        f"  killed without rule {found['killed']:6d}",
    ]
    excused = {kind: found[f"excused_{kind}"] for kind in KINDS if found[f"excused_{kind}"]}
    if excused:
        words = ", ".join(f"{count} {kind}" for kind, count in excused.items())
        lines.append(f"  told apart: {words} (plain Slurm's, or a documented window's; each with its evidence below)")
    victims = result["preempted"]
    lines += [
        f"  not chosen by Lucid {len(victims['not_chosen']):6d}   of {victims['by_slurm']} jobs that Slurm preempted "
        "for jobs that Lucid sent",
        "",
        f"  longest standstill  {still['whole']['longest_s']:6.0f} s {_where(still['whole'])}",
        f"  with nothing broken {still['clear']['longest_s']:6.0f} s {_where(still['clear'])}",
        f"  Slurm was silent    {result['slurm_silent_s']:6.0f} s",
        f"  lucidd started      {result['lucidd']['starts']:6d} times; ended by itself "
        f"{len(result['lucidd']['ended_by_itself'])} times {'; '.join(result['lucidd']['ended_by_itself'][:5])}",
    ]
    if result["nodes_resumed"]:
        lines.append(
            f"  nodes mended        {len(result['nodes_resumed']):6d}   {', '.join(result['nodes_resumed'][:5])}"
        )
    if result["faults"]:
        lines += [
            "",
            f"  {'fault':22}{'times':>6}{'seconds':>9}{'jobs begun':>12}{'heartbeat after':>17}  findings near it",
        ]
        for row in result["faults"]:
            back = "" if row["back_s"] is None else f"{row['back_s']:.0f} s"
            near = ", ".join(f"{count} {kind}" for kind, count in row["findings"].items())
            counts = f"{row['times']:6d}{row['seconds']:9.0f}{row['began_meanwhile']:12d}"
            lines.append(f"  {row['fault']:22}{counts}{back:>17}  {near}")
    for finding in result["findings"]:
        excuse = f" [told apart: {finding['excuse']}]" if finding["excuse"] else ""
        lines.append(f"  {finding['kind']}: job {finding['job']} ({finding['key']}): {finding['why']}{excuse}")
    lines += [f"  preempted, and not chosen: {words}" for words in victims["not_chosen"]]
    for trouble in result["trouble"]:
        lines.append(f"  the campaign itself: {trouble}")
    return "\n".join([*lines, "", f"  timeline and logs: {result['out']}"])


def _where(still: Mapping[str, Any]) -> str:
    if not still["partition"]:
        return ""
    broken = ", ".join(still["broken"]) or "nothing"
    return (
        f"in {still['partition']}, {still['t']:.0f} s after the start, beside {still['key']}; broken then: {broken}"
    )


def standstill(still: Standstill, began_s: float) -> dict[str, Any]:
    """As data."""
    return {**asdict(still), "t": round(still.at_s - began_s, 1), "longest_s": round(still.longest_s, 1)}
