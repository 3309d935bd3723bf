"""``lucidctl gpu``: cards, their jobs and readings, speeds of pairs; and ``gpu health|out|return`` for bad GPUs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.live import Live
from rich.text import Text  # noqa: TID251 - the type of what styled() makes

from lucid.cli.console import Table, answer, say, stdout_console, styled, table
from lucid.cli.jobs.queue import live_settings, live_store, lives
from lucid.cli.options import DEFAULT_CONFIG, PATH, Group, config_option
from lucid.config.load import Settings, load_settings, profiles_folder
from lucid.core.codec import to_json
from lucid.core.gpu import MOST_NUMBER, GpuOut, GpuReading
from lucid.daemon.gpu_health import BACK, OUT, odd_numbers, out_json, outs_in
from lucid.errors import ConfigError, MetricsError
from lucid.explain.formatting import duration, when
from lucid.files import user_name
from lucid.node.nvml import NvmlMetrics
from lucid.node.reports import read_profile_files
from lucid.profiler.summary import Spell, Summary
from lucid.text import shown

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
    data = {**{key: told.get(key, []) for key in _LISTS}, "out": rows}
    answer(data, as_json, _health_words(told, rows, everything))


def _health_words(told: Mapping[str, Any], rows: Sequence[dict[str, Any]], everything: bool) -> Iterator[str | Table]:
    if rows:
        yield _health_table(
            (f"{row['node']}:{row['index']}", when(row["since_s"]), row["words"], _by(row)) for row in rows
        )
    else:
        yield "no GPU is out"
    for row in told.get("beyond") or ():
        yield shown(f"{row['node']}:{row['index']} has {row['words']}, and is not taken out: too many are")
    for one in told.get("not_kept") or ():
        yield shown(f"Slurm's own jobs are not kept off {one['gpu']}: {one['why']}")
    for node in told.get("sampler_silent") or ():
        yield shown(f"{node}: its sampler has told nothing for minutes")
    for one in told.get("driver_silent") or ():
        yield shown(f"{one['node']}: the driver has not answered since {when(one['since_s'])}")
    yield from (shown(odd_numbers(one)) for one in told.get("odd_numbers") or ())
    if everything:
        faults = told.get("faults") or ()
        yield _health_table((one["gpu"], when(one["began_s"]), one["words"], _whose(one)) for one in faults)


def _health_table(rows: Iterable[tuple[str, str, str, str]]) -> Table:
    return table(("GPU", "since", "why", ""), rows, **_PLAIN)


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
    back; nothing else does."""
    node, index = _parsed(gpu)
    store = live_store(live_settings(config), write=True)
    made = GpuOut(node, index, time.time(), " ".join(reason.split())[:200], by=user_name(os.getuid()))
    store.set_setting(BACK + made.name, None)
    store.set_setting(OUT + made.name, json.dumps(out_json(made)))
    say(shown(f"{made.name} is out, {_from_when(store)}"))


@click.command(name="return")
@click.argument("gpu", metavar="NODE:INDEX")
@config_option
def returned(gpu: str, config: Path) -> None:
    """Let a GPU have new starts again.

    What a sampler has seen of it until now is forgiven; a new fault takes it out again."""
    node, index = _parsed(gpu)
    name = f"{node}:{index}"
    store = live_store(live_settings(config), write=True)
    was = outs_in(store.settings()).get(name)
    store.set_setting(BACK + name, f"{time.time():.3f} {user_name(os.getuid())}")
    store.set_setting(OUT + name, None)
    if was is None:
        say(shown(f"{name} was not out; what was seen of it until now does not take it out"))
    else:
        say(shown(f"{name} is back, {_from_when(store)}; it was out for: {was.words}"))


def _from_when(store: Any) -> str:
    return "from the next cycle on" if lives(store.lease(), time.time()) else "once lucidd runs (it is down now)"


def _parsed(gpu: str) -> tuple[str, int]:
    node, _, index = gpu.rpartition(":")
    if not node or not (index.isascii() and index.isdecimal()) or int(index) > MOST_NUMBER:
        raise ConfigError(f"{gpu!r} names no GPU: write NODE:INDEX, as node7:3")
    return node, int(index)


_PLAIN: Mapping[str, Any] = {"box": None, "pad_edge": False, "header_style": "bold"}
_COLUMNS = (
    "node", "GPU", "job", "partner", ">util", ">own", ">mem", ">DRAM", ">MiB", ">expected", ">seen", "state"
)  # fmt: skip
_STALE_S = 180.0
"""Summaries older than this belong to a job that has ended, or to a sampler that is gone."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One job on one card, or a card without one. Utilisation in percent (the card's, and the job's own where it
    can be told), memory in MiB (the job's), speeds as a share of full speed."""

    node: str
    gpu: str
    job: str | None = None
    partner: str | None = None
    card_util: float | None = None
    own_util: float | None = None
    mem_util: float | None = None
    dram_active: float | None = None
    mem_mib: float | None = None
    promised: float | None = None
    seen: float | None = None
    seen_by: str = ""
    state: str = ""
    age_s: float = 0.0
    notes: tuple[str, ...] = ()


def rows_of(summaries: Mapping[str, Sequence[Summary]], now_s: float) -> list[GpuRow]:
    """A row a job and card, by node, card and job. Readings are means of the last minute over the job's cards on
    that node; a job that sampled nothing for three minutes is left out."""
    rows = []
    for job, nodes in summaries.items():
        for summary in nodes:
            age_s = now_s - summary.end_s
            if age_s > _STALE_S:
                continue
            recent = summary.recent or Spell(0.0)
            profile = summary.profile
            seen = None if profile is None or profile.seen_beside != summary.partner else profile.seen_speed
            for uuid in summary.gpus:
                rows.append(
                    GpuRow(
                        summary.node,
                        uuid,
                        job,
                        summary.partner,
                        recent.card_util,
                        recent.gpu_util,
                        recent.card_mem_util,
                        recent.dram_active,
                        recent.mem_mib,
                        summary.promised,
                        seen,
                        summary.seen_by if seen is not None else "",
                        _state(summary),
                        max(age_s, 0.0),
                        summary.notes,
                    )
                )
    return sorted(rows, key=lambda row: (row.node, row.gpu, row.job or ""))


def _state(summary: Summary) -> str:
    words = []
    if summary.profile is None:
        words.append("starting up" if summary.warm_up_s is None and summary.together is None else "not measured yet")
    else:
        words += ["unstable"] * summary.profile.unstable + ["memory grows"] * summary.profile.mem_growing
    if summary.phases and summary.phases[-1].kind == "pause":
        words.append("paused")
    return ", ".join(words) or "steady"


@click.group(cls=Group, invoke_without_command=True)
@config_option
@click.option(
    "--profiles",
    type=PATH,
    help="Folder of the samplers' summaries.  [default: as --config says; without that file /var/lib/lucid/profiles]",
)
@click.option("--cards", is_flag=True, help="Also this machine's own cards that no job is on, asked of NVML.")
@click.option("--once", is_flag=True, help="Print one table and end. The default where output is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one look as JSON.")
@click.option(
    "--every", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds between looks."
)
@click.pass_context
def gpu(
    context: click.Context,
    config: Path,
    profiles: Path | None,
    cards: bool,
    once: bool,
    as_json: bool,
    every: float,
) -> None:
    """Show GPUs, their jobs and readings, and the speed of pairs."""
    if context.invoked_subcommand is not None:
        return
    profiles = profiles or _profiles_of(config)
    metrics = NvmlMetrics() if cards else None
    if metrics is not None:
        metrics.cards()  # says at once where there is no driver
    if not profiles.is_dir():
        raise MetricsError(
            f"{profiles}: no such folder; give --profiles the samplers', or --config lucidd's file (docs/nodes.md)"
        )
    console = stdout_console()
    if as_json or once or not console.is_terminal:
        rows, bad = _gpu_rows(profiles, metrics)
        answer({"gpus": [to_json(row) for row in rows], "bad_files": bad}, as_json, [_table(rows, bad)])
    else:
        with Live(console=console, auto_refresh=False, screen=False) as live:
            try:
                while True:
                    live.update(_table(*_gpu_rows(profiles, metrics)), refresh=True)
                    time.sleep(every)
            except KeyboardInterrupt:
                return


for _command in (health, out, returned):
    gpu.add_command(_command)


def _profiles_of(config: Path) -> Path:
    """lucidd's folder of profiles. A node commonly has no lucid.toml, and then the default counts.

    Raises: ConfigError: the file is there and wrong, or was asked for and is not there."""
    if not config.exists() and config == DEFAULT_CONFIG:
        return profiles_folder(Settings())
    return profiles_folder(load_settings(config))


def _gpu_rows(profiles: Path, metrics: NvmlMetrics | None) -> tuple[list[GpuRow], tuple[str, ...]]:
    found = read_profile_files(profiles)
    rows = rows_of(found.summaries, time.time())
    if metrics is not None:
        taken = {row.gpu for row in rows}
        free = [card for card in metrics.cards() if card.uuid not in taken]
        readings = metrics.read([card.uuid for card in free])
        for card in free:
            reading = readings[card.uuid]
            if isinstance(reading, GpuReading):
                rows.append(
                    GpuRow("here", card.uuid, card_util=reading.gpu_util, mem_mib=reading.mem_mib, state="no job")
                )
            else:
                rows.append(GpuRow("here", card.uuid, state=f"lost: {reading.why}"))
    return rows, found.bad


def _table(rows: Sequence[GpuRow], bad: Sequence[str]) -> Table:
    made = table(_COLUMNS, (), unwrapped=4, **_PLAIN)
    before: tuple[str, str] | None = None
    for row in rows:
        card = (row.node, row.gpu)
        same = card == before
        before = card
        notes = [*row.notes[-1:], *([f"last sample {duration(row.age_s)} ago"] if row.age_s > 15 else [])]
        made.add_row(
            "" if same else row.node,
            "" if same else row.gpu[:12],
            row.job or "",
            row.partner or "",
            *(_percent(v) for v in (row.card_util, row.own_util, row.mem_util, row.dram_active)),
            "" if row.mem_mib is None else f"{row.mem_mib:,.0f}",
            _percent(None if row.promised is None else 100 * row.promised),
            _seen(row),
            "; ".join([row.state, *notes]),
        )
    if not rows:
        made.add_row("", "", "no job", *[""] * 8, "no sampler has written for three minutes")
    if any(row.partner for row in rows):
        made.caption = "partner: the job on the same GPUs; expected, seen: shares of the speed that a job has alone"
    for text in bad:
        made.caption = styled(text, style="red")
    return made


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"


def _seen(row: GpuRow) -> Text:
    if row.seen is None:
        return styled("")
    worse = row.promised is not None and row.seen < row.promised - 0.1
    return styled(f"{row.seen:.0%}", style="red" if worse else "green")
