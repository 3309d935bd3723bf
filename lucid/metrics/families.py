"""The metric families, from one look at lucidd's store."""

from __future__ import annotations

from prometheus_client.core import GaugeMetricFamily, Metric

from lucid.adapters.store.sqlite import SqliteStore
from lucid.metrics.source import MetricsSource

__all__ = ["families"]


def families(source: MetricsSource, store: SqliteStore) -> list[Metric]:
    """All of them.

    Raises:
        StoreError: the store cannot be read.
    """
    source.accounts(store)
    return [GaugeMetricFamily("lucid_up", "1 if lucidd's store can be read, else 0.", value=1)]
