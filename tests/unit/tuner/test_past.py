"""A cluster's own past: jobs from the store of lucidd, nodes from what it last saw."""

from __future__ import annotations

import pytest

from lucid.core.job import Ended, Job
from lucid.core.node import Node
from lucid.core.snapshot import Partition
from lucid.errors import TraceError
from lucid.store.lease import IN_MEMORY
from lucid.store.sqlite import SqliteStore
from lucid.tuner.past import floorplan, stored_trace


def test_the_store_is_a_log_of_its_own() -> None:
    store = SqliteStore(IN_MEMORY)
    lease = store.take_lease("me", 0.0, 1e9)
    assert lease is not None
    ended = [
        Ended(Job("2", "vc", 2, 5000.0, 1, "ann"), 9000.0, 3000.0, "COMPLETED"),
        Ended(Job("1", "vc", 1, 4000.0, 0, "bob"), 9500.0, 5000.0, "FAILED"),
        Ended(Job("3", "vc", 0, 4500.0, 0, "bob"), 9600.0, 10.0, "COMPLETED"),
    ]
    store.put_ended(ended, lease.token)
    trace = stored_trace(store, 0.0)
    assert [i.job.id for i in trace.jobs] == ["1", "2"]
    assert trace.epoch_s == 4000.0
    assert [i.job.submit_s for i in trace.jobs] == [0.0, 1000.0]
    assert [i.waited_s for i in trace.jobs] == [500.0, 1000.0]
    assert trace.skipped == (("asked for no GPU", 1),)
    with pytest.raises(TraceError, match="no GPU job that ended"):
        stored_trace(store, 1e6)


def test_nodes_that_profile_are_counted_to_the_largest_vc_and_lent_from_there() -> None:
    def nodes(prefix: str, count: int, gpus: int = 4) -> tuple[Node, ...]:
        return tuple(Node(f"{prefix}{i}", gpus) for i in range(count))

    plan = floorplan(
        [Partition("a", nodes("a", 2)), Partition("b", nodes("b", 3)), Partition("p", nodes("p", 1), profiling=True)]
    )
    assert plan.vcs == {"a": 2, "b": 4}
    assert (plan.profiling_nodes, plan.shape.gpus, plan.alike) == (1, 4, True)
    mixed = floorplan([Partition("a", (*nodes("a", 2), Node("x", 8)))])
    assert (mixed.shape.gpus, mixed.alike) == (4, False)
    assert floorplan([Partition("p", nodes("p", 1), profiling=True)]) is None
