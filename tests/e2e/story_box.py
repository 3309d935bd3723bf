"""The testbed of the story: a plain Slurm with limits, on which ``lucidctl setup`` is typed, and lucidd as its unit
runs it. What a step needs is brought about when it asks, from whatever the step before it left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import testbeds
from box import Box
from readme_script import lines_of
from testbeds import PATH, install_mps, make_plain, own_testbed, slurms_own, typed

from lucid.core.job import JobProfile
from lucid.node.reports import summary_to_dict
from lucid.profiler.summary import Summary
from lucid.setup.install import with_keys
from testbed import cli

OWN = "vc-a,vc-b --profiling prof"
"""What this site has where the pages say ``vc-a``."""
PACK = lines_of("docs/install.md", "4. Pack mode")[-1].replace("vc-a", OWN)
UNDO = lines_of("docs/uninstall.md", "5. Take it all back")[0]
PARTITIONS = "PartitionName=vc-a Nodes=n[1-2] Default=YES\nPartitionName=vc-b Nodes=n3\nPartitionName=prof Nodes=n4\n"
GATE = "while test -e /tmp/{}; do sleep 0.2; done"
"""A script that runs for as long as this file is there."""
_QUICK: dict[str, dict[str, str | int]] = {
    "policy.profiling": {"t_prof_s": 4},
    "policy.packing": {"least_partner_remaining_s": 0},  # the story's jobs are short: each would be nearly done
    "slurm": {"nodes_every_s": 5, "poll_idle_s": 6, "start_grace_s": 10},
    "daemon": {"first_guess_s": 60, "lease_s": 6},
}
"""What an administrator of so small a cluster with such short jobs would set."""
_SAMPLER = """#!/bin/sh
# In place of lucid-sampler, whose GPUs nobody emulates: a job is measured at once, and uses little of them.
echo "sampler $*" >> /srv/hooks.log
if [ -e /srv/sampler-hangs ]; then sleep 60; fi
case "$*" in *"--nodes 1"*) ;; *) exit 0 ;; esac
cd /var/lib/lucid/profiles && sed "s/JOB/$3/" /srv/light.json > ".$3" && mv ".$3" "$3.json"
"""


class Site:
    """``packs``: whether it is set up to pack; before, it is a plain Slurm, whose files ``plain`` holds."""

    def __init__(self, box: Box) -> None:
        self.box, self.packs, self._crowd = box, False, ""
        self.plain = slurms_own(box)
        self.mps = install_mps(box)
        light = Summary("JOB", "n", (), 0.0, 30.0, 30, JobProfile(20.0, 10.0, 4000.0))
        (box.root / "srv/light.json").write_text(json.dumps(summary_to_dict(light)))
        sampler = box.root / "opt/lucid/bin/lucid-sampler"
        sampler.write_text(_SAMPLER)
        sampler.chmod(0o755)

    def type(self, line: str) -> str:
        """One line, as root types it; gives what it printed."""
        done = typed(self.box, line)
        assert done.returncode == 0, f"{line}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{self.log()[-2000:]}"
        return done.stdout

    def pack(self) -> None:
        """By ``lucidctl setup``, unless all is set up; and lucidd runs."""
        if not self.packs:
            self.write_settings()
            self.type(PACK)
            self.packs = True
        self.start()

    def undo(self) -> None:
        """By ``lucidctl setup --undo``: a plain Slurm again."""
        self.type(UNDO)
        self.packs = False

    def write_settings(self) -> None:
        """An administrator's, before anything else is set up."""
        path = self.box.root / "etc/lucid/lucid.toml"
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o755)
        text = ""
        for table, keys in _QUICK.items():
            text = with_keys(text, table, keys)
        path.write_text(text)
        path.chmod(0o644)

    @property
    def pid(self) -> int:
        """lucidd's; 0: it does not run."""
        path = self.box.root / "srv/stand-in/lucidd.pid"
        if not path.exists():
            return 0
        pid = int(path.read_text())
        stat = Path(f"/proc/{pid}/stat")
        return pid if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z" else 0

    def start(self) -> None:
        """As systemd does, unless it runs."""
        if not self.pid:
            self.type("systemctl start lucidd")

    def kill(self) -> None:
        """lucidd, as hard as can be: nothing of its unit is run after it."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self.box.wait("its end", lambda: not self.pid)

    def ctl(self, *words: str, user: str = "root") -> str:
        """lucidctl, whatever its exit status."""
        done = self._ctl(words, user)
        return done.stdout + done.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self._ctl((*words, "--json"), "root").stdout)

    def story(self, number: str) -> Any:
        """Of a job about which nothing is decided yet, there are no decisions."""
        done = self._ctl(("explain", number, "--json"), "root")
        if "nothing was decided about job" in done.stderr:
            return {"actions": [], "decisions": []}
        return json.loads(done.stdout)

    def verbs(self, number: str) -> list[str]:
        return [action["verb"] for action in self.story(number)["actions"]]

    def _ctl(self, words: tuple[str, ...], user: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["chroot", f"--userspec={user}", str(self.box.root), "/opt/lucid/bin/lucidctl", *words],
            capture_output=True, text=True, check=False, cwd="/", stdin=subprocess.DEVNULL, timeout=120,
            env={"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/tmp", "COLUMNS": "160"},
        )  # fmt: skip

    @contextmanager
    def pages(self) -> Iterator[Pages]:
        """lucid-web beside lucidd."""
        pages = Pages(self.box)
        try:
            self.box.wait("lucid-web", pages.answers)
            yield pages
        finally:
            pages.close()

    def crowded(self) -> str:
        """The job that waits behind full partitions; they are filled unless they are."""
        if not self._crowd or not self.pid or self.box.state(self._crowd) != "PENDING":
            self.clear()
            self.pack()
            fill(self.box)
            job = self.box.sbatch("-p", "vc-b", "--gpus=4", "-t", "30", "-J", "<b>x", script="true")
            self.box.wait("a reason", lambda: bool(self.story(job)["decisions"]))
            told = "only lucidd's user and root can read its story"  # until lucidd has published its queue again
            self.box.wait("the published queue", lambda: told not in self.ctl("explain", job, user="alice"))
            self._crowd = job
        return self._crowd

    def hooks(self) -> list[str]:
        """What the prologs and epilogs have called the sampler with."""
        path = self.box.root / "srv/hooks.log"
        return path.read_text().splitlines() if path.exists() else []

    def log(self) -> str:
        path = self.box.root / "srv/stand-in/lucidd.log"
        return path.read_text() if path.exists() else ""

    def clear(self) -> None:
        """No job of a test before is there, and nobody holds one at its gate."""
        self._crowd = ""
        for user in ("alice", "bob", "root"):
            self.box.run("scancel", f"--user={user}", check=False)
        self.box.wait("an empty queue", lambda: not self.box.run("squeue", "-h", "-a").stdout.strip())


def fill(box: Box, script: str = "sleep 3600") -> list[str]:
    """All GPUs of vc-b, and of the profiling node, which takes in what finds no place."""
    whole = ["--gres=gpu:4", "-t", "60"]
    full = [
        box.sbatch("-p", "vc-b", *whole, "--comment=lucid:off", script=script),
        box.sbatch("-p", "prof", *whole, script=script, user="root"),
    ]
    box.wait("a full partition", lambda: box.runs(*full))
    return full


def gated(site: Site, name: str) -> Path:
    """Jobs whose script begins with GATE run for as long as this file is there."""
    path = site.box.root / "tmp" / name
    path.touch()
    return path


class Pages:
    """lucid-web as lucidd's user. The command by which it could ask Slurm is one that leaves a mark, ``asked``."""

    def __init__(self, box: Box) -> None:
        self.asked = box.root / "run/lucid/asked"
        spy = box.root / "srv/spy"
        spy.write_text('#!/bin/sh\necho "$@" >> /run/lucid/asked\nexit 1\n')
        spy.chmod(0o755)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._config = box.root / "etc/lucid/web.toml"
        told = (box.root / "etc/lucid/lucid.toml").read_text()
        self._config.write_text(
            told.replace("[slurm]\n", '[slurm]\nprefix = ["/srv/spy"]\n')
            + '[web]\nuser_header = "X-Remote-User"\ntrusted_proxies = ["127.0.0.1"]\nadmins = ["root"]\n'
        )
        words = ["/opt/lucid/bin/lucid-web", "--config", "/etc/lucid/web.toml", "--port", str(self.port)]
        self._process = subprocess.Popen(
            ["chroot", "--userspec=lucid", str(box.root), *words],
            cwd="/", env={"PATH": PATH, "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def get(self, path: str, method: str = "GET") -> str:
        asked = Request(f"http://127.0.0.1:{self.port}/{path}", headers={"X-Remote-User": "root"}, method=method)
        with urlopen(asked, timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    def answers(self) -> bool:
        assert self._process.poll() is None, "lucid-web ended"
        try:
            return bool(self.get("health.json"))
        except HTTPError:
            return True
        except (URLError, ConnectionError):
            return False

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)
        self._config.unlink()


@contextmanager
def story_site(suffix: str = "story", variant: str = "site", partitions: str = PARTITIONS) -> Iterator[Site]:
    """Four nodes of four GPUs; n4 is the partition prof. Accounts, QOS and licences bind, unless it is ``bare``."""
    environ = {
        "LUCID_TESTBED_PLUGIN": "0",
        "LUCID_TESTBED_VARIANT": variant,
        "LUCID_TESTBED_NODES": "n[1-4]:gpus=4,cpus=16,mem=64000,type=a100",
    }
    with own_testbed(suffix, **environ) as layout:
        layout = testbeds.with_lucids_needs(layout)
        cli.up(layout, print)
        box = Box(layout.root)
        make_plain(box, partitions)
        testbeds.put_in(box)
        yield Site(box)
