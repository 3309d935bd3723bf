"""The commands that judge: figures by name, one JSON object, errors that name the file."""

from __future__ import annotations

import csv
import itertools
import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from lucid.models import evaluate_packing, evaluate_throughput


def write(path: Path, header: str, rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    return path


@pytest.fixture
def measured(tmp_path: Path) -> tuple[Path, Path]:
    configs = [(w, b, 8.0 * i + 7 * j) for i, w in enumerate("abcdef") for j, b in enumerate((32, 64, 128))]
    profiles = [
        [w, "data", b, 0, util, util / 2, 2000, 0 if util < 20 else 1 if util < 40 else 2] for w, b, util in configs
    ]
    rng = np.random.default_rng(0)
    pairs = []
    for one, two in itertools.combinations_with_replacement(configs, 2):
        speeds = 1 - one[2] * two[2] / 1e4 + rng.normal(scale=0.02, size=2)
        pairs.append([one[0], "data", one[1], 0, speeds[0], two[0], "data", two[1], 0, speeds[1]])
    sides = ",".join(f"model{s},dataset{s},batchsize{s},amp{s},speed{s}" for s in "12")
    return (
        write(tmp_path / "profiles.csv", "model,dataset,batchsize,amp,gpu_util,gmem_util,gmem,label", profiles),
        write(tmp_path / "pairs.csv", sides, pairs),
    )


@pytest.mark.slow
def test_packing_prints_every_figure(
    measured: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiles, pairs = map(str, measured)
    curve = tmp_path / "curve.png"
    assert evaluate_packing.main(["--profiles", profiles, "--pairs", pairs, "--json", "--curve", str(curve)]) == 0
    figures = json.loads(capsys.readouterr().out)
    for kind, way in itertools.product(("precision", "recall"), ("lomo", "loco", "loco_both")):
        assert 0.7 <= figures[f"pair_{kind}_{way}"] <= 1
    assert 0 <= figures["accuracy_lomo"] <= 1
    assert (figures["configurations"], figures["pairs"]) == (18, 171)
    assert curve.stat().st_size > 1000


def test_packing_names_the_file_that_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(tmp_path / "none.csv")
    assert evaluate_packing.main(["--profiles", absent, "--pairs", absent]) == 7
    assert "none.csv: cannot be read" in capsys.readouterr().err


def test_throughput_trains_only_on_what_was_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    hours = [datetime(2024, 1, 1) + timedelta(hours=n) for n in range(1500)]
    counts = [int(rng.poisson(3 + time.hour / 4)) for time in hours]
    rows: list[list[object]] = [[time, n, 2 * n] for time, n in zip(hours, counts, strict=True)]
    path = write(tmp_path / "bins.csv", "time,submit_gpu_job,submit_gpu_num", rows)
    arguments = [str(path), "--train-until", str(hours[1300]), "--newest-bin", "2", "--json"]
    assert evaluate_throughput.main(arguments) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["trained_bins"], figures["tested_bins"], figures["newest_bin"]) == (1300, 200, 2)
    later = np.array(counts[1300:])
    assert figures["mae_jobs"] < np.abs(later - np.median(later)).mean()
    assert evaluate_throughput.main([str(path), "--train-until", "2030-01-01"]) == 7
    assert "no bin starts at or after" in capsys.readouterr().err
