"""``lucidctl doctor`` and ``uninstall``: what is wrong and what to do about it; and leaving without a trace."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from lucid.adapters.clock import SystemClock
from lucid.adapters.heartbeat import read_heartbeat
from lucid.adapters.profiles import ProfileFolder
from lucid.adapters.slurm_cli import CommandClient
from lucid.adapters.slurm_client import Breaker
from lucid.adapters.slurm_cluster import SlurmCluster
from lucid.adapters.slurm_records import SlurmJob, SlurmNode
from lucid.adapters.slurm_text import parse_mark
from lucid.adapters.store import Store, holder_is_dead
from lucid.adapters.store_sqlite import SqliteStore
from lucid.cli.live import config_option, live_settings, live_store
from lucid.config import DaemonSettings, Mode, Settings
from lucid.errors import ClusterError, ConfigError, LucidError, StoreError

__all__ = ["Finding", "doctor", "let_everything_go", "look_over_cluster", "look_over_state", "uninstall"]

_REPLACES = (23, 11)
_STALE_S = 60.0
_HELD_S = 300.0


@dataclass(frozen=True, slots=True)
class Finding:
    """``level``: ``bad`` (does not work), ``warn`` (works less well) or ``ok``. ``remedy`` says what to do."""

    level: str
    what: str
    remedy: str = ""


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True)
def doctor(config: Path, as_json: bool) -> None:
    """Look for everything that commonly is misconfigured, and say the remedy. Changes nothing."""
    settings = live_settings(config)
    findings = [*look_over_state(settings, time.time())]
    breaker = Breaker(time.monotonic)
    client = CommandClient(settings.slurm.prefix, breaker, settings.slurm.timeout_s)
    try:
        slurm = client.config()
        findings += look_over_cluster(settings, client.version(), slurm, client.nodes(), client.jobs(), time.time())
    except ClusterError as error:
        findings.append(Finding("bad", f"Slurm does not answer: {error}", "check slurm.prefix; does slurmctld run?"))
    if as_json:
        click.echo(json.dumps({"findings": [asdict(f) for f in findings]}, indent=1))
    else:
        for found in sorted(findings, key=lambda f: ("bad", "warn", "ok").index(f.level)):
            click.echo(f"{found.level:>4}  {found.what}" + (f"\n      -> {found.remedy}" if found.remedy else ""))
    if any(found.level == "bad" for found in findings):
        raise SystemExit(1)


def look_over_state(settings: Settings, now_s: float) -> Iterator[Finding]:
    """Of the daemon's own files: store, lease, heartbeat, profiles."""
    daemon = settings.daemon
    try:
        store = live_store(settings)
        seen, lease, switches = store.view("status") or {}, store.lease(), store.settings()
    except StoreError as error:
        yield Finding("bad", str(error), "start lucidd; it makes the store, or moves a damaged one aside")
        return
    yield Finding("ok", f"store {store.path} is readable")
    if lease is None or lease.until_s < now_s or holder_is_dead(lease.holder):
        yield Finding("bad", "lucidd is down: nobody holds the lease", "systemctl start lucidd, and read its log")
    else:
        yield Finding("ok", f"lucidd runs ({lease.holder})")
    for key, value in switches.items():
        name = key.removeprefix("mode.")
        if key.startswith("mode.") and (name not in daemon.partitions or value not in set(Mode)):
            yield Finding("warn", f"a switch {key} = {value} names nothing known", "lucidctl mode … configured")
    if switches.get("paused") == "1":
        yield Finding("warn", "lucidd is paused", "lucidctl resume")
    if seen.get("last_error"):
        yield Finding("bad", f"the last cycle failed: {seen['last_error']}", "mend that; lucidd tries again")
    if seen.get("breaker_why"):
        yield Finding("warn", f"the breaker is open: {seen['breaker_why']}", "look at slurmctld's load (sdiag)")
    yield from _models(settings, seen.get("models", {}))
    beat = read_heartbeat(Path(daemon.heartbeat))
    if beat is None:
        yield Finding(
            "bad", f"{daemon.heartbeat}: no heartbeat, so job_submit.lua leaves every job alone",
            "let lucidd's user write that folder; on another host than slurmctld's, share it",
        )  # fmt: skip
    elif now_s - beat.at_s > _STALE_S:
        yield Finding("bad", f"the heartbeat is {now_s - beat.at_s:.0f} s old", "lucidctl status says why")
    yield from _samples(daemon.samples_dir)
    folder = Path(daemon.profiles_dir or Path(daemon.state_dir) / "profiles")
    if Mode.PACK in daemon.partitions.values():
        if not folder.is_dir():
            yield Finding(
                "warn", f"{folder}: no such folder, so no job is ever measured and none shares",
                "make it, writable for the samplers and shared with the nodes, or set daemon.profiles_dir",
            )  # fmt: skip
        else:
            files = ProfileFolder(folder)
            files.new()
            for words in files.bad.values():
                yield Finding("warn", words)


def _samples(samples_dir: str) -> Iterator[Finding]:
    spool = Path(samples_dir)
    if not samples_dir:
        return
    if not spool.is_dir():
        yield Finding("bad", f"{spool}: no such folder, so no samples are taken in",
                      "make it the samplers' --spool, shared with nodes, or unset daemon.samples_dir")  # fmt: skip
    elif not os.access(spool, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("warn", f"{spool}: user {os.geteuid()} may not delete there; if lucidd may not either, what it "
                      "has taken in stays", "one group for samplers and lucidd")  # fmt: skip


def _models(settings: Settings, serving: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    for kind, found in serving.items():
        if found["trouble"]:
            yield Finding("warn", f"the {kind} model in service cannot be used: {found['why']}",
                          f"lucidctl models rollback {kind}, or train anew")  # fmt: skip
    lacking = [name for name in ("sklearn", "interpret", "rapidfuzz") if find_spec(name) is None]
    if settings.models.every_h and lacking:
        yield Finding("warn", f"{', '.join(lacking)} not installed: no model is ever trained, history means answer",
                      "pip install 'lucid-scheduler[models]', or models.every_h = 0")  # fmt: skip


def look_over_cluster(
    settings: Settings,
    version: tuple[int, int],
    config: Mapping[str, str],
    nodes: Sequence[SlurmNode],
    jobs: Sequence[SlurmJob],
    now_s: float,
) -> Iterator[Finding]:
    """Of Slurm as it answers."""
    daemon = settings.daemon
    packs = [name for name, mode in daemon.partitions.items() if mode is Mode.PACK]
    orders = [name for name, mode in daemon.partitions.items() if mode is Mode.ORDER]
    yield Finding("ok", f"Slurm {version[0]}.{version[1]:02} answers")
    if packs and version < _REPLACES:
        yield Finding(
            "bad", f"Slurm {version[0]}.{version[1]:02} adds to a waiting job's request instead of replacing it",
            "pack mode needs 23.11 or later; use order",
        )  # fmt: skip
    if "multifactor" not in config.get("PriorityType", "") and (orders or packs):
        yield Finding("bad" if orders else "warn", f"PriorityType={config.get('PriorityType')}: no site factors",
                      "PriorityType=priority/multifactor")  # fmt: skip
    if packs:
        if "lua" not in config.get("JobSubmitPlugins", ""):
            yield Finding("bad", "job_submit.lua is not loaded, so no job is ever held for Lucid",
                          "JobSubmitPlugins=lua, and install slurm/job_submit.lua")  # fmt: skip
        lacking = {"gpu", "shard"} - set(config.get("GresTypes", "").split(","))
        if lacking:
            yield Finding("bad", f"GresTypes lacks {', '.join(sorted(lacking))}", "GresTypes=gpu,shard")
        if config.get("JobRequeue", "1").startswith("0"):
            yield Finding("warn", "JobRequeue=0: no job may be requeued, so none is profiled", "JobRequeue=1")
        if daemon.mps and "extra_constraints" in config.get("SchedulerParameters", ""):
            yield Finding("bad", "SchedulerParameters has extra_constraints: Slurm takes what lucidd writes into a "
                          "job's Extra for a constraint on nodes", "daemon.mps = false (pairs then share by "
                          "time-slicing), or do without extra_constraints")  # fmt: skip
        if daemon.mps and config.get("Prolog", "(null)") in ("", "(null)"):
            yield Finding("warn", "no Prolog: nothing starts MPS, so pairs share by time-slicing",
                          "Prolog=…/prolog.d/* and mps in node.conf, or daemon.mps = false")  # fmt: skip
        if config.get("TaskProlog", "(null)") in ("", "(null)"):
            yield Finding("warn", "no TaskProlog: an inner srun fails in a job that shares and has --gpus…",
                          "TaskProlog=…/slurm/task_prolog")  # fmt: skip
    yield from _partitions(daemon, nodes, packs)
    held = [job for job in jobs if job.pending and job.held and parse_mark(job.admin_comment) is not None]
    beat = read_heartbeat(Path(daemon.heartbeat))
    if held and (beat is None or now_s - beat.at_s > _HELD_S):
        yield Finding("bad", f"{len(held)} jobs are held for a daemon that does not decide",
                      "start lucidd, or let them go: lucidctl uninstall (or slurm/lucid-release --all)")  # fmt: skip
    unknown = {job.partition for job in held} - {*daemon.partitions, daemon.profiling_partition}
    if unknown:
        yield Finding("warn", f"held jobs stand in {', '.join(sorted(unknown))}, which is not in daemon.partitions",
                      "lucidd lets them go; name the partition to keep them")  # fmt: skip


def _partitions(daemon: DaemonSettings, nodes: Sequence[SlurmNode], packs: Sequence[str]) -> Iterator[Finding]:
    known = {name for node in nodes for name in node.partitions}
    wanted = [*daemon.partitions, *([daemon.profiling_partition] if daemon.profiling_partition else [])]
    for name in wanted:
        mine = [node for node in nodes if name in node.partitions]
        if name not in known:
            yield Finding("bad", f"partition {name!r} does not exist (there are: {', '.join(sorted(known))})",
                          "correct daemon.partitions")  # fmt: skip
        elif not any(node.gpu_types for node in mine):
            yield Finding("warn", f"partition {name!r} has no node with GPUs", "nothing will ever be decided there")
        dull = [node.name for node in mine if node.gpu_types and not node.addressable]
        if name in packs and dull:
            yield Finding("bad", f"GPUs of {', '.join(dull[:5])} have no address: nothing shares in {name!r}",
                          "gres.conf and slurm.conf as: lucidctl slurm render")  # fmt: skip
        out = [f"{node.name} ({node.reason})" for node in mine if not node.available]
        if out:
            yield Finding("warn", f"{name}: {len(out)} nodes are not available: {', '.join(out[:5])}",
                          "scontrol show node NAME")  # fmt: skip
    for node in nodes:
        here = [name for name in wanted if name in node.partitions]
        if len(here) > 1:
            yield Finding("warn", f"node {node.name} stands in {' and '.join(here)}; for Lucid it is in {here[0]}",
                          "give each node one of Lucid's partitions")  # fmt: skip
    if packs and not daemon.profiling_partition:
        yield Finding("warn", "no profiling partition: jobs are measured only while they run alone",
                      "daemon.profiling_partition")  # fmt: skip


class _NoProfiles:
    def new(self) -> tuple[()]:
        return ()


@click.command()
@config_option
@click.option("--wait", "wait_s", type=click.FloatRange(min=1), default=60.0, show_default=True)
def uninstall(config: Path, wait_s: float) -> None:
    """Let every job of Lucid's go as its user wrote it, undo site factors, and prove that none is left."""
    settings = live_settings(config)
    store = live_store(settings, write=True)
    store.set_setting("paused", "1")
    token = _right_to_act(store, settings)
    client = CommandClient(settings.slurm.prefix, Breaker(time.monotonic), settings.slurm.timeout_s)
    left = let_everything_go(settings, client, store, token, wait_s, click.echo)
    store.drop_lease(token)
    Path(settings.daemon.heartbeat).unlink(missing_ok=True)
    if left:
        raise ClusterError(f"{len(left)} jobs are still held ({', '.join(left[:10])}); run it again")
    click.echo("no job of Lucid's is held or changed any more; take JobSubmitPlugins=lua out of slurm.conf next")


def _right_to_act(store: Store, settings: Settings) -> int:
    holder = f"{socket.gethostname()}:{os.getpid()}:uninstall"
    now = store.lease()
    dead = now is not None and holder_is_dead(now.holder)
    lease = store.take_lease(holder, time.time(), settings.daemon.lease_s * 20, dead)
    if lease is None:
        held = store.lease()
        raise ConfigError(
            f"lucidd runs ({held.holder if held else '?'}) and is paused now, which lets its jobs go; stop it "
            "(systemctl disable --now lucidd), then run this again for the proof"
        )
    return lease.token


def let_everything_go(
    settings: Settings,
    client: CommandClient,
    store: SqliteStore | Store,
    token: int,
    wait_s: float,
    say: Callable[[str], None],
) -> list[str]:
    """Mend in observe mode until nothing is left to mend; returns the ids of jobs that are still held."""
    modes = dict.fromkeys(settings.daemon.partitions, Mode.OBSERVE)
    cluster = SlurmCluster(
        client, store, _NoProfiles(), SystemClock(), settings.slurm, settings.daemon, lambda: modes,
        lambda _job, _profile: False, lambda _job: False, token,
    )  # fmt: skip
    until = time.monotonic() + wait_s
    while True:
        try:
            cluster.observe()
            for words in cluster.heal():
                say(words)
            cluster.order({})
            cluster.observe()
            left = cluster.still_ours()
        except LucidError as error:
            say(str(error))
            left = ["?"]
        if not left or time.monotonic() > until:
            return left
        time.sleep(1.0)
