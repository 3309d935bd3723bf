"""``lucidctl gpu health|out|return``: which GPUs are not well, and who gives them back."""

from __future__ import annotations

import json
import os
import pwd
import time
from pathlib import Path
from typing import Any

import click

from lucid.cli.console import Table, say, stdout_console
from lucid.cli.live.status import live_settings, live_store, lives
from lucid.cli.options import config_option
from lucid.core.gpu_health import MOST_NUMBER, GpuOut
from lucid.errors import ConfigError
from lucid.escaping import shown
from lucid.explain.quantities import when
from lucid.live.gpu_health import BACK, OUT, odd_numbers, out_json, outs_in

__all__ = ["health", "out", "returned"]

_LISTS = ("beyond", "not_kept", "faults", "watched", "driver_silent", "odd_numbers", "sampler_silent", "unread")


@click.command()
@config_option
@click.option("--all", "everything", is_flag=True, help="Also what was told of GPUs that are in use.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def health(config: Path, everything: bool, as_json: bool) -> None:
    """List the GPUs that are not well, and say which of them get no new start."""
    store = live_store(live_settings(config))
    told: dict[str, Any] = (store.view("status") or {}).get("gpu_health") or {}
    outs = outs_in(store.settings())
    rows = [out_json(outs[name]) for name in sorted(outs)]
    if as_json:
        say(json.dumps({**{key: told.get(key, []) for key in _LISTS}, "out": rows}, indent=1))
        return
    if not rows:
        say("no GPU is out")
    else:
        _table([(f"{row['node']}:{row['index']}", row["since_s"], row["words"], _by(row)) for row in rows])
    for row in told.get("beyond") or ():
        say(shown(f"{row['node']}:{row['index']} has {row['words']}, and is not taken out: too many are"))
    for one in told.get("not_kept") or ():
        say(shown(f"Slurm's own jobs are not kept off {one['gpu']}: {one['why']}"))
    for node in told.get("sampler_silent") or ():
        say(shown(f"{node}: its sampler has told nothing for minutes"))
    for one in told.get("driver_silent") or ():
        say(shown(f"{one['node']}: the driver has not answered since {when(one['since_s'])}"))
    for one in told.get("odd_numbers") or ():
        say(shown(odd_numbers(one)))
    if everything:
        faults = told.get("faults") or ()
        _table([(one["gpu"], one["began_s"], one["words"], _whose(one)) for one in faults])


def _table(rows: list[tuple[str, float, str, str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("GPU", "since", "why", ""):
        table.add_column(name)
    for gpu, since_s, words, more in rows:
        table.add_row(gpu, when(since_s), words, more)
    stdout_console().print(table)


def _by(row: dict[str, Any]) -> str:
    if row["by"]:
        return f"by {row['by']}; until lucidctl gpu return"
    return {"reset": "needs a reset", "reboot": "needs a reboot of its node"}.get(row["needs"], "")


def _whose(fault: dict[str, Any]) -> str:
    lasts = "still" if fault["lasts"] else f"{fault['times']}×"
    return f"{lasts}; whose: {fault['whose']}"


@click.command()
@click.argument("gpu", metavar="NODE:INDEX")
@click.option("--reason", required=True, help="Why, in words: lucidctl explain and pages say it.")
@config_option
def out(gpu: str, reason: str, config: Path) -> None:
    """Take a GPU out of new starts.

    INDEX is the number of its device file (/dev/nvidia3 is 3). Who runs there goes on. lucidctl gpu return gives it
    back; nothing else does.
    """
    node, index = _parsed(gpu)
    store = live_store(live_settings(config), write=True)
    made = GpuOut(node, index, time.time(), " ".join(reason.split())[:200], by=_me())
    store.set_setting(BACK + made.name, None)
    store.set_setting(OUT + made.name, json.dumps(out_json(made)))
    say(shown(f"{made.name} is out, {_from_when(store)}"))


@click.command(name="return")
@click.argument("gpu", metavar="NODE:INDEX")
@config_option
def returned(gpu: str, config: Path) -> None:
    """Let a GPU have new starts again.

    What a sampler has seen of it until now is forgiven; a new fault takes it out again.
    """
    node, index = _parsed(gpu)
    name = f"{node}:{index}"
    store = live_store(live_settings(config), write=True)
    was = outs_in(store.settings()).get(name)
    store.set_setting(BACK + name, f"{time.time():.3f} {_me()}")
    store.set_setting(OUT + name, None)
    if was is None:
        say(shown(f"{name} was not out; what was seen of it until now does not take it out"))
    else:
        say(shown(f"{name} is back, {_from_when(store)}; it was out for: {was.words}"))


def _from_when(store: Any) -> str:
    return "from the next cycle on" if lives(store.lease(), time.time()) else "once lucidd runs (it is down now)"


def _me() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _parsed(gpu: str) -> tuple[str, int]:
    node, _, index = gpu.rpartition(":")
    if not node or not (index.isascii() and index.isdecimal()) or int(index) > MOST_NUMBER:
        raise ConfigError(f"{gpu!r} names no GPU: write NODE:INDEX, as node7:3")
    return node, int(index)
