"""What anybody may read of lucidd's view: a file beside the heartbeat, without users, accounts and names.

The store itself is closed to all but lucidd's user and root: whoever can read an SQLite file can lock it. From this
file ``lucidctl status|queue|why-not|explain`` answer everybody else (docs/decisions/0018-who-reads-what.md).
``PrivateData`` records Slurm's setting of that name for the pages (docs/decisions/0027): who may see whose jobs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lucid.config.load import Settings
from lucid.core.codec import from_json
from lucid.core.names import without_names as hide
from lucid.core.prediction import Prediction
from lucid.core.reason import REASONS
from lucid.core.snapshot import Partition
from lucid.daemon.reporting.starts import START_TIMES, STARTS
from lucid.daemon.reporting.status import lending_of
from lucid.errors import ClusterError, StoreError
from lucid.files import write_public
from lucid.slurm.heartbeat import read_heartbeat
from lucid.store.port import Lease
from lucid.store.view import View, view_from

_LOG = logging.getLogger("lucidd")
_EVERY_S = 5.0
_SHARE = 0.05
"""The most of lucidd's time that the file may take, as a share."""


def published_file(settings: Settings) -> Path:
    """The path of the file: beside the heartbeat, in a folder that everybody may enter."""
    return Path(settings.daemon.heartbeat).with_name("public.json")


def without_names(view: Mapping[str, Any], users: dict[str, str] | None = None) -> dict[str, Any]:
    """A stored snapshot (``view_to_dict``) with users numbered, and texts emptied that are not for
    everybody (``lucid.core.names``). What Lucid compares stays: sizes, times, places, measured loads, the reasons.
    ``users``: filled in with the number of each user."""
    users = {} if users is None else users
    users[""] = ""

    def alias(user: str) -> str:
        return users.setdefault(user, f"user {len(users)}")

    def decision(of: Mapping[str, Any]) -> dict[str, Any]:
        return {**of, "reasons": [hide(REASONS[one["kind"]], one, alias) for one in of["reasons"]]}

    partitions = {name: hide(Partition, part, alias) for name, part in view["partitions"].items()}
    return {
        "now_s": view["now_s"],
        "partitions": partitions,
        "predictions": {name: hide(Prediction, one, alias) for name, one in view["predictions"].items()},
        "arrivals": view.get("arrivals", {}),
        "fair_share": [["", users[user], factor] for user, factor in _factors(view).items() if user in users],
        "wake_s": view.get("wake_s"),
        "policy": _without_shares(view.get("policy")),
        "plan": {
            name: {job_id: decision(one) for job_id, one in part.items()}
            for name, part in view.get("plan", {}).items()
        },
    }


def _factors(view: Mapping[str, Any]) -> dict[str, float]:
    """Fair-share factors by user, of those users who have only one."""
    found: dict[str, set[float]] = {}
    for _, user, factor in view.get("fair_share", ()):
        found.setdefault(user, set()).add(factor)
    return {user: min(factors) for user, factors in found.items() if len(factors) == 1}


def _without_shares(policy: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The policy without the shares of replays, which name accounts."""
    if policy is None:
        return None
    settings = policy["settings"]
    return {**policy, "settings": {**settings, "fairness": {**settings["fairness"], "shares": {}}}}


def _times_without_names(times: Mapping[str, Any], users: Mapping[str, str]) -> dict[str, Any]:
    """The errors of forecasts, by the numbers of those users who are in the snapshot."""
    run_times = times["run_times"]
    known = {users[user]: errors for user, errors in run_times["users"].items() if user in users}
    return {**times, "run_times": {**run_times, "users": known}}


class Publisher:
    """Writes the file when its content has changed, at most once in a few seconds; deletes it where nothing is to be
    published."""

    def __init__(self, settings: Settings) -> None:
        self.path = published_file(settings)
        self._on = settings.daemon.publish == "jobs"
        self._snapshot: Mapping[str, Any] | None = None
        self._times: Mapping[str, Any] | None = None
        self._starts: Mapping[str, Any] | None = None
        self._written: tuple[object, ...] = ()
        self._next_s, self._every_s, self._trouble = float("-inf"), _EVERY_S, ""

    def update(self, view: Mapping[str, Any]) -> None:
        """Take the snapshot of this cycle."""
        self._snapshot = view

    def update_times(self, times: Mapping[str, Any] | None, starts: Mapping[str, Any] | None) -> None:
        """Take the errors of forecasts of starts, and the latest forecasts, as the store keeps both."""
        self._times, self._starts = times, starts

    def write(self, now_s: float, status: Mapping[str, Any]) -> None:
        """Write the file at the end of a cycle, with a *status* that names nobody. A failure to write is logged, and
        no decision waits for it."""
        if self._next_s - self._every_s <= now_s < self._next_s or self._snapshot is None:
            return
        self._next_s, began_s = now_s + self._every_s, time.perf_counter()
        news = (self._snapshot["now_s"], dict(status), self._starts and self._starts["at_s"])
        try:
            if not self._on:
                self.path.unlink(missing_ok=True)
            elif news != self._written or not self.path.exists():
                whole = {**status, "partitions": _counted(self._snapshot)}
                users: dict[str, str] = {}
                told: dict[str, Any] = {"snapshot": without_names(self._snapshot, users), "status": whole}
                if self._times is not None:
                    told[START_TIMES] = _times_without_names(self._times, users)
                if self._starts is not None:
                    told[STARTS] = self._starts  # ids and seconds
                write_public(self.path, json.dumps(told).encode())
                self._written = news
                self._every_s = max(_EVERY_S, (time.perf_counter() - began_s) / _SHARE)
            self._trouble = ""
        except OSError as error:
            if str(error) != self._trouble:
                _LOG.warning("queue not published", extra={"facts": {"why": str(error)}})
            self._trouble = str(error)


def _counted(view: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "gpus": sum(node["gpus"] for node in part["nodes"]),
            "pending": len(part["pending"]),
            "running": len(part["running"]),
            "packed": sum(entry["partner"] is not None for entry in part["running"]),
            **({"vcs": lending_of(from_json(Partition, {**part, "name": name}))} if part.get("quotas") else {}),
        }
        for name, part in view["partitions"].items()
    }


class Published:
    """The published file, asked like the store.

    Raises: StoreError: nothing is published."""

    def __init__(self, settings: Settings) -> None:
        self.path = published_file(settings)
        self._heartbeat = Path(settings.daemon.heartbeat)
        try:
            self._data = dict(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            raise StoreError(
                f"{self.path}: nothing is published there for users. lucidd is not started yet, or this site keeps "
                'it to itself (daemon.publish = "nothing"); scontrol show job tells of your own jobs'
            ) from None

    def view(self, name: str) -> Any:
        """The view as the store has it, without names."""
        return self._data.get(name)

    def last_view(self) -> View | None:
        """What lucidd saw and decided last, without names.

        Raises: StoreError: another version of Lucid wrote it."""
        data = self.view("snapshot")
        return None if data is None else view_from(data)

    def settings(self) -> dict[str, str]:
        """Whether lucidd is paused; switches of modes are shown by the modes in force."""
        return {"paused": "1"} if (self.view("status") or {}).get("paused") else {}

    def lease(self) -> Lease | None:
        """A lease that follows from the heartbeat, by which this user knows whether a daemon lives; ``None`` without
        a heartbeat."""
        beat, status = read_heartbeat(self._heartbeat), self.view("status") or {}
        if beat is None:
            return None
        return Lease(str(status.get("holder", "")) or "lucidd", 0, beat.at_s + float(status.get("lasts_s", 15.0)))


_READ_EVERY_S = 3600.0
_AGAIN_S = 60.0


class PrivateData:
    """Slurm's PrivateData. ``words``: as in slurmctld's configuration in force, at most an hour old; ``None`` until
    Slurm has answered."""

    def __init__(self, ask: Callable[[], Mapping[str, str] | None]) -> None:
        self.words: list[str] | None = None
        self._ask = ask
        self._due_s = float("-inf")
        self._asked_s = float("-inf")

    def poll(self, now_s: float) -> None:
        """Ask Slurm, if that is due. If it does not answer, the earlier words stay."""
        if self._asked_s <= now_s < self._due_s:  # also where the clock was set back
            return
        self._asked_s, self._due_s = now_s, now_s + _READ_EVERY_S
        try:
            config = self._ask()
        except ClusterError:
            self._due_s = now_s + _AGAIN_S
            return
        if config is not None:
            told = (word.strip().lower() for word in config.get("PrivateData", "").split(","))
            self.words = [word for word in told if word and word not in ("none", "(null)")]
