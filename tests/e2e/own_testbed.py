"""Testbeds beside that of the session: for one module, made as it needs it, and down again afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testbed import cli, tree
from testbed.lifetime import watched
from testbed.settings import Layout, layout_from


@contextmanager
def own_testbed(suffix: str, **environ: str) -> Iterator[Layout]:
    """A testbed that is built and not up yet. LUCID_TESTBED_KEEP=1 leaves it up for a look.

    Args:
        suffix: of its name, after that of the session's testbed.
        environ: variables of the testbed's own, beside those of the environment.
    """
    name = f"{os.environ.get('LUCID_TESTBED_NAME', 'pytest')}-{suffix}"
    layout = layout_from({**os.environ, **environ, "LUCID_TESTBED_NAME": name})
    if reason := cli.unfit(layout):
        pytest.skip(reason)
    with tree.locked(layout.cache / f"{layout.name}.session.lock"):
        tree.build(layout, print)
        cli.down(layout)
        if os.environ.get("LUCID_TESTBED_KEEP") != "1":
            watched(layout.cache / "run")
        try:
            yield layout
        finally:
            if os.environ.get("LUCID_TESTBED_KEEP") != "1":
                cli.down(layout)
