"""Free nodes that are kept from falling asleep, and given back."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import nodes, part, runs, snap
from daemon_site import Site
from lucid.adapters.slurm.snapshot.power_saving import excepted_in
from lucid.config import SleepSettings
from lucid.core.arrivals import ArrivalForecast
from lucid.core.snapshot import Snapshot
from lucid.errors import ActionRefused
from lucid.live.keep_awake import KEPT_AWAKE, KeepAwake, kept_in


class Told:
    """SuspendExcNodes, as Slurm has it."""

    def __init__(self, *sites: str) -> None:
        self.nodes = {*sites}
        self.refuses = ""

    def __call__(self, names: list[str], kept: bool) -> None:
        if self.refuses:
            raise ActionRefused(self.refuses)
        self.nodes = self.nodes | {*names} if kept else self.nodes - {*names}


def busy(now_s: float = 0.0, per_hour: float = 60.0) -> Snapshot:
    """Four nodes of 4 GPUs, n1 taken; 4 GPUs are forecast within a boot of 240 s."""
    made = snap(now_s, part(nodes(4, 4), (), [runs("r", "n1:0-3")]))
    return Snapshot(now_s, made.partitions, (), made.predictions, {}, ArrivalForecast(gpus_per_hour={"vc": per_hour}))


@pytest.fixture
def told() -> Told:
    return Told()


def keeper(folder: Path, told: Told, wanted: bool = True) -> KeepAwake:
    return KeepAwake(folder, SleepSettings(), wanted, told, lambda: told.nodes)


def test_as_many_free_nodes_are_kept_as_the_forecast_needs_and_the_same_ones(tmp_path: Path, told: Told) -> None:
    one = keeper(tmp_path, told)
    one.look(busy(), 240.0)
    assert told.nodes == {"n2", "n3"} == {*kept_in(tmp_path)}
    one.look(busy(10.0, 0.0), 240.0)
    assert told.nodes == {"n2", "n3"}, "not at every look"
    one.look(busy(40.0, 0.0), 240.0)
    assert told.nodes == set()
    assert not (tmp_path / KEPT_AWAKE).exists()


def test_what_the_site_itself_excepts_counts_and_stays(tmp_path: Path) -> None:
    told = Told("n4")
    one = keeper(tmp_path, told)
    one.look(busy(), 240.0)
    assert told.nodes == {"n2", "n4"}
    one.take_back()
    assert told.nodes == {"n4"}


def test_the_next_lucidd_takes_back_what_one_that_died_had_kept(tmp_path: Path, told: Told) -> None:
    keeper(tmp_path, told).look(busy(), 240.0)
    keeper(tmp_path, told, wanted=False).look(busy(), 240.0)
    assert (told.nodes, kept_in(tmp_path)) == (set(), [])


def test_where_slurm_declines_nothing_is_kept_and_it_is_not_asked_soon(tmp_path: Path, told: Told) -> None:
    told.refuses = "slurm_update error: Permission denied"
    one = keeper(tmp_path, told)
    one.look(busy(), 240.0)
    assert (one.refused, kept_in(tmp_path)) == (told.refuses, [])
    told.refuses = ""
    one.look(busy(100.0), 240.0)
    assert told.nodes == set()
    one.look(busy(3700.0), 240.0)
    assert told.nodes == {"n2", "n3"}


def test_what_the_configuration_excepts() -> None:
    assert excepted_in({"SuspendExcNodes": "n[1-2]:1,m7"}) == {"n1", "n2", "m7"}
    assert excepted_in({"SuspendExcNodes": ""}) == frozenset()
    with pytest.raises(ActionRefused):
        excepted_in(None)


def test_lucidd_keeps_none_awake_unless_told_and_gives_back_when_it_stops(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.slurm.excepted = {"n1"}
    (tmp_path / KEPT_AWAKE).write_text("n1\n")
    site.turns(2.0)
    assert site.slurm.excepted == set(), "of an earlier lucidd"
    (tmp_path / KEPT_AWAKE).write_text("n2\n")
    site.slurm.excepted = {"n2"}
    site.daemon.stop()
    assert site.slurm.excepted == set()
