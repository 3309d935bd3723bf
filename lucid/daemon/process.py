"""The process of lucidd: arguments, signals, reload, timers, its log, and the loop that turns.

``systemctl reload lucidd`` reads the settings anew; unsound ones are not taken at all. The log has a line of JSON an
event; in journald it has fields to search by."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from apscheduler.schedulers.background import BackgroundScheduler

from lucid.config.load import load_settings
from lucid.daemon.barrier import TroubleFile, behind_barrier, persistently, tell_systemd
from lucid.daemon.build import checked_settings, make_parts
from lucid.daemon.learning.child import Children
from lucid.daemon.learning.training import Upkeep, trained
from lucid.daemon.loop import Daemon
from lucid.errors import LucidError
from lucid.files import closed_to_others
from lucid.slurm.heartbeat import WakeFile
from lucid.text import shown

_LOG = logging.getLogger("lucidd")


class Reload:
    """Handles SIGHUP (reload) and SIGTERM (end)."""

    def __init__(self, config: Path) -> None:
        """``config``: the file to read."""
        self._config = config
        self._again = threading.Event()
        self._ended = threading.Event()

    @property
    def due(self) -> bool:
        """Whether lucidd is to begin anew now that it has stopped."""
        return self._again.is_set() and not self._ended.is_set()

    def end(self, stop: threading.Event) -> None:
        """Handle SIGTERM: stop, whatever else was asked for."""
        self._ended.set()
        stop.set()

    def asked(self, stop: threading.Event) -> None:
        """Handle SIGHUP: read the file in a thread, while the cycle goes on."""
        threading.Thread(target=self.read, args=(stop,), name="reload", daemon=True).start()

    def read(self, stop: threading.Event) -> None:
        """Read the file, and if it is sound stop, to begin anew."""
        try:
            checked_settings(self._config)
        except LucidError as error:
            _LOG.error("settings not read anew: the old ones hold", extra={"facts": {"why": str(error)}})
            return
        _LOG.info("settings are read anew", extra={"facts": {"file": str(self._config)}})
        self._again.set()
        stop.set()


def begin_anew() -> None:
    """Run the same program anew in the same process, as it was called. systemd sees one service that goes on."""
    # the new program inherits this: a signal that comes before it listens is lost, and does not end it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


_JOURNAL: Final = "/run/systemd/journal/socket"
_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))
"""syslog's priorities, each with the least level that has it."""
_FIELDS: Final = {"job": "LUCID_JOB", "partition": "LUCID_PARTITION", "what": "LUCID_WHAT"}
"""Fields of the journal, by the fact in them, by which people search."""


class JsonLines(logging.Formatter):
    """Formats an event as JSON: time, level, the event in words, and its ``facts``."""

    def format(self, record: logging.LogRecord) -> str:
        """The event as one line."""
        line = {"at": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage()}
        line.update(getattr(record, "facts", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)  # in ASCII: no name gives orders to who reads the journal


class JournalHandler(logging.Handler):
    """Writes journald's own protocol: the line as ``MESSAGE``, ``PRIORITY``, and the ``_FIELDS`` of the event, so
    that ``journalctl -u lucidd LUCID_JOB=812`` finds what was done with a job."""

    def __init__(self, otherwise: logging.Handler, path: str = _JOURNAL) -> None:
        """``otherwise``: the handler for what journald does not take. ``path``: journald's socket."""
        super().__init__()
        self._otherwise, self._path = otherwise, path
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        """Send the event as one datagram."""
        priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
        fields = {"MESSAGE": self.format(record), "PRIORITY": priority, "SYSLOG_IDENTIFIER": "lucidd"}
        facts = getattr(record, "facts", {})
        fields |= {name: json.dumps(str(facts[fact]))[1:-1] for fact, name in _FIELDS.items() if fact in facts}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.sendto("".join(f"{name}={value}\n" for name, value in fields.items()).encode(), self._path)
        except OSError:
            self._otherwise.emit(record)


def log_handler() -> logging.Handler:
    """The handler of the log: journald's where systemd connected stderr with it, else stderr."""
    plain = logging.StreamHandler(sys.stderr)
    plain.setFormatter(JsonLines())
    connected = os.environ.get("JOURNAL_STREAM") and Path(_JOURNAL).exists()
    return JournalHandler(plain) if connected else plain


_PRUNE_EVERY_H = 6
_RENEW_EVERY_S = 3


@closed_to_others()
def main(arguments: list[str] | None = None) -> int:
    """Read the configuration, and turn until stopped. Returns the exit status."""
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
    stop, reload = threading.Event(), Reload(given.config)
    try:
        if given.check:
            checked_settings(given.config)
            print(shown(f"{given.config}: sound"))
            return 0
        handler = log_handler()
        for log in (_LOG, logging.getLogger("lucid")):
            log.addHandler(handler)
        _LOG.setLevel(logging.INFO)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: reload.end(stop))
        signal.signal(signal.SIGHUP, lambda *_: reload.asked(stop))
        settings = load_settings(given.config, live=True)
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
    train = partial(trained, children, ["--config", str(given.config.absolute())])
    # a GPU that is not well is left out at once, however seldom an idle lucidd looks at Slurm
    wake = WakeFile(Path(settings.daemon.heartbeat).with_name("wake"), parts.health.folder)
    try:
        status = turn_until(Daemon(parts), stop, wake, given.once, Upkeep(settings, parts.store, train))
    finally:
        behind_barrier("children of lucidd are not ended", children.end)
    if reload.due:
        begin_anew()
    return status


def turn_until(
    daemon: Daemon, stop: threading.Event, wake: WakeFile, once: bool, upkeep: Callable[[], object]
) -> int:
    """Turn until *stop* is set, or ``once``; ``upkeep`` of models runs meanwhile, every ``models.every_h``.
    Returns the exit status."""
    logging.getLogger("apscheduler.executors").setLevel(logging.ERROR)
    timers = BackgroundScheduler(daemon=True)
    timers.add_job(daemon.prune, "interval", hours=_PRUNE_EVERY_H, max_instances=1, coalesce=True)
    timers.add_job(daemon.renew_lease, "interval", seconds=_RENEW_EVERY_S, max_instances=1, coalesce=True)
    every_h = 0 if once else daemon.parts.settings.models.every_h
    if every_h:
        # one that comes due while another runs is skipped; those missed while the machine slept are made up by one
        now = datetime.now(UTC)
        timers.add_job(upkeep, "interval", hours=every_h, max_instances=1, coalesce=True, next_run_time=now)
    behind_barrier(
        "timers not started: no pruning, no training, no renewal of the lease in a long turn", timers.start
    )
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
        daemon.stop()
    _LOG.info("stopped")
    return 0
