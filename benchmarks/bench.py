"""How fast decisions are made on this machine: ``python -m benchmarks.bench``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from benchmarks.busy import PLAN_SIZES, bench_plan
from benchmarks.warm import WARM_SIZE, bench_warm
from lucid.cli.console import Table, progress, say, stdout_console


@click.command()
@click.option("--policy", "policies", multiple=True, default=("lucid",), show_default=True)
@click.option("--size", "sizes", multiple=True, metavar="PENDING:GPUS", help="Default: three sizes.")
@click.option("--repeat", type=click.IntRange(min=3), default=15, show_default=True)
@click.option("--warm", is_flag=True, help="Time a whole cycle of a steady daemon, in which one thing has changed.")
@click.option(
    "--vcs", type=click.IntRange(min=1), default=10, show_default=True, help="With --warm: VCs, equal ones."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(policies: tuple[str, ...], sizes: tuple[str, ...], repeat: int, warm: bool, vcs: int, as_json: bool) -> None:
    """Time one plan for a busy VC: PENDING jobs wait for GPUS GPUs.

    Almost all of the GPUs are held, some by pairs.
    """
    wanted = [_size(text) for text in sizes]
    if warm:
        _warm(policies, wanted or [WARM_SIZE], repeat, vcs, as_json)
        return
    wanted = wanted or list(PLAN_SIZES)
    results = []
    with progress("timing plans") as report:
        todo = len(wanted) * len(policies)
        for policy in policies:
            for pending, gpus in wanted:
                results.append(bench_plan(policy, pending, gpus, repeat))
                report(len(results), todo)
    if as_json:
        say(json.dumps({"results": results}, indent=1))
        return
    table = Table(title="one plan(), cold, milliseconds")
    for name in ("policy", "pending", "GPUs", "running", "starts", "median", "p99", "µs per pending job"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for r in results:
        table.add_row(
            str(r["policy"]),
            f"{r['pending']:,}",
            f"{r['gpus']:,}",
            f"{r['running']:,}",
            f"{r['starts']:,}",
            f"{r['median_ms']:.1f}",
            f"{r['p99_ms']:.1f}",
            f"{1000 * float(r['median_ms']) / int(r['pending']):.1f}",
        )
    stdout_console().print(table)


def _warm(policies: Sequence[str], sizes: Sequence[tuple[int, int]], repeat: int, vcs: int, as_json: bool) -> None:
    results: list[dict[str, Any]] = []
    with progress("timing cycles") as report:
        for policy in policies:
            for pending, gpus in sizes:
                results.append(bench_warm(policy, pending, gpus, vcs, repeat))
                report(len(results), len(sizes) * len(policies))
    if as_json:
        say(json.dumps({"results": results}, indent=1))
        return
    table = Table(title="one cycle, milliseconds of CPU: predictions, queue, plan, safety check")
    for name in ("policy", "pending", "GPUs", "VCs", "what changed", "nothing kept", "warm", "ratio"):
        table.add_column(name, justify="left" if name in ("policy", "what changed") else "right")
    for r in results:
        for key, words in (("waits", "a job came, and waits"), ("starts", "a job ended, another starts")):
            one = r[key]
            sizes_words = (f"{r['pending']:,}", f"{r['gpus']:,}", str(r["vcs"]))
            times = (f"{one['cold_ms']:.1f}", f"{one['warm_ms']:.1f}", f"{one['ratio']:.3f}")
            table.add_row(r["policy"], *sizes_words, words, *times)
    stdout_console().print(table)


def _size(text: str) -> tuple[int, int]:
    pending, _, gpus = text.partition(":")
    if not (pending.isdigit() and gpus.isdigit() and int(pending) and int(gpus)):
        raise click.UsageError(f"--size {text!r}: write PENDING:GPUS, as in 2048:1024")
    return int(pending), int(gpus)


if __name__ == "__main__":
    main()
