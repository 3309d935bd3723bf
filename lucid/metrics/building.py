"""Families from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from lucid.escaping import shown

__all__ = ["MOST_GROUPS", "Labels", "counter", "few", "gauge", "number"]

Labels = Mapping[Any, float | None]
"""A value by the tuple of its labels' values; ``None`` where it is not known, and then there is no sample."""
MOST_GROUPS = 24
"""VCs or partitions with series of their own; the smaller ones go together as ``other``."""
_LONGEST = 200


def gauge(name: str, words: str, values: Labels, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    """A gauge family."""
    family = GaugeMetricFamily(name, words, labels=labels)
    for key, value in _known(values).items():
        family.add_metric(key, value)
    return family


def counter(name: str, words: str, values: Labels, labels: Sequence[str] = ()) -> CounterMetricFamily:
    """A counter family; its samples are called ``<name>_total``."""
    family = CounterMetricFamily(name, words, labels=labels)
    for key, value in _known(values).items():
        family.add_metric(key, value)
    return family


def number(value: Any) -> float | None:
    """A finite number, or ``None``: what another version wrote may be anything."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def few(sizes: Mapping[str, float]) -> dict[str, str]:
    """By name of a VC or partition, under which name its series go: its own for the largest, else ``other``."""
    if len(sizes) <= MOST_GROUPS:
        return {name: name for name in sizes}
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[: MOST_GROUPS - 1]
    return {name: name if name in largest else "other" for name in sizes}


def _known(values: Labels) -> dict[tuple[str, ...], float]:
    # names are data: whatever a site or a file calls something cannot end a line of the text
    return {
        tuple(shown(part)[:_LONGEST] for part in key): value for key, value in values.items() if value is not None
    }
