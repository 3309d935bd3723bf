"""A maintenance window over 1,000 waiting jobs on a real Slurm, beside plain Slurm: what it costs under lucidd, and
when jobs start after it.

The same jobs go to two testbeds of the same nodes at the same time, one of which has lucidd in pack mode. On plain
Slurm the profiling node is anybody's. Slurm, its plugin, lucidd and the window are real. GPUs are emulated, and so
are the slowdown and the readings of jobs that share them (``slurm/demo_job.py``). The window is of two hours; it ends
early, because ``scontrol update`` says so.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(REPO / "tools"), str(REPO / "tests"), str(REPO / "slurm"), str(REPO)]

from rich.console import Console  # noqa: E402

from campaign.slurmctld_log import told_by  # noqa: E402
from demo import INSIDE, Lucidd, Site  # noqa: E402
from demo_stream import Piece, stream  # noqa: E402
from lucid.errors import LucidError  # noqa: E402
from lucid.node.reports import summary_to_dict  # noqa: E402
from lucid.profiler.summary import Summary  # noqa: E402
from lucid.store.sqlite import SqliteStore  # noqa: E402
from testbed import cli as testbed  # noqa: E402
from testbed.lifetime import kept  # noqa: E402
from testbed.settings import Layout, TestbedError, layout_from  # noqa: E402

NODES = 6
LAYOUT = {
    "LUCID_TESTBED_VARIANT": "bare",
    "LUCID_TESTBED_NODES": f"n[1-{NODES}]:gpus=8,cpus=32,mem=128000,type=a100",
    "LUCID_TESTBED_PARTITIONS": f"vc-a=n[1-{NODES - 1}] prof=n{NODES}",
}
KNOWN_S = 90.0
"""So long before it the end of the window is known, as it is where nobody moves it."""
LIMITS_MIN = (10, 30, 60, 240)
SHORT_SHARE = 0.1
"""Of the jobs: these have a limit of two minutes, so that they may start before the window."""
WORK = 0.6
"""Jobs are as much shorter than those of ``make demo-slurm``."""
OWN_VERBS = ("park", "hold")
"""What lucidd renews for every job that waits, window or not."""


@dataclass
class Side:
    """One of the two testbeds, and what was seen there. ``starts``, ``ends``: by job, Unix s."""

    name: str
    site: Site
    partition: str
    out: Path
    jobs: list[str] = field(default_factory=list)
    submitted: dict[str, float] = field(default_factory=dict)
    starts: dict[str, list[float]] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    lucidd: Lucidd | None = None

    def begin(self, pieces: list[Piece], say: Console) -> None:
        self.site.begin(say)
        for n, piece in enumerate(pieces):
            program = piece.program
            summary = json.dumps(summary_to_dict(Summary("JOB", "demo", (), 0.0, 30.0, 30, program.profile)))
            numbers = f"{piece.work_s:.1f} {program.profile.gpu_util:g} {program.profile.mem_util:g}"
            path = self.site.folder / f"{n}.sh"
            path.write_text(f"#!/bin/sh\nexec python3 {INSIDE}/job.py {INSIDE} {numbers} '{summary}'\n")

    def submit(self, pieces: list[Piece], limits: list[int]) -> None:
        """One after the other, in the same order on both sides."""
        lines = ["cd /tmp"]
        for n, (piece, limit_min) in enumerate(zip(pieces, limits, strict=True)):
            words = f"--uid={piece.user} -p {self.partition} -J {piece.program.name} --gres=gpu:{piece.program.gpus}"
            lines.append(f"sbatch --parsable -o /dev/null -N1 {words} -t {limit_min} {INSIDE}/{n}.sh || echo refused")
        done = subprocess.run(
            ["chroot", str(self.site.root), "sh"], input="\n".join([*lines, ""]), capture_output=True, text=True,
            check=False, cwd="/", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"},
        )  # fmt: skip
        self.jobs = done.stdout.split()
        if len(self.jobs) != len(pieces) or "refused" in self.jobs:
            raise TestbedError(f"{self.name}: not all jobs were accepted: {done.stderr[:500]}")

    def look(self) -> int:
        """Take in what slurmctld's log tells; returns how many jobs have ended."""
        log = told_by((self.site.root / "var/log/slurm/slurmctld.log").read_text())
        for job in self.jobs:
            told = log.of(job, time.time())
            if told is not None:
                self.submitted[job] = told.submitted[0] if told.submitted else 0.0
                self.starts[job] = told.started
                if len(told.completed) > len(told.requeued) or (told.completed and not told.requeued):
                    self.ends[job] = told.completed[-1]
        return len(self.ends)

    def first_start_s(self, after_s: float) -> float:
        """The first start after a time; NaN where there was none."""
        return min((at for starts in self.starts.values() for at in starts if at >= after_s), default=math.nan)

    def started_in(self, from_s: float, until_s: float) -> list[str]:
        return [job for job, starts in self.starts.items() if any(from_s <= at < until_s for at in starts)]

    def jct_s(self) -> float:
        return mean(self.ends[job] - self.submitted[job] for job in self.jobs if job in self.ends)

    def scontrol(self, *words: str) -> None:
        self.site.run("root", "scontrol", *words)


def at(unix_s: float) -> str:
    """As scontrol takes it; testbeds keep the time of this machine's zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(unix_s))


@dataclass(frozen=True)
class Spans:
    """Times of the scene, Unix s. In ``moved`` the window moves away (``moved_s``) before it begins."""

    submitted_s: float
    from_s: float
    until_s: float
    moved_s: float = 0.0


def play(scene: str, sides: list[Side], pieces: list[Piece], limits: list[int], say: Console) -> Spans:
    """Until the window has ended; the jobs run on."""
    nodes = "ALL" if scene != "half" else f"n[1-{NODES // 2}]"
    flags = "maint,ignore_jobs" + (",daily" if scene == "half" else "")

    def everywhere(do: Callable[[Side], None]) -> None:
        workers = [threading.Thread(target=do, args=(side,)) for side in sides]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def window(from_s: float) -> None:
        words = ("reservation=w", f"starttime={at(from_s)}", "duration=120", f"nodes={nodes}", "users=root")
        everywhere(lambda side: side.scontrol("create", *words, f"flags={flags}"))
        say.print(f"{at(time.time())} window of two hours over {nodes} from {at(from_s)}", highlight=False)

    def submit() -> float:
        began = time.monotonic()
        everywhere(lambda side: side.submit(pieces, limits))
        say.print(f"{at(time.time())} {len(pieces)} jobs, in {time.monotonic() - began:.0f} s", highlight=False)
        return time.time()

    def wait_until(moment_s: float) -> None:
        time.sleep(max(moment_s - time.time(), 0.0))

    def told(when: str) -> None:
        for side in sides:
            if side.lucidd is not None:
                asked(side, when)

    if scene == "after":
        submitted_s = submit()
        from_s = float(round(time.time() + 100))
        window(from_s)
    else:
        from_s = float(round(time.time() + 210 + 0.05 * len(pieces)))
        window(from_s)
        submitted_s = submit()
    wait_until(submitted_s + 30)
    told("before")
    if scene == "moved":
        moved_s = time.time()
        everywhere(lambda side: side.scontrol("update", "reservation=w", f"starttime={at(from_s + 2700)}"))
        say.print(f"{at(moved_s)} the window moves to {at(from_s + 2700)}", highlight=False)
        wait_until(moved_s + 60)
        told("moved")
        until_s = time.time()
        everywhere(lambda side: side.scontrol("delete", "reservation=w"))
        say.print(f"{at(until_s)} the window is deleted", highlight=False)
        return Spans(submitted_s, from_s + 2700, until_s, moved_s)
    wait_until(from_s + 20)
    told("in")
    until_s = float(round(time.time() + KNOWN_S))
    everywhere(lambda side: side.scontrol("update", "reservation=w", f"endtime={at(until_s)}"))
    say.print(f"{at(time.time())} the window ends at {at(until_s)}", highlight=False)
    wait_until(until_s)
    return Spans(submitted_s, from_s, until_s)


def asked(side: Side, when: str) -> None:
    """What Lucid's commands print now, into files."""
    assert side.lucidd is not None
    picks = [job for job in side.jobs if not side.starts.get(job)]
    long_one, last = picks[len(picks) // 2], picks[-1]
    for name, words in {
        "queue": ("queue",),
        "queue.json": ("queue", "--json"),
        "when": ("when", "--gpus", "1", "--time", "1:00:00", "--partition", "vc-a"),
        "when-short": ("when", "--gpus", "1", "--time", "0:01:00", "--partition", "vc-a"),
        "explain": ("explain", long_one),
        "why-not": ("why-not", long_one),
        "why-not-last": ("why-not", last),
        "status": ("status",),
    }.items():
        (side.out / f"{when}-{name}.txt").write_text(side.lucidd.ctl(*words))
    (side.out / f"{when}-squeue-start.txt").write_text(side.site.run("root", "squeue", "--start", "-a"))


def wait_ended(sides: list[Side], limit_s: float, say: Console) -> None:
    until = time.monotonic() + limit_s
    while True:
        ended = [side.look() for side in sides]
        if all(count == len(side.jobs) for count, side in zip(ended, sides, strict=True)):
            return
        if time.monotonic() > until:
            say.print(f"not ended within {limit_s:.0f} s: {ended}")
            return
        time.sleep(5.0)


@dataclass(frozen=True)
class Written:
    """What lucidd did to jobs: ``by_verb`` until the window's end, of all jobs that started only after it."""

    by_verb: dict[str, int]
    let_go: int
    in_vain: int
    writes_a_job: float


def written(side: Side, spans: Spans) -> Written:
    """From lucidd's store. In vain: a start after which Slurm did not start the job, so that it was taken back."""
    store = SqliteStore(side.out / "state/lucid.db", read_only=True)
    actions = store.actions(limit=1_000_000)
    until_s = spans.moved_s or spans.until_s
    early = set(side.started_in(0.0, until_s))
    waited = set(side.jobs) - early
    verbs: dict[str, int] = {}
    for action in actions:
        if action.job_id in waited and action.at_s < until_s:
            verbs[action.verb] = verbs.get(action.verb, 0) + 1
    let_go = {action.job_id for action in actions if action.verb == "let go" and action.job_id in side.jobs}
    in_vain = sum(action.verb in ("take back", "restore") for action in actions if action.job_id in side.jobs)
    own = sum(count for verb, count in verbs.items() if verb not in OWN_VERBS)
    return Written(verbs, len(let_go), in_vain, own / max(len(waited), 1))


def updates_in(side: Side, spans: Spans) -> dict[str, int]:
    """Lines of slurmctld's log about jobs between the last submission and the window's end, by kind."""
    found: dict[str, int] = {}
    until_s = spans.moved_s or spans.until_s
    for line in (side.site.root / "var/log/slurm/slurmctld.log").read_text().splitlines():
        match = re.match(r"\[([\d:.T-]+)\] (.*JobId=.*)", line)
        if match is None:
            continue
        moment_s = time.mktime(time.strptime(match[1].partition(".")[0], "%Y-%m-%dT%H:%M:%S"))
        if spans.submitted_s <= moment_s < until_s:
            kind = re.sub(r"\d+", "N", match[2])[:60]
            found[kind] = found.get(kind, 0) + 1
    return found


def told(scene: str, lucid: Side, plain: Side, spans: Spans) -> dict[str, Any]:
    end_s = spans.moved_s or spans.until_s
    done = written(lucid, spans)
    firsts = {side.name: side.first_start_s(spans.until_s) - spans.until_s for side in (lucid, plain)}
    return {
        "scene": scene,
        "jobs": len(lucid.jobs),
        "ended": {side.name: len(side.ends) for side in (lucid, plain)},
        "started before its end": {side.name: len(side.started_in(0.0, end_s)) for side in (lucid, plain)},
        "started in it": {side.name: len(side.started_in(spans.from_s, spans.until_s)) for side in (lucid, plain)},
        "let go": done.let_go,
        "tried in vain": done.in_vain,
        "writes a job because of it": done.writes_a_job,
        "writes by kind": done.by_verb,
        "slurmctld's log": updates_in(lucid, spans),
        "first start after it, s": firsts,
        "later than plain Slurm's, s": firsts[lucid.name] - firsts[plain.name],
        "avg JCT, s": {side.name: side.jct_s() for side in (lucid, plain)},
        "JCT ratio": lucid.jct_s() / plain.jct_s(),
        "last end, s after the window": {
            side.name: max(side.ends.values(), default=0.0) - spans.until_s for side in (lucid, plain)
        },
        "restarts": sum(max(len(starts) - 1, 0) for starts in lucid.starts.values()),
    }


@contextmanager
def both(layouts: list[Layout], out: Path) -> Iterator[tuple[Side, Side]]:
    lucid, plain = (Site(layout) for layout in layouts)
    yield Side("lucid", lucid, "vc-a", out), Side("plain", plain, "vc-a,prof", out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scene", choices=("before", "after", "moved", "half"), default="before")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=1500.0, help="after the window")
    parser.add_argument("--name", default="windows", help="of its testbeds")
    parser.add_argument("--out", type=Path, default=Path("out/windows-live"))
    given = parser.parse_args()
    say = Console(stderr=True)
    layouts = [
        layout_from({**LAYOUT, "LUCID_TESTBED_NAME": f"{given.name}-{kind}", "LUCID_TESTBED_PLUGIN": plugin})
        for kind, plugin in (("l", "1"), ("p", "0"))
    ]
    out: Path = given.out.absolute() / given.scene
    out.mkdir(parents=True, exist_ok=True)
    dice = random.Random(given.seed)
    pieces = [replace(one, work_s=round(WORK * one.work_s, 1)) for one in stream(given.jobs, given.seed)]
    limits = [2 if dice.random() < SHORT_SHARE else dice.choice(LIMITS_MIN) for _ in pieces]
    try:
        if reason := testbed.unfit(layouts[0]):
            raise TestbedError(reason)
        with kept(*layouts), both(layouts, out) as (lucid, plain):
            for side in (lucid, plain):
                side.begin(pieces, say)
            lucid.lucidd = Lucidd(lucid.site, out)
            try:
                spans = play(given.scene, [lucid, plain], pieces, limits, say)
                wait_ended([lucid, plain], given.limit_s, say)
            finally:
                lucid.lucidd.stop()
            found = told(given.scene, lucid, plain, spans)
            for side in (lucid, plain):
                log = (side.site.root / "var/log/slurm/slurmctld.log").read_text()
                (out / f"slurmctld-{side.name}.log").write_text(log)
    except (TestbedError, LucidError) as error:
        print(f"windows-live: {error}", file=sys.stderr)
        return 2
    (out / "found.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
