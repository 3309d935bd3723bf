"""``make demo-slurm``: the same 60 jobs of three users on a real Slurm, once plain and once with lucidd in pack mode.

Both runs begin on an empty cluster with the same nodes: plain Slurm may use the profiling node for any job. GPUs are
emulated, and so are the jobs' readings and the slowdown of two that share (``demo_job.py``); Slurm, its plugin and
lucidd are real. Afterwards the simulator replays the same stream, and what it predicts is shown beside what happened.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO), str(REPO / "slurm")]

from rich.console import Console  # noqa: E402

import demo_tables as tables  # noqa: E402
from demo_realism import Realism, RealTimes, print_realism, realism  # noqa: E402
from demo_stream import GPUS_PER_NODE, NODES, VC, Piece, stream, trace_of  # noqa: E402
from lucid.config.load import load_settings  # noqa: E402
from lucid.errors import LucidError  # noqa: E402
from lucid.node.reports import summary_to_dict  # noqa: E402
from lucid.profiler.summary import Summary  # noqa: E402
from lucid.simulator.layout import NodeShape  # noqa: E402
from lucid.simulator.scenario import Scenario, simulate  # noqa: E402
from lucid.simulator.traces.formats.own import write_trace  # noqa: E402
from testbed import cli as testbed  # noqa: E402
from testbed.lifetime import kept  # noqa: E402
from testbed.settings import Layout, TestbedError, layout_from  # noqa: E402

LIMIT_S = 270.0
INSIDE = "/tmp/lucid-demo"
LAYOUT = {
    "LUCID_TESTBED_NAME": "demo",
    "LUCID_TESTBED_NODES": f"n[1-{NODES}]:gpus={GPUS_PER_NODE},cpus=16,mem=64000,type=a100",
    "LUCID_TESTBED_PARTITIONS": f"{VC}=n[1-{NODES - 1}] prof=n{NODES}",
}
SETTINGS = """# The daemon's settings in `make demo-slurm`.
[policy.profiling]
t_prof_s = 4
n_prof = 2
max_wait_s = 30
carry_on_share = 1.0

[policy.packing]
least_partner_remaining_s = 4
"""
"""Jobs of a minute: all that is meant for hours is as much shorter, how often Slurm is asked too."""
REPLAYED = f"""{SETTINGS}same_user_only = true

[overheads]
start_s = 1.0
requeue_s = 3.0
"""
"""Those of the replay that predicts it: as lucidd does, and with the testbed's overheads."""


class Site:
    """The testbed as users and lucidd see it."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.root = layout, layout.root
        self.folder = self.root / INSIDE.lstrip("/")

    def begin(self, say: Console) -> None:
        """An empty cluster: nothing that ran before is known to anybody."""
        testbed.down(self.layout)
        testbed.up(self.layout, lambda text: say.print(text, highlight=False))
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
        program = piece.program
        summary = summary_to_dict(Summary("JOB", "demo", (), 0.0, 30.0, 30, program.profile))
        numbers = f"{piece.work_s:.1f} {program.profile.gpu_util:g} {program.profile.mem_util:g}"
        script = f"python3 {INSIDE}/job.py {INSIDE} {numbers} '{json.dumps(summary, separators=(',', ':'))}'"
        nodes = max(-(-program.gpus // GPUS_PER_NODE), 1)
        return self.run(
            piece.user, "sbatch", "--parsable", "-D", "/tmp", "-o", "/dev/null", "-J", program.name, "-p", partition,
            f"--gres=gpu:{program.gpus // nodes}", f"--nodes={nodes}", f"--time={program.limit_min}",
            f"--wrap={script}",
        ).strip()  # fmt: skip

    def jobs(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.run("root", "squeue", "--json", "--states=all"))["jobs"]
        return {str(job["job_id"]): job for job in found}

    def play(self, pieces: list[Piece], console: Console, partition: str) -> tables.Played:
        """Submit the stream in time and wait for its end."""
        began, began_s = time.monotonic(), time.time()
        ids: dict[str, int] = {}
        for n, piece in enumerate(pieces):
            time.sleep(max(piece.at_s - (time.monotonic() - began), 0.0))
            ids[self.submit(piece, partition)] = n
        with console.status("") as note:
            while True:
                jobs = {number: job for number, job in self.jobs().items() if number in ids}
                over = [n for n, j in jobs.items() if j["job_state"][0] == "COMPLETED"]
                failed = [n for n, j in jobs.items() if j["job_state"][0] in ("FAILED", "CANCELLED", "TIMEOUT")]
                if failed:
                    raise TestbedError(f"job {failed[0]} ended as {jobs[failed[0]]['job_state'][0]}")
                note.update(f"{len(over)} of {len(ids)} jobs done")
                if len(over) == len(ids):
                    return self._played(ids, began_s)
                if time.monotonic() - began > LIMIT_S:
                    left = [f"{n} {j['job_state']} {j['state_reason']}" for n, j in jobs.items() if n not in over]
                    raise TestbedError(f"not ended within {LIMIT_S:.0f} s: {'; '.join(left)}")
                time.sleep(1.0)

    def _played(self, ids: dict[str, int], began_s: float) -> tables.Played:
        """From accounting, which keeps each run of a requeued job: a job starts when it first does."""
        until = time.monotonic() + 60
        while True:
            runs: dict[str, list[tuple[float, float]]] = {}
            said = self.run(
                "root", "env", "SLURM_TIME_FORMAT=%s", "sacct", "-a", "-D", "-X", "-n", "-P", "-S", "now-1hours",
                "-o", "JobIDRaw,Start,End",
            )  # fmt: skip
            for line in said.splitlines():
                number, start, end = line.split("|")
                if start.isdigit() and end.isdigit():
                    runs.setdefault(number, []).append((float(start), float(end)))
            jobs = self.jobs()
            ready = all(len(runs.get(n, ())) == jobs[n]["restart_cnt"] + 1 for n in ids if n in jobs)
            if ready and all(n in runs for n in ids):
                break
            if time.monotonic() > until:
                raise TestbedError("accounting does not tell of all jobs; see the log of slurmdbd")
            time.sleep(0.5)
        real = {
            str(at + 1): RealTimes(min(s for s, _ in runs[n]) - began_s, max(e for _, e in runs[n]) - began_s)
            for n, at in ids.items()
        }
        return tables.Played({n: str(at + 1) for n, at in ids.items()}, real, {n: len(runs[n]) - 1 for n in ids})


class Lucidd:
    """The daemon's process for one run. Its state stays in the folder, for ``lucidctl`` afterwards."""

    def __init__(self, site: Site, out: Path) -> None:
        self.out = out
        self.config = out / "lucid.toml"
        self.heartbeat = site.root / "run/lucid/heartbeat"
        state = out / "state"
        shutil.rmtree(state, ignore_errors=True)
        state.mkdir()
        prefix = json.dumps(["chroot", "--userspec=lucid", str(site.root)])
        self.config.write_text(
            f"{SETTINGS}\n[slurm]\nprefix = {prefix}\npoll_busy_s = 0.5\npoll_idle_s = 1\n\n"
            f'[daemon]\nstate_dir = "{state}"\nheartbeat = "{self.heartbeat}"\nprofiling_partition = "prof"\n'
            f'profiles_dir = "{site.folder}/profiles"\nfirst_guess_s = 20\n\n'
            f'[daemon.partitions]\n{VC} = "pack"\n'
        )
        self.heartbeat.unlink(missing_ok=True)
        with (state / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lucid.daemon", "--config", str(self.config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=REPO,
            )  # fmt: skip
        until = time.monotonic() + 30
        while not self.heartbeat.exists():
            if time.monotonic() > until:
                raise TestbedError(f"lucidd does not come up: {(state / 'log').read_text()[-500:]}")
            time.sleep(0.2)

    def ctl(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "lucid.cli.main", *words, "--config", str(self.config)],
            capture_output=True, text=True, check=False, cwd=REPO, env={**os.environ, "COLUMNS": "100"},
        )  # fmt: skip
        return done.stdout + done.stderr

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.heartbeat.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("out/demo-slurm"), help="stream, outcome, lucidd's state")
    given = parser.parse_args()
    console = Console(stderr=given.json)
    layout = layout_from({**LAYOUT, **os.environ})
    try:
        if reason := testbed.unfit(layout):
            raise TestbedError(reason)
        with kept(layout):
            return _both(given, console, Site(layout))
    except (TestbedError, LucidError) as error:
        print(f"demo-slurm: {error}", file=sys.stderr)
        return 2


def _both(given: argparse.Namespace, console: Console, site: Site) -> int:
    pieces = stream(given.jobs, given.seed)
    out: Path = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    write_trace(trace_of(pieces), out / "trace.csv")
    (out / "vcs.csv").write_text(f"name,num\n{VC},{NODES}\n")
    (out / "replay.toml").write_text(REPLAYED)
    site.begin(console)
    console.print(f"{tables.described(pieces)}\nfirst on plain Slurm …", highlight=False)
    plain = site.play(pieces, console, f"{VC},prof")
    site.begin(console)
    console.print(
        f"then with lucidd in pack mode: {GPUS_PER_NODE} of the GPUs profile, and it knows nothing yet …",
        highlight=False,
    )
    lucidd = Lucidd(site, out)
    try:
        packed = site.play(pieces, console, VC)
        time.sleep(2.0)
        done = json.loads(lucidd.ctl("history", "--json", "--limit", "1000"))["jobs"]
        beside = {row["job"]: row["packed_beside"] for row in done if row["packed_beside"]}
        told = max(beside, key=lambda n: packed.requeued.get(n, -1), default="")
        words = lucidd.ctl("explain", told) if told else "no job found a partner"
    finally:
        lucidd.stop()
    compared = _predicted(pieces, out, plain, packed)
    if given.json:
        print(json.dumps(tables.as_data(pieces, plain, packed, beside, compared), indent=1))
        return 0
    tables.show(console, pieces, plain, packed, beside)
    console.rule("why did that job start then, and there?  (lucidctl explain)")
    console.print(words, highlight=False, soft_wrap=True)
    console.rule("what the simulator predicts for the same stream, and what happened")
    print_realism(console, compared, {"backfill": "plain Slurm", "lucid": "Lucid (pack)"})
    console.print(tables.commands(given.out, told), highlight=False, soft_wrap=True)
    return 0


def _predicted(pieces: list[Piece], out: Path, plain: tables.Played, packed: tables.Played) -> list[Realism]:
    scenario = Scenario(
        trace_of(pieces),
        {VC: NODES},
        NodeShape(GPUS_PER_NODE),
        settings=load_settings(out / "replay.toml"),
        profiling_nodes=1,
        as_live=True,
    )
    return [
        realism(simulate(scenario, policy), played.real)
        for policy, played in (("backfill", plain), ("lucid", packed))
    ]


if __name__ == "__main__":
    sys.exit(main())
