"""Two testbeds of its own for this: a Slurm as it is without Lucid, and one with a lucidd that has measured alice's
program."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from box import Box
from daemon_box import Lucidd, has_measured

from sbatch_fuzz.lines import NAME
from testbed import cli, daemons, host, tree
from testbed.lifetime import kept
from testbed.settings import Layout, layout_from


@contextmanager
def knowing(box: Box, restarts: str = "allowed") -> Iterator[Lucidd]:
    """A lucidd that has measured Alice's program on each number of GPUs. ``restarts``: as ``Lucidd`` has it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        daemon = Lucidd(box, Path(folder) / "state", t_prof_s=6.0, restarts=restarts)
        has_measured(daemon, NAME)
        try:
            daemon.start()
            yield daemon
        finally:
            daemon.close()


def make_plain(layout: Layout) -> None:
    """Of a testbed without the plugin: its GPUs are of a model and have no slots, as where nobody heard of Lucid."""
    etc = layout.root / "etc/slurm"
    nodes = (etc / "lucid.slurm.conf").read_text().replace("GresTypes=gpu,shard", "GresTypes=gpu")
    nodes = re.sub(r"Gres=\S+", lambda gres: f"Gres=gpu:a100:{gres[0].count('gpu:')}", nodes)
    (etc / "lucid.slurm.conf").write_text(nodes)
    gpus = [line for line in (etc / "gres.conf").read_text().splitlines() if "Name=shard" not in line]
    (etc / "gres.conf").write_text(re.sub(r"Type=g\d+", "Type=a100", "\n".join(gpus)) + "\n")
    host.stop(layout.root)
    daemons.start_missing(layout)
    box, count = Box(layout.root), len(layout.hosts)
    box.wait("every node", lambda: box.run("sinfo", "-h", "-N", "-t", "idle").stdout.count("\n") >= count)


@contextmanager
def up(environ: Mapping[str, str], *, plain: bool = False) -> Iterator[tuple[Box, Box]]:
    """Both, made and taken down again. ``plain``: the second has no Lucid, either.

    Raises:
        SystemExit: this machine can have none.
    """
    name = environ.get("LUCID_TESTBED_NAME", "sbatch-fuzz")
    bare = layout_from({**environ, "LUCID_TESTBED_NAME": f"{name}-plain", "LUCID_TESTBED_PLUGIN": "0"})
    other = layout_from({**environ, "LUCID_TESTBED_NAME": name, **({"LUCID_TESTBED_PLUGIN": "0"} if plain else {})})
    if reason := cli.unfit(bare):
        raise SystemExit(f"no testbed: {reason}")
    with ExitStack() as stack:
        for layout in (bare, other):
            stack.enter_context(tree.locked(layout.cache / f"{layout.name}.session.lock"))
            tree.build(layout, print)
        stack.enter_context(kept(bare, other))
        for layout in (bare, other):
            cli.down(layout)
            cli.up(layout, print)
            if not layout.plugin:
                make_plain(layout)
        yield Box(bare.root), Box(other.root)
