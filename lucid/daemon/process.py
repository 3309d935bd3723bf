"""The process of lucidd: its arguments, signals and timers, and the loop that turns."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from apscheduler.schedulers.background import BackgroundScheduler

from lucid.adapters.slurm.wake import WakeFile
from lucid.adapters.store.port import Store
from lucid.atomic import closed_to_others, write_public
from lucid.config import Settings, load_settings
from lucid.daemon.build import checked_settings, make_parts
from lucid.daemon.loop import Daemon
from lucid.daemon.reload import Reload, begin_anew
from lucid.errors import LucidError
from lucid.escaping import shown
from lucid.live.learning.child_process import Children
from lucid.live.learning.model_timer import ModelTimer
from lucid.live.learning.model_upkeep import model_timer
from lucid.live.reporting.log import log_handler
from lucid.live.resilience.failure_barrier import behind_barrier, persistently
from lucid.live.resilience.systemd import tell_systemd
from lucid.live.resilience.trouble_file import TroubleFile
from lucid.places import TOLD, checked_file, stamp_of

__all__ = ["main", "say_checked", "turn_until"]

_LOG = logging.getLogger("lucidd")
_PRUNE_EVERY_H = 6
_RENEW_EVERY_S = 3


@closed_to_others()
def main(arguments: list[str] | None = None) -> int:
    """Read the configuration, and turn until told to stop. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="lucidd", description="Schedule GPU jobs on Slurm.")
    parser.add_argument(
        "--config",
        type=Path,
        default=Path(os.environ.get("LUCID_CONFIG", "/etc/lucid/lucid.toml")),
        help="the settings (%(default)s; or what LUCID_CONFIG names)",
    )
    parser.add_argument("--once", action="store_true", help="one cycle, then stop")
    parser.add_argument(
        "--check", action="store_true", help="say whether the settings are sound, and stop; needs no Slurm"
    )
    given = parser.parse_args(arguments)
    if given.check:
        return _checked(given.config)
    handler = log_handler()
    for log in (_LOG, logging.getLogger("lucid")):
        log.addHandler(handler)
    _LOG.setLevel(logging.INFO)
    stop, reload = threading.Event(), Reload(given.config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: reload.end(stop))
    signal.signal(signal.SIGHUP, lambda *_: reload.asked(stop))
    try:
        text = given.config.read_bytes() if given.config.is_file() else b""  # what cannot be read the next line tells
        settings = load_settings(given.config, live=True)
        behind_barrier("commands check lucid.toml each time", partial(say_checked, given.config, text, settings))
        trouble = TroubleFile(Path(settings.daemon.heartbeat))
        parts = persistently(
            lambda: make_parts(settings, given.config),
            stop,
            "start failed, tried again",
            once=given.once,
            told=lambda words: trouble.tell(words, time.time()),
        )
    except LucidError as error:
        print(shown(f"lucidd: {error}", lines=True), file=sys.stderr)
        return error.exit_code
    if parts is None:
        return 0
    children = Children()
    beside = None if given.once else _timer(settings, given.config, parts.store, children)
    # a GPU that is not well is left out at once, however seldom an idle lucidd looks at Slurm
    wake = WakeFile(Path(settings.daemon.heartbeat).with_name("wake"), parts.health.folder)
    try:
        status = turn_until(Daemon(parts), stop, wake, given.once, beside)
    finally:
        behind_barrier("children of lucidd are not ended", children.end)
    if reload.due:
        begin_anew()
    return status


def _checked(config: Path) -> int:
    try:
        checked_settings(config)
    except LucidError as error:
        print(shown(f"lucidd: {error}", lines=True), file=sys.stderr)
        return error.exit_code
    print(shown(f"{config}: sound"))
    return 0


def say_checked(config: Path, text: bytes, settings: Settings) -> None:
    """Commands need not check the file as long as it stays as it is, and have what `TOLD` names from here.

    ``text``: what stood there before the settings were read. Where something else stands there now, nobody knows
    which of the two was read, and no stamp is left.
    """
    path = checked_file(settings.daemon.heartbeat)
    if config.read_bytes() == text:
        told = settings.model_dump_json(include={name: set(keys) for name, keys in TOLD.items()})
        write_public(path, f"{stamp_of(text)}{told}\n".encode())
    else:
        path.unlink(missing_ok=True)


def _timer(settings: Settings, config: Path, store: Store, children: Children) -> ModelTimer | None:
    """The timer of models, if it can be made: training is worth less than scheduling."""
    found: list[ModelTimer | None] = [None]
    behind_barrier(
        "models are not trained: their timer cannot be made",
        lambda: found.append(model_timer(settings, config, store, children)),
    )
    return found[-1]


def turn_until(
    daemon: Daemon, stop: threading.Event, wake: WakeFile, once: bool, beside: ModelTimer | None = None
) -> int:
    """Turn until *stop* is set, or ``once``; ``beside`` runs meanwhile. Returns the exit status."""
    timers = BackgroundScheduler(daemon=True)
    timers.add_job(daemon.prune, "interval", hours=_PRUNE_EVERY_H, max_instances=1, coalesce=True)
    timers.add_job(daemon.renew_lease, "interval", seconds=_RENEW_EVERY_S, max_instances=1, coalesce=True)
    behind_barrier("timers not started: no pruning, and no renewal of the lease within a long turn", timers.start)
    if beside is not None:
        behind_barrier("the timer of models is not started", beside.start)
    _LOG.info("started")
    ready = False
    try:
        while not stop.is_set():
            wake.mark()
            wait_s = daemon.turn()
            if not ready:
                tell_systemd("READY=1")  # so that doctor, right after systemctl start, sees what this turn left
                ready = True
            if once:
                break
            least_s = min(daemon.least_woken_s, wait_s)
            if not behind_barrier("not waiting for the wake file", partial(wake.wait, stop, least_s, wait_s)):
                stop.wait(wait_s)
    finally:
        tell_systemd("STOPPING=1")
        behind_barrier("timers not stopped", lambda: timers.shutdown(wait=False))
        if beside is not None:
            behind_barrier("the timer of models is not stopped", beside.stop)
        daemon.stop()
    _LOG.info("stopped")
    return 0
