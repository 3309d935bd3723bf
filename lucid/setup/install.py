"""Lucid's own files for Slurm and systemd: their installation, and whether they and Slurm's configuration will do.

The check reads files as they lie on disk. Edits of lucid.toml, too: they set single keys, so that comments and all
other lines stay."""

from __future__ import annotations

import json
import re
import shutil
import stat
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lucid.errors import ConfigError
from lucid.files import write_atomic
from lucid.setup.conf_text import NEEDED, Texts, read_texts
from lucid.setup.render import ADDRESS, MOST_SLOTS, SLOTS, misnamed
from lucid.slurm.records.fields import hosts


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """A file that Lucid ships. ``source`` within ``slurm/``, a pattern for a file that is joined from parts, in the
    order of their names; ``target`` below the root of the file system. ``site_may_have`` says that a site may have a
    file of its own there, which is never replaced unasked; ``daemon`` that it belongs to lucidd and not to Slurm."""

    source: str
    target: str
    executable: bool = False
    site_may_have: bool = False
    daemon: bool = False

    @property
    def packaged(self) -> str:
        """The file's path in Lucid's deb and rpm, below the root of the file system, if it belongs to lucidd."""
        name = self.target.rpartition("/")[2]
        return f"usr/sbin/{name}" if self.executable else f"usr/lib/systemd/system/{name}"


PROGRAMS = Path("/opt/lucid/bin")
"""Where docs/install.md puts Lucid's programs, and the units as shipped look for them."""
_PROGRAM = re.compile(rb"^(Exec(?:Start|Reload)=)\S*/(lucidd|lucid-sampler|lucid-web)\b", re.MULTILINE)

FILES = (
    ShippedFile("job_submit/*.lua", "etc/slurm/job_submit.lua", site_may_have=True),
    ShippedFile("cli_filter.lua", "etc/slurm/cli_filter.lua", site_may_have=True),
    ShippedFile("prolog.d/50-lucid", "etc/slurm/lucid/prolog.d/50-lucid", executable=True),
    ShippedFile("epilog.d/50-lucid", "etc/slurm/lucid/epilog.d/50-lucid", executable=True),
    ShippedFile("node_hook.sh", "etc/slurm/lucid/node_hook.sh"),
    ShippedFile("task_prolog", "etc/slurm/lucid/task_prolog", executable=True),
    ShippedFile("lucid_report.py", "etc/slurm/lucid/lucid_report.py", executable=True),
    *(
        ShippedFile(f"lucid_{name}.py", f"etc/slurm/lucid/lucid_{name}.py")
        for name in ("elastic", "lightning", "torch", "transformers", "turns")
    ),
    ShippedFile("lucid_run.py", "etc/slurm/lucid/lucid_run.py", executable=True),
    *(
        ShippedFile(f"lucid_job/{name}.py", f"etc/slurm/lucid/lucid_job/{name}.py")
        for name in ("__init__", "adaptdl", "checkpoints", "members", "nodes", "ranks", "untrusted")
    ),
    *(
        ShippedFile(f"mps/{name}", f"etc/slurm/lucid/mps/{name}", executable=True)
        for name in ("start", "stop", "check")
    ),
    ShippedFile("unseal", "etc/slurm/lucid/unseal", executable=True),
    ShippedFile("site_scripts", "etc/slurm/lucid/site_scripts", executable=True),
    ShippedFile("lucid_hooks/site.py", "etc/slurm/lucid/lucid_hooks/site.py"),
    *(
        ShippedFile(f"lucid_hooks/{name}.py", f"etc/slurm/lucid/lucid_hooks/{name}.py")
        for name in ("__init__", "__main__", "commands", "control", "plan", "processes", "seal", "sharing", "state")
    ),
    ShippedFile("lucid-release", "etc/slurm/lucid/lucid-release", executable=True, daemon=True),
    ShippedFile("systemd/lucidd.service", "etc/systemd/system/lucidd.service", daemon=True),
    ShippedFile("systemd/lucid-sampler.service", "etc/systemd/system/lucid-sampler.service", daemon=True),
    ShippedFile("systemd/lucid-web.service", "etc/systemd/system/lucid-web.service", daemon=True),
    ShippedFile("systemd/lucid-release.service", "etc/systemd/system/lucid-release.service", daemon=True),
    ShippedFile("systemd/lucid-release.timer", "etc/systemd/system/lucid-release.timer", daemon=True),
)


def shipped_folder() -> Path:
    """The folder ``slurm/`` of this installation: of a checkout, or as installed beside Python's other data.

    Raises:
        ConfigError: neither is there."""
    places = [Path(__file__).resolve().parents[2] / "slurm", Path(sys.prefix) / "share/lucid/slurm"]
    for place in places:
        if (place / "job_submit").is_dir():
            return place
    raise ConfigError(f"Lucid's files for Slurm are in none of {', '.join(map(str, places))}; install Lucid anew")


def shipped_content(file: ShippedFile, programs: Path = PROGRAMS) -> bytes:
    """The content of *file* where Lucid's programs are in the folder *programs*.

    Raises: ConfigError: this installation has no such file."""
    parts = sorted(shipped_folder().glob(file.source))
    if not parts:
        raise ConfigError(f"Lucid's {file.source} for Slurm is not there; install Lucid anew")
    content = b"".join(part.read_bytes() for part in parts)
    return _PROGRAM.sub(rb"\g<1>" + str(programs).encode() + rb"/\g<2>", content) if file.daemon else content


def program_in(unit: bytes) -> Path | None:
    """Lucid's program that a systemd unit starts, if it starts one."""
    found = _PROGRAM.search(unit)
    return Path(found[0].decode().partition("=")[2]) if found else None


def programs_here(root: Path) -> Path:
    """The folder of the programs that units below *root* are to start: this installation's, where the units are this
    machine's own; else where docs/install.md puts them."""
    here = Path(sys.executable).parent
    return here if root == Path("/") and (here / "lucidd").exists() else PROGRAMS


def of_package(root: Path) -> bool:
    """Whether Lucid's deb or rpm brings lucidd's own files below *root*. Then no others are put before them."""
    return (root / "usr/lib/systemd/system/lucidd.service").exists()


def install_files(root: Path, *, force: bool = False, units: bool = False) -> list[str]:
    """Copy every file below *root*; returns what was done, a line a file. Slurm's own configuration is not touched.

    Args:
        root: ``/``, or the root of a chroot.
        units: Only the systemd units and lucid-release, which is all that observe and order mode need.
        force: Replace a job_submit.lua or cli_filter.lua of the site's own; it is kept as ``….before-lucid``.

    Raises:
        ConfigError: the site has such a file and ``force`` is not given, or a file cannot be written. Files are
            looked at before any is written."""
    files = [file for file in FILES if file.daemon or not units]
    for file in files:
        target = root / file.target
        if file.site_may_have and not force and target.exists() and not is_lucids(target):
            raise ConfigError(
                f"{target} is there already and is not Lucid's; nothing was written. Call Lucid's from it "
                "(docs/files.md, 'A plugin of your own'), or replace it with --force; --units leaves it alone"
            )
    done = []
    packaged = of_package(root)
    for file in files:
        if file.daemon and packaged:
            if (root / file.packaged).exists():
                done.append(f"packaged   {root / file.packaged}")
            continue
        target = root / file.target
        content = shipped_content(file, programs_here(root))
        try:
            if target.is_file() and target.read_bytes() == content:
                done.append(f"unchanged  {target}")
            else:
                if file.site_may_have and target.exists() and not is_lucids(target):
                    shutil.copy2(target, target.with_name(target.name + ".before-lucid"))
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(target, content, mode=0o755 if file.executable else 0o644)
                done.append(f"installed  {target}")
            target.chmod(0o755 if file.executable else 0o644)
        except OSError as error:
            raise ConfigError(f"{target}: cannot be written ({error.strerror}); run this as root") from None
    return done


def is_lucids(path: Path) -> bool:
    """Whether this job_submit.lua or cli_filter.lua is one of ours, of whatever version."""
    try:
        return "Lucid" in path.read_text(encoding="utf-8", errors="replace")[:300]
    except OSError:
        return False


_COUNTS = tuple(map(str, range(SLOTS, MOST_SLOTS + 1)))


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result. ``remedy`` is empty where all is well."""

    about: str
    ok: bool
    says: str
    remedy: str = ""


def check_installation(root: Path, conf: str = "etc/slurm/slurm.conf") -> list[Finding]:
    """The findings on the files below *root*, in the order in which an administrator would put them right.

    Raises: ConfigError: slurm.conf itself cannot be read."""
    texts = read_texts(root, root / conf)
    folder = (root / conf).parent
    return [
        *_files(root),
        *_parameters(texts.settings, _filtered(folder)),
        *_plugin(root, folder),
        *_gres(root, texts, folder / "gres.conf"),
    ]


def heartbeat_in(root: Path, conf: str) -> str | None:
    """The heartbeat that job_submit.lua reads, as lucid.plugin.conf names it; ``None`` where it names none."""
    try:
        text = ((root / conf).parent / "lucid.plugin.conf").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(r"^heartbeat\s+(/\S+)\s*$", text, re.MULTILINE)
    return found[1] if found else None


def _files(root: Path) -> Iterator[Finding]:
    packaged = of_package(root)
    for file in FILES:
        path = root / file.target
        if file.daemon and packaged and not path.exists():
            if (root / file.packaged).exists():
                yield Finding(f"/{file.packaged}", True, "of the package")
            continue
        about = f"/{file.target}"
        put = "lucidctl slurm install"
        try:
            content, mode, owner = path.read_bytes(), path.stat().st_mode, path.stat().st_uid
        except OSError as error:
            yield Finding(about, False, f"cannot be read ({error.strerror})", put)
            continue
        program = program_in(content)
        if content != shipped_content(file, PROGRAMS if program is None else program.parent):
            yield Finding(
                about, False, "is not the one that this version ships", f"{put} (--force if it is the site's)"
            )
        elif program is not None and root == Path("/") and not program.exists():
            yield Finding(
                about, False, f"starts {program}, which is not there", f"{put}, with that installation's own"
            )
        elif mode & (stat.S_IWGRP | stat.S_IWOTH) or owner != 0:
            yield Finding(about, False, "can be written by others than root", f"chown root {path}; chmod go-w {path}")
        elif file.executable and not mode & stat.S_IXUSR:
            yield Finding(about, False, "cannot be executed", f"chmod 755 {path}")
        else:
            yield Finding(about, True, "as shipped")


def _filtered(folder: Path) -> str | None:
    """What breaks without cli_filter.lua, by lucid.plugin.conf; ``None`` where there are no models to ask for, and no
    setting says that srun maps its steps."""
    try:
        text = (folder / "lucid.plugin.conf").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = "type x"  # a finding of its own; nothing is known
    if re.search(r"^type\s+\S", text, re.MULTILINE):
        return "an inner srun of a job that names a GPU model fails"
    if re.search(r"^steps\s+mapped\s*$", text, re.MULTILINE):
        return (
            "an inner srun --gres=gpu:1 of a job that shares fails; or take `steps mapped` out of lucid.plugin.conf"
        )
    return None


def _parameters(settings: dict[str, str], filtered: str | None) -> Iterator[Finding]:
    whys = {
        "SelectType": "GPUs cannot be asked for one by one",
        "GresTypes": "nodes have no GPUs",
        "PriorityType": "order mode has no SiteFactor to set",
        "JobSubmitPlugins": "no job is tagged, so Lucid decides none in pack mode",
        "CliFilterPlugins": filtered,
        "TaskProlog": "an inner srun of a shared job fails",
        "Prolog": "no sampler is started with a job",
        "Epilog": "no sampler is stopped after a job",
    }
    for key, why in whys.items():
        value = settings.get(key.lower(), "")
        have = [item.strip() for item in value.split(",")]
        for word in NEEDED[key].split(",") if why else ():
            if any(item == word or (word.endswith("*") and item.startswith(word[:-1])) for item in have):
                yield Finding(key, True, value)
            else:
                why = "GPUs have no slots, so no two jobs can share one" if word == "shard" else why
                yield Finding(key, False, f"is {value or 'not set'}: {why}", f"{key}={word} in slurm.conf")


def _plugin(root: Path, folder: Path) -> Iterator[Finding]:
    path = folder / "lucid.plugin.conf"
    remedy = "lucidctl slurm render --nodes … --out /etc/slurm"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        yield Finding("lucid.plugin.conf", False, f"{path} cannot be read: models cannot be asked for", remedy)
        return
    found = re.search(r"^heartbeat\s+(/\S+)\s*$", text, re.MULTILINE)
    if not found:
        yield Finding("lucid.plugin.conf", False, "names no heartbeat", remedy)
        return
    yield Finding("lucid.plugin.conf", True, f"heartbeat {found[1]}")
    where = root / found[1].lstrip("/")
    if where.parent.is_dir() and where.parent.stat().st_mode & stat.S_IWOTH:
        yield Finding("heartbeat", False, f"anybody can write in {where.parent}", f"chmod o-w {where.parent}")


def _gres(root: Path, conf: Texts, path: Path) -> Iterator[Finding]:
    remedy = "lucidctl slurm render --nodes … writes gres.conf and the NodeName lines"
    try:
        rows = [statement.pairs for statement in read_texts(root, path).statements]
    except ConfigError as error:
        yield Finding("gres.conf", False, f"cannot be read: {error}", remedy)
        return
    lines = [statement.pairs for statement in conf.statements_of("NodeName")]
    declared = {host: row.get("gres", "") for row in lines for host in hosts(row.get("nodename", ""))}
    detected = [row.get("nodename", "") for row in rows if row.get("autodetect", "off").lower() not in ("off", "")]
    if any(not one or any("shard:" in declared.get(host, "") for host in hosts(one)) for one in detected):
        yield Finding("gres.conf", False, "AutoDetect names GPUs by their model, which hides their addresses", remedy)
    gpus: dict[str, dict[str, None]] = {}  # types in the order of their lines, which is Slurm's order
    slots: dict[str, dict[str, str]] = {}
    for row in rows:
        for host in hosts(row.get("nodename", "")):
            if row.get("name") == "gpu":
                gpus.setdefault(host, {})[row.get("type", "")] = None
            elif row.get("name") == "shard":
                slots.setdefault(host, {})[row.get("type", "")] = row.get("count", "")
    if not gpus:
        yield Finding("gres.conf", False, "has no line `NodeName=… Name=gpu Type=g0 File=…`", remedy)
    bad, plain = 0, [host for host in gpus if host not in slots and "shard:" not in declared.get(host, "")]
    if len(plain) < len(gpus):  # nodes of partitions that only observe may stay as they are
        gpus = {host: types for host, types in gpus.items() if host not in plain}
    for host, types in sorted(gpus.items()):
        count = next(iter(slots.get(host, {}).values()), str(SLOTS))
        wanted = {f"gpu:{kind}:1" for kind in types} | {f"shard:{kind}:{count}" for kind in types}
        wrong = misnamed(row for row in rows if host in hosts(row.get("nodename", "")))
        if not all(ADDRESS.fullmatch(kind) for kind in types):
            says = f"GPU types are {', '.join(sorted(types)) or 'none'}; each GPU needs its own: g0, g1, …"
        elif wrong:
            says = f"an address is the number of its GPU's device file, and {', '.join(wrong)}"
        elif count not in _COUNTS or slots.get(host, {}) != dict.fromkeys(types, count):
            says = f"each GPU needs one line `Name=shard Type=gN Count={SLOTS}` (to {MOST_SLOTS}) with the same File"
        elif set(declared.get(host, "").split(",")) != wanted or not _in_order(types, declared[host]):
            says = (
                f"slurm.conf declares Gres={declared.get(host, '') or '(nothing)'}, which is not what gres.conf has"
            )
        else:
            continue
        bad += 1
        yield Finding(f"node {host}", False, says, remedy)
    if gpus and not bad:
        yield Finding("gres.conf", True, f"{len(gpus)} nodes with an address and slots for each GPU")


def _in_order(types: Iterable[str], gres: str) -> bool:
    return [word for word in gres.split(",") if word.startswith("gpu:")] == [f"gpu:{kind}:1" for kind in types]


NEW_TOML = """\
# Written by `lucidctl setup`; yours to edit. Every key: docs/settings.md.
"""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def with_keys(text: str, table: str, keys: Mapping[str, str | int | Mapping[str, int] | None]) -> str:
    """The text with these keys set in the table *table* (``daemon.partitions``), and without those that are ``None``.
    Keys that have the value already are left as they stand.

    Raises:
        ConfigError: the text is no TOML, or says the table in a way that cannot be edited line by line."""
    try:
        before = _table(tomllib.loads(text), table)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"lucid.toml is no TOML ({error}); mend it first") from None
    wanted = {key: value for key, value in keys.items() if before.get(key) != value}
    if not wanted:
        return text
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    header = re.compile(rf"\s*\[\s*{re.escape(table)}\s*\]\s*(#.*)?$")
    start = next((number for number, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        lines.append(f"[{table}]\n")
        start = len(lines) - 1
    end = next((number for number in range(start + 1, len(lines)) if re.match(r"\s*\[", lines[number])), len(lines))
    while end > start + 1 and not lines[end - 1].strip():
        end -= 1
    for key, value in wanted.items():
        name = key if _BARE.fullmatch(key) else json.dumps(key)
        old = re.compile(rf"""\s*(?:{re.escape(key)}|"{re.escape(key)}"|'{re.escape(key)}')\s*=""")
        at = next((number for number in range(start + 1, end) if old.match(lines[number])), None)
        line = [] if value is None else [f"{name} = {_value(value)}\n"]
        at, past = (end, end) if at is None else (at, at + 1)
        lines[at:past] = line
        end += len(line) - (past - at)
    fresh = "".join(lines)
    try:
        if _table(tomllib.loads(fresh), table) == {k: v for k, v in {**before, **wanted}.items() if v is not None}:
            return fresh
    except tomllib.TOMLDecodeError:
        pass
    says = "; ".join(f"{k} = {'(nothing)' if v is None else _value(v)}" for k, v in wanted.items())
    raise ConfigError(f"lucid.toml has {table} in a form that setup does not edit; write there yourself: {says}")


def without_table(text: str, table: str) -> str:
    """The text without this table and the tables in it; as it is where there is none.

    Raises:
        ConfigError: the text is no TOML, or says the table in a way that cannot be edited line by line."""
    kept, inside = list[str](), False
    header = re.compile(rf"\s*\[\[?\s*{re.escape(table)}\s*[.\]]")
    for line in text.splitlines(keepends=True):
        if re.match(r"\s*\[", line):
            inside = header.match(line) is not None
        if not inside:
            kept.append(line)
    fresh = "".join(kept)
    try:
        if not _table(tomllib.loads(fresh), table):
            return fresh
    except tomllib.TOMLDecodeError:
        pass
    raise ConfigError(f"lucid.toml has {table} in a form that setup does not edit; take it out there yourself")


def _table(document: Mapping[str, Any], table: str) -> dict[str, Any]:
    for part in table.split("."):
        found = document.get(part, {})
        if not isinstance(found, dict):
            return {}
        document = found
    return dict(document)


def _value(value: str | int | Mapping[str, int]) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{key if _BARE.fullmatch(key) else json.dumps(key)} = {number}" for key, number in value.items()
        )
        return f"{{ {inner} }}"
    return json.dumps(value, ensure_ascii=False)
