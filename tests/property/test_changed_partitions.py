"""Who looks at the partitions that changed decides as who looks at all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lucid.core.snapshot import Snapshot
from lucid.simulator.cluster.cluster import SimulatedCluster
from lucid.simulator.record import DecisionLog
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise


@pytest.mark.parametrize("policy", ["fifo", "lucid", "backfill"])
def test_a_replay_decides_the_same_whether_it_is_told_what_changed(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(synthesise(preset("month-small").resized(150, None), 5), vc_layout("month-small"))
    told = _decisions(scenario, policy)
    observe = SimulatedCluster.observe

    def in_a_plain_mapping(self: SimulatedCluster) -> Snapshot:
        seen = observe(self)
        return replace(seen, partitions=dict(seen.partitions))

    monkeypatch.setattr(SimulatedCluster, "observe", in_a_plain_mapping)
    assert _decisions(scenario, policy) == told


def _decisions(scenario: Scenario, policy: str) -> list[object]:
    log = DecisionLog()
    run = simulate(scenario, policy, recorder=log)
    return [run.cycles, *((o.job.id, o.start_s, o.end_s, log.of(o.job.id)) for o in run.outcomes)]
