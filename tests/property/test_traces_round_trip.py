"""Whatever is in a trace, our own format gives it back."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from lucid.accounting.values import ENDED, NOT_ENDED
from lucid.core.job import Job, JobProfile
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace, TraceJob

NASTY = st.sampled_from(
    ['"', ",", "\r", "\n", "\r\n", "#", "|", "\x00", " ", "\ufeff", "\u2028", "\x85", "'", "=1", "é"]
)
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12), st.lists(NASTY, max_size=6).map("".join)
)
AMOUNT = st.floats(0, 1e15, allow_nan=False)
SECONDS = st.floats(0, 3e8, allow_nan=False)
PER_CENT = st.floats(0, 100, allow_nan=False)
COUNT = st.integers(0, 10**12)
MAYBE = st.none() | st.booleans()
PROFILES = st.builds(
    JobProfile,
    gpu_util=PER_CENT,
    mem_util=PER_CENT,
    gpu_mem_mib=AMOUNT,
    amp=MAYBE,
    unstable=st.booleans(),
    workload=TEXT,
)
JOBS = st.builds(
    Job,
    id=TEXT.filter(str.strip),
    vc=TEXT,
    gpus=st.integers(0, 4096),
    submit_s=SECONDS,
    rank=COUNT,
    user=TEXT,
    account=TEXT,
    name=TEXT,
    cpus=COUNT,
    mem_mib=COUNT,
    time_limit_s=st.none() | AMOUNT,
    amp=MAYBE,
    requeueable=st.booleans(),
    long_cold_start=st.booleans(),
    shareable=st.booleans(),
)
ITEMS = st.builds(
    TraceJob,
    job=JOBS,
    duration_s=SECONDS,
    state=st.sampled_from(["", *sorted(ENDED | NOT_ENDED)]),
    profile=st.none() | PROFILES,
    share_label=st.none() | st.integers(0, 9),
    waited_s=st.none() | AMOUNT,
)
TRACES = st.builds(
    Trace,
    name=TEXT,
    jobs=st.lists(ITEMS, min_size=1, max_size=6, unique_by=lambda item: item.job.id).map(
        lambda items: tuple(sorted(items, key=lambda item: (item.job.submit_s, item.job.rank)))
    ),
    epoch_s=st.none() | st.floats(-1e12, 1e12, allow_nan=False),
    skipped=st.lists(st.tuples(TEXT, COUNT), max_size=3).map(lambda items: tuple(sorted(items))),
)


@settings(max_examples=examples(300))
@given(TRACES)
def test_round_trip(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        write_trace(trace, path)
        assert read_trace(path) == trace
        first = path.read_bytes()
        write_trace(read_trace(path), path)
        assert path.read_bytes() == first
