"""A site's ordinary week: maintenance windows, nodes that sleep, jobs that are preempted, nodes that reboot."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from campaign.facts import Order
from campaign.fault import Fault, Host, listed
from campaign.faults_slurm import NODES
from campaign.site import Site
from campaign.stream import KNOWN, PARTITIONS, SCAVENGERS, USERS

_NUMBERS = itertools.count(1)
"""Of the jobs that faults ask users for, and of reservations: no two bear the same name."""
_BACK_S = 150.0
"""So long the nodes of a fault may take until all of them are awake and usable again."""


class _Meanwhile(Fault):
    """With a thread of its own for what comes while it is in force."""

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        self.facts: dict[str, Any] = {}
        self._over = threading.Event()
        self.trouble: list[str] = []
        self._thread = threading.Thread(target=self._try, args=(host, dice), name=self.name, daemon=True)
        self._thread.start()
        return self.facts

    def end(self, host: Host) -> dict[str, Any]:
        if hasattr(self, "_thread"):
            self._over.set()
            self._thread.join(60)
            if self.trouble:
                raise RuntimeError("; ".join(self.trouble))
        return dict(self.facts)

    def waits(self, seconds: float) -> bool:
        """Is it still in force after that?"""
        return not self._over.wait(seconds)

    def live(self, host: Host, dice: random.Random) -> None:
        raise NotImplementedError

    def _try(self, host: Host, dice: random.Random) -> None:
        try:
            self.live(host, dice)
        except Exception as error:  # told by the end, as the campaign's own trouble
            self.trouble.append(f"{type(error).__name__}: {error}")


@listed
class Window(_Meanwhile):
    """Jobs with limits that end before it and after it wait, or do not; one of its kind may be changed or deleted."""

    name, what = "window", "maintenance reservations that begin soon; some overlap, are moved, changed or deleted"
    touches = frozenset({"reservations"})
    lasts_s = (60.0, 100.0)

    def live(self, host: Host, dice: random.Random) -> None:
        self.facts["made"] = self.made = []
        for _ in range(dice.choice([1, 2, 2])):
            first_s = dice.uniform(8, 80)
            last_s = first_s + dice.uniform(12, 40)
            nodes = dice.choice(["ALL", "n1", "n[1-2]", "n[2-3]", "n3"])
            name = f"week{next(_NUMBERS)}"
            self.made.append(f"{name} {nodes} {first_s:.0f} s to {last_s:.0f} s")
            more = ("flags=maint,ignore_jobs", f"nodes={nodes}", "users=root")
            _reserve(host.site, "create", name, first_s, last_s, *more)
            host.people.ask(_owners(dice, 4, limits=("-t1", "-t1", "-t3", "-t60", "")))
            if not self.waits(dice.uniform(3, 15)):
                return
            match dice.choice(["stays", "deleted", "earlier", "later", "longer", "fewer"]):
                case "deleted":
                    self.made.append(f"{name} deleted")
                    host.site.run("scontrol", "delete", f"reservationname={name}")
                case "earlier":
                    _reserve(host.site, "update", name, 3, 30)
                case "later":
                    _reserve(host.site, "update", name, first_s + 20, last_s + 20)
                case "longer":
                    host.site.run("scontrol", "update", f"reservationname={name}", "duration+=1")
                case "fewer" if nodes in ("ALL", "n[1-2]"):
                    host.site.run("scontrol", "update", f"reservationname={name}", "nodes=n1")

    def end(self, host: Host) -> dict[str, Any]:
        facts = super().end(host)
        _retried(lambda: _without_reservations(host.site), 90)
        return facts


def _reserve(site: Site, verb: str, name: str, first_s: float, last_s: float, *more: str) -> None:
    times = (f"starttime=now+{first_s:.0f}seconds", f"endtime=now+{last_s:.0f}seconds")
    words = [verb, *(("reservation",) if verb == "create" else ()), f"reservationname={name}", *times, *more]
    _retried(lambda: site.run("scontrol", *words).returncode == 0, 20)


def _without_reservations(site: Site) -> bool:
    done = site.run("scontrol", "show", "reservation", "-o")
    names = [line.partition(" ")[0].partition("=")[2] for line in done.stdout.splitlines() if "Name=week" in line]
    for name in names:
        site.run("scontrol", "delete", f"reservationname={name}")
    return done.returncode == 0 and not names


@listed
class Preempted(_Meanwhile):
    """Scavengers are counted jobs, too. A tenth of them may not be requeued: Slurm ends these."""

    name, what = "preempt", "scavengers of a lower tier fill the nodes of the VCs; owners' jobs come and preempt them"
    touches = frozenset({"scavengers"})
    lasts_s = (40.0, 80.0)

    def live(self, host: Host, dice: random.Random) -> None:
        self.facts["scavengers"] = self.facts["owners"] = 0
        while True:
            scavengers = [_scavenger(dice) for _ in range(dice.randint(5, 9))]
            host.people.ask(scavengers)
            self.facts["scavengers"] += len(scavengers)
            if not self.waits(dice.uniform(6, 15)):
                return
            owners = _owners(dice, dice.randint(2, 4))
            host.people.ask(owners)
            self.facts["owners"] += len(owners)
            if not self.waits(dice.uniform(8, 20)):
                return


def _scavenger(dice: random.Random) -> Order:
    gpus, stays = dice.choice([1, 2, 2, 4]), dice.random()
    options = ["-p", SCAVENGERS, f"--gres=gpu:{gpus}", "-t10", f"--job-name={dice.choice(KNOWN)}"]
    if stays < 0.1:
        options.append("--no-requeue")
    if dice.random() < 0.3:
        options.append("--comment=lucid:off")
    return Order(
        token=f"scav-{next(_NUMBERS):05d}", at_s=0.0, user=dice.choice(USERS), options=tuple(options),
        body=f"sleep {dice.uniform(15, 50):.1f}", gives_way=True, partition=SCAVENGERS, gpus=gpus,
    )  # fmt: skip


def _owners(dice: random.Random, count: int, limits: tuple[str, ...] = ("", "-t5", "-t30")) -> list[Order]:
    """Jobs of the VCs, many of them large."""
    found = []
    for _ in range(count):
        partition, gpus = dice.choice(sorted(PARTITIONS)), dice.choice([1, 2, 4, 4])
        nodes = dice.choice([1, 1, 1, PARTITIONS[partition]])
        size = (f"--gres=gpu:{gpus}",) if nodes == 1 else (f"-N{nodes}", f"--gpus-per-node={gpus}")
        limit, said = dice.choice(limits), dice.choice(["", "", "lucid:exclusive", "lucid:off"])
        more = [*([limit] if limit else []), *([f"--comment={said}"] if said else [])]
        found.append(
            Order(
                token=f"owner-{next(_NUMBERS):05d}", at_s=0.0, user=dice.choice(USERS), partition=partition,
                options=("-p", partition, *size, f"--job-name={dice.choice(KNOWN)}", *more),
                body=f"sleep {dice.uniform(3, 20):.1f}", nodes=nodes, gpus=gpus,
            )
        )  # fmt: skip
    return found


@listed
class Asleep(_Meanwhile):
    """Nodes are put to sleep again and again, at once or when their jobs have ended, and boot for jobs."""

    name, what = "sleep", "nodes fall asleep and are woken for jobs; a boot fails now and then"
    touches = frozenset({"nodes"})
    lasts_s = (70.0, 110.0)

    def live(self, host: Host, dice: random.Random) -> None:
        power = host.site.root / "run/power"
        (power / "boot_s").write_text(f"{dice.uniform(1, 8):.1f}\n")
        self.facts.update(told=[], boots_failed=[])
        length, fails, most = len(_log(power)), "", dice.randint(1, 3)
        one_fails = dice.random() < 0.5
        while True:
            states = _states(host.site)
            for node in dice.sample(NODES, most):
                if states.get(node) not in ("idle", "mixed", "allocated"):
                    continue
                if one_fails and not fails:
                    fails = node
                    (power / "fails").write_text(f"{fails}\n")
                how = "power_down" if states[node] == "idle" else "power_down_asap"  # once its jobs have ended
                host.site.run("scontrol", "update", f"nodename={node}", f"state={how}")
                self.facts["told"].append(f"{node} {how}")
            if not self.waits(dice.uniform(12, 25)):
                return
            if fails and not self.facts["boots_failed"] and f" fails {fails}\n" in _log(power)[length:]:
                self.facts["boots_failed"].append(fails)
                (power / "fails").write_text("")

    def end(self, host: Host) -> dict[str, Any]:
        facts = super().end(host)
        (host.site.root / "run/power/fails").write_text("")
        _retried(lambda: _awake(host.site), _BACK_S)
        return facts


@listed
class Reboots(Fault):
    name, what = "reboot", "scontrol reboot of a node, as soon as it is empty or at once when its jobs have ended"
    touches = frozenset({"nodes"})
    lasts_s = (25.0, 80.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        nodes = dice.sample(NODES, dice.choice([1, 1, 2]))
        how = dice.choice([["ASAP"], ["ASAP"], []])
        words = ["scontrol", "reboot", *how, "nextstate=resume", "reason=kernel", ",".join(nodes)]
        _retried(lambda: host.site.run(*words).returncode == 0, 20)
        return {"nodes": nodes, "how": " ".join(how) or "when idle"}

    def end(self, host: Host) -> dict[str, Any]:
        waiting = [node for node, state in _states(host.site).items() if "@" in state]
        if waiting:
            host.site.run("scontrol", "cancel_reboot", ",".join(waiting))
        _retried(lambda: _awake(host.site), _BACK_S)
        return {"never_empty": waiting}


def _states(site: Site) -> dict[str, str]:
    """As sinfo writes them: idle~ sleeps, # boots, % falls asleep, ! will, @ will reboot, ^ reboots."""
    done = site.run("sinfo", "-h", "-N", "-a", "-o", "%N %T", limit_s=15)
    return {node: state for node, _, state in (line.partition(" ") for line in done.stdout.splitlines())}


def _awake(site: Site) -> bool:
    """Wake those that sleep and bring back those that Slurm gave up; were all of them usable already?"""
    states = _states(site)
    for node, state in states.items():
        if state.startswith(("down", "drain")) and "@" not in state and "^" not in state:
            site.run("scontrol", "update", f"nodename={node}", "state=resume", limit_s=15)
        elif state.endswith("~"):
            site.run("scontrol", "update", f"nodename={node}", "state=power_up", limit_s=15)
    return bool(states) and not any(
        state.startswith(("down", "drain", "reboot")) or state[-1] in "~#%!@^*" for state in states.values()
    )


def _retried(done: Callable[[], bool], limit_s: float) -> None:
    """slurmctld may be away just now.

    Raises:
        TimeoutError: it was not done in time.
    """
    until = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {limit_s:g} s")
        time.sleep(2)


def _log(power: Path) -> str:
    with suppress(OSError):
        return (power / "log").read_text(errors="replace")
    return ""
