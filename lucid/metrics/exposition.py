"""The text that Prometheus scrapes (text exposition format 0.0.4)."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from lucid.errors import StoreError
from lucid.metrics.families import families
from lucid.metrics.source import MetricsSource

__all__ = ["CONTENT_TYPE", "render"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The header that goes with it."""


def render(source: MetricsSource) -> bytes:
    """All metrics, as of now. Where the store cannot be read, ``lucid_up 0`` alone: a scrape never fails."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(source))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self):  # type: ignore[no-untyped-def]
        try:
            store = self._source.store()
            try:
                found = families(self._source, store)
            finally:
                store.close()
        except StoreError:
            found = [GaugeMetricFamily("lucid_up", "1 if lucidd's store can be read, else 0.", value=0)]
        return found
