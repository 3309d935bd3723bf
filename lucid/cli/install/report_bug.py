"""``lucidctl report-bug``: what maintainers need to know, without names."""

from __future__ import annotations

import getpass
import json
import platform
import socket
import subprocess
from collections import Counter, deque
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import click

from lucid.adapters.store.plan_records import lucid_version
from lucid.adapters.store.sqlite import SqliteStore
from lucid.atomic import write_atomic
from lucid.cli.console import say
from lucid.cli.install.doctor import diagnose
from lucid.cli.install.redaction import Redactor
from lucid.cli.live.status import live_settings
from lucid.cli.options import config_option
from lucid.config import Settings
from lucid.errors import LucidError

__all__ = ["bundle_of", "report_bug"]

_LINES = 200
_STATUS = (
    "client",
    "slurm",
    "calls",
    "cycles",
    "failed_turns",
    "last_error",
    "paused",
    "left_out",
    "models",
    "counts",
)
"""What of lucidd's status goes in."""


@click.command("report-bug")
@config_option
@click.option("--log", "log", type=click.Path(path_type=Path), help="lucidd's log. Default: journalctl -u lucidd.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("lucid-report.json"),
    show_default=True,
    help="The file to write.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the bundle as JSON.")
def report_bug(config: Path, log: Path | None, out: Path, as_json: bool) -> None:
    """Write a bundle for a bug report, without names.

    Versions, settings, what doctor finds, the shape of the queue, and the end of lucidd's log. Users, accounts, job
    names, hosts, partitions, paths and unknown words are replaced by placeholders. The command sends nothing.
    """
    bundle = bundle_of(live_settings(config), _log_lines(log))
    text = json.dumps(bundle, indent=1, ensure_ascii=True)
    try:
        write_atomic(out, (text + "\n").encode())
    except OSError as error:
        raise LucidError(f"{out}: cannot be written ({error.strerror or error})") from None
    say(text)
    if not as_json:
        say(f"written: {out}; read it before you send it. It holds what is printed above, and nothing else", err=True)


def bundle_of(settings: Settings, log: list[str]) -> dict[str, Any]:
    """The bundle. Where one part cannot be read, the bundle has the error in its place."""
    seen = _part(lambda: _seen(settings))
    store: Mapping[str, Any] = seen if isinstance(seen, dict) else {}
    redactor = Redactor(_names(settings, store))
    status = store.get("status") or {}
    told = {
        "settings": _changed(settings.model_dump(mode="json"), Settings().model_dump(mode="json")),
        "doctor": _part(lambda: [found.to_dict() for found in diagnose(settings)]),
        "status": {key: status[key] for key in _STATUS if key in status} if store else seen,
        "log": [_line(text) for text in log[-_LINES:]],
    }
    return {
        "versions": _versions(),
        **{key: redactor.data(value) for key, value in told.items()},
        "queue": {redactor.text(name): shape for name, shape in _shapes(store.get("snapshot") or {}).items()},
    }


def _part(read: Any) -> Any:
    try:
        return read()
    except Exception as error:  # a report about what is broken must not break on it
        return f"{type(error).__name__}: {error}"


def _seen(settings: Settings) -> dict[str, Any]:
    store = SqliteStore(Path(settings.daemon.state_dir) / "lucid.db", read_only=True)
    views = {name: store.view(name) for name in ("status", "snapshot")}
    return {**views, "ended": [ended.job for ended in store.ended()]}


def _versions() -> dict[str, Any]:
    packages = {one.metadata["Name"]: one.version for one in distributions() if one.metadata["Name"]}
    own = (
        "numpy",
        "scipy",
        "pydantic",
        "click",
        "rich",
        "apscheduler",
        "starlette",
        "scikit-learn",
        "interpret-core",
    )
    return {
        "lucid": lucid_version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: packages[name] for name in own if name in packages},
    }


def _changed(now: Any, default: Any) -> Any:
    """Settings that are not at their defaults."""
    if not isinstance(now, dict) or not isinstance(default, dict):
        return now
    return {key: _changed(item, default.get(key)) for key, item in now.items() if item != default.get(key)}


def _names(settings: Settings, store: Mapping[str, Any]) -> dict[str, set[str]]:
    daemon = settings.daemon
    partitions = {*daemon.partitions, *daemon.rooms, *daemon.pool.quotas}
    users, accounts, jobs, hosts = {getpass.getuser()} - {"root"}, set[str](), set[str](), {socket.gethostname()}
    found = store.get("snapshot") or {}
    for name, part in (found.get("partitions") or {}).items():
        partitions.add(name)
        hosts |= {str(node["name"]) for node in part.get("nodes", ())}
        for entry in [*part.get("pending", ()), *part.get("running", ())]:
            job = entry["job"]
            users.add(str(job["user"]))
            accounts.add(str(job["account"]))
            jobs.add(str(job["name"]))
            partitions.add(str(job["vc"]))
    for job in store.get("ended", ()):
        users.add(job.user)
        accounts.add(job.account)
        jobs.add(job.name)
    return {"user": users, "account": accounts, "job-name": jobs, "host": hosts, "partition": partitions}


def _shapes(picture: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and counts of each partition."""
    found = {}
    for name, part in (picture.get("partitions") or {}).items():
        decisions = (picture.get("plan") or {}).get(name, {}).values()
        found[name] = {
            "nodes": dict(Counter(f"{node['gpus']} GPUs" for node in part["nodes"])),
            "waiting_by_gpus": dict(Counter(str(entry["job"]["gpus"]) for entry in part["pending"])),
            "running_by_gpus": dict(Counter(str(entry["job"]["gpus"]) for entry in part["running"])),
            "sharing": sum(entry["partner"] is not None for entry in part["running"]),
            "verbs": dict(Counter(one["verb"] for one in decisions)),
            "reasons": dict(Counter(reason["kind"] for one in decisions for reason in one["reasons"])),
        }
    return found


def _log_lines(log: Path | None) -> list[str]:
    if log is not None:
        try:
            with log.open(encoding="utf-8", errors="replace") as lines:
                return list(deque(lines, _LINES))
        except OSError as error:
            raise LucidError(f"{log}: cannot be read ({error.strerror or error})") from None
    words = ["journalctl", "-u", "lucidd", "-n", str(_LINES), "-o", "cat", "--no-pager"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=20, check=False, errors="replace", text=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def _line(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()
