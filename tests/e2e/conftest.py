"""A real Slurm for the tests: brought up once a session, one session at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box

from testbed import cli, tree
from testbed.settings import TestbedError, layout_from


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if "PYTEST_XDIST_WORKER" in os.environ:
                item.add_marker(pytest.mark.skip(reason="one process drives the testbed: make e2e"))


@pytest.fixture(scope="session")
def testbed() -> Iterator[Box]:
    """Its name is LUCID_TESTBED_NAME, ``pytest`` unless set; LUCID_TESTBED_KEEP=1 leaves it up for a look."""
    layout = layout_from({"LUCID_TESTBED_NAME": "pytest", **os.environ})
    if reason := cli.unfit(layout):
        pytest.skip(reason)
    with tree.locked(layout.cache / f"{layout.name}.session.lock"):
        try:
            tree.build(layout, print)
        except TestbedError as error:
            if layout.tree.exists():
                raise
            pytest.skip(f"no cached tree, and none can be made: {error}")
        cli.down(layout)
        cli.up(layout, print)
        yield Box(layout.root)
        if os.environ.get("LUCID_TESTBED_KEEP") != "1":
            cli.down(layout)


@pytest.fixture
def box(testbed: Box) -> Iterator[Box]:
    """An empty cluster, and no heartbeat: plain Slurm, until the test writes one."""
    testbed.clear()
    yield testbed
    testbed.clear()
