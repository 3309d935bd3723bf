"""gres.conf as a site has it, and the same with an address and slots for each GPU of some nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lucid.errors import ConfigError
from lucid.slurmconf.conf_text import Edit, Statement, Texts, edited, with_values
from lucid.slurmconf.nodes import device_number, host_list, hosts_in
from lucid.slurmconf.render import SLOTS, gpu_lines

__all__ = ["ADDRESS", "RENAME", "Gres", "addressed_gres", "hosts_or_none", "misnamed", "with_slots"]

ADDRESS = re.compile(r"g\d+")
RENAME = "Type=g3 for File=/dev/nvidia3 and so on in gres.conf, the same in slurm.conf's Gres=, while no job is there"
_KEPT = ("cores", "cpus", "links", "link", "flags")
"""Of a GPU's line: what is copied beside its address."""


@dataclass(slots=True)
class Gres:
    """``files``: the texts that change. ``numbers``: of the GPUs' device files, by host that gets addresses.
    ``models``: the type that they give to GPUs, by host. ``problems`` say why a host cannot be given addresses, each
    with its remedy."""

    files: dict[Path, str] = field(default_factory=dict)
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    models: dict[str, set[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def hosts_or_none(expression: str) -> list[str] | None:
    """The hosts of a host list; ``None`` where it is one that Lucid does not read (``n[1-2]r[1-4]``)."""
    try:
        return hosts_in(expression)
    except ConfigError:
        return None


def misnamed(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Which addresses are not the number of their device file, in words: ``g2 is /dev/nvidia3``. Lucid, which sees no
    gres.conf, takes the one for the other."""
    return [
        f"{pairs['type']} is {file}"
        for pairs in rows
        if pairs.get("name") in ("gpu", "shard") and ADDRESS.fullmatch(pairs.get("type", ""))
        for file in hosts_or_none(pairs.get("file", "")) or ()
        if pairs["type"] != f"g{device_number(file)}"
    ]


def with_slots(texts: Texts, hosts: Iterable[str], slots: int) -> dict[Path, str]:
    """gres.conf with so many slots for each GPU of these hosts, which have addresses; the files that change. A line
    of some of them and of others changes as a whole."""
    mine, edits = set(hosts), dict[Path, list[Edit]]()
    for statement in texts.statements:
        pairs = _folded(statement.pairs)
        names = hosts_or_none(pairs["nodename"]) if "nodename" in pairs else []
        if pairs.get("name") != "shard" or not ADDRESS.fullmatch(pairs.get("type", "")):
            continue
        if pairs.get("count") != str(slots) and (not names or mine & set(names)):
            edit = with_values(statement, texts.files[statement.path], {"Count": str(slots)})
            edits.setdefault(statement.path, []).append(edit)
    return {path: edited(texts.files[path], made) for path, made in edits.items()}


def addressed_gres(
    texts: Texts, wanted: Mapping[str, int], others: Iterable[str], slots: int = SLOTS, ready: Iterable[str] = ()
) -> Gres:
    """gres.conf, with what it includes, with addresses for the GPUs of the hosts *wanted* (GPUs by host). The hosts
    *others* keep theirs.

    Hosts that have addresses already are left as they are, also those that slurm.conf says are *ready*: an address
    that is not the number of its device file is a problem.
    """
    result = Gres()
    rows = [(statement, _folded(statement.pairs)) for statement in texts.statements]
    covers = {}
    for statement, pairs in rows:
        hosts = hosts_or_none(pairs["nodename"]) if "nodename" in pairs else []
        if hosts is None:
            result.problems.append(
                (
                    f"{statement.path}: NodeName={pairs['nodename']} is a host list that setup does not read",
                    "write the line once for each range (n[1-4]), then run this again",
                )
            )
            return result
        covers[statement] = set(hosts)
    for host in sorted({*wanted, *ready}):
        if wrong := misnamed(
            pairs for statement, pairs in rows if not covers[statement] or host in covers[statement]
        ):
            result.problems.append(
                (f"node {host} has addresses of other files: {', '.join([*dict.fromkeys(wrong)])}", RENAME)
            )
    devices: dict[str, tuple[str, ...]] = {}
    for host, count in wanted.items():
        mine = [(s, pairs) for s, pairs in rows if not covers[s] or host in covers[s]]
        types = {pairs["type"] for _, pairs in mine if pairs.get("name") == "gpu" and "type" in pairs}
        if types and all(ADDRESS.fullmatch(kind) for kind in types):
            result.numbers[host] = tuple(sorted(int(kind[1:]) for kind in types))
            continue
        result.models[host] = types
        found = _devices(host, count, [pairs for _, pairs in mine], result)
        if found is not None:
            devices[host] = found
            result.numbers[host] = tuple(device_number(device.split()[0]) or 0 for device in found)
    if not result.problems and devices:
        result.files = _rewritten(texts, rows, covers, devices, sorted(set(others) - set(wanted)), slots)
    return result


def _devices(host: str, count: int, rows: list[dict[str, str]], result: Gres) -> tuple[str, ...] | None:
    shared = [pairs["name"] for pairs in rows if pairs.get("name") in ("shard", "mps")]
    gpus = [pairs for pairs in rows if pairs.get("name") == "gpu" and ("autodetect" not in pairs or "file" in pairs)]
    said = [pairs for pairs in rows if "autodetect" in pairs]
    said = [pairs for pairs in said if "nodename" in pairs] or said  # a node's own line goes before that of all
    detects = bool(said) and said[-1]["autodetect"].lower() != "off"
    found = []
    for pairs in gpus:
        more = "".join(f" {key.capitalize()}={pairs[key]}" for key in _KEPT if key in pairs)
        found += [file + more for file in hosts_or_none(pairs.get("file", "")) or ()]
    problem = None
    if shared:
        problem = (
            f"has gres/{shared[0]} already",
            "take it out of gres.conf, slurm.conf and jobs: pairs use Lucid's slots",
        )
    elif any("multiplefiles" in pairs for pairs in gpus):
        problem = "has GPUs of several files (MultipleFiles=, MIG)", "leave its partition in observe or order mode"
    elif any("file" not in pairs for pairs in gpus):
        problem = "has GPUs without File=", "File=/dev/nvidia[0-3] on the line of its GPUs in gres.conf"
    elif detects and not all({"cores", "cpus"} & pairs.keys() and {"links", "link"} & pairs.keys() for pairs in gpus):
        problem = (
            "gets the cores and links of its GPUs from AutoDetect, which addresses need switched off",
            "a line for each GPU with the File=, Cores= and Links= that `slurmd -G` prints there, in gres.conf; or "
            "AutoDetect=off for the node, if no job needs them",
        )
    elif not gpus and detects:
        note = (
            "AutoDetect is switched off for nodes with addresses: their GPUs are taken to be /dev/nvidia0 and so on, "
            "without their cores and links (if jobs need them: `setup --undo`, a line in gres.conf for each GPU with "
            "the File=, Cores= and Links= that `slurmd -G` prints, and setup again). Where nvidia-smi -q shows Minor "
            "Number in another order, cgroup.conf needs ConstrainDevices=yes (docs/gpu-health.md)"
        )
        result.notes += [] if note in result.notes else [note]
        found = [f"/dev/nvidia{number}" for number in range(count)]
    elif not gpus:
        problem = (
            "has no line for its GPUs in gres.conf",
            "put the gres.conf of the nodes here, with NodeName= in each line",
        )
    elif len(found) != count:
        problem = f"has {len(found)} GPUs in gres.conf, {count} in slurm.conf", "one number in both files"
    elif len({device_number(line.split()[0]) for line in found} - {None}) != count:
        problem = (
            f"has GPUs whose device files do not end in a number of their own ({', '.join(found[:8])})",
            "File= with the numbered files (/dev/nvidia3, /dev/dri/renderD128): the number is the GPU's address",
        )
    if problem is not None:
        result.problems.append((f"node {host} {problem[0]}", problem[1]))
        return None
    return tuple(sorted(found, key=lambda device: [int(part) for part in re.findall(r"\d+", device.split()[0])]))


def _folded(pairs: dict[str, str]) -> dict[str, str]:
    """With the spellings that Slurm takes for one another made one."""
    more = {"file": pairs["files"]} if "files" in pairs and "file" not in pairs else {}
    return {**pairs, **more, **({"name": pairs["name"].lower()} if "name" in pairs else {})}


def _rewritten(
    texts: Texts,
    rows: list[tuple[Statement, dict[str, str]]],
    covers: Mapping[Statement, set[str]],
    devices: Mapping[str, tuple[str, ...]],
    others: list[str],
    slots: int,
) -> dict[Path, str]:
    edits, off = dict[Path, list[Edit]](), False
    for statement, pairs in rows:
        mine = edits.setdefault(statement.path, [])
        detects = pairs.get("autodetect", "off").lower() != "off"
        if not detects and pairs.get("name") != "gpu":
            off = off or ("autodetect" in pairs and not covers[statement])
            continue
        left = sorted(covers[statement] - devices.keys()) if covers[statement] else others
        if covers[statement] and len(left) == len(covers[statement]):
            continue
        if not left:
            mine.append(Edit(statement.first, statement.after, ()))
        elif covers[statement]:
            mine.append(with_values(statement, texts.files[statement.path], {"NodeName": host_list(left)}))
        else:
            mine.append(
                Edit(statement.first, statement.after, (f"NodeName={host_list(left)} {statement.text.strip()}",))
            )
    groups: dict[tuple[str, ...], list[str]] = {}
    for host, files in devices.items():
        groups.setdefault(files, []).append(host)
    more = ["# Lucid: one type a GPU is its address; slots of the same type (docs/slurm-install.md)."]
    more += [] if off else [f"NodeName={host_list(devices)} AutoDetect=off" if others else "AutoDetect=off"]
    for files, hosts in groups.items():
        more += gpu_lines(host_list(hosts), files, slots)
    return {
        path: edited(text, edits.get(path, ()), more if path == texts.main else ())
        for path, text in texts.files.items()
    }
