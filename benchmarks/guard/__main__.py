"""``python -m benchmarks.guard``: did a hot figure become worse than the repository records?"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from benchmarks.guard.figures import COUNTS, HOT, REPO
from benchmarks.guard.measure import Measured, measured
from benchmarks.guard.record import Entry, Verdict, read, renewed, verdict, write

__all__ = ["main"]

LAST = REPO / "out/guard.json"
_COUNTED = "count"
_RENEW = 'make guard RECORD="why"'


@click.command()
@click.option("--record", "why", help="Record what differs, for this reason.")
@click.option("--last", "only_last", is_flag=True, help="Measure nothing; say what came of it the last time.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, the multiples of every try in it.")
def main(why: str | None, only_last: bool, as_json: bool) -> None:
    """Measure each hot figure as CPU time over that of a fixed loop, in turns with it, the least of five tries. What
    is 1.3 times the record is measured once more, and then red: exit code 1."""
    if only_last:
        print(_last_told())
        return
    if why is not None:
        renewed({}, {}, "", "", why)  # before minutes are spent, is it a reason?
    recorded, began_s = read(), time.monotonic()
    times = measured(HOT)
    again = [figure for figure in HOT if _verdict(figure.name, times, recorded) is Verdict.RED]
    if again:
        print(f"once more: {', '.join(figure.name for figure in again)}", file=sys.stderr)
        for name, second in measured(again).items():
            times[name] = min(times[name], second, key=lambda one: one.ratio)
    found = {figure.name: (times[figure.name].ratio, figure.loop) for figure in HOT}
    counted = {name: count() for name, (_, count) in COUNTS.items()}
    found |= {name: (value, _COUNTED) for name, value in counted.items() if value is not None}
    verdicts = {name: verdict(name, *value, recorded) for name, value in found.items()}
    if counted.get("make test") is not None and verdicts["make test"] is Verdict.STALE:
        verdicts["make test"] = Verdict.OK  # fewer tests run where debootstrap is missing
    told = _result(found, verdicts, recorded, times)
    LAST.parent.mkdir(exist_ok=True)
    LAST.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    if why is not None:
        write(renewed(found, recorded, _git("rev-parse", "--short", "HEAD"), told["at"][:10], why))
    if as_json:
        print(json.dumps(told, indent=1))
    else:
        _show(told, counted, time.monotonic() - began_s)
    red = [name for name, one in verdicts.items() if one is Verdict.RED]
    if red and why is None:
        print(f"RED: {', '.join(red)}. Slower on purpose? {_RENEW}", file=sys.stderr)
        sys.exit(1)


def _verdict(name: str, times: Mapping[str, Measured], recorded: Mapping[str, Entry]) -> Verdict:
    loop = next(figure.loop for figure in HOT if figure.name == name)
    return verdict(name, times[name].ratio, loop, recorded)


def _result(
    found: Mapping[str, tuple[float, str]],
    verdicts: Mapping[str, Verdict],
    recorded: Mapping[str, Entry],
    times: Mapping[str, Measured],
) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "HEAD"),
        "changed_files": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "figures": {
            name: {
                "ratio": ratio,
                "loop": loop,
                "verdict": str(verdicts[name]),
                "recorded": asdict(recorded[name]) if name in recorded else None,
                **({"cpu_s": times[name].cpu_s, "ratios": times[name].ratios} if name in times else {}),
            }
            for name, (ratio, loop) in found.items()
        },
    }


def _show(told: Mapping[str, Any], counted: Mapping[str, float | None], took_s: float) -> None:
    words = {figure.name: figure.what for figure in HOT} | {name: what for name, (what, _) in COUNTS.items()}
    for name, one in told["figures"].items():
        recorded = one["recorded"]
        beside = "" if recorded is None or not recorded["ratio"] else f"{one['ratio'] / recorded['ratio']:5.2f} x"
        cpu = f"{1000 * one['cpu_s']:6.0f} ms" if "cpu_s" in one else ""
        stale = f"; renew: {_RENEW}" if one["verdict"] == Verdict.STALE else ""
        unit = "" if one["loop"] == _COUNTED else f" {one['loop']} loops"
        print(f"{one['verdict']:3} {beside:8} {one['ratio']:8.2f}{unit:13} {cpu:10} {words[name]}{stale}")
    for name, value in counted.items():
        if value is None:
            print(f"    not measured: {words[name]} (it is, after python3 tools/times/cpu.py make test)")
    print(f"({took_s:.0f} s)")


def _last_told() -> str:
    """One line for ``make check``."""
    try:
        told = json.loads(LAST.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "guard: never run here (make guard: a minute or two)"
    red = [name for name, one in told["figures"].items() if one["verdict"] == Verdict.RED]
    stale = [name for name, one in told["figures"].items() if one["verdict"] == Verdict.STALE]
    since = _git("rev-list", "--count", f"{told['commit']}..HEAD") or "an unknown number of"
    hours = (datetime.now(UTC) - datetime.fromisoformat(told["at"])).total_seconds() / 3600
    said = f"RED: {', '.join(red)}" if red else f"green{f', stale: {len(stale)}' if stale else ''}"
    files = " with changed files" if told["changed_files"] else ""
    return f"guard: {said}; {hours:.1f} h and {since} commits ago, at {told['commit'][:7]}{files}"


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=REPO, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
