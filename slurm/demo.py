"""``make demo-slurm``: the same 60 jobs of three users on a real Slurm, once plain and once with lucidd in pack mode.

Both runs have the same nodes: plain Slurm may use the profiling node for any job. GPUs are emulated, and so are the
jobs' readings and the slowdown of two that share (``demo_job.py``); Slurm, its plugin and lucidd are real.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO), str(REPO / "slurm")]

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from lucid.adapters.profile_files import summary_to_dict  # noqa: E402
from lucid.cli.render import duration  # noqa: E402
from lucid.core.job import JobProfile  # noqa: E402
from lucid.profiler.summary import Summary  # noqa: E402
from testbed import cli as testbed  # noqa: E402
from testbed.settings import TestbedError, layout_from  # noqa: E402

WORK = {
    "alice": (("bert", 85.0, 60.0, 14e3, 26.0), ("probe", 12.0, 5.0, 2000.0, 6.0), ("lstm", 30.0, 15.0, 5e3, 20.0)),
    "bob": (("resnet", 70.0, 45.0, 11000.0, 24.0), ("debug", 10.0, 4.0, 1500.0, 5.0), ("gan", 35.0, 20.0, 6e3, 18.0)),
    "carol": (("gnn", 25.0, 12.0, 4e3, 22.0), ("tabular", 15.0, 6.0, 2500.0, 12.0), ("vit", 90.0, 70.0, 16e3, 28.0)),
}  # fmt: skip
"""By user: name, GPU time and memory time (%), memory (MiB), typical seconds of work."""
LIMIT_S = 270.0


@dataclass(frozen=True)
class Piece:
    """One job of the stream."""

    at_s: float
    user: str
    name: str
    gpus: int
    vc: str
    work_s: float
    profile: JobProfile


def stream(count: int, seed: int) -> list[Piece]:
    """The same jobs for the same seed."""
    dice = random.Random(seed)
    pieces, at_s = [], 0.0
    for _ in range(count):
        at_s += dice.expovariate(1 / 1.0)
        user = dice.choice(list(WORK))
        name, gpu, mem, mib, typical_s = dice.choice(WORK[user])
        gpus = dice.choices((1, 2, 4), (70, 20, 10))[0]
        work_s = min(max(typical_s * dice.lognormvariate(0, 0.4), 3.0), 60.0)
        pieces.append(Piece(at_s, user, f"{name}-{gpus}", gpus, "vc-a", work_s, JobProfile(gpu, mem, mib)))
    return pieces


class Site:
    """The testbed as users and lucidd see it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "tmp/lucid-demo"
        for name in ("gpus", "profiles"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            (self.folder / name).chmod(0o777)
        (self.folder / "job.py").write_bytes((REPO / "slurm/demo_job.py").read_bytes())

    def run(self, user: str, *command: str) -> str:
        words = ["chroot", f"--userspec={user}", str(self.root), *command]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60
        )
        if done.returncode:
            raise TestbedError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def submit(self, piece: Piece, partition: str) -> str:
        summary = summary_to_dict(Summary("JOB", "demo", (), 0.0, 30.0, 30, piece.profile))
        inside = "/tmp/lucid-demo"
        numbers = f"{piece.work_s:.1f} {piece.profile.gpu_util:g} {piece.profile.mem_util:g}"
        script = f"python3 {inside}/job.py {inside} {numbers} '{json.dumps(summary, separators=(',', ':'))}'"
        return self.run(
            piece.user, "sbatch", "--parsable", "-D", "/tmp", "-o", "/dev/null", "-J", piece.name, "-p", partition,
            f"--gres=gpu:{piece.gpus}", f"--wrap={script}",
        ).strip()  # fmt: skip

    def jobs(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.run("root", "squeue", "--json", "--states=all"))["jobs"]
        return {str(job["job_id"]): job for job in found}

    def play(self, pieces: list[Piece], console: Console, shared: str) -> dict[str, tuple[Piece, dict[str, Any]]]:
        """Submit the stream in time and wait for its end. ``shared``: a partition that jobs may use besides."""
        began = time.monotonic()
        ids: dict[str, Piece] = {}
        for piece in pieces:
            time.sleep(max(piece.at_s - (time.monotonic() - began), 0.0))
            ids[self.submit(piece, piece.vc + shared)] = piece
        with console.status("") as note:
            while True:
                jobs = {number: job for number, job in self.jobs().items() if number in ids}
                over = [n for n, j in jobs.items() if j["job_state"][0] == "COMPLETED"]
                failed = [n for n, j in jobs.items() if j["job_state"][0] in ("FAILED", "CANCELLED", "TIMEOUT")]
                if failed:
                    raise TestbedError(f"job {failed[0]} ended as {jobs[failed[0]]['job_state'][0]}")
                note.update(f"{len(over)} of {len(ids)} jobs done")
                if len(over) == len(ids):
                    return {number: (ids[number], jobs[number]) for number in ids}
                if time.monotonic() - began > LIMIT_S:
                    left = [f"{n} {j['job_state']} {j['state_reason']}" for n, j in jobs.items() if n not in over]
                    raise TestbedError(f"not ended within {LIMIT_S:.0f} s: {'; '.join(left)}")
                time.sleep(1.0)


class Lucidd:
    """The daemon's process for one run."""

    def __init__(self, site: Site, state: Path) -> None:
        self.state = state
        self.heartbeat = site.root / "run/lucid/heartbeat"
        prefix = json.dumps(["chroot", "--userspec=lucid", str(site.root)])
        (state / "lucid.toml").write_text(
            "[policy.profiling]\nt_prof_s = 3\ncarry_on_share = 0.0\nn_prof = 2\nmax_wait_s = 15\n"
            "[policy.packing]\nleast_partner_remaining_s = 4\n"
            f"[slurm]\nprefix = {prefix}\npoll_busy_s = 0.5\n"
            f'[daemon]\nstate_dir = "{state}"\nheartbeat = "{self.heartbeat}"\nprofiling_partition = "prof"\n'
            f'profiles_dir = "{site.folder}/profiles"\nfirst_guess_s = 20\n'
            '[daemon.partitions]\nvc-a = "pack"\n'
        )
        self.heartbeat.unlink(missing_ok=True)
        for path in (site.folder / "profiles").iterdir():
            path.unlink()  # what the plain run measured is not known to anybody
        with (state / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lucid.daemon", "--config", str(state / "lucid.toml")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPO,
            )  # fmt: skip
        until = time.monotonic() + 20
        while not self.heartbeat.exists():
            if time.monotonic() > until:
                raise TestbedError(f"lucidd does not come up: {(state / 'log').read_text()[-500:]}")
            time.sleep(0.2)

    def ctl(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "lucid.cli.main", *words, "--config", str(self.state / "lucid.toml")],
            capture_output=True, text=True, check=False, cwd=REPO, env={**os.environ, "COLUMNS": "110"},
        )  # fmt: skip
        return done.stdout + done.stderr

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.heartbeat.unlink(missing_ok=True)


def figures(played: dict[str, tuple[Piece, dict[str, Any]]]) -> dict[str, float]:
    """Times in seconds."""
    jct = [j["end_time"]["number"] - j["submit_time"]["number"] for _, j in played.values()]
    begin = min(j["submit_time"]["number"] for _, j in played.values())
    return {
        "avg JCT": statistics.mean(jct),
        "median JCT": statistics.median(jct),
        "p90 JCT": sorted(jct)[int(0.9 * len(jct))],
        "makespan": max(j["end_time"]["number"] for _, j in played.values()) - begin,
        **{
            f"avg JCT of {user}": statistics.mean(
                j["end_time"]["number"] - j["submit_time"]["number"] for p, j in played.values() if p.user == user
            )
            for user in sorted({p.user for p, _ in played.values()})
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    console = Console(stderr=given.json)
    layout = layout_from(
        {"LUCID_TESTBED_NAME": "demo", "LUCID_TESTBED_PARTITIONS": "vc-a=n[1-3] prof=n4", **os.environ}
    )
    try:
        if reason := testbed.unfit(layout):
            raise TestbedError(reason)
        testbed.down(layout)
        testbed.up(layout, lambda text: console.print(text, highlight=False))
        return _both(given, console, Site(layout.root))
    except TestbedError as error:
        print(f"demo-slurm: {error}", file=sys.stderr)
        return 2
    finally:
        if not testbed.unfit(layout):
            testbed.down(layout)


def _both(given: argparse.Namespace, console: Console, site: Site) -> int:
    pieces = stream(given.jobs, given.seed)
    console.print(f"{len(pieces)} jobs of three users on 16 emulated GPUs, first on plain Slurm …", highlight=False)
    plain = site.play(pieces, console, ",prof")
    console.print("… then with lucidd in pack mode (4 of the GPUs profile)", highlight=False)
    with tempfile.TemporaryDirectory(prefix="lucid-demo-") as folder:
        lucidd = Lucidd(site, Path(folder))
        try:
            packed = site.play(pieces, console, "")
            time.sleep(2.0)
            done = json.loads(lucidd.ctl("history", "--json", "--limit", "1000"))["jobs"]
            guests = [row["job"] for row in done if row["packed_beside"]]
            told = max(guests, key=lambda n: packed[n][1]["restart_cnt"] if n in packed else -1, default="")
            words = lucidd.ctl("explain", told) if told else "no job found a partner"
        finally:
            lucidd.stop()
    before, after = figures(plain), figures(packed)
    requeued = sum(j["restart_cnt"] > 0 for _, j in packed.values())
    if given.json:
        print(json.dumps({"plain": before, "lucid": after, "guests": len(guests), "requeued": requeued}, indent=1))
        return 0
    table = Table(title="the same stream, s")
    for column in ("", "plain Slurm", "Lucid (pack)", "Lucid / plain"):
        table.add_column(column, justify="left" if not column else "right")
    for name, value in before.items():
        table.add_row(name, f"{value:.0f}", f"{after[name]:.0f}", f"{after[name] / value:.2f}")
    console.print(table)
    slow = sorted(packed.items(), key=lambda i: i[1][1]["submit_time"]["number"])
    jobs = Table(title="how it went, a job in six")
    for column in ("job", "user", "name", "GPUs", "plain: JCT", "Lucid: JCT", "beside"):
        jobs.add_column(column)
    beside = {row["job"]: row["packed_beside"] or "" for row in done}
    by_piece = {id(piece): job for piece, job in plain.values()}
    for number, (piece, job) in slow[::6]:
        spans = [duration(j["end_time"]["number"] - j["submit_time"]["number"]) for j in (by_piece[id(piece)], job)]
        jobs.add_row(number, piece.user, piece.name, str(piece.gpus), *spans, beside.get(number, ""))
    console.print(jobs)
    console.print(
        f"{len(guests)} jobs started beside another; {requeued} were requeued after their profiling run, the others "
        "ended in it or were known from an earlier run",
        highlight=False,
    )
    console.rule("why did that job start then, and there?  (lucidctl explain)")
    console.print(words, highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
