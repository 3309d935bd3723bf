"""Readers, writers and generators of job traces."""

from __future__ import annotations

from lucid.simulator.traces.describe import describe
from lucid.simulator.traces.own import write_trace
from lucid.simulator.traces.read import FORMATS, read_trace, sniff
from lucid.simulator.traces.record import Trace, TraceJob

__all__ = ["FORMATS", "Trace", "TraceJob", "describe", "read_trace", "sniff", "write_trace"]
