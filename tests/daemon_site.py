"""A whole daemon over a slurmctld in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fake_slurm import FakeSampler, FakeSlurm, fake_node
from lucid.cli.main import lucidctl
from lucid.config.load import Settings, settings_from
from lucid.core.ports import Predictor
from lucid.daemon.build import Parts
from lucid.daemon.learning.models import LiveModels, WithContention
from lucid.daemon.loop import Daemon
from lucid.models.history import HistoryPredictor
from lucid.slurm.client import Breaker
from lucid.slurm.records.job import SlurmNode
from lucid.store.sqlite import SqliteStore
from scenes.jobs import LIGHT


class Site:
    """A VC of two nodes and a profiling node, unless other *machines* are given, under the policy's usual
    *rules*; every job is measured light."""

    def __init__(
        self,
        folder: Path,
        restarts: str | None = "allowed",
        machines: Sequence[SlurmNode] = (),
        rules: dict[str, Any] | None = None,
        slurm: type[FakeSlurm] = FakeSlurm,
        **daemon: Any,
    ) -> None:
        self.folder = folder
        # profiled first, although home has room: these tests are about profiling runs
        rule: dict[str, object] = {} if restarts is None else {"restarts": restarts, "home_if_room": False}
        usual = [fake_node("n1", "vc"), fake_node("n2", "vc"), fake_node("p1", "prof")]
        self.slurm: Any = slurm(list(machines) or usual, now=1000.0)
        self.sampler = FakeSampler(self.slurm, {})
        data = {
            "policy": rules or {"profiling": {"t_prof_s": 60.0, "carry_on_share": 0.0, **rule}},
            "daemon": {
                "partitions": {"vc": "pack"}, "state_dir": str(folder), "heartbeat": str(folder / "run/heartbeat"),
                "first_guess_s": 2000.0, **({} if machines else {"profiling_partition": "prof"}), **daemon,
            },
        }  # fmt: skip
        (folder / "lucid.toml").write_text(_toml(data))
        self.settings: Settings = settings_from(data, "test")
        self.predictor: Predictor | LiveModels = WithContention(HistoryPredictor(2000.0))
        self.daemon = self.start()

    def lucidd(self, holder: str, store: SqliteStore | None = None, **parts: Any) -> Daemon:
        """One more on this store and Slurm; ``parts``: those of its own."""
        usual = {
            "settings": self.settings, "client": self.slurm, "breaker": Breaker(lambda: self.slurm.now),
            "store": store or SqliteStore(self.folder / "lucid.db"), "source": self.sampler, "clock": self.slurm,
            "predictor": self.predictor, "monotonic_s": lambda: self.slurm.now,
        }  # fmt: skip
        return Daemon(Parts(**{**usual, **parts}), holder)

    def start(self, holder: str = "one") -> Daemon:
        """The one that this site is about from now on."""
        self.store = SqliteStore(self.folder / "lucid.db")
        self.daemon = self.lucidd(holder, self.store)
        return self.daemon

    def submit(self, job_id: str, /, gpus: int = 1, **rest: Any) -> None:
        self.sampler.profiles[job_id] = LIGHT
        self.sampler.after_s = 30.0
        self.slurm.submit(job_id, "vc", gpus, **rest)

    def turns(self, seconds: float, daemon: Daemon | None = None, every_s: float = 0.5) -> None:
        """``every_s``: it looks no more often than this, which makes hours cheap where no second counts."""
        until = self.slurm.now + seconds
        while self.slurm.now < until:
            self.slurm.advance(min(max((daemon or self.daemon).turn(), every_s), until - self.slurm.now))

    def ctl(self, *words: str) -> Any:
        done = CliRunner().invoke(lucidctl, [*words, "--config", str(self.folder / "lucid.toml")])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.output


def _toml(data: dict[str, Any]) -> str:
    lines = []
    for section, values in data.items():
        lines += [f"[{section}]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)
