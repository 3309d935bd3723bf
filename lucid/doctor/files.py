"""What may be wrong with the files that Slurm reads, and whether slurmctld runs with what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from lucid.config import Settings
from lucid.errors import ConfigError
from lucid.live.reporting.doctor_finding import Finding, bad, warn
from lucid.slurmconf.check import check_installation, heartbeat_in, settings_in

__all__ = ["look_over_files", "root_of"]

_CONF = "etc/slurm/slurm.conf"
_IN_FORCE = (
    "GresTypes",
    "SelectType",
    "JobSubmitPlugins",
    "CliFilterPlugins",
    "PriorityType",
    "TaskProlog",
    "Prolog",
    "Epilog",
)


def root_of(settings: Settings) -> Path | None:
    """Where slurmctld's files lie, seen from here: ``/``, or the folder of a ``chroot`` prefix; ``None`` where the
    prefix leads to another machine."""
    words = settings.slurm.prefix
    if not words:
        return Path("/")
    program = words[0].rpartition("/")[2]
    return Path(words[-1]) if program == "chroot" and len(words) > 1 else None


def look_over_files(settings: Settings, root: Path | None, config: Mapping[str, str] | None) -> Iterator[Finding]:
    """Of what ``lucidctl slurm install --check`` looks at, below *root*; *config* is what is in force."""
    if root is None or not (root / _CONF).is_file():
        yield warn(
            "slurm.conf is not to be found from here: Lucid's files for Slurm were not looked at",
            "lucidctl slurm install --check, on slurmctld's host",
        )
        return
    try:
        found = check_installation(root, _CONF)
        written = settings_in(root, _CONF)
    except ConfigError as error:
        yield bad(str(error), "run this as a user who may read it")
        return
    wrong = [finding for finding in found if not finding.ok]
    for finding in wrong:
        yield bad(f"{finding.about}: {finding.says}", finding.remedy)
    if not wrong:
        yield Finding("ok", f"Lucid's files for Slurm below {root} are as shipped, and slurm.conf has what they need")
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


def _order(settings: Settings, root: Path) -> Iterator[Finding]:
    """Does lucid.plugin.conf let job_submit.lua keep the order?"""
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
