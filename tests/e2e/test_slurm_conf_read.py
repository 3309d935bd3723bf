"""What lucidctl setup takes from a slurm.conf is what slurmctld takes from it, for generated files."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from lucid.errors import ConfigError
from lucid.setup.conf_text import read_texts
from lucid.slurm.records.configuration import config_from_text
from testbed.settings import layout_from

pytestmark = pytest.mark.slow
FILES = int(os.environ.get("LUCID_CONF_FILES", "200"))
BASE = """\
ClusterName=Oracle
SlurmctldHost=localhost
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmctldPort=28911
StateSaveLocation=/tmp/state
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmctldLogFile=/tmp/slurmctld.log
ProctrackType=proctrack/linuxproc
NodeName=n1 NodeHostname=localhost Port=28913 Gres=gpu:a100:4
PartitionName=p Nodes=ALL
"""
KEYS = ("TaskProlog", "TaskEpilog", "SrunProlog", "SrunEpilog", "MailDomain", "RebootProgram", "Prolog", "Epilog")
VALUES = (
    "/a", "/b,/c", '"/d e"', '"/f"', '""', '"/g"h', '"/i', r"/j\#k", r"/l\\m", "'/n", "/o=p", r"/q\"r", '"/s # t"',
    "", "/u\\\nv", '"/w,  /x"', r"/y\z",
)  # fmt: skip
BETWEEN = ("=", "=", " = ", "\t=  ", "+=", " += ", "-=", " =\\\n ", "= \\ # here\n ", "  ")
BEHIND = ("", "", " ", "  # TaskProlog=/no", "#x", " \\\n", " \\  \n# y", "\r", " Prolog=/z")
INSIDE = """
cd /tmp/files
for conf in *.conf.main; do
    rm -rf /tmp/state; mkdir /tmp/state; export SLURM_CONF=/tmp/files/$conf
    slurmctld -D -c > /tmp/out 2>&1 & pid=$!
    for turn in $(seq 100); do
        timeout 5 scontrol show config > $conf.config 2> /dev/null && break
        kill -0 $pid 2> /dev/null || break
        sleep 0.02
    done
    kill -9 $pid 2> /dev/null; wait $pid 2> /dev/null; cp /tmp/out $conf.said
done
"""


def _generated(chance: random.Random, included: Path) -> str:
    lines = []
    for _ in range(chance.randint(1, 6)):
        if chance.random() < 0.15:
            lines.append(chance.choice(["include ", "Include\t", "INCLUDE "]) + included.name.replace("oracle", "%c"))
            continue
        key = chance.choice(KEYS)
        key = chance.choice([key, key.lower(), key.upper()])
        plain = chance.random() < 0.7  # most files are to be ones with which Slurm starts
        value = chance.choice(VALUES[:5] if plain else VALUES)
        behind = chance.choice(BEHIND[:5] if plain or chance.random() < 0.8 else BEHIND)
        lines.append(chance.choice(["", "", "  "]) + key + chance.choice(BETWEEN[:9]) + value + behind)
    included.write_text(f"{chance.choice(KEYS)} = {chance.choice(VALUES[:5])}\n")
    return BASE + "\n".join(lines) + chance.choice(["", "\n"])


def test_generated_files_are_read_as_slurmctld_reads_them(tmp_path: Path) -> None:
    tree = layout_from(os.environ).tree
    if os.geteuid() or not os.path.lexists(tree / "usr/sbin/slurmctld"):
        pytest.skip("needs root and a cached tree with Slurm (make testbed)")
    for name in ("upper", "work", "root", "files"):
        (tmp_path / name).mkdir()
    chance = random.Random(os.environ.get("LUCID_CONF_SEED", "38"))
    for number in range(FILES):
        included = tmp_path / f"files/more-{number}-oracle.inc"
        (tmp_path / f"files/{number}.conf.main").write_text(_generated(chance, included))
    root = tmp_path / "root"
    steps = (
        f"mount -t overlay overlay -o lowerdir={tree},upperdir={tmp_path}/upper,workdir={tmp_path}/work {root}",
        "ip link set lo up; ip addr add 192.0.2.1/32 dev lo",
        f"mount -t proc proc {root}/proc; mount --rbind /dev {root}/dev",
        f"mount -t tmpfs tmpfs {root}/tmp; mkdir {root}/tmp/files; mount --bind {tmp_path}/files {root}/tmp/files",
        f"echo 127.0.0.1 localhost $(hostname) > {root}/etc/hosts; echo hosts: files > {root}/etc/nsswitch.conf",
        f"printf 'passwd: files\\ngroup: files\\n' >> {root}/etc/nsswitch.conf; hostname localhost",
        f"exec chroot {root} bash -c '{INSIDE}'",
    )
    alone = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child"]
    done = subprocess.run([*alone, "sh", "-ec", "\n".join(steps)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    wrong, started = [], 0
    for conf in sorted((tmp_path / "files").glob("*.main")):
        slurm = config_from_text(Path(f"{conf}.config").read_text())
        said = Path(f"{conf}.said").read_text()
        try:
            ours = read_texts(tmp_path, conf).settings
        except ConfigError as error:
            if slurm:
                wrong.append((conf.read_text().removeprefix(BASE), str(error), slurm))
            continue
        started += bool(slurm)
        theirs = {key: slurm.get(key, "") for key in KEYS}
        mine = {key: ours.get(key.lower(), "").strip() for key in KEYS}
        if theirs != mine:
            wrong.append((conf.read_text().removeprefix(BASE), mine, theirs if slurm else said))
    shutil.rmtree(tmp_path / "upper", ignore_errors=True)
    assert not wrong, f"{len(wrong)} of {FILES}: {wrong[:3]}"
    assert started > FILES / 4, "too few of the files are ones with which Slurm starts"
