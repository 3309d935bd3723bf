"""Logs that people have at hand: a small file of each format, garbled."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hostile import inputs, only_our_errors

from lucid.simulator.traces.formats.table import columns_from
from lucid.simulator.traces.read import read_trace

ASSETS = Path(__file__).parents[1] / "assets"
TABLE = "job;arrived;n;ran;limit;mem;state\n1;2024-03-01;5;1-02:00:00;60;16G;FAILED\n2;9;1;3.5;;;\n"
COLUMNS = columns_from("id=job,submit=arrived,gpus=n,duration=ran,limit=limit,mem=mem,state=state")
PBS = (
    "03/01/2024 10:01:00;E;12.head;user=ada jobname='a b' queue=gpu qtime=1709280000 start=1709280060 end=1709283660 "
    "Resource_List.select=2:ngpus=4+1 Resource_List.walltime=24:00:00 Exit_status=0\n"
)
FILES = {
    **{path.name: path.read_bytes() for path in sorted((ASSETS / "traces").iterdir()) if path.is_file()},
    **{path.parent.name: path.read_bytes() for path in sorted(ASSETS.glob("slurm/*/sacct.json"))},
    "pbs": PBS.encode() * 3,
    "table": TABLE.encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_a_garbled_log_is_read_or_refused_in_words(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for draw in inputs("traces"):
        given = draw.garbled(FILES[name])
        if FILES[name].startswith(b"{") and draw.random() < 0.7:
            given = json.dumps(draw.mutated(json.loads(FILES[name]))).encode()
        path.write_bytes(given)
        with only_our_errors(name, given):
            trace = read_trace(path, skip_bad=draw.random() < 0.5, columns=COLUMNS if name == "table" else None)
            for one in trace.jobs:
                assert math.isfinite(one.duration_s + one.job.submit_s)
                assert one.job.gpus > 0
