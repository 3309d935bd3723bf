"""Replays of traces: the engine, the simulated cluster, metrics and reports."""
