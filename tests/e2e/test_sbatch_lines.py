"""Whatever people type runs under Lucid as on plain Slurm: generated sbatch lines, with and without lucidd."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from box import OVER, Box
from daemon_box import Lucidd, has_measured
from sbatch_lines import NAME, Line, Outcome, differences, excepted, lines, seen

from lucid.adapters.store.sqlite import SqliteStore

QUICK = [
    Line(("--gres=gpu:1", f"--job-name={NAME}"), "srun", 2.0),
    Line(("--gres=gpu:1", f"--job-name={NAME}"), "none", 2.0),
    Line(("--gres=gpu:2", "--cpus-per-gpu=3", f"--job-name={NAME}"), "srun one", 2.0),
    Line(("--gpus=2", "--mem-per-gpu=3000", f"--job-name={NAME}"), "two steps", 2.0),
    Line(("--gpus-per-node=1", "--cpus-per-gpu=2", "--mem-per-gpu=1G", f"--job-name={NAME}"), "fails", 2.0),
    Line(("-N2", "--gpus-per-node=1", f"--job-name={NAME}"), "srun", 1.0, (2, 2)),
    Line(("-N1", "--gpus=2", "--ntasks-per-gpu=2", f"--job-name={NAME}"), "srun", 1.0),
    Line(("--gres=gpu:1", "-c3", f"--job-name={NAME}"), "stops", 1.0),
]
"""One of each kind that broke."""


def play(
    box: Box, wanted: Sequence[Line], at_once: int, limit_s: float, hopeless: Sequence[bool] = ()
) -> list[Outcome]:
    """Submit the lines, ``at_once`` at a time, and wait for their ends; what then still waits is cancelled. Nobody
    waits for the ``hopeless``, which plain Slurm did not start either."""
    found: list[Outcome] = []
    for first in range(0, len(wanted), at_once):
        last = first + at_once
        found += _batch(box, wanted[first:last], limit_s, hopeless[first:last])
    return found


def _batch(box: Box, wanted: Sequence[Line], limit_s: float, hopeless: Sequence[bool]) -> list[Outcome]:
    numbers: list[str | None] = []
    for line in wanted:
        done = box.run(
            "sbatch", "--parsable", "-D", "/tmp", "-o", "/tmp/%A_%a.out", *line.options, f"--wrap={line.script}",
            user="alice", check=False,
        )  # fmt: skip
        numbers.append(done.stdout.strip() if done.returncode == 0 else None)
    lost = {number for number, never in zip(numbers, hopeless, strict=False) if never}
    ours = {number for number in numbers if number}

    def of(number: str) -> list[dict[str, object]]:
        jobs = box.jobs().values()
        mine = [j for j in jobs if str(j["job_id"]) == number or str(j["array_job_id"]["number"]) == number]
        return sorted(mine, key=lambda j: j["array_task_id"]["number"])

    until, quiet = time.monotonic() + limit_s, 0
    while time.monotonic() < until and quiet < 3:
        mine = [
            j for j in box.jobs().values() if str(j["job_id"]) in ours or str(j["array_job_id"]["number"]) in ours
        ]
        waited_for = [j for j in mine if str(j["job_id"]) not in lost]
        if all(j["job_state"][0] in OVER and "COMPLETING" not in j["job_state"] for j in waited_for):
            break
        stuck = [j for j in mine if j["job_state"] == ["PENDING"]]
        never = {"BadConstraints", "PartitionConfig", "PartitionNodeLimit", "Resources"}
        over = len(stuck) + sum(j["job_state"][0] in OVER for j in mine) == len(mine)
        quiet = quiet + 1 if not hopeless and over and all(j["state_reason"] in never for j in stuck) else 0
        time.sleep(1.0)
    found = []
    for number in numbers:
        if number is None:
            found.append(Outcome(True))
            continue
        runs = []
        for record in of(number):
            task = record["array_task_id"]["number"] if record["array_job_id"]["number"] else 4294967294  # type: ignore[index]
            path = box.root / "tmp" / f"{number}_{task}.out"
            runs.append(seen(record, path.read_text(errors="replace") if path.exists() else ""))
        found.append(Outcome(False, tuple(runs)))
    if ours:
        box.run("scancel", *ours, check=False)
        box.wait("an empty queue", lambda: not box.run("squeue", "-h", "-a").stdout.strip())
    return found


@pytest.fixture
def knowing(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    """A lucidd, not started yet, that has measured Alice's program on each number of GPUs."""
    daemon = Lucidd(box, tmp_path / "state", t_prof_s=6.0)
    has_measured(daemon, NAME)
    yield daemon
    daemon.close()


def compare(box: Box, lucidd: Lucidd, wanted: Sequence[Line], at_once: int) -> tuple[int, int]:
    """Run all lines without and with Lucid, and hold the two against each other; returns how many runs were in slots,
    and how many starts were made beside another job."""
    box.stop_beating()
    plain = play(box, wanted, 8, 60)
    lucidd.start()
    hopeless = [any(run.state not in OVER for run in outcome.runs) for outcome in plain]
    after = play(box, wanted, at_once, 150, hopeless)
    wrong = []
    for line, before, now in zip(wanted, plain, after, strict=True):
        words = differences(line, before, now)
        if words:
            wrong.append("\n    ".join([str(line), *words]))
    store = SqliteStore(lucidd.folder / "lucid.db", read_only=True)
    starts = [row.detail for row in store.actions(limit=100_000) if row.verb == "start" and row.result == "done"]
    store.close()
    assert not wrong, "\n".join(wrong)
    ran = sum(run.state in ("COMPLETED", "FAILED") for outcome in plain for run in outcome.runs)
    assert ran >= len(wanted) / 2, "most of what is generated has to be worth comparing"
    slots = sum(run.slots for outcome in after for run in outcome.runs)
    return slots, sum("beside" in words for words in starts)


def test_eight_lines_that_once_broke(box: Box, knowing: Lucidd) -> None:
    slots, _ = compare(box, knowing, QUICK, len(QUICK))
    assert slots >= 5


@pytest.mark.slow
def test_sixty_lines_run_as_on_plain_slurm(box: Box, knowing: Lucidd) -> None:
    seed = int(os.environ.get("LUCID_SEED", "12"))
    slots, pairs = compare(box, knowing, lines(60, seed), 20)
    assert slots >= 15
    assert pairs >= 2


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.skipif("LUCID_NIGHTLY" not in os.environ, reason="make nightly")
def test_five_hundred_lines_run_as_on_plain_slurm(box: Box, knowing: Lucidd) -> None:
    slots, pairs = compare(box, knowing, lines(500, int(time.time()) // 86400), 20)
    assert slots >= 120
    assert pairs >= 15


def test_the_documented_exceptions_are_read() -> None:
    assert excepted() == {"SLURM_SHARDS_ON_NODE"}
