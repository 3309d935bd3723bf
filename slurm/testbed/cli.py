"""The commands behind `make cluster` and `make cluster-down`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from lucid.errors import ConfigError
from testbed import cgroups, conf, daemons, host, tree
from testbed.owner import MARK, dead, end_marked
from testbed.ports import claimed
from testbed.settings import Layout, TestbedError, layout_from

__all__ = ["described_in", "down", "main", "unfit", "up"]

FILES = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code (2: cannot be done here, and why)."""
    parser = argparse.ArgumentParser(prog="testbed", description="A real Slurm on one machine.")
    parser.add_argument("command", choices=["up", "down", "status"])
    parser.add_argument("--json", action="store_true", help="up, status: print the description as JSON")
    given = parser.parse_args(arguments)
    try:
        layout = layout_from(os.environ)
        if given.command == "down":
            if reason := unfit(layout, building=False):
                raise TestbedError(reason)
            for line in down(layout):
                print(line)
            return 0
        described = up(layout, lambda text: print(text, file=sys.stderr)) if given.command == "up" else _read(layout)
        if described is None:
            print(f"testbed {layout.name} is down")
            return 1
        print(json.dumps(described, indent=2) if given.json else _usage(described))
    except (TestbedError, ConfigError) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 2
    return 0


def unfit(layout: Layout, *, building: bool = True) -> str | None:
    """Why no testbed can be made here, in words; ``None`` where one can."""
    if sys.platform != "linux":
        return "the testbed needs Linux (chroot, mount, mknod)"
    if os.geteuid() != 0:
        return "the testbed needs root (chroot, mount, mknod): run it as root, or in a virtual machine of your own"
    if building and not layout.tree.is_dir() and not tree.debootstrap():
        return f"{layout.tree} is not there yet and debootstrap is not installed: apt-get install debootstrap"
    return cgroups.unfit(layout) if building else None


def up(layout: Layout, say: tree.Say) -> dict[str, Any]:
    """Bring the testbed up, and describe it. One that is up already stays as it is; remains of a crash go first.

    Raises:
        TestbedError: it cannot be made here, or a daemon did not come up.
    """
    if reason := unfit(layout):
        raise TestbedError(reason)
    tree.build(layout, say)
    with tree.locked(layout.cache / f"{layout.name}.lock", lambda: say("another command works on it; waiting")):
        described = _read(layout)
        if described is not None and _healthy(layout):
            say(f"testbed {layout.name} is up already")
            return described
        if layout.home.exists():
            say(f"testbed {layout.name}: clearing what an earlier run left")
            _clear(layout)
        with claimed(layout, lambda: _bases(layout)) as base:
            layout.home.mkdir(parents=True)
            described = _describe(layout, base)
            _state(layout).write_text(json.dumps(described))
            host.mount(layout)
            cgroups.prepare(layout)
            conf.write(layout, base, FILES)
            daemons.start(layout, say)
        return described


def down(layout: Layout, owner: str = "") -> list[str]:
    """Remove every trace but the cached tree; returns what was done. Does nothing where there is nothing, or where
    the testbed is not of this *owner* (any more)."""
    with tree.locked(layout.cache / f"{layout.name}.lock"):
        if not layout.home.exists():
            return [f"testbed {layout.name} is not up"]
        if owner and (_read(layout) or {}).get("owner") != owner:
            return [f"testbed {layout.name} is somebody else's"]
        mounts = len(host.mounts_under(layout.home))
        ended = _clear(layout)
    return [f"testbed {layout.name}: ended {len(ended)} processes, took {mounts} mounts away; {layout.tree} stays"]


def _clear(layout: Layout) -> list[str]:
    owner = (_read(layout) or {}).get("owner", "")
    if owner and dead(owner):
        end_marked(owner)
    ended = host.stop(layout.root)
    host.unmount(layout)
    cgroups.remove(layout)
    return ended


def _healthy(layout: Layout) -> bool:
    running = list(host.processes_in(layout.root).values())
    return (layout.suspend_s > 0 or running.count("slurmd") >= len(layout.awake)) and "UP" in daemons.inside(
        layout, "scontrol", "ping", check=False
    )


def _state(layout: Layout) -> Path:
    return layout.home / "testbed.json"


def _read(layout: Layout) -> dict[str, Any] | None:
    return described_in(layout.home)


def described_in(home: Path) -> dict[str, Any] | None:
    """How the testbed that lies there was described as it was made."""
    try:
        read: dict[str, Any] = json.loads((home / "testbed.json").read_text())
    except (OSError, ValueError):
        return None
    return read


def _bases(layout: Layout) -> set[int]:
    bases = set()
    for path in layout.home.parent.glob("*/testbed.json"):
        try:
            bases.add(int(json.loads(path.read_text())["port"]))
        except (OSError, ValueError, KeyError):
            continue
    return bases


def _describe(layout: Layout, base: int) -> dict[str, Any]:
    return {
        "name": layout.name,
        "owner": os.environ.get(MARK, ""),
        "cgroup": layout.cgroup,
        "suite": layout.suite,
        "slurm": tree.release(layout),
        "root": str(layout.root),
        "prefix": ["chroot", str(layout.root)],
        "port": base,
        "heartbeat": str(layout.root / "run/lucid/heartbeat"),
        "logs": str(layout.home / "log"),
        "users": ["alice", "bob", "carol"],
        "operator": "lucid",
        "partitions": {partition.name: partition.hosts for partition in layout.partitions},
        "profiling": [partition.name for partition in layout.partitions if partition.profiling],
        "gpus": {node.hosts: node.gpus for node in layout.nodes},
        "slots": layout.slots,
        "enforced": layout.enforced,
        "controllers": list(layout.controllers),
    }


def _usage(d: dict[str, Any]) -> str:
    prefix = f"chroot {d['root']}"
    alice = f"chroot --userspec=alice {d['root']}"
    job = "--gres=gpu:2 --wrap 'echo $CUDA_VISIBLE_DEVICES; sleep 30'"
    gpus = ", ".join(f"{count} on each of {hosts}" for hosts, count in d["gpus"].items())
    return f"""testbed {d["name"]} (Slurm {d["slurm"]}, {d["suite"]}) is up
  partitions    {", ".join(f"{name} ({hosts})" for name, hosts in d["partitions"].items())}
  fake GPUs     {gpus}; {d["slots"]} slots each
  Slurm prefix  {json.dumps(d["prefix"])}   (for lucid.toml)
  logs          {d["logs"]} and {d["root"]}/var/log/slurm
  submit        {alice} sbatch -D /tmp {job}
  look          {prefix} squeue; {prefix} scontrol show job -d 1
  away with it  make cluster-down"""
