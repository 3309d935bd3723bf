"""Checks whether Slurm's configuration, as it lies on disk, will do for Lucid. Reads files, and changes nothing."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lucid.core.placement import hosts_in
from lucid.errors import ConfigError
from lucid.setup.conf_text import Texts, read_texts
from lucid.setup.install import FILES, PROGRAMS, of_package, program_in, shipped_content
from lucid.setup.render import ADDRESS, MOST_SLOTS, SLOTS, misnamed

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


def settings_in(root: Path, conf: str = "etc/slurm/slurm.conf") -> dict[str, str]:
    """Parameters of slurm.conf and of what it includes, by key in small letters.

    Raises:
        ConfigError: slurm.conf itself cannot be read."""
    return read_texts(root, root / conf).settings


def heartbeat_in(root: Path, conf: str = "etc/slurm/slurm.conf") -> str | None:
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
    def has(key: str, word: str, why: str) -> Finding:
        value = settings.get(key.lower(), "")
        words = [item.strip() for item in value.split(",")]
        if any(item == word or (word.endswith("*") and item.startswith(word[:-1])) for item in words):
            return Finding(key, True, value)
        return Finding(key, False, f"is {value or 'not set'}: {why}", f"{key}={word} in slurm.conf")

    yield has("SelectType", "select/cons_tres", "GPUs cannot be asked for one by one")
    yield has("GresTypes", "gpu", "nodes have no GPUs")
    yield has("GresTypes", "shard", "GPUs have no slots, so no two jobs can share one")
    yield has("PriorityType", "priority/multifactor", "order mode has no SiteFactor to set")
    yield has("JobSubmitPlugins", "lua", "no job is tagged, so Lucid decides none in pack mode")
    if filtered:
        yield has("CliFilterPlugins", "lua", filtered)
    files = "/etc/slurm/lucid"
    yield has("TaskProlog", f"{files}/task_prolog", "an inner srun of a shared job fails")
    yield has("Prolog", f"{files}/prolog.d/*", "no sampler is started with a job")
    yield has("Epilog", f"{files}/epilog.d/*", "no sampler is stopped after a job")


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
    declared = {host: row.get("gres", "") for row in lines for host in _hosts(row.get("nodename", ""))}
    detected = [row.get("nodename", "") for row in rows if row.get("autodetect", "off").lower() not in ("off", "")]
    if any(not hosts or any("shard:" in declared.get(host, "") for host in _hosts(hosts)) for hosts in detected):
        yield Finding("gres.conf", False, "AutoDetect names GPUs by their model, which hides their addresses", remedy)
    gpus: dict[str, dict[str, None]] = {}  # types in the order of their lines, which is Slurm's order
    slots: dict[str, dict[str, str]] = {}
    for row in rows:
        for host in _hosts(row.get("nodename", "")):
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
        wrong = misnamed(row for row in rows if host in _hosts(row.get("nodename", "")))
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


def _hosts(expression: str) -> list[str]:
    try:
        return hosts_in(expression)
    except ConfigError:
        return []
