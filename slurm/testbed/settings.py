"""Where a testbed lives and what it is made of: from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lucid.core.placement import hosts_in
from lucid.setup.nodes import NodeSpec, PartitionSpec, parse_node, parse_partition

__all__ = [
    "BLOCK",
    "MOST_NODES",
    "USERS",
    "Layout",
    "TestbedError",
    "layout_from",
    "pyslurm_version",
    "slurm_version",
]

BLOCK = 100
"""Ports that one testbed keeps for itself, counted from its base."""
MOST_NODES = 2000
"""A slurmd needs 3 MiB and a dozen threads."""
USERS = {"lucid": 2000, "alice": 2001, "bob": 2002, "carol": 2003}
"""User numbers inside the testbed. ``lucid`` is a Slurm operator and nothing more."""
_NODES = {
    "bare": "n[1-4]:gpus=4,cpus=16,mem=64000,type=a100",
    "site": "n[1,3-4]:gpus=4,cpus=16,mem=64000,type=a100 n2:gpus=4,cpus=16,mem=64000,type=a100,features=ib "
    "n[5-6]:gpus=8,cpus=32,mem=128000,type=a100,features=nvlink",
    "two-prof": "n[1-4,7]:gpus=4,cpus=16,mem=64000,type=a100 "
    "n[5-6]:gpus=8,cpus=32,mem=128000,type=a100,features=nvlink",
    "large": "n[0001-1000]:gpus=8,cpus=64,mem=512000,type=a100",
}
_NODES["ha"] = _NODES["site"]
_NODES["power"] = "n[1-4]:gpus=4,cpus=16,mem=64000,type=a100 c[1-2]:gpus=4,cpus=16,mem=64000,type=a100"
_WIDE = "vc-c=n[5-6]:DefCpuPerGPU=2,DefMemPerGPU=4000"
_PARTITIONS = {
    "bare": "vc-a=n[1-2] vc-b=n3 prof=n4",
    "site": f"vc-a=n[1-2] vc-b=n3 {_WIDE} prof=n4",
    "two-prof": f"vc-a=n[1-2] vc-b=n3 {_WIDE} prof=n[4,7]:DenyAccounts=teaching",
    "large": "vc-a=n[0001-0400] vc-b=n[0401-0700] vc-c=n[0701-0900] vc-d=n[0901-0984] prof=n[0985-1000]",
}
_PARTITIONS["ha"] = _PARTITIONS["site"]
_PARTITIONS["power"] = "vc-a=n[1-2] vc-b=n3 vc-c=c[1-2] prof=n4"
_CLOUDS = {"power": ("c1", "c2")}
_CONTROLLERS = {"ha": ("ctl1", "ctl2")}
"""By ``LUCID_TESTBED_VARIANT``: like a site; like a site, with two profiling nodes that an account may not use; like
a site, with two hosts for slurmctld; the least, where anybody may do anything; nodes that sleep, those of vc-c in a
cloud; and 1,000 nodes, each with a slurmd.
n1 to n4, vc-a, vc-b and prof are the same in all of them but the last."""


class TestbedError(Exception):
    """The testbed cannot be made here; the message says why and what to do."""

    __test__ = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything that tells one testbed from another.

    ``tree`` is the cached Debian with Slurm in it, shared and never written; ``root`` is this testbed's own view
    of it, and the folder for ``chroot``. ``enforced``: accounts, QOS and licences bind (docs/testbed.md).
    ``cgroup``: ``none``, ``v1`` or ``v2``. ``controllers``: hosts of slurmctld, the primary first; none:
    this machine. ``source``: a source folder of Slurm, built into the tree in place of Debian's Slurm; ``pyslurm``:
    one of pyslurm. ``slots``: of each GPU. ``clouds``: nodes with State=CLOUD; ``suspend_s``: SuspendTime of a
    testbed whose nodes sleep, 0 for all others. ``built``: what of it is in the tree, as a part of the tree's name.
    """

    name: str
    suite: str
    cache: Path
    mirror: str | None
    port: int | None
    nodes: tuple[NodeSpec, ...]
    partitions: tuple[PartitionSpec, ...]
    plugin: bool
    accounting: bool
    enforced: bool = True
    cgroup: str = "none"
    controllers: tuple[str, ...] = ()
    source: Path | None = None
    pyslurm: Path | None = None
    built: str = ""
    slots: int = 2
    clouds: tuple[str, ...] = ()
    suspend_s: int = 0

    @property
    def tree(self) -> Path:
        """The cached tree of the suite, and of what was built into it."""
        return self.cache / f"tree-{self.suite}{self.built}"

    @property
    def home(self) -> Path:
        """Everything that is this testbed's own; gone after `down`."""
        return self.cache / "run" / self.name

    @property
    def root(self) -> Path:
        """What its daemons see as ``/``."""
        return self.home / "root"

    @property
    def hosts(self) -> list[str]:
        """Its nodes by name."""
        return [host for node in self.nodes for host in hosts_in(node.hosts)]

    @property
    def awake(self) -> list[str]:
        """Those that have a slurmd from the start."""
        return [host for host in self.hosts if host not in self.clouds]

    @property
    def large(self) -> bool:
        """Does it need more ports than a block has? Such a testbed takes its ports above those of the others."""
        return len(self.hosts) > BLOCK - 20


def layout_from(environ: Mapping[str, str]) -> Layout:
    """Read ``LUCID_TESTBED*``.

    Raises:
        TestbedError: a name, number or variant that cannot be used.
        lucid.errors.ConfigError: nodes or partitions that cannot be read.
    """
    name = environ.get("LUCID_TESTBED_NAME", "main")
    suite = environ.get("LUCID_TESTBED_SUITE", "trixie")
    for key, value in (("NAME", name), ("SUITE", suite)):
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", value):
            raise TestbedError(f"LUCID_TESTBED_{key}={value!r}: use up to 31 small letters, digits and hyphens")
    port = environ.get("LUCID_TESTBED_PORT")
    if port is not None and not (port.isdecimal() and 1024 <= int(port) <= 65535 - BLOCK):
        raise TestbedError(f"LUCID_TESTBED_PORT={port!r}: use a number from 1024 to {65535 - BLOCK}")
    cache = Path(environ.get("LUCID_TESTBED") or Path(environ.get("HOME", "/root")) / ".cache/lucid/testbed")
    variant = environ.get("LUCID_TESTBED_VARIANT", "site")
    if variant not in _NODES:
        raise TestbedError(f"LUCID_TESTBED_VARIANT={variant!r}: use one of {', '.join(sorted(_NODES))}")
    cgroup = environ.get("LUCID_TESTBED_CGROUP", "none")
    if cgroup not in ("none", "v1", "v2"):
        raise TestbedError(f"LUCID_TESTBED_CGROUP={cgroup!r}: use none, v1 or v2")
    slots = environ.get("LUCID_TESTBED_SLOTS", "2")
    if slots not in tuple("2345678"):
        raise TestbedError(f"LUCID_TESTBED_SLOTS={slots!r}: use 2 to 8")
    own_nodes = environ.get("LUCID_TESTBED_NODES")
    # nodes of one's own are asked for n1 to n4 only, as they always were
    texts = environ.get("LUCID_TESTBED_PARTITIONS", _PARTITIONS["bare" if own_nodes else variant]).split()
    profiling = environ.get("LUCID_TESTBED_PROFILING", "prof")
    partitions = tuple(
        parse_partition(text, profiling=text.startswith(f"{profiling}="), default=number == 0)
        for number, text in enumerate(texts)
    )
    nodes = tuple(parse_node(text) for text in (own_nodes or _NODES[variant]).split())
    accounting = environ.get("LUCID_TESTBED_ACCOUNTING", "1") != "0"
    source, pyslurm = _folder(environ, "SOURCE"), _folder(environ, "PYSLURM")
    built = f"-slurm-{slurm_version(source)}" if source else ""
    built += f"-pyslurm-{pyslurm_version(pyslurm)}" if pyslurm else ""
    layout = Layout(
        name=name,
        suite=suite,
        cache=cache.resolve(),
        mirror=environ.get("LUCID_TESTBED_MIRROR"),
        port=int(port) if port else None,
        nodes=nodes,
        partitions=partitions,
        plugin=environ.get("LUCID_TESTBED_PLUGIN", "1") != "0",
        accounting=accounting,
        enforced=accounting and variant not in ("bare", "large"),
        cgroup=cgroup,
        controllers=_CONTROLLERS.get(variant, ()),
        source=source,
        pyslurm=pyslurm,
        built=built,
        slots=int(slots),
        clouds=_CLOUDS.get(variant, ()),
        suspend_s=86400 if variant == "power" else 0,
    )
    if len(layout.hosts) > MOST_NODES:
        raise TestbedError(f"LUCID_TESTBED_NODES: more than {MOST_NODES:,} nodes on one machine")
    return layout


def _folder(environ: Mapping[str, str], key: str) -> Path | None:
    given = environ.get(f"LUCID_TESTBED_{key}")
    return Path(given).resolve() if given else None


def _version(path: Path, pattern: str, what: str) -> str:
    try:
        found = re.search(pattern, path.read_text(), re.M)
    except OSError:
        found = None
    if found is None:
        raise TestbedError(f"{path} names no version: give a source folder of {what}")
    return found.group(1)


def slurm_version(source: Path) -> str:
    """As ``23.11.11``, from a source folder of Slurm.

    Raises:
        TestbedError: it is none.
    """
    return _version(source / "META", r"^\s*Version:\s*([0-9][\w.-]*)$", "Slurm")


def pyslurm_version(source: Path) -> str:
    """As ``24.11.0``, from a source folder of pyslurm.

    Raises:
        TestbedError: it is none.
    """
    return _version(source / "pyslurm/version.py", r'^__version__\s*=\s*"([0-9][\w.]*)"', "pyslurm")
