"""Synthetic histories are the same bytes every time, and as large as was asked."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from lucid.errors import ConfigError
from lucid.simulator.traces.describe import describe
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.presets import SynthSettings, preset, vc_layout
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.synth import synthesise


def test_same_settings_and_seed_give_the_same_bytes(tmp_path: Path) -> None:
    few = preset("month-small").resized(400, None)
    first, again, other = (synthesise(few, seed) for seed in (7, 7, 8))
    for name, trace in (("a", first), ("b", again)):
        write_trace(trace, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_trace(tmp_path / "a") == again
    assert other.jobs != first.jobs


def offered_gpu_h(settings: SynthSettings) -> float:
    """What the jobs ask for, over all VCs."""
    return sum(vc.nodes * vc.utilisation for vc in settings.vcs) * settings.gpus_per_node * settings.days * 24


MADE = {
    "month-small": "6a9e425bdd7c89ab",
    "month-10k": "8cf73aa42373b19c",
    "burst": "dfe3590fe4a33c20",
    "month-logs": "e6c56f60417946ea",
}


@pytest.mark.parametrize("name", MADE)
def test_the_presets_are_byte_for_byte_what_they_were(name: str, tmp_path: Path) -> None:
    """Every figure of the documentation is of these histories."""
    write_trace(synthesise(preset(name), 1), tmp_path / "made.csv")
    assert sha256((tmp_path / "made.csv").read_bytes()).hexdigest()[:16] == MADE[name]


def test_resizing_keeps_the_rate() -> None:
    small = preset("month-small").resized(400, None)
    assert (small.jobs, small.days) == (400, pytest.approx(2.8))
    week = preset("month-small").resized(None, 7)
    assert (week.jobs, week.days) == (1000, 7)
    assert preset("burst").resized(None, None) is preset("burst")
    trace = synthesise(week, 3)
    assert describe(trace)["offered_gpu_h"] == pytest.approx(offered_gpu_h(week), rel=0.005)


def test_too_few_jobs_for_the_load() -> None:
    with pytest.raises(ConfigError, match="ask for more jobs"):
        synthesise(preset("month-small").resized(20, 28))


def test_unknown_preset_lists_the_known_ones() -> None:
    for ask in (preset, vc_layout):
        with pytest.raises(ConfigError, match=r"'moon' \(known: burst, month-10k, month-logs, month-small\)"):
            ask("moon")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"jobs": 0}, "jobs = 0"),
        ({"days": float("nan")}, "days = nan"),
    ],
)
def test_settings_are_checked(change: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        replace(preset("burst"), **change)  # type: ignore[arg-type]
