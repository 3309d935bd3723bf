"""Synthetic cluster histories: named, seeded, the same bytes every time."""

from __future__ import annotations

from lucid.simulator.traces.synth.generate import synthesise
from lucid.simulator.traces.synth.settings import PRESETS, Storm, SynthSettings, Vc, preset, vc_layout
from lucid.simulator.traces.synth.workloads import WORKLOADS, Workload, with_workloads

__all__ = [
    "PRESETS",
    "WORKLOADS",
    "Storm",
    "SynthSettings",
    "Vc",
    "Workload",
    "preset",
    "synthesise",
    "vc_layout",
    "with_workloads",
]
