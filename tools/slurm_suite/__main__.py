"""``make slurm-suite SRC=…``: Slurm's own tests on plain Slurm and with Lucid in pack mode, and the difference."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:1] = [str(REPO / "tools"), str(REPO / "tests"), str(REPO / "tests/e2e"), str(REPO / "slurm"), str(REPO)]

from slurm_suite.choice import Test, chosen, found_in, version_of  # noqa: E402
from slurm_suite.difference import LEAST_S, Kept, Result, as_text, compare, limit_of, named_in  # noqa: E402
from slurm_suite.side import standing  # noqa: E402
from testbed import cli, tree  # noqa: E402
from testbed.lifetime import Stopped  # noqa: E402
from testbed.settings import Layout, TestbedError, layout_from  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 no difference but those that docs/differences.md names; 1 there are others; 2 it cannot be done
    here."""
    parser = argparse.ArgumentParser(prog="slurm-suite", description=__doc__)
    parser.add_argument("source", type=Path, help="a source folder of Slurm")
    parser.add_argument("--only", default="", help="tests by number, with * and ?")
    parser.add_argument("--side", choices=("plain", "lucid", "both"), default="both")
    parser.add_argument("--plain-again", action="store_true", help="what is kept of plain Slurm does not serve")
    parser.add_argument("--rest", action="store_true", help="what is kept of Lucid serves, too: a run goes on")
    parser.add_argument("--kept", action="store_true", help="run nothing; compare what earlier runs have kept")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(text, file=sys.stderr if given.json else sys.stdout, flush=True)

    tests = chosen(found_in(given.source), given.only)
    if not tests:
        print(f"slurm-suite: {given.source}/testsuite has no such tests; docs/checks.md", file=sys.stderr)
        return 2
    try:
        layout = layout_from({"LUCID_TESTBED_NAME": "suite", **os.environ})
        if reason := cli.unfit(layout):
            raise TestbedError(reason)
        with tree.locked(layout.cache / f"{layout.name}.session.lock", lambda: say("another run is at it; waiting")):
            tree.build(layout, say)
            folder = REPO / f"out/slurm-suite/{layout.suite}-{tree.release(layout)}"
            name = f"plain-{version_of(given.source)}.json"
            plain, lucid, again = (Kept(folder / each) for each in (name, "lucid.json", "lucid-again.json"))
            if not given.kept:
                wanted = [test for test in tests if given.plain_again or test.name not in plain.results]
                if given.side != "lucid":
                    limits = dict.fromkeys((test.name for test in wanted), LEAST_S)
                    _side(replace(layout, plugin=False), given.source, wanted, plain, limits, say, "plain")
                if given.side == "plain":
                    return 0
                passed = [test for test in tests if _passed(test.name, plain)]
                limits = {test.name: limit_of(plain.results[test.name]) for test in passed}
                if not given.rest:
                    lucid.drop(test.name for test in tests)
                wanted = [test for test in passed if test.name not in lucid.results]
                _side(layout, given.source, wanted, lucid, limits, say, "lucid")
                again.drop(test.name for test in wanted)
                failed = [one for one in passed if not _passed(one.name, lucid) and one.name not in again.results]
                _side(layout, given.source, failed, again, limits, say, "again")
    except TestbedError as error:
        print(f"slurm-suite: {error}", file=sys.stderr)
        return 2
    except Stopped:
        say("stopped; what has run is kept")
        raise
    named = named_in((REPO / "docs/differences.md").read_text())
    found = compare(plain.results, _of(tests, lucid), named, _of(tests, again))
    print(json.dumps(found.to_dict(), indent=1) if given.json else as_text(found, named))
    return 1 if found.failing else 0


def _of(tests: Iterable[Test], kept: Kept) -> dict[str, Result]:
    return {test.name: kept.results[test.name] for test in tests if test.name in kept.results}


def _side(
    layout: Layout,
    source: Path,
    tests: list[Test],
    kept: Kept,
    limits: Mapping[str, float],
    say: tree.Say,
    name: str,
) -> None:
    """Run these tests on one side. ``limits``: seconds by test."""
    if not tests:
        return
    with standing(layout, source, lucid=layout.plugin, say=say) as side:
        for number, test in enumerate(tests, 1):
            result, log = side.run(test, limits[test.name])
            kept.put(test.name, result, log)
            why = "" if result.result == "pass" else result.why
            left = f" (left: {result.left})" if result.left else ""
            say(f"{name} {number}/{len(tests)} {test.name:8} {result.result:8} {result.seconds:6.1f} s {why}{left}")


def _passed(name: str, kept: Kept) -> bool:
    return name in kept.results and kept.results[name].result == "pass"


if __name__ == "__main__":
    sys.exit(main())
