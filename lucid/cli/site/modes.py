"""``lucidctl pause``, ``resume`` and ``mode``, switches that lucidd follows from its next cycle; ``metrics``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from lucid.cli.console import answer, say, table
from lucid.cli.jobs.queue import live_settings, live_store, lives
from lucid.cli.options import PATH, config_option
from lucid.config.load import Settings
from lucid.daemon.modes import KEY, Switch, overtaken, switches_of
from lucid.errors import ConfigError, StoreError, did_you_mean
from lucid.files import write_atomic
from lucid.places import Mode
from lucid.setup.host_actions import RELEASE, by_hand_where
from lucid.slurm.view.failed_pairs import KEY as PAIRS_OFF
from lucid.slurm.view.failed_pairs import failed_pairs_in
from lucid.store.sqlite import SqliteStore


@click.command()
@config_option
def pause(config: Path) -> None:
    """Stop deciding, and release every job that Lucid holds.

    Each job keeps the request that its user wrote. lucidctl resume ends the pause. To take Lucid away instead: setup
    --undo gives Slurm back all that setup changed, and uninstall releases jobs while lucidd is down."""
    with by_hand_where("Nothing is paused."):
        settings = live_settings(config)
    with by_hand_where("Nothing is paused.", settings):
        store = live_store(settings, write=True)
        store.set_setting("paused", "1")
        runs = lives(store.lease(), time.time())
    if runs:
        say("paused; within a cycle lucidd releases every job, as its user wrote it")
    else:
        say(f"paused, but lucidd is down; lucidctl uninstall, or {RELEASE} --all, releases its jobs now")


@click.command()
@config_option
def resume(config: Path) -> None:
    """End a pause."""
    store = live_store(live_settings(config), write=True)
    paused = store.settings().get("paused") == "1"
    store.set_setting("paused", None)
    said = "resumed" if paused else "nothing was paused"
    if lives(store.lease(), time.time()):
        say(f"{said}; jobs submitted from now on are Lucid's again")
    else:
        say(f"{said}; lucidd is down, and decides nothing until it is started")


@click.command()
@click.argument("partition", required=False)
@click.argument("to", required=False, type=click.Choice([*map(str, Mode), "configured"]))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def mode(partition: str | None, to: str | None, config: Path, as_json: bool) -> None:
    """Switch PARTITION to another mode while lucidd runs.

    Without a mode, list for each partition: the mode in lucid.toml, the mode that was switched by hand, and the
    mode in force. 'configured' takes a switch back. A switch also ends if lucid.toml names another mode for the
    partition than when the switch was set, and lucidd is restarted. Where lucidd makes no more pairs since a Prolog
    failed (lucidctl doctor), any of it lets it make pairs again."""
    settings = live_settings(config)
    configured = settings.daemon.partitions
    if to is None:
        _list(settings, partition, as_json)
        return
    assert partition is not None  # click fills the first argument first
    store = live_store(settings, write=True)
    stray = partition not in configured and partition in switches_of(store.settings())
    if partition not in configured and not (stray and to == "configured"):
        raise _unknown(partition, settings, str(config))
    if to == Mode.PACK and not settings.slurm.packs:
        raise ConfigError(f"{partition} cannot be packed: {settings.slurm.not_packed}")
    if to == "configured":
        store.set_setting(KEY + partition, None)
        says = f"{configured[partition]}, as {config} says" if partition in configured else "its switch is gone"
    else:
        store.set_setting(KEY + partition, Switch(to, str(configured[partition]), time.time()).text())
        says = to if to == configured[partition] else f"{to} ({config} says {configured[partition]})"
    for one in failed_pairs_in(store.settings()).values():
        if partition in one.partitions:
            store.set_setting(PAIRS_OFF + one.node, None)
            says += f", with pairs on {one.node} again"
    runs = lives(store.lease(), time.time())
    say(f"{partition}: {says}, {'from the next cycle on' if runs else 'once lucidd runs (it is down now)'}")


def _list(settings: Settings, partition: str | None, as_json: bool) -> None:
    store = live_store(settings)
    rows = [row for row in _rows(settings, store) if partition in (None, row["partition"])]
    if not rows:
        raise _unknown(partition, settings, "lucid.toml")
    cells = (
        (
            row["partition"],
            row["configured"] or "(not named)",
            f"{row['by_hand']} (overtaken by the file)" if row["overtaken"] else row["by_hand"] or "",
            row["since"] or "",
            row["in_force"],
        )
        for row in rows
    )
    columns = ("partition", "lucid.toml", "by hand", "since", "in force")
    answer({"partitions": rows}, as_json, [table(columns, cells)])


def _unknown(partition: str | None, settings: Settings, where: str) -> ConfigError:
    known, hint = ", ".join(settings.daemon.partitions), did_you_mean(partition or "", settings.daemon.partitions)
    return ConfigError(
        f"no partition {partition!r} in {where}{hint} (known: {known}); add it there, and restart lucidd"
    )


def _rows(settings: Settings, store: SqliteStore) -> list[dict[str, str | None]]:
    """One row for each partition, also for partitions that only a switch names."""
    stored = store.settings()
    switches, gone = switches_of(stored), overtaken(settings, stored)
    seen = (store.view("status") or {}).get("modes", {}) if lives(store.lease(), time.time()) else None
    rows = []
    for name in dict.fromkeys([*settings.daemon.partitions, *switches]):
        switch, configured = switches.get(name), settings.daemon.partitions.get(name)
        rows.append(
            {
                "partition": name,
                "configured": None if configured is None else str(configured),
                "by_hand": None if switch is None else switch.mode,
                "since": None if switch is None else switch.since(),
                "overtaken": "yes" if name in gone else None,
                "in_force": "lucidd is down" if seen is None else str(seen.get(name, "nothing")),
            }
        )
    return rows


@click.command()
@config_option
@click.option("--out", type=PATH, help="Replace this file, for node_exporter's textfile collector.")
def metrics(config: Path, out: Path | None) -> None:
    """Print lucidd's metrics for Prometheus, from its store. Slurm is not asked."""
    settings = live_settings(config)
    try:
        from lucid.daemon.reporting.metrics import render
        from lucid.daemon.reporting.waste_inputs import MetricsSource
    except ModuleNotFoundError as error:
        raise ConfigError(f"metrics need the extra 'web' ({error}): pip install 'lucid-scheduler[web]'") from None
    text = render(MetricsSource(settings))
    if out is None:
        say(text.decode(), nl=False)
        return
    try:
        write_atomic(out, text, mode=0o644)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror}); check the folder's owner") from None
