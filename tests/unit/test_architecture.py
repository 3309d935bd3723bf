"""The files on a job's two ways through the code, counted."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from click.testing import CliRunner

import lucid
from daemon_site import Site
from fake_commands import NamedClient
from lucid.cli.main import lucidctl
from lucid.daemon.build import Parts
from lucid.daemon.loop import Daemon
from lucid.daemon.policies import live_models
from lucid.models.packing.pair_memory import PairMemory
from lucid.slurm.client import Breaker

ROOT = Path(lucid.__file__).parent
TRACE = """\
job_id,user,vc,gpu_num,submit_time,duration,state,gpu_util,gmem_util,gmem
1,ada,vc,1,0,600,COMPLETED,34.9,11.8,2730
"""

Step = tuple[str, str]
"""A file below lucid/, and a function of it."""


class Way:
    """The functions of lucid/ in the order in which each was entered first. What runs while a module is imported does
    not count, nor do lambdas and comprehensions."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self.steps: list[Step] = []
        self._seen: set[object] = set()
        before = sys.getprofile()
        sys.setprofile(self._enter)
        try:
            act()
        finally:
            sys.setprofile(before)

    def _enter(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in self._seen:
            return
        self._seen.add(code)
        path = Path(code.co_filename)
        if code.co_flags & inspect.CO_OPTIMIZED and code.co_name[0] != "<" and path.is_relative_to(ROOT):
            self.steps.append((str(path.relative_to(ROOT)), code.co_qualname))

    def between(self, first: Step, last: Step) -> list[Step]:
        return self.steps[self.steps.index(first) : self.steps.index(last) + 1]


MOST_LIVE, MOST_REPLAYED = 74, 70
"""Files of lucid/ that one job's way passes, on a real Slurm and in a replay. These numbers only fall. (A replay
passed 65 until its cluster was put together from parts: lending, outages and fair share are asked where there are
none, too.)"""


def test_from_sbatch_to_the_started_job(tmp_path: Path) -> None:
    site = Site(tmp_path, restarts=None)
    slurm, memory = site.slurm, PairMemory()
    models = live_models(site.settings, tmp_path / "lucid.toml", memory, 60.0)
    parts = (site.settings, NamedClient(slurm), Breaker(slurm.now_s), site.store, site.sampler, slurm, models, memory)
    site.daemon = Daemon(Parts(*parts), "one")

    def turns() -> None:
        for _ in range(4):
            site.daemon.turn()
            slurm.advance(31.0)  # the nodes are looked at again

    turns()
    without = Way(turns)  # a job
    slurm.submit("a", "vc", 1)
    way = Way(site.daemon.turn)
    assert [job for _, job, _ in slurm.starts] == ["a"]
    last = ("slurm/commands.py", "CommandClient.release")
    first = ("slurm/commands.py", "CommandClient.jobs")
    own = [step for step in way.between(first, last) if step not in without.steps]
    assert 40 < len({file for file, _ in own}) <= MOST_LIVE


def test_from_a_row_of_a_trace_to_its_row_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(TRACE)
    words = ["simulate", str(tmp_path / "trace.csv"), "--policy", "lucid", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(lucidctl, words)  # so that all is imported
    assert done.exit_code == 0, done.output
    way = Way(lambda: CliRunner().invoke(lucidctl, words))
    first, last = ("simulator/traces/formats/columns.py", "_profile"), ("simulator/report/tables.py", "_packed")
    own = [step for step in way.between(first, last) if not step[1].endswith(".__init__")]
    assert 40 < len({file for file, _ in own}) <= MOST_REPLAYED
