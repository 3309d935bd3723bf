"""A real Slurm for the tests: brought up once a session, one session at a time for each name.

``make e2e`` runs several processes, each with a testbed of its own: the tests mostly wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from box import Box
from breakage import Warden
from daemon_box import Lucidd
from testbeds import mps_on, own_testbed

from testbed import cli

if TYPE_CHECKING:
    from story_box import Site

_SEVERAL = "LUCID_E2E_PROCESSES"
WARDEN = pytest.StashKey[Warden]()


def pytest_configure() -> None:
    """Each process of ``make e2e`` drives a testbed of its own name."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and _SEVERAL in os.environ:
        os.environ["LUCID_TESTBED_NAME"] = f"{os.environ.get('LUCID_TESTBED_NAME', 'pytest')}-{worker}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if "PYTEST_XDIST_WORKER" in os.environ and _SEVERAL not in os.environ:
                item.add_marker(pytest.mark.skip(reason="each process needs a testbed of its own: make e2e"))


@pytest.fixture(scope="session")
def testbed(pytestconfig: pytest.Config) -> Iterator[Box]:
    with own_testbed() as layout:
        cli.up(layout, print)
        box = Box(layout.root)
        pytestconfig.stash[WARDEN] = Warden(box, layout)
        yield box
        del pytestconfig.stash[WARDEN]


@pytest.fixture(autouse=True)
def nothing_left_broken(pytestconfig: pytest.Config) -> Iterator[None]:
    """After each test, and after all its other fixtures: whoever leaves the testbed broken fails, by name."""
    yield
    warden = pytestconfig.stash.get(WARDEN, None)
    if warden is not None:
        warden.mend()
        found = warden.blame()
        assert not found, f"this test left the testbed broken: {found}; all of it was brought back"


@pytest.fixture
def box(testbed: Box, pytestconfig: pytest.Config) -> Iterator[Box]:
    """An empty cluster, and no heartbeat: plain Slurm, until the test writes one."""
    testbed.clear()
    yield testbed
    pytestconfig.stash[WARDEN].mend()  # what is broken cannot be cleared
    testbed.clear()


@pytest.fixture
def lucidd(box: Box, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lucidd]:
    """One that runs, with the options that the module's ``LUCIDD`` names."""
    with Lucidd(box, tmp_path / "state", **getattr(request.module, "LUCIDD", {})) as daemon:
        yield daemon


@pytest.fixture
def mps(box: Box) -> Iterator[Path]:
    """The nodes have MPS; what its daemons did stands in the folder returned."""
    with mps_on(box) as folder:
        yield folder


@pytest.fixture(scope="session")
def story() -> Iterator[Site]:
    """What a step of the story goes by: one testbed for all of them (test_story*.py)."""
    from story_box import story_site  # needed nowhere else

    with story_site() as site:
        yield site


@pytest.fixture
def site(story: Site) -> Site:
    """No job of an earlier step is there."""
    story.clear()
    return story


@pytest.fixture
def packing(site: Site) -> Site:
    site.pack()
    return site


@pytest.fixture
def dead(packing: Site) -> Iterator[Site]:
    """lucidd was killed, and the test writes its heartbeat, if there is to be one."""
    packing.kill()
    packing.box.stop_beating()
    yield packing
    packing.box.stop_beating()


@pytest.fixture
def crowd(story: Site) -> tuple[Site, str]:
    """All GPUs of vc-b and of the profiling node are taken, by jobs that nobody joins; this job waits for vc-b.
    Made by the first that asks, and left for the next."""
    return story, story.crowded()
