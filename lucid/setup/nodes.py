"""Nodes and partitions as an administrator types them, parsed into ``NodeSpec`` and ``PartitionSpec``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from lucid.core.placement import hosts_in, stretches
from lucid.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HOSTS = re.compile(r"[A-Za-z0-9_.,\[\]-]+")
_KEYS = ("cpus", "devices", "features", "gpus", "mem", "type")


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """Nodes that are alike. ``hosts`` is a Slurm host list (``n[1-4]``); ``mem_mib`` is RealMemory, MiB.

    ``device`` is the path of one GPU with ``{}`` for its number; ``gpu_type`` is the type that users may ask
    for (``a100``): it becomes a node feature, because the GRES type of each GPU is its address (``g0``, ...)."""

    hosts: str
    gpus: int
    cpus: int = 0
    mem_mib: int = 0
    gpu_type: str = ""
    features: tuple[str, ...] = ()
    device: str = "/dev/nvidia{}"


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """One partition: a VC, or with ``profiling`` the one on which new jobs are measured."""

    name: str
    hosts: str
    profiling: bool = False
    default: bool = False
    options: dict[str, str] = field(default_factory=dict)


def device_number(file: str) -> int | None:
    """The number at the end of a device file's name: 3 of ``/dev/nvidia3``, 128 of ``/dev/dri/renderD128``. The GPU's
    address is ``g3``, so the address gives the file. ``None``: the name has no number, or one above 999."""
    found = re.search(r"\d+$", file)
    return int(found[0]) if found is not None and int(found[0]) < 1000 else None


def host_list(hosts: Iterable[str]) -> str:
    """The Slurm host list of these hosts: n1, n2, n5 and m are ``m,n[1-2,5]``."""
    groups: dict[tuple[str, int], list[int]] = {}
    plain = []
    for host in sorted(set(hosts)):
        found = re.fullmatch(r"(.*?)(\d+)", host)
        if found is None:
            plain.append(host)
        else:
            padded = len(found[2]) if found[2].startswith("0") else 0
            groups.setdefault((found[1], padded), []).append(int(found[2]))
    for (head, width), numbers in groups.items():
        runs = stretches(sorted(numbers))
        texts = [f"{low:0{width}d}" + (f"-{high:0{width}d}" if high > low else "") for low, high in runs]
        plain.append(f"{head}{texts[0]}" if len(numbers) == 1 else f"{head}[{','.join(texts)}]")
    return ",".join(sorted(plain))


def parse_node(text: str) -> NodeSpec:
    """``n[1-4]:gpus=4,cpus=16,mem=64000,type=a100,features=nvlink+ib,devices=/dev/nvidia{}`` as a NodeSpec.

    Raises:
        ConfigError: naming the part that is wrong, and the known keys for an unknown one."""
    hosts, colon, rest = text.partition(":")
    _check_hosts(hosts)
    given: dict[str, str] = {}
    for item in rest.split(",") if colon else []:
        key, equals, value = item.partition("=")
        if key not in _KEYS or not equals or not value:
            raise ConfigError(f"--nodes {text!r}: {item!r} is not one of {', '.join(f'{k}=…' for k in _KEYS)}")
        if key in given:
            raise ConfigError(f"--nodes {text!r}: {key} is given twice")
        given[key] = value
    if "gpus" not in given:
        raise ConfigError(f"--nodes {text!r}: says no gpus=N; a node without GPUs needs nothing from Lucid")
    features = tuple(given["features"].split("+")) if "features" in given else ()
    for name in (*features, *([given["type"]] if "type" in given else [])):
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--nodes {text!r}: {name!r} cannot be a node feature (letters, digits, _ . - only)")
    gpus = _whole(text, "gpus", given["gpus"])
    if not 1 <= gpus <= 64:
        raise ConfigError(f"--nodes {text!r}: gpus={gpus} is not between 1 and 64")
    device = given.get("devices", "/dev/nvidia{}")
    if not re.fullmatch(r"/[A-Za-z0-9_./-]*[A-Za-z_./-]\{\}", device):
        raise ConfigError(f"--nodes {text!r}: devices={device} must be a path with {{}} at its end, for the number")
    cpus, mem_mib = (_whole(text, key, given.get(key, "0")) for key in ("cpus", "mem"))
    return NodeSpec(hosts, gpus, cpus, mem_mib, given.get("type", ""), features, device)


def parse_partition(text: str, *, profiling: bool = False, default: bool = False) -> PartitionSpec:
    """``vc-a=n[1-2]`` or ``vc-a=n[1-2]:MaxTime=INFINITE,State=UP`` as a PartitionSpec.

    Raises:
        ConfigError: no name, no hosts, or an option without a value."""
    name, equals, rest = text.partition("=")
    hosts, _, tail = rest.partition(":")
    if not equals or not _NAME.fullmatch(name) or not hosts:
        raise ConfigError(f"partition {text!r}: write NAME=HOSTS, for example vc-a=n[1-2]")
    _check_hosts(hosts)
    options: dict[str, str] = {}
    for item in tail.split(",") if tail else []:
        key, sign, value = item.partition("=")
        if not sign or not _NAME.fullmatch(key) or not re.fullmatch(r"[A-Za-z0-9_.:-]+", value):
            raise ConfigError(f"partition {text!r}: {item!r} is not KEY=VALUE")
        options[key] = value
    return PartitionSpec(name, hosts, profiling, default, options)


def _whole(text: str, key: str, value: str) -> int:
    if not value.isdecimal():
        raise ConfigError(f"--nodes {text!r}: {key}={value} is not a whole number")
    return int(value)


def _check_hosts(hosts: str) -> None:
    """Check that a host list can stand in a line of slurm.conf as it is: Slurm's reader takes blanks and much
    else."""
    if not _HOSTS.fullmatch(hosts):
        raise ConfigError(f"{hosts!r} is not a host list; write for example n[1-4] or gpu01,gpu02")
    hosts_in(hosts)
