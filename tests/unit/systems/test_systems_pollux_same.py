"""Pollux's search gives the same results as before it was made faster: recorded, and against plain Python."""

from __future__ import annotations

import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lucid.orchestrator.policies.rounds.genetic import Objective, SearchOptions, _squeeze, search
from lucid.orchestrator.policies.rounds.goodput import BatchLimits, GoodputModel, GradParams, PerfParams
from lucid.orchestrator.policies.rounds.population import Layout
from lucid.orchestrator.policies.rounds.speedup import PolluxJob, SpeedupTable


@pytest.mark.parametrize(
    ("count", "capacity", "recorded"),
    [
        (6, [4] * 3, (50, 2515528932, 554530457)),
        (30, [4] * 16, (58, 2393063901, 2743046783)),
        (25, [8, 4, 2, 0, 6], (50, 1317053023, 636105009)),
        (12, [1] * 7, (50, 33655682, 3550276868)),
    ],
)
def test_the_search_goes_the_way_that_it_always_went(
    count: int, capacity: list[int], recorded: tuple[int, int, int]
) -> None:
    """Generations, last population and allocation of three rounds, recorded before the search was made faster. Jobs
    without a model: their speedups are numbers of GPUs, the same on every processor."""
    rng = np.random.default_rng(count)
    jobs = [PolluxJob(i, None, None, int(rng.integers(1, 9))) for i in range(count)]
    base, before = np.zeros((count, len(capacity)), dtype=np.intp), None
    for seed in range(3):
        found = search(
            SpeedupTable(jobs, sum(capacity)),
            capacity,
            base,
            np.full(count, 0.75),
            np.random.default_rng(seed),
            objective=Objective(p=-1),
            options=SearchOptions(seeds=False),
            previous=before,
        )
        base, before = found.allocation, found.population
    assert before is not None
    prints = [zlib.crc32(array.astype(kind).tobytes()) for array, kind in ((before, "<i4"), (base, "<i8"))]
    assert (found.generations, *prints) == recorded


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 5))
def test_counts_and_squeezing_against_plain_python(seed: int, width: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(1, 7))
    slots = np.sort(rng.integers(0, jobs + 1, (3, nodes, width)), axis=2).astype(np.int32)
    base = rng.integers(0, 2, (jobs, nodes))
    layout = Layout(np.full(nodes, width), base, np.full(jobs, 99), False, np.zeros(nodes, dtype=bool))
    counts = layout.count(slots)
    for number, individual in enumerate(slots.tolist()):
        rows = [Counter(node) for node in individual]
        for job in range(jobs):
            here = [row[job] for row in rows]
            assert counts.replicas[number, job] == sum(here)
            assert counts.across[number, job] == (sum(gpus > 0 for gpus in here) > 1)
            assert counts.changed[number, job] == (here != base[job].tolist())
    wide = rng.integers(0, jobs + 1, (nodes, 4 * width)).astype(np.int32)
    wanted = [([job for job in row if job != jobs] + [jobs] * width)[:width] for row in wide.tolist()]
    assert _squeeze(wide, jobs, width).tolist() == wanted


def test_what_an_earlier_table_worked_out_is_what_a_new_one_would() -> None:
    limits = BatchLimits(64, 2048, 8, 128)
    models = [
        GoodputModel(PerfParams(0.1, 0.01, 0.3, 0.01, 0.1, 0.01, 1.5), GradParams(1.0, float(noise)), 64)
        for noise in (2, 9)
    ]
    cells = np.array([[0], [1]]), np.array([[0, 1, 1]]), np.array([[1, 5, 8]])

    def jobs(*made: GoodputModel) -> list[PolluxJob]:
        return [PolluxJob(i, model, limits, 8) for i, model in enumerate(made)]

    first = SpeedupTable(jobs(*models), 16)
    first(*cells)
    # the other way round, on another cluster, so of another fair share
    anew, helped = (SpeedupTable(jobs(*models[::-1]), 12, known=known) for known in (None, first.known))
    assert (anew(*cells) == helped(*cells)).all()
    other = models[0]._replace(grad=GradParams(1.0, 3.0))
    fresh, wary = (SpeedupTable(jobs(other, models[1]), 16, known=known) for known in (None, first.known))
    assert (fresh(*cells) == wary(*cells)).all(), "a job whose gradient has changed is worked out anew"
