"""What is guarded. A try of a figure takes about a second, and needs no data that is not in the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.busy import busy_snapshot
from benchmarks.guard.measure import Between, Hot, Work
from benchmarks.warm import Steady
from lucid.config.policy import PolicySettings
from lucid.models.history import HistoryPredictor
from lucid.orchestrator.registry import make_policy
from lucid.simulator.scenario import Scenario, simulate
from lucid.simulator.traces.presets import preset, vc_layout
from lucid.simulator.traces.synth import synthesise

__all__ = ["COUNTS", "HOT", "REPO", "cold_plan", "command", "replay", "warm_cycle"]

REPO: Final = Path(__file__).resolve().parents[2]
HEAVY: Final = ("matplotlib", "numpy", "optuna", "pandas", "scipy", "sklearn", "textual")
"""Libraries that take a tenth of a second or more to import."""
_MONTH: Final = "month-small"
_MEMORY_JOBS: Final = 4_000


def cold_plan(policy: str, pending: int, gpus: int, times: int, at_once: int = 1) -> Hot:
    """One plan with nothing kept, ``times`` times, of which so many ``at_once``, from one loop to the next."""

    def prepare() -> Work:
        snapshot = busy_snapshot(policy, pending, gpus)

        def work(between: Between) -> None:
            for _ in range(times // at_once):
                for _ in range(at_once):
                    make_policy(policy, PolicySettings(), HistoryPredictor()).plan(snapshot)
                between()

        return work

    what = f"{times} plans with nothing kept, {pending:,} jobs waiting for {gpus:,} GPUs, {policy}"
    return Hot(f"plan {policy} {pending}", what, "python", prepare)


def replay(policy: str, jobs: int, *, foretell: bool = False, idle: int = 0) -> Hot:
    """A synthetic trace replayed, with forecasts of starts or without, beside so many ``idle`` VCs."""

    def prepare() -> Work:
        vcs = vc_layout(_MONTH) | {f"idle{n}": 1 for n in range(idle)}
        scenario = Scenario(synthesise(preset(_MONTH).resized(jobs, None), 1), vcs)

        def work(between: Between) -> None:
            simulate(
                scenario, policy, progress=lambda _ended, _of: between(), forecasts="sampled" if foretell else "off"
            )

        return work

    beside = " with forecasts of starts" if foretell else f" beside {idle} idle VCs" if idle else ""
    what = f"a replay of {jobs:,} synthetic jobs{beside}, {policy}"
    return Hot(f"replay {policy}{' forecasts' if foretell else ' idle' if idle else ''}", what, "python", prepare)


def warm_cycle(policy: str, pending: int, gpus: int, vcs: int, times: int) -> Hot:
    """A steady daemon's cycle after one job was submitted."""

    def prepare() -> Work:
        steady = Steady(policy, pending, gpus, vcs)

        def work(between: Between) -> float:
            spent_ms = 0.0
            for _ in range(times):
                steady.submit()
                spent_ms += steady.warm()[0]
                steady.settle()
                between()
            return spent_ms / 1000

        return work

    what = f"{times} cycles after a job was submitted, {pending:,} waiting for {gpus:,} GPUs in {vcs} VCs, {policy}"
    return Hot(f"warm {policy}", what, "python", prepare)


def command(*words: str) -> Hot:
    """A command as a process of its own."""

    def work(between: Between) -> float:  # noqa: ARG001 - another process cannot be stopped for the loop
        return _child("from lucid.cli.main import main; main()", words)[1]

    return Hot(f"lucidctl {' '.join(words)}", f"lucidctl {' '.join(words)}, the process", "python", lambda: work)


def _child(code: str, words: Sequence[str] = ()) -> tuple[str, float, float]:
    """What a process of Python printed, its CPU seconds, and its peak MiB."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=REPO, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout:
        told = child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"python -c {code!r} {' '.join(words)} failed: {child.returncode}")
    return told, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


HOT: Sequence[Hot] = (
    cold_plan("fifo", 2_048, 1_024, 80, 20),
    cold_plan("lucid", 2_048, 1_024, 20, 4),
    cold_plan("fifo", 10_000, 8_192, 16, 4),
    cold_plan("lucid", 10_000, 8_192, 3),
    warm_cycle("lucid", 10_000, 8_192, 10, 20),
    replay("fifo", 1_500),
    replay("lucid", 1_500),
    replay("lucid", 500, idle=400),
    replay("fifo", 700, foretell=True),
    replay("lucid", 700, foretell=True),
    command("--help"),
    command("queue", "--help"),
)


# -- what is counted, and comes out the same every time -------------------------------------------------------------


def _modules() -> float:
    """Modules of heavy libraries that a command loads."""
    code = (
        "import contextlib, io, json, sys\n"
        "from lucid.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(_child(code, ("queue", "--help"))[0])
    return float(sum(name.partition(".")[0] in HEAVY for name in loaded))


def _replay_mib() -> float:
    code = f"from benchmarks.guard.figures import replay\nreplay('lucid', {_MEMORY_JOBS}).prepare()(lambda: None)"
    return _child(code)[2]


def _test_loops() -> float | None:
    """CPU of the last ``make test`` over that of the loop beside it (``tools/times/cpu.py``), if it was of this
    commit."""
    try:
        told = json.loads((REPO / "out/make_test.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPO, capture_output=True, text=True, check=False)
    return float(told["loops"]) if told.get("commit") == head.stdout.strip() else None


COUNTS: Mapping[str, tuple[str, Callable[[], float | None]]] = {
    "modules queue": ("modules of heavy libraries that lucidctl queue loads", _modules),
    "memory replay": (f"peak MiB of a replay of {_MEMORY_JOBS:,} synthetic jobs, lucid, the process", _replay_mib),
    "make test": ("CPU of make test, as a multiple of the loop of Python", _test_loops),
}
"""What each is, and how it is found; ``None`` where it is not known."""
