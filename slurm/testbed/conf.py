"""Configuration files of the testbed's daemons."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from lucid.core.placement import hosts_in
from lucid.setup.install import install_files
from lucid.setup.render import render
from testbed import cgroups, controllers, power, tree
from testbed.settings import USERS, Layout

__all__ = ["DBD_PORT", "LICENCES", "NODE_PORTS", "write"]

DBD_PORT = 1
"""Ports are offsets from the testbed's base: slurmctld has the base itself."""
NODE_PORTS = 10
LICENCES = "matlab:2"
_AT_ONCE = (
    "sched_interval=1,bf_interval=1,sched_min_interval=1,batch_sched_delay=0,default_queue_depth=1000,"
    "bf_max_job_test=1000"
)
_AS_SITES_DO = "sched_interval=30,bf_interval=30,default_queue_depth=1000,bf_max_job_test=1000,bf_continue"
"""Of a large testbed: what slurmctld does for itself is to be what it does at a site."""
_SLURM, _MUNGE, _MYSQL = "slurm", "munge", "mysql"


def write(layout: Layout, base: int, files: Path) -> None:
    """Write every file that the daemons read.

    Args:
        layout: The testbed; its root must be mounted.
        base: The first port of its block.
        files: The project's ``slurm/`` folder, whose plugin and scripts are installed.
    """
    root = layout.root
    _users(root)
    # Every name is this machine: a daemon that asked a name server would wait 5 s where none answers.
    names = [f"{controllers.address(layout, name)} {name}" for name in layout.controllers]
    (root / "etc/hosts").write_text("\n".join([f"127.0.0.1 localhost {socket.gethostname()}", *names]) + "\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").touch()
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    etc = root / "etc/slurm"
    rendered = render(layout.nodes, layout.partitions, node_extra=_addresses(layout, base), slots=layout.slots)
    (etc / "gres.conf").write_text(rendered.gres_conf)
    (etc / "lucid.slurm.conf").write_text(_wanted(rendered.slurm_conf, files, layout))
    (etc / "lucid.plugin.conf").write_text(rendered.plugin_conf)
    (etc / "slurm.conf").write_text(_slurm_conf(layout, base))
    (etc / "cgroup.conf").write_text(cgroups.cgroup_conf(layout, tree.release(layout)))
    if layout.accounting:
        _secret(etc / "slurmdbd.conf", _slurmdbd_conf(base), owner=(root, _SLURM))
    _secret(root / "etc/munge/munge.key", secrets.token_bytes(128), owner=(root, _MUNGE))
    (root / "etc/mysql/conf.d/testbed.cnf").write_text(
        "[mariadbd]\nskip-networking\ninnodb_flush_log_at_trx_commit=0\ninnodb_buffer_pool_size=64M\n"
        "innodb_lock_wait_timeout=900\n"
    )
    for folder, user in (
        ("var/spool/slurmctld", _SLURM),
        ("var/log/slurm", _SLURM),
        ("run/munge", _MUNGE),
        ("run/mysqld", _MYSQL),
        ("run/mariadbd", _MYSQL),  # where sid's MariaDB has its socket
        ("run/slurm", _SLURM),
        ("run/lucid", "lucid"),
        ("run/lock", "root"),
        *((str(controllers.run_folder(layout, name).relative_to(root)), _SLURM) for name in layout.controllers),
    ):
        path = root / folder
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, *_ids(root, user))
        path.chmod(0o755)
    wake = root / "run/lucid/wake"  # as lucidd.service makes it
    wake.touch()
    os.chown(wake, *_ids(root, _SLURM))
    if layout.suspend_s:
        power.write(layout, _ids(root, _SLURM))
    _install(root, files)


def _addresses(layout: Layout, base: int) -> dict[str, str]:
    """Where each group of nodes listens: one port after the other."""
    found, first = {}, base + NODE_PORTS
    for node in layout.nodes:
        count = len(hosts_in(node.hosts))
        cloud = " State=CLOUD" if set(hosts_in(node.hosts)) <= set(layout.clouds) else ""
        ports = f"[{first}-{first + count - 1}]" if count > 1 else str(first)
        found[node.hosts] = f"NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports}{cloud}"
        first += count
    return found


def _slurm_conf(layout: Layout, base: int) -> str:
    lines = [
        "ClusterName=testbed",
        *_controllers(layout),
        f"SlurmctldPort={base}",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        "# A requeued job may not start for as long as a credential lives: 120 s at most sites.",
        "AuthInfo=socket=/run/munge/munge.socket.2,cred_expire=30",
        "StateSaveLocation=/var/spool/slurmctld",
        "SlurmdSpoolDir=/var/spool/slurmd.%n",
        "SlurmctldPidFile=/run/slurm/slurmctld.pid",
        "SlurmdPidFile=/run/slurm/slurmd.%n.pid",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.%n.log",
        "SlurmctldDebug=info",
        "SlurmdDebug=info",
        "# Many nodes on one machine, which has fewer CPUs than they claim.",
        "SlurmdParameters=config_overrides",
        *cgroups.plugins(layout),
        "JobAcctGatherFrequency=30",
        "SelectTypeParameters=CR_Core_Memory",
        "DefMemPerCPU=1000",
        "MpiDefault=none",
        "ReturnToService=2",
        f"SlurmctldTimeout={10 if layout.controllers else 60}",
        f"SlurmdTimeout={600 if layout.large else 60}",
        "KillWait=5",
        "JobRequeue=1",
        "MaxJobCount=20000",
        "MaxArraySize=10001",
        "# Real sites wait longer between two looks at the queue; tests should not.",
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={_AS_SITES_DO if layout.large else _AT_ONCE}",
        "PriorityWeightAge=1000",
        "PriorityWeightFairshare=1000",
        "PriorityWeightQOS=1000",
    ]
    if layout.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={base + DBD_PORT}",
            "AccountingStoreFlags=job_comment,job_extra",
        ]
    if layout.suspend_s:
        lines += power.conf_lines(layout)
    if layout.enforced:
        lines += ["AccountingStorageEnforce=associations,limits,qos", f"Licenses={LICENCES}"]
    return "\n".join([*lines, "include /etc/slurm/lucid.slurm.conf"]) + "\n"


def _controllers(layout: Layout) -> list[str]:
    if not layout.controllers:
        return [f"SlurmctldHost={socket.gethostname()}(127.0.0.1)"]
    hosts = [f"SlurmctldHost={name}({controllers.address(layout, name)})" for name in layout.controllers]
    return [*hosts, "CommunicationParameters=NoCtldInAddrAny"]  # each on its own address, all on one port


def _slurmdbd_conf(base: int) -> str:
    return (
        "\n".join(
            [
                "AuthType=auth/munge",
                "DbdHost=localhost",
                "DbdAddr=127.0.0.1",
                f"DbdPort={base + DBD_PORT}",
                "SlurmUser=slurm",
                "LogFile=/var/log/slurm/slurmdbd.log",
                "PidFile=/run/slurm/slurmdbd.pid",
                "StorageType=accounting_storage/mysql",
                "StorageHost=localhost",
                "StorageUser=slurm",
                "StorageLoc=slurm_acct_db",
            ]
        )
        + "\n"
    )


def _wanted(text: str, files: Path, layout: Layout) -> str:
    """Without the plugin and its scripts where they are not wanted, the rest stays: a plain Slurm, for comparison."""
    left_out: list[str] = []
    if not (layout.plugin and (files / "job_submit").is_dir()):
        left_out += ["JobSubmitPlugins=", "CliFilterPlugins=", "Prolog=", "Epilog=", "TaskProlog="]
    if not layout.accounting:
        left_out += ["AccountingStorageTRES="]  # slurmctld does not start with it where there is no slurmdbd
    return "\n".join(line for line in text.splitlines() if not line.startswith(tuple(left_out))) + "\n"


def _install(root: Path, files: Path) -> None:
    """As `lucidctl slurm install` does it, so that what administrators run is what the tests drive."""
    if (files / "job_submit").is_dir():
        install_files(root)


def _users(root: Path) -> None:
    passwd, group, shadow = ((root / "etc" / name) for name in ("passwd", "group", "shadow"))
    lines = {path: path.read_text() for path in (passwd, group, shadow)}
    for name, number in USERS.items():
        if f"\n{name}:" in lines[passwd]:
            continue
        lines[passwd] += f"{name}:x:{number}:{number}:{name}:/home/{name}:/bin/bash\n"
        lines[group] += f"{name}:x:{number}:\n"
        lines[shadow] += f"{name}:*:20000:0:99999:7:::\n"
        home = root / "home" / name
        home.mkdir(parents=True, exist_ok=True)
        os.chown(home, number, number)
    for path, text in lines.items():
        path.write_text(text)


def _ids(root: Path, user: str) -> tuple[int, int]:
    for line in (root / "etc/passwd").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == user:
            return int(fields[2]), int(fields[3])
    raise KeyError(user)


def _secret(path: Path, content: str | bytes, owner: tuple[Path, str]) -> None:
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.chown(path, *_ids(*owner))
