"""Doctor's checks of lucidd's own files and lease, of Slurm's files on disk, of jobs' reports, and of a standby."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lucid.config.load import Settings, profiles_folder
from lucid.core.times import DAY_S
from lucid.daemon.barrier import why_nobody_decides
from lucid.daemon.gpu_health import odd_numbers
from lucid.daemon.leader import standby_of
from lucid.daemon.modes import words_of_switches
from lucid.daemon.plan_errors import words_of_plan_errors
from lucid.daemon.reporting.starts import START_TIMES, start_times_of
from lucid.daemon.reporting.status import words_of_left_out
from lucid.errors import ConfigError, Finding, StoreError, bad, warn
from lucid.orchestrator.forecast.ranges import StartTimes
from lucid.places import Mode
from lucid.setup.backup import Journal
from lucid.setup.conf_text import NEEDED, read_texts
from lucid.setup.install import check_installation, heartbeat_in
from lucid.setup.neighbours import MONITORING, monitors, writer_of
from lucid.setup.site import Check, Table, run
from lucid.slurm.act.write import GIVEN_UP
from lucid.slurm.elastic.reports import folder_trouble
from lucid.slurm.heartbeat import read_heartbeat
from lucid.slurm.own.waits import GAVE_LESS
from lucid.slurm.view.failed_pairs import failed_pairs_in, unpaired
from lucid.slurm.view.profiles import ProfileFolder
from lucid.store.file import network_file_system
from lucid.store.port import RELEASED, ActionRow, Lease, StoreUnreadable, holder_is_dead
from lucid.store.sqlite import SqliteStore

_CONF = "etc/slurm/slurm.conf"
_IN_FORCE = tuple(key for key in NEEDED if key != "AccountingStorageTRES")


def root_of(settings: Settings) -> Path | None:
    """The root of slurmctld's files, seen from here: ``/``, or the folder of a ``chroot`` prefix; ``None`` where the
    prefix leads to another machine."""
    words = settings.slurm.prefix
    if not words:
        return Path("/")
    program = words[0].rpartition("/")[2]
    return Path(words[-1]) if program == "chroot" and len(words) > 1 else None


def check_files(settings: Settings, root: Path | None, config: Mapping[str, str] | None) -> Iterator[Finding]:
    """Findings on what ``lucidctl slurm install --check`` checks, below *root*; *config* is what is in force."""
    if root is None or not (root / _CONF).is_file():
        yield warn(
            "slurm.conf is not to be found from here: Lucid's files for Slurm were not looked at",
            "lucidctl slurm install --check, on slurmctld's host",
        )
        return
    try:
        found = check_installation(root, _CONF)
        written = read_texts(root, root / _CONF).settings
    except ConfigError as error:
        yield bad(str(error), "run this as a user who may read it")
        return
    wrong = [finding for finding in found if not finding.ok]
    for finding in wrong:
        yield bad(f"{finding.about}: {finding.says}", finding.remedy)
    if not wrong:
        yield Finding("ok", f"Lucid's files for Slurm below {root} are as shipped, and slurm.conf has what they need")
    yield from _written_over(root, any(not finding.about.startswith("/") for finding in wrong))
    for name in monitors(root, config or {}):
        yield Finding("ok", f"{name}: what counts gres/gpu does not see jobs in slots (gres/shard)", MONITORING)
    yield from _order(settings, root)
    named = heartbeat_in(root, _CONF)
    mine = settings.daemon.heartbeat
    if named is not None and Path(mine) not in (Path(named), root / named.lstrip("/")):
        yield bad(
            f"lucid.plugin.conf has heartbeat {named}, lucidd writes {mine}: job_submit.lua never sees it",
            "one path in daemon.heartbeat and lucid.plugin.conf",
        )
    for key in _IN_FORCE:
        if config is not None and key.lower() in written and written[key.lower()] != config.get(key, ""):
            yield bad(
                f"slurm.conf has {key}={written[key.lower()]}, slurmctld runs with {config.get(key) or '(nothing)'}",
                "scontrol reconfigure; for SelectType and GresTypes restart slurmctld and every slurmd",
            )


def _written_over(root: Path, lacks: bool) -> Iterator[Finding]:
    """Has a tool taken Lucid's lines out of Slurm's files, or not been given them? *lacks*: some are missing."""
    try:
        lost = Journal.read(root).lost()
    except ConfigError:
        lost = ()  # the record is root's alone
    files = dict(read_texts(root, root / _CONF).files)
    gres = (root / _CONF).with_name("gres.conf")
    with suppress(ConfigError):  # told already
        files |= read_texts(root, gres).files if gres.is_file() else {}
    for path in files if lacks or lost else ():
        writer = writer_of(path, files, lost)
        gone = path.resolve() in lost
        if writer is not None and (gone or not lost):
            what = "nothing is left in it of what setup wrote" if gone else "what it lacks has to go into that tool"
            yield bad(
                f"{path} {writer.why}: {what}",
                f"{writer.place}; lucidctl setup --mode pack --dry-run says the lines (docs/site.md)",
            )


def _order(settings: Settings, root: Path) -> Iterator[Finding]:
    """Findings on whether lucid.plugin.conf lets job_submit.lua keep the order."""
    folder = (root / _CONF).parent
    conf = folder / "lucid.plugin.conf"
    lines = conf.read_text(errors="replace").splitlines() if conf.is_file() else []
    words = [line.split() for line in lines]
    if ["shards", "users"] in words and not settings.daemon.share_across_users:
        yield warn(
            "lucid.plugin.conf says `shards users`: while lucidd is away users can ask for shards of GPUs that "
            "others half use, and daemon.share_across_users is false",
            "`shards lucid`, unless nodes outside daemon.partitions have shards",
        )
    exempt = {word[1] for word in words if len(word) == 2 and word[0] == "exempt"}
    if exempt and not exempt - {"0"}:
        yield bad(
            "lucid.plugin.conf exempts nobody but root: lucidd's own changes are refused, and no job starts",
            "a line `exempt UID` for lucidd's user, SlurmUser and each operator; or none at all",
        )


_NAMED = 5


def check_reports(settings: Settings, seen: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings on elastic jobs' reports. ``seen``: lucidd's last status, for what lucidd's own user sees of the
    folder."""
    folder = settings.daemon.elastic.reports_dir
    here, there = folder_trouble(folder), seen.get("reports") or {}
    if here.words:
        yield (bad if here.blind else warn)(here.words, here.remedy)
    elif folder and there.get("words"):
        yield (bad if there["blind"] else warn)(f"as lucidd sees it: {there['words']}", there["remedy"])
    elif folder:
        yield Finding("ok", f"jobs can report to {folder}")
    doubted = dict[str, str](seen.get("doubted") or {})
    for job_id, words in list(doubted.items())[:_NAMED]:
        yield warn(
            f"job {job_id}: what it reports does not agree with lucidd's clock or sampler: {words}",
            f"lucidctl explain {job_id} tells what follows for it, docs/systems/elastic.md how a job reports",
        )
    if len(doubted) > _NAMED:
        yield warn(f"and {len(doubted) - _NAMED} more jobs whose reports do not agree", "lucidctl status --json")


def check_failover(settings: Settings, store: SqliteStore, lease: Lease | None, now_s: float) -> Iterator[Finding]:
    """Findings on a standby: the journal, the places that both hosts must have, and who stands by.

    Raises: StoreError: the store cannot be read."""
    daemon = settings.daemon
    kind = network_file_system(store.path.parent)
    if (kind or daemon.shared_state) and store.journal == "wal":
        where = f"on {kind}" if kind else "said to be shared"
        yield bad(
            f"{store.path} is {where} and has a write-ahead log, which works within one host only: a second lucidd "
            "may read what is not so",
            "stop lucidd on every host, then start it again with daemon.shared_state = true",
        )
    if not daemon.shared_state:
        if kind:
            yield warn(
                f"{store.path} is on {kind}, and daemon.shared_state is not set",
                "daemon.shared_state = true if a second lucidd stands by; else a state_dir on a disk of this host",
            )
        return
    heartbeat = Path(daemon.heartbeat)
    if heartbeat.is_relative_to("/run") or heartbeat.is_relative_to("/tmp"):
        yield bad(
            f"daemon.heartbeat = {heartbeat} is of one host, with daemon.shared_state: the other host's slurmctld "
            "sees no heartbeat, and its timer releases held jobs",
            "a path on the shared file system, in lucid.toml, lucid.plugin.conf and release.env of both hosts",
        )
    waits = standby_of(store)
    if waits is None or not waits.stands_by(lease, now_s):
        yield warn(
            "daemon.shared_state is set and no lucidd stands by: nobody takes over when this host is lost",
            "systemctl start lucidd on the other host, and read its log",
        )
    else:
        yield Finding("ok", f"lucidd on {waits.host} stands by (pid {waits.pid})")


_STALE_S = 60.0
_SITE_SCRIPTS = "a Prolog or Epilog of yours takes a GPU for one job's: docs/files.md, 'Your own Prolog and Epilog'"
_STARTS = 50
"""The least number of starts for saying that forecasts hold."""
_LEAST_FREE_MIB = 512
_ACTIONS = 20_000
_REFUSED_JOBS = 3
"""So many jobs in a row of which Slurm refused a change: that lies not in the jobs."""


def check_state(settings: Settings, now_s: float) -> Iterator[Finding]:
    """Findings on what lucidd keeps and writes. Folders are judged by what the user who runs this may do."""
    yield from _store(settings, now_s)
    yield from _heartbeat(Path(settings.daemon.heartbeat), now_s)
    yield from _profiles(settings)
    lacking = [name for name in ("sklearn", "interpret", "rapidfuzz") if find_spec(name) is None]
    if settings.models.every_h and lacking:
        yield warn(
            f"{', '.join(lacking)} not installed: no model is ever trained, history means answer",
            "pip install 'lucid-scheduler[models]', or models.every_h = 0",
        )


def _store(settings: Settings, now_s: float) -> Iterator[Finding]:
    folder = Path(settings.daemon.state_dir)
    free = _free(folder)
    yield from free
    try:
        store = SqliteStore(folder / "lucid.db", read_only=True)
        seen, lease, switches = store.view("status") or {}, store.lease(), store.settings()
        released = [*_releases(store.actions(limit=_ACTIONS), now_s)]
        told = [*_start_times(start_times_of(store.view(START_TIMES)))]
        failover = [*check_failover(settings, store, lease, now_s)]
    except StoreUnreadable as error:
        yield warn(f"{error}: it was not looked at", "let root or lucidd's user run lucidctl doctor")
        return
    except StoreError as error:
        yield bad(str(error), "make room there, then restart lucidd" if free else _remedy(settings, now_s))
        return
    yield Finding("ok", f"store {store.path} is readable")
    store.close()
    if not os.access(folder, os.W_OK) or not os.access(store.path, os.W_OK):
        yield warn(f"{folder} cannot be written by this user", "run this as lucidd's user; is it that user's folder?")
    if lease is None or lease.until_s < now_s or holder_is_dead(lease.holder):
        yield from (bad(what, remedy) for what, remedy in why_nobody_decides(settings, lease, now_s))
        seen = {**seen, "configured": {}}
    else:
        yield Finding("ok", f"lucidd runs ({lease.holder})")
    yield from words_of_switches(settings, switches, seen.get("configured", {}))
    if switches.get("paused") == "1":
        yield warn("lucidd is paused", "lucidctl resume")
    yield from _failed_pairs(switches)
    yield from failover
    yield from released
    yield from told
    yield from check_reports(settings, seen)
    yield from run(_STATUS, seen)


def _failed_pairs(switches: Mapping[str, str]) -> Iterator[Finding]:
    """Findings on nodes where no more pairs are made, and why."""
    failed = failed_pairs_in(switches)
    for name in sorted(unpaired(failed)):
        yield bad(f"no more pairs are made in {name}: Slurm drained several of its nodes over pairs", _SITE_SCRIPTS)
    for one in sorted(failed.values(), key=lambda one: one.node):
        yield bad(
            f"no more pairs are made on {one.node} since {_since(one.since_s)}: job {one.job} was to share GPUs "
            f"there, and Slurm drained the node with {one.reason!r}",
            f"{_SITE_SCRIPTS}; then scontrol update NodeName={one.node} State=RESUME, and "
            f"lucidctl mode {min(one.partitions, default='PARTITION')} configured",
        )


_Seen = Check[Mapping[str, Any]]


def _of_gpus(key: str) -> Callable[[Mapping[str, Any]], list[Any]]:
    """What lucidd says of GPUs that are not well, and of nodes that do not report."""
    return lambda seen: list((seen.get("gpu_health") or {}).get(key) or ())


def _since(at_s: float) -> str:
    return time.strftime("%F %H:%M", time.localtime(at_s))


def _lost_tags(seen: Mapping[str, Any]) -> tuple[int, str] | None:
    """Our jobs that only lucidd's own notes mark as ours."""
    lost = seen.get("lost_tags")
    return (len(lost), ", ".join(lost[:5]) + (", …" if lost[5:] else "")) if lost else None


_STATUS: Table[Mapping[str, Any]] = (
    _Seen("warn", lambda s: [
        (f"{one['node']}:{one['index']}", _since(one["since_s"]), one["words"]) for one in _of_gpus("out")(s)],
        "GPU {} is out since {}: {}", "once it is well: lucidctl gpu return {0}"),
    _Seen("bad", lambda s: len(_of_gpus("beyond")(s)),
        "{} GPUs more are said to be not well than Lucid takes out by itself",
        "look at these nodes and their samplers: lucidctl gpu health; daemon.gpu_health.most_share is the bound"),
    _Seen("warn", _of_gpus("not_kept"), "Slurm's own jobs are not kept off GPU {0[gpu]}: {0[why]}",
        "docs/gpu-health.md says what it needs"),
    _Seen("warn", _of_gpus("sampler_silent"), "{}: its sampler has told nothing for minutes",
        "systemctl status lucid-sampler there"),
    _Seen("warn", _of_gpus("driver_silent"), "{0[node]}: the driver as a whole does not answer",
        "nvidia-smi there; the node's log"),
    _Seen("bad", lambda s: [odd_numbers(one) for one in _of_gpus("odd_numbers")(s)], "{}",
        "gres.conf there: Type=g3 for File=/dev/nvidia3, and so on (docs/gpu-health.md)"),
    _Seen("ok", lambda s: len(_of_gpus("watched")(s)), "the GPUs of {} nodes are watched"),
    _Seen("warn", _lost_tags,
        "AdminComment of {} jobs of ours is somebody else's ({}): lucidd goes by its notes, but job_submit.lua no "
        "longer knows their users' holds and releases",
        "let the site's prolog write behind what is there (lucid:… text), or elsewhere (docs/submission.md)"),
    _Seen("bad", lambda s: len(jobs := s.get("refused") or []) >= _REFUSED_JOBS and (len(jobs), jobs[-1]),
        "Slurm refuses what lucidd changes: the last {} jobs, none taken since ({})",
        "a job_submit plugin of the site's own has to let changes by lucidd's user pass (docs/files.md, 'A plugin of "
        "your own'); is that user a Slurm operator? sacctmgr show user"),
    _Seen("bad", lambda s: s.get("list_trouble"), "{}", "make room there, and give the folder to lucidd's user"),
    _Seen("bad", lambda s: s.get("last_error"), "the last cycle failed: {}", "mend that; lucidd tries again"),
    _Seen("bad", words_of_plan_errors, "{}",
        "lucidd's log has the traceback (journalctl -u lucidd); another daemon.policy, or daemon.policies for that "
        "partition; lucidd tries again by itself; please report it"),
    _Seen("warn", words_of_left_out, "{}",
        "docs/recovery.md tells what Lucid assumes of it; scontrol show job shows a job"),
    _Seen("warn", lambda s: s.get("breaker_why"), "the breaker is open: {}", "look at slurmctld's load (sdiag)"),
    _Seen("warn", lambda s: [
        (kind, found.get("why", "")) for kind, found in s.get("models", {}).items() if found.get("trouble")],
        "the {} model in service cannot be used: {}", "lucidctl models rollback {0}, or train anew"),
)  # fmt: skip
"""All that is looked for in what lucidd said last of itself."""


def _start_times(times: StartTimes) -> Iterator[Finding]:
    """Findings on whether jobs start when it was forecast."""
    share, count = times.coverage()
    if times.misses:
        yield warn(
            f"of the last {count} starts after more than a minute's wait, {share:.0%} fell inside the range that was "
            "forecast (80 % should)",
            "lucidctl history shows forecast against start; are estimates far off? lucidctl models status",
        )
    elif count >= _STARTS:
        yield Finding("ok", f"of the last {count} waits, {share:.0%} ended inside the range that was forecast")


def _releases(actions: Sequence[ActionRow], now_s: float) -> Iterator[Finding]:
    """Findings on jobs that a start gave less than they ask for, or that Slurm did not start as Lucid asked, by its
    words."""
    causes: Counter[str] = Counter()
    last: dict[str, str] = {}
    recent = [row for row in actions if row.verb == RELEASED and now_s - row.at_s < DAY_S]
    for row in recent:
        if GIVEN_UP in row.detail:
            cause = re.sub(r"[0-9]+", "N", row.detail.rpartition("(")[2].rstrip(")"))
            causes[cause] += 1
            last[cause] = row.job_id
    less = [row.job_id for row in recent if GAVE_LESS in row.detail]
    if less:
        yield warn(
            f"{len(less)} start{'s' * (len(less) > 1)} of the last day gave less than the job asks for; the task "
            "prolog sent them back before the script's first line, and Slurm starts them as their users wrote them",
            f"lucidctl explain {less[-1]} tells what was missing; please report it",
        )
    for cause, count in causes.most_common():
        yield warn(
            f"Slurm did not start {count} job{'s' * (count > 1)} of the last day as Lucid asked ({cause}); "
            "Lucid released them as their users wrote them",
            f"lucidctl explain {last[cause]} tells what was asked",
        )


def _free(folder: Path) -> list[Finding]:
    try:
        free_mib = shutil.disk_usage(folder).free >> 20
    except OSError:
        return []  # there is no such folder: the store's story tells it
    if free_mib >= _LEAST_FREE_MIB:
        return []
    return [bad(f"{folder}: {free_mib} MiB are free; a full disk stops every decision", "make room there")]


def _remedy(settings: Settings, now_s: float) -> str:
    """What to do about a store that cannot be read."""
    beat = read_heartbeat(Path(settings.daemon.heartbeat))
    if beat is None or now_s - beat.at_s > _STALE_S:
        return "start lucidd; it makes the store, or moves a damaged one aside"
    return (
        f"lucidd runs: its heartbeat is {max(now_s - beat.at_s, 0.0):.0f} s old. If the store was deleted, lucidd "
        "begins a new one in its next cycle; if this stays, its log says why (journalctl -u lucidd)"
    )


def _heartbeat(path: Path, now_s: float) -> Iterator[Finding]:
    beat = read_heartbeat(path)
    if not path.parent.is_dir():
        yield bad(
            f"{path.parent}: no such folder, so there is no heartbeat", "RuntimeDirectory=lucid in lucidd.service"
        )
    elif not os.access(path.parent, os.W_OK) and (beat is None or now_s - beat.at_s > _STALE_S):
        yield bad(
            f"{path.parent} cannot be written by this user: no heartbeat, and job_submit.lua leaves every job alone",
            "give the folder to lucidd's user (and run this as that user)",
        )
    elif beat is None:
        yield bad(
            f"{path}: no heartbeat, so job_submit.lua leaves every job alone",
            "start lucidd; on another host than slurmctld's, share the folder",
        )
    if beat is not None and now_s - beat.at_s > _STALE_S:
        yield bad(f"the heartbeat is {now_s - beat.at_s:.0f} s old", "lucidctl status says why")
    elif beat is not None and beat.at_s - now_s > _STALE_S:
        yield bad(
            f"the heartbeat is {beat.at_s - now_s:.0f} s ahead of this clock", "chrony or ntpd; then start lucidd"
        )


def _profiles(settings: Settings) -> Iterator[Finding]:
    daemon = settings.daemon
    if Mode.PACK not in daemon.partitions.values():
        return
    folder = profiles_folder(settings)
    if folder.parent.is_dir() and not os.access(folder.parent, os.X_OK):
        return  # not for this user, as the store's story tells
    if not folder.is_dir():
        yield warn(
            f"{folder}: no such folder, so no job is ever measured and none shares",
            "make it, writable for the samplers and shared with the nodes, or set daemon.profiles_dir",
        )
        return
    files = ProfileFolder(folder)
    files.new()
    for words in files.bad.values():
        yield warn(words, "remove that file: its job counts as not measured")
