"""What may befall lucidd itself, and what administrators do to it at a bad time."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from campaign.fault import Fault, Host, listed
from campaign.unit import Unit, release
from testbed import controllers, daemons


@listed
class Killed(Fault):
    name, what = "lucidd-kill", "lucidd killed (-9); started again as systemd does"
    touches = frozenset({"lucidd"})

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        return {"on": host.unit.host, "pid": host.unit.send(signal.SIGKILL)}


@listed
class Stopped(Fault):
    name, what = "lucidd-stop", "lucidd stopped (SIGSTOP) past its lease, sometimes past its watchdog, then continued"
    touches = frozenset({"lucidd"})
    lasts_s = (8.0, 40.0)
    unit: Unit | None = None

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        self.unit = host.unit
        return {"on": self.unit.host, "pid": self.unit.send(signal.SIGSTOP)}

    def end(self, host: Host) -> dict[str, Any]:
        return {"pid": self.unit.send(signal.SIGCONT) if self.unit else 0}


@listed
class Gone(Fault):
    name, what = "lucidd-gone", "lucidd killed (-9) on both hosts for so long that the timer has to let go"
    touches = frozenset({"lucidd"})
    lasts_s = (55.0, 80.0)

    def begin(self, host: Host, dice: random.Random) -> None:
        for unit in host.units:
            unit.keep_down()

    def end(self, host: Host) -> None:
        for unit in host.units:
            unit.let_up()


@listed
class HostLost(Fault):
    """slurmctld is stopped for the moment in which the age of its state is read: what it forgets is known exactly."""

    name, what = "host-lost", "the host of slurmctld and lucidd loses its power; the other takes over; it comes back"
    touches = frozenset({"slurmctld", "munge", "slurmdbd", "nodes", "lucidd", "spare", "hosts"})
    lasts_s = (25.0, 50.0)
    unit: Unit | None = None

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        site = host.site
        self.unit = host.unit if dice.random() < 0.75 else dice.choice(host.units)
        mine = [pid for pid in site.pids("slurmctld") if controllers.of_process(site.layout, pid) == self.unit.host]
        times = site.stopped(mine)
        self.unit.lose_power()
        return {"on": self.unit.host, "processes": controllers.power_off(site.layout, self.unit.host), **times}

    def end(self, host: Host) -> dict[str, Any]:
        if self.unit is None:
            return {}
        daemons.start_slurmctld(host.site.layout, self.unit.host)
        self.unit.let_up()
        return {"acting": host.site.acting()}


@listed
class Restarted(Fault):
    name, what = "lucidd-restart", "systemctl restart lucidd, where it acts or on both hosts"
    touches = frozenset({"lucidd"})

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        units = dice.choice([[host.unit], host.units])
        return {"on": [unit.host for unit in units], "in_time": [unit.restart() for unit in units]}


@listed
class Two(Fault):
    name, what = "two-daemons", "one lucidd more on the same state, that nobody watches, then killed (-9)"
    touches = frozenset({"spare"})
    lasts_s = (10.0, 30.0)
    process: subprocess.Popen[bytes] | None = None

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        self.process = host.unit.spare()
        return {"pid": self.process.pid if self.process else 0}

    def end(self, host: Host) -> dict[str, Any]:
        if self.process is None:
            return {}
        code = self.process.poll()
        self.process.kill()
        self.process.wait(10)
        return {"ended_before": code}


class _Clock(Fault):
    touches = frozenset({"clock"})
    lasts_s = (10.0, 60.0)
    sign = 1

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        jump_s = self.sign * dice.choice([30, 90, 600, 3600, 86400])
        host.site.jump.write_text(str(jump_s))
        return {"jump_s": jump_s}

    def end(self, host: Host) -> None:
        host.site.jump.unlink(missing_ok=True)


@listed
class Ahead(_Clock):
    name, what = "clock-ahead", "lucidd's clock ahead by half a minute to a day, then right again"


@listed
class Behind(_Clock):
    name, what = "clock-behind", "lucidd's clock behind by half a minute to a day, then right again"
    sign = -1


@listed
class HeartbeatDeleted(Fault):
    name, what = "heartbeat-gone", "the heartbeat file deleted, or overwritten with garbage"
    touches = frozenset({"heartbeat"})

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        way = dice.choice(["deleted", "garbage", "long"])
        with suppress(OSError):
            if way == "deleted":
                host.site.heartbeat.unlink(missing_ok=True)
            else:
                host.site.heartbeat.write_bytes(dice.randbytes(200) if way == "garbage" else b"time 1e400\n" * 9**6)
        return {"way": way}


@listed
class HeartbeatUnwritable(Fault):
    name = "heartbeat-unwritable"
    what = "the heartbeat cannot be written: its folder is read-only, or a folder lies there"
    touches = frozenset({"heartbeat"})
    lasts_s = (15.0, 75.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        way = dice.choice(["folder", "mode"])
        if way == "mode":
            host.site.heartbeat.parent.chmod(0o555)
        else:
            with suppress(OSError):
                host.site.heartbeat.unlink(missing_ok=True)
                host.site.heartbeat.mkdir()
        return {"way": way}

    def end(self, host: Host) -> None:
        host.site.heartbeat.parent.chmod(0o755)
        if host.site.heartbeat.is_dir():
            host.site.heartbeat.rmdir()


@listed
class Garbage(Fault):
    name = "spool-garbage"
    what = "garbage where the samplers put their summaries: depth, size, numbers, bytes, a FIFO"
    touches = frozenset({"spool"})
    lasts_s = (10.0, 40.0)

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        folder = host.site.profiles
        files = {
            "deep": b"[" * 100_000,
            "1": b'{"format": 1, "job": "1", "seconds": 1e400, "profile": {"gpu_util": NaN}}',
            "2": b"\xff\xfe\x80" * 100,
            "3": b"{" + b'"a": 1, ' * 300_000,
            "4": b'{"format": ' + b"9" * 10_000 + b"}",
            "../5": b"",
            "99999999999999999999": b'{"format": 1, "job": "99999999999999999999"}',
        }
        self.paths = [folder / f"{Path(name).name}.json" for name in files]
        with suppress(OSError):  # the disk may be full just now
            for path, content in zip(self.paths, files.values(), strict=True):
                path.write_bytes(content)
            for name, make in (("fifo.json", os.mkfifo), ("dir.json", Path.mkdir)):
                self.paths.append(folder / name)
                make(folder / name)
            self.paths.append(folder / "zero.json")
            (folder / "zero.json").symlink_to("/dev/zero")
        return {"files": len(self.paths)}

    def end(self, host: Host) -> None:
        for path in getattr(self, "paths", []):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()


@listed
class OddRelease(Fault):
    name, what = "release-odd", "lucid-release run out of turn: on both hosts at once, or --all while lucidd is well"
    touches = frozenset({"hosts"})

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        words = dice.choice([(), (), ("--all",)])
        with ThreadPoolExecutor() as pool:
            for name in host.site.layout.controllers:
                pool.submit(release, host.site, *words, on=name)
        return {"words": " ".join(words)}


@listed
class Training(Fault):
    name, what = "training", "models trained from what has ended, whatever else goes on"
    touches = frozenset({"training"})

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        site = host.site
        words = [*site.python(), "-m", "lucid.cli.main", "models", "train", "duration", "--config", str(site.config)]
        process = subprocess.Popen(
            ["nice", "-n", "10", *site.as_lucid(*words)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            said = process.communicate(timeout=120)[0].decode(errors="replace").strip()
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[0].decode(errors="replace")
        return {"code": process.returncode, "said": said[-120:]}


@listed
class Switched(Fault):
    name, what = "switches", "lucidctl pause, or mode order or observe, for a while"
    touches = frozenset({"switches"})
    lasts_s = (8.0, 35.0)
    back: tuple[str, ...] = ()

    def begin(self, host: Host, dice: random.Random) -> dict[str, Any]:
        way = dice.choice(
            [("pause",), ("mode", "vc-a", "order"), ("mode", "vc-b", "observe"), ("mode", "vc-a", "observe")]
        )
        self.back = ("resume",) if way == ("pause",) else ("mode", way[1], "configured")
        done = host.site.ctl(*way)
        return {"way": " ".join(way), "code": done.returncode}

    def end(self, host: Host) -> dict[str, Any]:
        code = -1
        for _ in range(3):
            code = host.site.ctl(*self.back).returncode if self.back else 0
            if code == 0:
                break
        return {"code": code}
