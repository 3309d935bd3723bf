"""A partition says by which jobs it differs from an earlier one: who follows that sees what he would have found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job
from lucid.core.job import Pending
from lucid.core.snapshot import Changes, Partition, Snapshot
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise


def test_an_entry_of_which_anything_is_new_came_and_the_one_before_it_went() -> None:
    stays, waits, leaves = (Pending(a_job(name, 1), 0.0) for name in ("stays", "waits", "leaves"))
    before = Partition("vc", (), (stays, waits, leaves))
    told, comes = replace(waits, barred="licences"), Pending(a_job("comes", 1), 1.0)
    after = Partition("vc", (), (stays, told, comes))
    assert after.since(before) == Changes((told, comes), (waits, leaves))
    assert before.since(after) == Changes((waits, leaves), (told, comes))


def test_a_copy_does_not_say_what_its_original_was_told() -> None:
    before, after = Partition("vc", ()), Partition("vc", (), (Pending(a_job("comes", 1), 1.0),))
    after.follows(before, Changes(after.pending, ()))
    assert replace(after, pending=()).since(before) == Changes((), ())


@pytest.mark.parametrize(("policy", "as_live"), [("lucid", False), ("srtf", False), ("lucid", True)])
def test_what_a_simulated_cluster_says_is_what_differs(
    policy: str, as_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = synthesise(preset("month-small").resized(150, None), 5)
    scenario = Scenario(trace, vc_layout("month-small"), as_live=as_live)
    observe, before, told = SimulatedCluster.observe, dict[str, Partition](), 0

    def compared(self: SimulatedCluster) -> Snapshot:
        nonlocal told
        seen = observe(self)
        for name, now in seen.partitions.items():
            last = before.get(name, now)
            if last is not now:
                told += hasattr(now, "_last")
                said, found = now.since(last), replace(now).since(replace(last))
                assert set(map(id, said.came)) == set(map(id, found.came))
                assert set(map(id, said.went)) == set(map(id, found.went))
            before[name] = now
        return seen

    monkeypatch.setattr(SimulatedCluster, "observe", compared)
    simulate(scenario, policy)
    assert told > 200
