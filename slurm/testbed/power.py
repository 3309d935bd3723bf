"""Nodes of the testbed that sleep or reboot: SuspendProgram, ResumeProgram and RebootProgram stop and start real
slurmds.

slurmctld runs the first two as its own user, which may not start a slurmd; a slurmd that ran its own reboot would end
with it. So they leave requests in a folder, and a
root process of the testbed (``powerd``) carries these out. Tests steer it by files in ``/run/power``: ``boot_s`` is
how long a boot takes, a node named in ``fails`` never comes up. Each boot of a node with State=CLOUD has another
address.
"""

from __future__ import annotations

import os
from pathlib import Path

from testbed.settings import Layout

__all__ = ["POWERD", "conf_lines", "write"]

POWERD = "/usr/local/sbin/powerd"
_SUSPEND, _RESUME = "/etc/slurm/power/suspend", "/etc/slurm/power/resume"
_REBOOT = "/etc/slurm/power/reboot"
_REQUEST = """#!/bin/sh
# One request a node, in order: powerd takes them. Renamed, so that none is read half written.
for node in $(/usr/bin/scontrol show hostnames "$1"); do
    new=/run/power/.{verb}.$node.$$
    echo "$(date +%s.%N) {verb} $node" >> /run/power/log
    : > $new && mv $new /run/power/requests/$(date +%s%N).{verb}.$node
done
"""
_REBOOT_REQUEST = """#!/bin/sh
# slurmd runs this on the node that is to reboot, and names no node: it is the one of the slurmd above.
pid=$$
while [ "$pid" -gt 1 ]; do
    words="$(tr '\\0' ' ' < /proc/$pid/cmdline)"
    case "$words" in *slurmd*" -N "*) node=${words##*-N }; node=${node%% *}; break ;; esac
    pid=$(cut -d' ' -f4 /proc/$pid/stat)
done
[ -n "$node" ] || exit 1
echo "$(date +%s.%N) reboot $node" >> /run/power/log
: > /run/power/.reboot.$node && mv /run/power/.reboot.$node /run/power/requests/$(date +%s%N).reboot.$node
"""
_POWERD = """#!/bin/sh
# A request is a file TIME.VERB.NODE. Each boot is a process of its own, so that one does not wait for another.
log() { echo "$(date +%s.%N) $*" >> /run/power/log; }
slurmd_of() {
    for pid in $(pidof -c slurmd); do  # of this testbed: others have nodes of the same names
        tr '\\0' ' ' < /proc/$pid/cmdline 2>/dev/null | grep -q -- "-N $1 " && echo $pid
    done
}
stops() { for pid in $(slurmd_of $1); do kill -9 $pid; done; log stopped $1; }
boots() {
    sleep $(cat /run/power/boot_s)
    grep -qx $1 /run/power/fails 2>/dev/null && { log fails $1; return; }
    stops $1
    if grep -qx $1 /run/power/clouds; then
        number=$(($(cat /run/power/address) % 200 + 1)); echo $number > /run/power/address
        scontrol update nodename=$1 nodeaddr=127.0.1.$number nodehostname=$(cat /run/power/hostname)
        log address $1 127.0.1.$number
    fi
    log started $1
    setsid --fork /usr/sbin/slurmd -D -b -N $1 >> /var/log/slurm/boots.log 2>&1
}
while sleep 0.1; do
    for request in /run/power/requests/*; do
        [ -f "$request" ] || continue
        name=${request##*/}; rm -f "$request"
        node=${name##*.}; verb=${name%.*}; verb=${verb##*.}
        case $verb in suspend) stops $node ;; resume) boots $node & ;;
            reboot) stops $node; boots $node & ;; esac
    done
done
"""


def conf_lines(layout: Layout) -> list[str]:
    """For slurm.conf. Nothing falls asleep by itself within a test: ``scontrol update … state=power_down`` does."""
    return [
        f"SuspendProgram={_SUSPEND}",
        f"ResumeProgram={_RESUME}",
        f"RebootProgram={_REBOOT}",
        f"SuspendTime={layout.suspend_s}",
        "SuspendTimeout=8",
        "ResumeTimeout=40",
        "SuspendRate=0",
        "ResumeRate=0",
        "TreeWidth=65533",  # cloud nodes do not know each other's addresses
    ]


def write(layout: Layout, ids: tuple[int, int]) -> None:
    """The programs, and powerd's folder, which belongs to slurmctld's user (``ids``)."""
    root = layout.root
    for name, verb in ((_SUSPEND, "suspend"), (_RESUME, "resume")):
        _program(root / name.lstrip("/"), _REQUEST.replace("{verb}", verb))
    _program(root / _REBOOT.lstrip("/"), _REBOOT_REQUEST)
    _program(root / POWERD.lstrip("/"), _POWERD)
    folder = root / "run/power"
    for path in (folder, folder / "requests"):
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, *ids)
    texts = {"boot_s": "3", "address": "1", "hostname": os.uname().nodename, "log": ""}
    for name, text in {**texts, "clouds": "\n".join(layout.clouds)}.items():
        (folder / name).write_text(f"{text}\n" if text else "")
        os.chown(folder / name, *ids)


def _program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
