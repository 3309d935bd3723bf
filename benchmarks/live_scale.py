"""lucidd on a real slurmctld with 1,000 nodes, 4,000 running and 10,000 waiting jobs.

Real: slurmctld with slurmdbd, a slurmd for each of the 1,000 nodes, the jobs, Lucid's plugins, lucidd, all that it
asks and changes. Not real: the nodes are processes of one machine; the GPUs are devices that nobody opens; and the
jobs that run from the start are allocations without processes (``salloc --no-shell``), since 4,000 batch scripts do
not fit on one machine. What lucidd starts is started, by slurmd, as a script.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

_REPO = Path(__file__).resolve().parents[1]
sys.path.append(str(_REPO / "slurm"))

from benchmarks.figure import Absent, Figure  # noqa: E402
from testbed import cli, host  # noqa: E402
from testbed.lifetime import kept  # noqa: E402
from testbed.settings import Layout, layout_from  # noqa: E402

__all__ = ["figures", "latency"]

RUNNING, WAITING = 4_000, 10_000
VCS = {"vc-a": 400, "vc-b": 300, "vc-c": 200, "vc-d": 84}
_USERS = ("alice", "bob", "carol")
_SIZES = ((1, 60), (2, 23), (4, 13), (8, 4))
_WINDOW_S = 120.0
_TURNOVER_S = 4.0
"""A running job ends, and another is submitted, once in so many seconds."""
_TICKS = os.sysconf("SC_CLK_TCK")


class _Site:
    def __init__(self, layout: Layout) -> None:
        self.layout, self.root = layout, layout.root
        self.rng = random.Random(1)
        self._beating = threading.Event()

    def run(self, *command: str, user: str = "root", script: str | None = None) -> str:
        done = subprocess.run(
            ["chroot", f"--userspec={user}", str(self.root), *command],
            input=script, capture_output=True, text=True, check=False, cwd="/", errors="replace",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/tmp"},
        )  # fmt: skip
        return done.stdout

    def line(self, kind: str) -> str:
        vc = self.rng.choices(list(VCS), list(VCS.values()))[0]
        gpus = self.rng.choices([size for size, _ in _SIZES], [share for _, share in _SIZES])[0]
        hours, name = self.rng.randint(1, 72), f"{kind}{self.rng.randint(0, 400)}"
        asked = f"-p {vc} -n1 -c2 --gres=gpu:{gpus} -t {hours}:00:00 -J {name}"
        if kind == "run":
            return f"salloc -Q --no-shell --immediate=2 {asked}"
        return f"sbatch -Q -o /dev/null {asked} /tmp/job.sh >/dev/null"

    def submit(self, kind: str, count: int) -> None:
        lines: dict[str, list[str]] = {user: ["cd /tmp"] for user in _USERS}
        for _ in range(count):
            lines[self.rng.choice(_USERS)].append(self.line(kind))
        workers = [
            threading.Thread(target=lambda u=user, s=some: self.run("sh", user=u, script="\n".join([*s, ""])))
            for user, some in lines.items()
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def count(self, state: str) -> int:
        return self.run("squeue", "-h", "-t", state, "-o", "%A").count("\n")

    @contextmanager
    def beating(self) -> Iterator[None]:
        """A heartbeat as lucidd's, so that the plugin holds what is submitted."""
        done = threading.Event()

        def beat() -> None:
            path = self.root / "run/lucid/heartbeat"
            while True:
                fresh = path.with_suffix(".new")
                fresh.write_text(f"time {time.time():.0f}\n" + "".join(f"mode {vc} pack\n" for vc in VCS))
                fresh.rename(path)
                if done.wait(5):
                    break

        thread = threading.Thread(target=beat)
        thread.start()
        time.sleep(0.5)
        try:
            yield
        finally:
            done.set()
            thread.join()

    def fill(self) -> None:
        (self.root / "tmp/job.sh").write_text("#!/bin/sh\nsleep 7200\n")
        (self.root / "run/lucid/heartbeat").unlink(missing_ok=True)
        if (lacking := RUNNING - self.count("R")) > 0:
            self.submit("run", lacking)
        with self.beating():
            if (lacking := WAITING - self.count("PD")) > 0:
                self.submit("job", lacking)

    def controller(self) -> int:
        return next(pid for pid, name in host.processes_in(self.root).items() if name == "slurmctld")

    def turnover(self, done: threading.Event) -> None:
        """Ends and submits one job after the other."""
        running = self.run(
            "squeue", "-h", "-t", "R", "-n", ",".join(f"run{n}" for n in range(401)), "-o", "%A"
        ).split()
        while running and not done.wait(_TURNOVER_S):
            self.run("scancel", running.pop(self.rng.randrange(len(running))))
            self.submit("job", 1)

    def spent_on(self, user: str) -> tuple[int, float]:
        """Requests of a user, and the seconds slurmctld worked on them, as it counts itself."""
        found = re.search(
            rf"^\s*{user}\s+\(\s*\d+\)\s+count:(\d+).*total_time:(\d+)", self.run("sdiag"), re.MULTILINE
        )
        return (int(found[1]), int(found[2]) / 1e6) if found else (0, 0.0)


def _cpu_s(pid: int, children: bool = False) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[13:15] if children else fields[11:13])) / _TICKS


def _memory_mib(pid: int, which: str = "VmHWM") -> float:
    """The most so far, or (``VmRSS``) what it has now."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


class _Lucidd:
    def __init__(self, site: _Site, folder: Path) -> None:
        self.folder = folder
        prefix = json.dumps(["chroot", "--userspec=lucid", str(site.root)])
        modes = "".join(f'{vc} = "pack"\n' for vc in VCS)
        (folder / "lucid.toml").write_text(
            f"[slurm]\nprefix = {prefix}\ntimeout_s = 60\n"
            f'[daemon]\nstate_dir = "{folder}"\nheartbeat = "{site.root}/run/lucid/heartbeat"\n'
            f'profiling_partition = "prof"\n[daemon.partitions]\n{modes}'
        )
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lucid.daemon", "--config", str(folder / "lucid.toml")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=_REPO,
            )  # fmt: skip

    def status(self) -> dict[str, object]:
        from lucid.store.sqlite import SqliteStore

        return dict(SqliteStore(self.folder / "lucid.db", read_only=True).view("status") or {})

    def wait_cycles(self, count: int, limit_s: float = 300.0) -> None:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            try:
                if int(str(self.status().get("cycles", 0))) >= count:
                    return
            except Exception:  # its store is not there yet
                pass
            if self.process.poll() is not None:
                raise Absent(f"lucidd ended: {(self.folder / 'log').read_text()[-500:]}")
            time.sleep(0.5)
        raise Absent(f"no {count} cycles within {limit_s:g} s; {(self.folder / 'log').read_text()[-500:]}")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@contextmanager
def _site(environ: dict[str, str]) -> Iterator[_Site]:
    layout = layout_from({**os.environ, **environ})
    if reason := cli.unfit(layout):
        raise Absent(reason)
    with nullcontext() if os.environ.get("LUCID_SCALE_KEEP") else kept(layout):
        cli.up(layout, lambda text: print(text, file=sys.stderr))
        yield _Site(layout)


def _span(site: _Site, measured: Callable[[], Sequence[float]]) -> tuple[float, list[float]]:
    """What a window with turnover adds to some counts; and its length, s."""
    done = threading.Event()
    others = threading.Thread(target=site.turnover, args=(done,))
    others.start()
    time.sleep(_TURNOVER_S)
    before, began_s = measured(), time.monotonic()
    time.sleep(_WINDOW_S)
    after, took_s = measured(), time.monotonic() - began_s
    done.set()
    others.join()
    return took_s, [b - a for a, b in zip(before, after, strict=True)]


def figures(runs: int) -> Iterator[Figure]:  # noqa: ARG001 - one window is one run
    """``LUCID_SCALE_KEEP=1`` leaves the testbed, with its jobs, for another time."""
    environ = {
        "LUCID_TESTBED_VARIANT": "large",
        "LUCID_TESTBED_NAME": os.environ.get("LUCID_TESTBED_NAME", "scale-l"),
    }
    with _site(environ) as site, tempfile.TemporaryDirectory() as folder:
        site.fill()
        size = f"{site.count('R'):,} running, {site.count('PD'):,} waiting"
        controller = site.controller()
        with site.beating():
            alone_s, (alone_cpu_s,) = _span(site, lambda: (_cpu_s(controller),))
        before = site.spent_on("lucid")
        began_s = time.monotonic()
        lucidd = _Lucidd(site, Path(folder))
        pid = lucidd.process.pid
        try:
            lucidd.wait_cycles(1)
            first_s, first_cpu_s, first_child_s = time.monotonic() - began_s, _cpu_s(pid), _cpu_s(pid, children=True)
            lucidd.wait_cycles(8)  # every free GPU is taken by then
            yield Figure("first look, plan and apply, wall", first_s, "s", note=size)
            yield Figure("the same, CPU of lucidd", first_cpu_s, "s", note=f"its commands {first_child_s:.1f} s")

            def measured() -> Sequence[float]:
                status = lucidd.status()
                calls = status.get("calls")
                assert isinstance(calls, dict)
                counts = status.get("counts")
                assert isinstance(counts, dict)
                requests, spent_s = site.spent_on("lucid")
                return (
                    float(str(status["cycles"])), _cpu_s(pid), _cpu_s(pid, children=True), _cpu_s(controller),
                    float(calls["reads"]), float(calls["writes"]), float(requests), spent_s,
                    float(counts["plan_s"]["sum_s"]), float(sum(counts["plan_s"]["counts"])),
                    float(counts["cycle_s"]["sum_s"]),
                )  # fmt: skip

            took_s, added = _span(site, measured)
            cycles, own, commands, ctld, reads, writes, requests, spent_s, plan_s, plans, cycle_s = added
            cycles = max(cycles, 1.0)
            yield Figure(
                "one cycle, CPU of lucidd", own / cycles, "s",
                baseline=commands / cycles, baseline_name="of its commands, besides", at_most=1.5,
                note=f"{cycles:.0f} cycles in {took_s:.0f} s, {cycle_s / cycles:.1f} s wall each",
            )  # fmt: skip
            yield Figure("one cycle, CPU of lucidd and its commands", (own + commands) / cycles, "s", at_most=1.5)
            yield Figure("one plan(), wall", 1000 * plan_s / max(plans, 1.0), "ms")
            yield Figure("memory of lucidd, peak", _memory_mib(pid), "MiB", at_most=400)
            yield Figure("memory of lucidd, at the end", _memory_mib(pid, "VmRSS"), "MiB")
            yield Figure(
                "slurmctld's time on lucidd's requests", 100 * spent_s / took_s, "%", at_most=3.0,
                note=f"as sdiag counts it; {60 * requests / took_s:.0f} requests a minute, of "
                f"{60 * reads / took_s:.0f} commands that read and {60 * writes / took_s:.0f} that write",
            )  # fmt: skip
            yield Figure(
                "CPU of slurmctld", 100 * ctld / took_s, "% of a core",
                baseline=100 * alone_cpu_s / alone_s, baseline_name="without lucidd",
            )  # fmt: skip
            yield Figure("memory of slurmctld, peak", _memory_mib(controller), "MiB")
        finally:
            lucidd.end()
        after = site.spent_on("lucid")
        print(f"requests of lucidd in all: {after[0] - before[0]:,}", file=sys.stderr)


_PLUGINS = {
    "none": ("JobSubmitPlugins=", "CliFilterPlugins="),
    "job_submit": ("CliFilterPlugins=",),
    "all": (),
}
_BLOCKS, _EACH = 8, 30


def latency(runs: int) -> Iterator[Figure]:
    """Times sbatch with all of Lucid's scripts, with job_submit.lua alone, and with none. The three take turns."""
    name = f"{os.environ.get('LUCID_TESTBED_NAME', 'scale')[:20]}-sbatch"
    with _site({"LUCID_TESTBED_VARIANT": "bare", "LUCID_TESTBED_NAME": name}) as site, site.beating():
        conf = site.root / "etc/slurm/lucid.slurm.conf"
        before = conf.read_text()
        times: dict[str, list[float]] = {kind: [] for kind in _PLUGINS}
        for block in range(_BLOCKS * max(runs, 1) // 3 or 1):
            for kind in list(_PLUGINS)[:: 1 if block % 2 else -1]:
                left_out = _PLUGINS[kind]
                lines = before.splitlines(keepends=True)
                conf.write_text("".join(line for line in lines if not (left_out and line.startswith(left_out))))
                site.run("scontrol", "reconfigure")
                site.run("scontrol", "update", "PartitionName=vc-a", "State=DOWN")
                for n in range(_EACH + 3):
                    began_s = time.perf_counter()
                    site.run(
                        "sbatch", "-Q", "-D", "/tmp", "-o", "/dev/null", "--gres=gpu:1", "--wrap=true", user="alice"
                    )
                    if n >= 3:
                        times[kind].append(time.perf_counter() - began_s)
                site.run("scancel", "--user=alice")
        plain = 1000 * statistics.median(times["none"])
        for kind, words in (("job_submit", "job_submit.lua"), ("all", "job_submit.lua and cli_filter.lua")):
            value = 1000 * statistics.median(times[kind])
            yield Figure(
                f"sbatch with {words}, median", value, "ms", len(times[kind]), plain, "plain Slurm",
                at_most=1.10 * plain,
            )  # fmt: skip
