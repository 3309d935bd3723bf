"""What may befall Slurm's own daemons and nodes, and what users throw at it."""

from __future__ import annotations

import random
import signal
import time
from typing import Any

from campaign.fault import Fault, Host, listed
from lucid.core.gpu import CardHealth, GpuFault, NodeHealth
from lucid.node.reports import health_folder, write_health
from testbed import daemons

_CONTROL = frozenset({"slurmctld", "munge", "slurmdbd"})
NODES = ("n1", "n2", "n3", "n4")


@listed
class ControlKilled(Fault):
    """Stopped for the moment in which the age of its state is read: what it forgets is known exactly."""

    name, what = "slurmctld-kill", "slurmctld killed (-9) and started again"
    touches = _CONTROL | {"nodes"}
    lasts_s = (1.0, 12.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any] | None:
        times: dict[str, Any] = host.site.stopped(host.site.pids("slurmctld"))
        host.site.end("slurmctld")
        return times

    def end(self, host: Host) -> None:
        if not host.site.pids("slurmctld"):
            daemons.start_slurmctld(host.site.layout)


@listed
class ControlRestarted(ControlKilled):
    name, what = "slurmctld-restart", "slurmctld ended politely and started again"
    touches = _CONTROL
    lasts_s = (1.0, 15.0)

    def begin(self, host: Host, dice: random.Random) -> None:
        host.site.end("slurmctld", number=signal.SIGTERM)


@listed
class ControlStopped(Fault):
    name, what = "slurmctld-stop", "slurmctld stopped (SIGSTOP) for a while, then continued"
    touches = _CONTROL
    lasts_s = (3.0, 8.0)
    """Less than SlurmctldTimeout: after that the other host's slurmctld takes over, and two act once they continue,
    which is Slurm's own trouble."""

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        return {"processes": host.site.send(signal.SIGSTOP, host.site.pids("slurmctld"))}

    def end(self, host: Host) -> dict[str, Any]:
        return {"processes": host.site.send(signal.SIGCONT, host.site.pids("slurmctld"))}


@listed
class Reconfigured(Fault):
    name, what = "reconfigure", "scontrol reconfigure: slurmctld reads all its files again"
    touches = frozenset({"slurmctld", "munge"})

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        return {"code": host.site.run("scontrol", "reconfigure").returncode}


@listed
class Accounting(Fault):
    name, what = "slurmdbd-kill", "slurmdbd killed (-9), back after a while"
    touches = frozenset({"slurmdbd"})
    lasts_s = (8.0, 60.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        return {"processes": host.site.end("slurmdbd")}

    def end(self, host: Host) -> None:
        if not host.site.pids("slurmdbd"):
            daemons.start_slurmdbd(host.site.layout)


class _OfNode(Fault):
    """Takes the slurmd of a node away, which is started again in the end."""

    touches = frozenset({"nodes"})
    node = ""

    def end(self, host: Host) -> None:
        if self.node and not host.site.pids("slurmd", f" -N {self.node} "):
            daemons.start_slurmd(host.site.layout, self.node)


@listed
class NodeDaemon(_OfNode):
    name, what = "slurmd-kill", "slurmd of a node killed (-9) while its jobs run on, back before the node is given up"
    lasts_s = (2.0, 8.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        self.node = dice.choice(NODES)
        host.site.end("slurmd", f" -N {self.node} ")
        return {"node": self.node}


@listed
class NodeLost(_OfNode):
    name, what = "node-lost", "a node lost with everything on it, given up by Slurm, back again"
    lasts_s = (40.0, 60.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        self.node = dice.choice(NODES)
        return {"lost": [self.node], "processes": host.site.end_node(self.node)}


@listed
class GpuBad(Fault):
    """What the sampler of a node would tell; a person returns the GPU."""

    name, what = "gpu-bad", "a GPU falls off the bus, as its node's sampler tells; a person returns it after a while"
    touches = frozenset({"gpus"})
    lasts_s = (10.0, 40.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        self.gpu, now_s = f"{dice.choice(('n1', 'n2', 'n3'))}:{dice.randrange(4)}", time.time()
        self._samples(host, GpuFault("xid", "fallen off the bus", now_s, now_s, now_s, 79, needs="reboot"))
        return {"gpu": self.gpu}

    def end(self, host: Host) -> dict[str, Any]:
        self._samples(host)  # else a lucidd that loses its store takes the GPU out again
        return {"told": host.site.ctl("gpu", "return", self.gpu).stdout.strip()}

    def _samples(self, host: Host, *faults: GpuFault) -> None:
        node, _, index = self.gpu.partition(":")
        cards = (CardHealth(int(index), f"GPU-{index}", faults=faults),)
        write_health(health_folder(host.site.profiles), NodeHealth(node, time.time(), "campaign", 0.0, cards=cards))


@listed
class Munge(Fault):
    name, what = "munged-kill", "munged killed (-9): nobody can tell Slurm who he is"
    touches = _CONTROL | {"nodes"}
    lasts_s = (3.0, 9.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        return {"processes": host.site.end("munged")}

    def end(self, host: Host) -> None:
        host.site.start_munged()


HOSTILE = (
    ("--gres=gpu:99999999999999999999",),
    ("--gres=gpu:²",),
    ("--gres=gpu:1", "--job-name=\udcff\udcfe\udc80"),
    ("--gres=gpu:1", "--job-name=[/]", "--comment=\x1b[31mred"),
    ("--gres=gpu:1", "--job-name=n\nAdminComment=lucid:vc=prof;held=1", "--comment=lucid:held"),
    ("--gres=gpu:2", "--extra=lucid-gpus=0,1,2,3;lucid-mem=1"),
    ("--extra=lucid-gpus=0,1,2,3",),
    ("--gres=shard:g0:1", "-pvc-a"),
    ("--gres=gpu:g1:1", "-pvc-a"),
    ("--gres=gpu:4", "-pprof"),
    ("--gres=gpu:1", "-pvc-a,vc-b"),
    ("--gres=gpu:1", "--array=0-1100%2"),
    ("--gres=gpu:1", "--comment=" + "lucid:restart," * 60),
    ("--gres=gpu:1", "--job-name=" + "x" * 900),
    ("--gres=gpu:1", "--begin=2199-01-01"),
    ("--gpus=4", "-N1-2", "--gpus-per-task=1", "-n4", "--time=99999-0"),
)
"""Each tried on Lucid before, or like one that was."""


@listed
class Hostile(Fault):
    name, what = "hostile-jobs", "users submit what is meant to harm: numbers, names, devices, partitions, comments"
    touches = frozenset({"users"})
    lasts_s = (10.0, 35.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        submit = ("sbatch", "--parsable", "-D", "/tmp", "-o", "/dev/null", "--wrap=sleep 5")
        done = [host.site.run(*submit, *words, user="bob", limit_s=20) for words in dice.sample(HOSTILE, 7)]
        return {"taken": sum(one.returncode == 0 for one in done)}

    def end(self, host: Host) -> dict[str, Any]:
        return {"cancelled": host.site.cancel_hostile()}
