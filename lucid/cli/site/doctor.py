"""``lucidctl doctor`` and ``uninstall``: what is wrong and its remedy; and the release of all jobs."""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from lucid.cli.console import answer, say
from lucid.cli.jobs.queue import live_settings, live_store
from lucid.cli.options import config_option
from lucid.config.load import OF_SIMULATIONS, Settings, simulation_keys
from lucid.daemon.leader import somebody_may_act
from lucid.daemon.modes import KEY, modes_from, overtaken
from lucid.daemon.policies import check_policy
from lucid.errors import ClusterError, ClusterUnreadable, ConfigError, Finding, LucidError, StoreError, bad
from lucid.places import Mode
from lucid.setup.doctor import check_site
from lucid.setup.doctor_state import check_files, check_state, root_of
from lucid.setup.host_actions import RELEASE, by_hand_where
from lucid.setup.site import see_site
from lucid.slurm.client import Breaker
from lucid.slurm.cluster import SlurmCluster, SystemClock
from lucid.slurm.commands import CommandClient
from lucid.slurm.pyslurm import make_client
from lucid.slurm.view.profiles import ProfileFolder
from lucid.store.lease import IN_MEMORY
from lucid.store.port import Lease, holder_is_dead
from lucid.store.sqlite import SqliteStore
from lucid.text import shown

_UNSEEN = "?"


@click.command()
@config_option
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where slurmctld's files lie.  [default: /, or the folder of a chroot in slurm.prefix]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(config: Path, root: Path | None, as_json: bool) -> None:
    """Look for configuration mistakes, and name the remedy of each. Changes nothing.

    Exit status 1 if something is bad."""
    findings = diagnose(live_settings(config), root)
    answer({"findings": [f.to_dict() for f in findings]}, as_json, findings_words(findings))
    if any(found.level == "bad" for found in findings):
        raise SystemExit(1)


def findings_words(findings: Sequence[Finding]) -> Iterator[str]:
    """The findings in words, bad ones first, each with its remedy."""
    for found in sorted(findings, key=lambda f: ("bad", "warn", "ok").index(f.level)):
        yield f"{found.level:>4}  {shown(found.what)}" + (f"\n      -> {found.remedy}" if found.remedy else "")


def diagnose(settings: Settings, root: Path | None = None) -> list[Finding]:
    """All findings: on lucidd's own state, on Slurm as it answers, and on Slurm's files below *root*."""
    findings = [*check_state(settings, time.time())]
    try:
        check_policy(settings, "lucid.toml")
    except ConfigError as error:
        findings.append(bad(str(error), "mend daemon.policy, then restart lucidd: it does not start so"))
    if keys := simulation_keys(settings):
        findings.append(bad(f"{', '.join(keys)} in lucid.toml: {OF_SIMULATIONS}", "lucidd does not start with them"))
    modes, in_force = _modes(settings), None
    client = make_client(settings.slurm, Breaker(time.monotonic))
    try:
        site = see_site(client, time.time, _lucidds_user(settings))
    except ClusterUnreadable as error:
        findings.append(bad(str(error), "docs/slurm-versions.md says which versions of Slurm were seen"))
    except ClusterError as error:
        findings.append(bad(f"Slurm does not answer: {error}", "check slurm.prefix; does slurmctld run?"))
    else:
        in_force = site.config
        findings += check_site(settings, modes, site)
    if Mode.PACK in modes.values():
        findings += check_files(settings, root or root_of(settings), in_force)
    return list(dict.fromkeys(findings))


def _lucidds_user(settings: Settings) -> str | None:
    """The user who writes the heartbeat, where root asks; empty where Slurm's commands are run as lucidd's user, or
    nobody writes one; ``None`` for all other users, to whom Slurm need not say what that user may do."""
    with suppress(OSError, KeyError):
        owner = Path(settings.daemon.heartbeat).stat().st_uid
        if not settings.slurm.prefix and owner != os.geteuid():
            return pwd.getpwuid(owner).pw_name if os.geteuid() == 0 else None
    return ""


def _modes(settings: Settings) -> dict[str, Mode]:
    """The modes at lucidd's next start, with the switches; as if nothing were paused."""
    try:
        switches = live_store(settings).settings()
    except StoreError:
        switches = {}
    gone = {"paused", *(KEY + name for name in overtaken(settings, switches))}
    return modes_from(settings, {key: value for key, value in switches.items() if key not in gone})


@click.command()
@config_option
@click.option("--wait", "wait_s", type=click.FloatRange(min=1), default=60.0, show_default=True)
def uninstall(config: Path, wait_s: float) -> None:
    """Release every job that Lucid holds, and check it.

    Each job keeps the request that its user wrote. Site factors are set back to 0. lucidd must be stopped. Nothing
    else is changed: setup --undo also gives Slurm its configuration back, and pause stops Lucid for a while."""
    leave_slurm(config, wait_s, say)
    say("Lucid holds and changes no job any more; take JobSubmitPlugins=lua out of slurm.conf next")


def leave_slurm(config: Path, wait_s: float, say: Callable[[str], None]) -> None:
    """Release every job that Lucid holds, and give up lucidd's lease.

    Raises: ConfigError: lucidd runs, or its settings cannot be read. ClusterError: after *wait_s* jobs are still
    held, or nobody can tell."""
    with by_hand_where("Nothing is uninstalled."):
        settings = live_settings(config)
    store = _store_to_leave(settings)
    token = _right_to_act(store, settings)
    client = make_client(settings.slurm, Breaker(time.monotonic))
    left = let_everything_go(settings, client, store, token, wait_s, say)
    store.drop_lease(token)
    beat = Path(settings.daemon.heartbeat)
    try:
        beat.unlink(missing_ok=True)
    except OSError as error:
        say(f"{beat}: cannot be deleted ({error.strerror}); job_submit.lua uses it for another minute")
    if left == [_UNSEEN]:
        raise ClusterError(
            f"whether jobs are still held cannot be told (see above); run it again, or: {RELEASE} --all"
        )
    if left:
        raise ClusterError(
            f"{len(left)} jobs are still held ({', '.join(left[:10])}); run it again, or: {RELEASE} --all"
        )


def _store_to_leave(settings: Settings) -> SqliteStore:
    """The store, paused. If it cannot be written (a full disk, another user's folder), one in memory with what can
    still be read of it: Slurm also has what must be done to the jobs."""
    try:
        store = live_store(settings, write=True)
        store.set_setting("paused", "1")
        return store
    except StoreError as error:
        say(f"{error}; going on without it", err=True)
    memory = SqliteStore(IN_MEMORY)
    try:
        old = live_store(settings)
        lease, notes = old.lease(), old.notes()
    except StoreError as error:
        say(f"{error}; going by what Slurm shows alone", err=True)
        return memory
    lease = lease or Lease("nobody", 0, 0.0)
    taken = memory.take_lease(lease.holder, 0.0, lease.until_s)
    for note in notes.values():
        memory.put_notes([note], taken.token if taken else 0)
    return memory


def _right_to_act(store: SqliteStore, settings: Settings) -> int:
    heartbeat = Path(settings.daemon.heartbeat)
    if somebody_may_act(store, heartbeat, time.time(), settings.daemon.lease_s):
        raise ConfigError(
            f"lucidd runs: {heartbeat} is fresh, though its store says nothing of it; stop it "
            "(systemctl disable --now lucidd), then run this again"
        )
    holder = f"{socket.gethostname()}:{os.getpid()}:uninstall"
    now = store.lease()
    dead = now is not None and holder_is_dead(now.holder)
    lease = store.take_lease(holder, time.time(), settings.daemon.lease_s * 20, now if dead else None)
    if lease is None:
        held = store.lease()
        paused = " and is paused now, which releases its jobs" if store.settings().get("paused") == "1" else ""
        raise ConfigError(
            f"lucidd runs ({held.holder if held else '?'}){paused}; stop it "
            "(systemctl disable --now lucidd), then run this again for the proof"
        )
    return lease.token


def let_everything_go(
    settings: Settings,
    client: CommandClient,
    store: SqliteStore,
    token: int,
    wait_s: float,
    say: Callable[[str], None],
) -> list[str]:
    """Mend in observe mode until nothing is left to mend; returns the ids of jobs that are still held."""
    modes = dict.fromkeys(settings.daemon.partitions, Mode.OBSERVE)
    cluster = SlurmCluster(
        client, store, ProfileFolder(Path("/nonexistent")), SystemClock(), settings.slurm, settings.daemon,
        lambda: modes, lambda _job: False, token,
    )  # fmt: skip
    until, last = time.monotonic() + wait_s, ""
    while True:
        try:
            cluster.observe()
            for words in cluster.heal():
                say(words)
            cluster.order({})
            cluster.observe()
            left = cluster.still_ours()
        except LucidError as error:
            if str(error) != last:
                say(str(error))
            last = str(error)
            left = [_UNSEEN]
        if not left or time.monotonic() > until:
            return left
        time.sleep(1.0)
