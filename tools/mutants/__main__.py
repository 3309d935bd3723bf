"""``make mutants SAMPLE=n SEED=s``: change the deciding half in small ways, one at a time, and see that a test fails.

mutmut makes the changes and runs the tests that reach each (settings: [tool.mutmut] in pyproject.toml). All of them
take hours on two cores, so a random sample of SAMPLE is tried; SAMPLE=0 tries all. docs/checks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(REPO / "tools")]

from mutants.score import Score, by_room, noticed, verdicts  # noqa: E402

_LEAST = 0.9
"""The share of them that a test must notice."""
_FIRST = "lucid.profiler.pair_watch.*"
"""Few, and few tests reach them: trying these makes mutmut write all mutants down, by name."""


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 the score is at least the least, 1 it is not, 2 mutmut failed."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=600, help="how many to try; 0 tries all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="mutants whose name begins so, such as lucid.binder")
    given = parser.parse_args(arguments)
    made = REPO / "mutants"
    if _mutmut([_FIRST]):
        return 2
    names = sorted(name for name in verdicts(made) if name.startswith(given.only))
    if given.sample and given.sample < len(names):
        names = sorted(random.Random(given.seed).sample(names, given.sample))
    if _mutmut(names):
        return 2
    codes = verdicts(made)
    survivors = [name for name in names if not noticed(codes[name])]
    scores = by_room(names, codes)
    out = REPO / "out/mutants"
    out.mkdir(parents=True, exist_ok=True)
    changes = {name: _change(name) for name in survivors}
    (out / "survivors.json").write_text(json.dumps(changes, indent=1, ensure_ascii=False))
    _print(scores, changes)
    print(f"{out / 'survivors.json'}: the {len(survivors)} that no test noticed")
    return 0 if scores[-1].share >= _LEAST else 1


def _mutmut(names: list[str]) -> int:
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", "2", *names]
    few_and_same = os.environ | {"LUCID_EXAMPLES_SHARE": "0.1", "LUCID_SAME_EXAMPLES": "1", "LUCID_MUTANTS": "1"}
    with (REPO / "mutants.log").open("wb") as log:
        code = subprocess.run(command, cwd=REPO, env=few_and_same, stdout=log, stderr=log, check=False).returncode
    if code:
        print(f"mutmut ended with {code}; its last words are in {REPO / 'mutants.log'}", file=sys.stderr)
    return code


def _change(name: str) -> list[str]:
    """The lines that differ, old and new."""
    command = [sys.executable, "-m", "mutmut", "show", name]
    shown = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False).stdout
    return [line for line in shown.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]


def _print(scores: list[Score], changes: dict[str, list[str]]) -> None:
    for name, lines in changes.items():
        print(name, *(f"    {line}" for line in lines), sep="\n")
    print("\nroom           tried  noticed  share   95 % interval")
    for score in scores:
        low, high = score.interval()
        print(f"{score.room:14} {score.tried:5}  {score.noticed:7}  {score.share:5.1%}  {low:.1%} to {high:.1%}")


if __name__ == "__main__":
    sys.exit(main())
