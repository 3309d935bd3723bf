"""``make sbatch-fuzz``: random lines on plain Slurm and under Lucid."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("tools", "tests", "tests/e2e", "slurm"))]

from sbatch_fuzz.lines import cases, parse  # noqa: E402
from sbatch_fuzz.play import Result, play  # noqa: E402
from sbatch_fuzz.site import knowing, up  # noqa: E402
from sbatch_fuzz.walk import steps, walk  # noqa: E402


def main() -> int:
    """Exit code 0: nothing differs that docs/differences.md does not name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--case", type=int, help="only this one of them")
    parser.add_argument("--line", help="only this line, as a finding shows it")
    parser.add_argument("--plain", action="store_true", help="plain Slurm twice: what differs does so by itself")
    parser.add_argument("--walk", type=int, help="in place of lines: a random walk of so many operations on jobs")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    wanted = list(enumerate([parse(asked.line)] if asked.line else cases(asked.cases, asked.seed)))
    if asked.case is not None:
        wanted = [(asked.case, cases(asked.case + 1, asked.seed)[asked.case])]

    def say(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    with up(os.environ, plain=asked.plain) as (plain, other), nullcontext() if asked.plain else knowing(other):
        if asked.walk:
            differs = walk(plain, other, steps(asked.walk, asked.seed), say)
            print(*differs, f"{asked.walk} steps of seed {asked.seed}: {len(differs)} jobs differ", sep="\n")
            return 1 if differs else 0
        result = play(plain, other, wanted, say)
    if asked.json:
        print(json.dumps({**asdict(result), "seed": asked.seed}, indent=1))
    else:
        _show(result, asked.seed, asked.plain)
    return 1 if result.findings else 0


def _show(result: Result, seed: int, plain: bool) -> None:
    for finding in result.findings:
        print(f"\nseed {seed}, case {finding.number}: {finding.case}\n  shortest: {finding.short}")
        for words in finding.words[:12]:
            print(f"    {words}")
    plain_s, lucid_s = (took / result.cases for took in result.took_s)
    print(
        f"\n{result.cases} lines of seed {seed}: {len(result.findings)} differ without a row in docs/differences.md; "
        f"plain Slurm refuses {result.refused}; {result.slots} runs were in slots; "
        f"{plain_s:.1f} and {lucid_s:.1f} s a line"
    )
    if plain:
        print(f"  left out and never differed: {', '.join(k for k, times in result.left_out.items() if not times)}")
        return
    for row, times in sorted(result.rows.items()):
        print(f"  {row}: " + (f"met {times} times" if times else "never met"))


if __name__ == "__main__":
    sys.exit(main())
