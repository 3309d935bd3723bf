"""``python -m benchmarks.waits WAITS --test-from WHEN``: waits told at submission, from a log alone."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import click

from benchmarks.waits.evaluate import evaluate_waits
from benchmarks.waits.table import moment_s, read_waits
from lucid.errors import ModelError


@click.command()
@click.argument("waits_file", metavar="WAITS", type=click.Path(path_type=Path))
@click.option("--test-from", "test_from", required=True, help="Number of a job in order of submission, or a time.")
def main(waits_file: Path, test_from: str) -> None:
    """Evaluate forecasts of waits from a log alone. Each uses only what was known when its job was submitted.

    WAITS is a CSV, packed with gzip or not, with submit_time, start_time and, if known, end_time, account, partition,
    user, req_cpus, mem_mib, nodes, gpus and time_limit_s. Times without a zone are UTC. Exit status 1: the running
    median of the account is better.
    """
    table = read_waits(waits_file)
    if test_from.isdecimal():
        if int(test_from) >= len(table):
            raise ModelError(f"{waits_file}: has {len(table)} jobs, so none from job {test_from} on; give fewer")
        from_s = float(table.submit_s[int(test_from)])
    else:
        from_s = moment_s(datetime.fromisoformat(test_from).isoformat())
    figures = evaluate_waits(table, from_s)
    print(json.dumps(figures))
    if figures["worse_than_median"]:
        raise ModelError(f"{waits_file}: the model is worse there than the running median of the account")


if __name__ == "__main__":
    main()
