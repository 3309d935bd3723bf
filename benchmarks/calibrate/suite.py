"""The suite: small training jobs of the kinds that share GPUs well and badly."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Final

from msgspec import Struct

from lucid.errors import ConfigError

__all__ = ["MODELS", "Nominal", "Workload", "pairs_of", "suite", "workload_of"]


class Nominal(Struct, frozen=True):
    """What a workload is reckoned to use of a 24 GiB card, for the synthetic table only: % of time with a kernel,
    % of time with memory traffic, MiB. Chosen by us to cover the range that the kinds are known for; measured by
    nobody."""

    gpu_util: float
    mem_util: float
    mem_mib: float


class Workload(Struct, frozen=True):
    """One configuration. ``dataset`` says what the (random) data looks like; all data is made in memory."""

    model: str
    dataset: str
    batchsize: int
    amp: bool
    nominal: Nominal

    @property
    def key(self) -> str:
        """As the tables name a configuration: model/dataset/batchsize/amp."""
        return f"{self.model}/{self.dataset}/{self.batchsize}/{int(self.amp)}"


MODELS: Final[dict[str, tuple[str, tuple[int, int], Nominal]]] = {
    # name: data, batch sizes, nominal use at the smaller batch without AMP
    "cnn-wide": ("images-224", (16, 64), Nominal(96.0, 58.0, 5200.0)),
    "cnn-deep": ("images-224", (16, 64), Nominal(90.0, 44.0, 4100.0)),
    "cnn-small": ("images-32", (64, 512), Nominal(38.0, 14.0, 1900.0)),
    "transformer": ("tokens-512", (4, 16), Nominal(93.0, 50.0, 6300.0)),
    "transformer-small": ("tokens-128", (16, 64), Nominal(62.0, 26.0, 2600.0)),
    "embedding": ("clicks", (1024, 8192), Nominal(27.0, 33.0, 3600.0)),
    "rnn": ("tokens-64", (32, 128), Nominal(52.0, 16.0, 2100.0)),
    "rl": ("rollouts", (64, 256), Nominal(11.0, 3.0, 1400.0)),
}
_QUICK: Final = ("cnn-deep", "cnn-small", "transformer", "embedding", "rnn", "rl")


def suite(quick: bool) -> list[Workload]:
    """All workloads: 8 models, 2 batch sizes, AMP off and on; ``quick``: 6 models, the smaller batch, AMP off."""
    found = []
    for model, (dataset, sizes, nominal) in MODELS.items():
        if quick and model not in _QUICK:
            continue
        for size in sizes[:1] if quick else sizes:
            for amp in (False,) if quick else (False, True):
                found.append(Workload(model, dataset, size, amp, _scaled(nominal, size > sizes[0], amp)))
    return found


def _scaled(nominal: Nominal, large: bool, amp: bool) -> Nominal:
    """A larger batch keeps the GPU busier and needs more memory; AMP finishes kernels sooner and halves most of
    the memory beyond the context."""
    util, mem_util, mem_mib = nominal.gpu_util, nominal.mem_util, nominal.mem_mib
    if large:
        util, mem_util, mem_mib = util + 0.4 * (100 - util), min(mem_util * 1.3, 85.0), 900 + 2.6 * (mem_mib - 900)
    if amp:
        util, mem_util, mem_mib = util * 0.92, mem_util * 0.95, 900 + 0.6 * (mem_mib - 900)
    return Nominal(round(util, 1), round(mem_util, 1), round(mem_mib))


def pairs_of(workloads: list[Workload]) -> list[tuple[Workload, Workload]]:
    """Every two of them, and each with its like."""
    return list(combinations_with_replacement(workloads, 2))


def workload_of(key: str) -> Workload:
    """The workload of this key.

    Raises:
        ConfigError: there is none; the message lists the models.
    """
    for workload in suite(quick=False):
        if workload.key == key:
            return workload
    raise ConfigError(f"workload {key!r} is not in the suite; models: {', '.join(MODELS)}, as model/data/batch/amp")
