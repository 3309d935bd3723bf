"""The parts of lucidd (``Parts``), and how they are made from its settings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lucid.config.load import Settings, load_settings, profiles_folder
from lucid.core.ports import Clock, Predictor
from lucid.daemon.learning.models import LiveModels
from lucid.daemon.policies import check_policy, live_models
from lucid.errors import ConfigError
from lucid.left_out import LeftOut
from lucid.models.packing.pair_memory import PairMemory, PairMemoryFile
from lucid.node.reports import HealthFolder, health_folder
from lucid.slurm.accounting import SacctClient
from lucid.slurm.client import Breaker
from lucid.slurm.cluster import SystemClock
from lucid.slurm.commands import CommandClient
from lucid.slurm.pyslurm import make_client
from lucid.slurm.view.profiles import ProfileFolder
from lucid.store.file import set_aside
from lucid.store.port import StoreDamaged
from lucid.store.sqlite import SqliteStore

_LOG = logging.getLogger("lucidd")


@dataclass
class Parts:
    """The parts that a daemon is made of."""

    settings: Settings
    client: CommandClient
    breaker: Breaker
    store: SqliteStore
    source: ProfileFolder
    clock: Clock
    predictor: Predictor | LiveModels
    """The predictor, or the models to make one from: the first cycle makes it, and another when other versions
    serve."""
    memory: PairMemory = field(default_factory=PairMemory)
    accounting: SacctClient | None = None
    """The source of jobs that ended while no daemon ran."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """Records that any of these parts could not read."""
    monotonic_s: Callable[[], float] = time.monotonic
    health: HealthFolder = field(default_factory=lambda: HealthFolder(Path("/nonexistent")))
    """The folder in which samplers report GPUs that are not well."""

    @property
    def models(self) -> LiveModels | None:
        """The models, where the predictor is made from them."""
        return self.predictor if isinstance(self.predictor, LiveModels) else None


def checked_settings(config: Path) -> Settings:
    """The settings of the file, if a lucidd can run with them; neither Slurm nor the store is asked.

    Raises: ConfigError: the file cannot be read or is wrong, or as in ``_check``."""
    settings = load_settings(config, live=True)
    _check(settings, config)
    return settings


def _check(settings: Settings, config: Path) -> None:
    """Check settings. Raises ``ConfigError`` where they name no partition, or a policy that cannot run live."""
    if not settings.daemon.partitions:
        raise ConfigError(
            f"{config}: daemon.partitions is empty; name those to look after, as in\n[daemon.partitions]\nmain = "
            '"observe"'
        )
    check_policy(settings, str(config))


def make_parts(settings: Settings, config: Path, monotonic_s: Callable[[], float] = time.monotonic) -> Parts:
    """The parts of a daemon. ``config``: the file of the settings.

    Raises: ConfigError: the settings name no partition, or a policy that cannot run live. StoreError: the store
    cannot be opened."""
    _check(settings, config)
    slurm, state = settings.slurm, Path(settings.daemon.state_dir)
    breaker = Breaker(monotonic_s)
    clock = SystemClock()
    left_out = LeftOut()
    store = open_store(state / "lucid.db", clock.now_s(), left_out, settings.daemon.shared_state)
    source = ProfileFolder(profiles_folder(settings))
    memory = PairMemoryFile(state / "pairs.json", left_out)
    models = live_models(settings, config, memory, settings.policy.profiling.t_prof_s)
    client = make_client(slurm, breaker, left_out)
    # slow accounting is no reason to ask slurmctld less often
    accounting = SacctClient(CommandClient(slurm.prefix, Breaker(monotonic_s), slurm.timeout_s, left_out))
    health = HealthFolder(health_folder(profiles_folder(settings)))
    return Parts(
        settings, client, breaker, store, source, clock, models, memory, accounting, left_out, monotonic_s, health
    )


def open_store(path: Path, now_s: float, left_out: LeftOut | None = None, shared: bool = False) -> SqliteStore:
    """The store; a damaged one is moved aside and a new one begun, because Slurm's own state is enough to go on from.

    Raises: StoreError: it cannot be opened for another reason."""
    try:
        return SqliteStore(path, left_out=left_out, shared=shared)
    except StoreDamaged as error:
        aside = set_aside(path, now_s)
        _LOG.error("store damaged: a new one is begun", extra={"facts": {"aside": str(aside), "why": str(error)}})
        return SqliteStore(path, left_out=left_out, shared=shared)
