"""Since when a job does nothing, by its GPUs, its CPUs and its storage."""

from __future__ import annotations

import pytest

from lucid.core.job import Idle
from lucid.profiler.quiet import QuietMeter
from lucid.profiler.samples import GpuSample
from lucid.profiler.shares import HostUse

ASLEEP = GpuSample(gpu_util=0.0, mem_mib=4000.0, own_util=0.0, own_mib=3000.0)
AT_WORK = GpuSample(gpu_util=80.0, mem_mib=4000.0, own_util=80.0, own_mib=3500.0)
UNDER_MPS = GpuSample(gpu_util=90.0, mem_mib=9000.0, own_util=None, own_mib=3000.0, shared=True)
NOTEBOOK = HostUse(0.03, 8)


def run(meter: QuietMeter, part: GpuSample, host: HostUse | None, start: int, seconds: int) -> list[int]:
    """At which seconds it woke."""
    return [at for at in range(start, start + seconds) if meter.add([part], host, float(at))]


def quiet(seconds: int = 100) -> QuietMeter:
    meter = QuietMeter()
    assert not run(meter, ASLEEP, NOTEBOOK, 0, seconds)
    assert meter.idle == Idle(1.0, 3000.0)
    return meter


def test_it_is_idle_from_its_last_work_on() -> None:
    meter = QuietMeter()
    run(meter, AT_WORK, HostUse(1.0, 8), 0, 60)
    assert meter.idle is None
    run(meter, ASLEEP, NOTEBOOK, 60, 100)
    assert meter.idle is not None
    assert 60 <= meter.idle.since_s <= 90
    assert meter.idle.mem_mib == 3500.0, "the most that it has held"


@pytest.mark.parametrize(
    ("part", "host"),
    [
        (AT_WORK, NOTEBOOK),
        (ASLEEP, HostUse(1.0, 8)),
        (ASLEEP, HostUse(0.1, 8, 0.9, "io.pressure")),
        (UNDER_MPS, HostUse(1.0, 8)),
    ],
)
def test_work_of_any_kind_wakes_it_within_two_seconds(part: GpuSample, host: HostUse) -> None:
    woke = run(quiet(), part, host, 100, 30)
    assert len(woke) == 1
    assert woke[0] <= 101


def test_a_partners_kernels_and_a_notebook_that_saves_itself_wake_nobody() -> None:
    meter = quiet()
    assert not run(meter, UNDER_MPS, NOTEBOOK, 100, 600)
    for start in range(700, 1900, 60):
        assert not run(meter, ASLEEP, HostUse(0.8, 8), start, 1)
        assert not run(meter, ASLEEP, NOTEBOOK, start + 1, 59)
    assert meter.idle == Idle(1.0, 3000.0)


@pytest.mark.parametrize(("part", "host"), [(ASLEEP, None), (GpuSample(lost=True), NOTEBOOK)])
def test_who_cannot_be_seen_is_not_idle(part: GpuSample, host: HostUse | None) -> None:
    assert run(quiet(), part, host, 100, 30) == [110]


def test_nothing_is_known_of_a_time_without_samples() -> None:
    meter = quiet()
    meter.add([ASLEEP], NOTEBOOK, 500.0)
    run(meter, ASLEEP, NOTEBOOK, 501, 10)
    assert meter.idle is not None
    assert meter.idle.since_s >= 500.0


def test_a_sampler_that_is_restarted_goes_on_from_what_the_last_one_said() -> None:
    meter = QuietMeter(Idle(5.0, 9000.0))
    assert not run(meter, ASLEEP, NOTEBOOK, 1000, 5)
    assert meter.idle == Idle(5.0, 9000.0)
