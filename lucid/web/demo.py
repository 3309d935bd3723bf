"""The demonstration of ``lucidctl web --demo``: a simulated cluster that lives, written into a store.

A SYNTHETIC month is replayed under Lucid's policy. Its first days are replayed at once, so that there is a past; then
the replay goes on in step with a clock that runs ``SPEED`` times as fast as the real one. It is a process of its own,
so that the pages have the same memory and the same store as over a real cluster."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lucid.config.load import Settings, load_settings, profiles_folder
from lucid.core.decision import Plan, row_of
from lucid.core.job import Ended, Job, JobProfile
from lucid.core.snapshot import Snapshot
from lucid.core.times import DAY_S
from lucid.daemon.policies import LivePolicy
from lucid.daemon.reporting.counters import Counters
from lucid.daemon.reporting.status import partitions_of, status_of
from lucid.daemon.start_log import StartLog
from lucid.models.history import HistoryPredictor
from lucid.models.packing.pair_memory import PairMemory, WithMemory
from lucid.node.reports import write_summary
from lucid.orchestrator.cycle import Cycle, CycleResult
from lucid.orchestrator.planner import PolicyHost
from lucid.places import Mode
from lucid.profiler.summary import Summary
from lucid.profiler.use import GpuUse, IdleStretch
from lucid.simulator.cluster.cluster import POOL, Layout, SimulatedCluster
from lucid.simulator.cluster.jobs import PROFILING, Parts
from lucid.simulator.layout import NodeShape, build_layout, lend_profiling_nodes
from lucid.simulator.predictors import GivenPredictor
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.record import Trace, TraceJob
from lucid.simulator.traces.synth import synthesise
from lucid.slurm.client import Breaker
from lucid.slurm.heartbeat import Heartbeat, write_heartbeat
from lucid.slurm.view.profiles import ProfileFolder
from lucid.store.port import ProfileRow
from lucid.store.recorder import StoreRecorder
from lucid.store.sqlite import SqliteStore

VCS = {"vision": 6, "language": 5, "speech": 3, "robotics": 2, "shared": 2}
"""Nodes by VC: fewer than the preset has, so that jobs queue and share. The VCs lend each other idle GPUs."""


def write_settings(folder: Path) -> Path:
    """Write the configuration of the demonstration into its folder; returns its path."""
    lines = ["[daemon]", f'state_dir = "{folder}"', f'heartbeat = "{folder}/heartbeat"']
    lines += [f'profiling_partition = "{PROFILING}"', "share_across_users = true", "[daemon.partitions]"]
    lines += [f'{name} = "pack"' for name in (POOL, *VCS)]
    lines += [
        "[policy.lending]",
        'mode = "borrow"',
        "[policy.profiling]",
        'restarts = "allowed"',
        "[models]",
        "every_h = 0",
        "[web]",
    ]
    lines += ['anonymous = "everything"', ""]
    path = folder / "lucid.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


SPEED = 60.0
_PRESET, _SEED = "month-small", 4
_KNOWN_DAYS, _PAST_DAYS = 8.0, 6.0
"""Days whose jobs only teach the predictor, and days that are replayed at once."""
_LATELY_S = 1800.0
"""The last seconds of the past for which views are stored."""
_REPEATS = 3
_FORECAST_S, _FORECAST_EVERY_S = 4 * DAY_S, 3600.0
"""The last seconds of the past in which starts are forecast, and how often: ranges rest on what came true of them.
After each cycle of all of it they would take most of the time."""
_USES_EVERY_S = 900.0
"""How often samplers report how the running jobs use their GPUs, in the demonstration's time."""
_FIRST_JOB = 48_000
_DRAINED = 3
"""The number of the node that is out, counted from the first VC's first."""
_WORKS = 0.97
"""Share of an ordinary job's time in which its GPUs work."""
_LEAST_S = 1800.0
"""The least run time of jobs that waste something."""
_NO_PROFILES = ProfileFolder(Path("/nonexistent"))
"""Measurements come with the simulated jobs."""


class Demo:
    """The simulated cluster and its lucidd. ``begun_s``: Unix time at which the past ends and the clock begins."""

    def __init__(self, folder: Path, settings: Settings, begun_s: float) -> None:
        self._settings = settings
        self._store = SqliteStore(folder / "lucid.db")
        self._holder = f"{socket.gethostname()}:{os.getpid()}:demo"
        self.begun_s = begun_s
        self._heartbeat = Path(settings.daemon.heartbeat)
        trace = _trace(begun_s)
        zero_s = begun_s - _PAST_DAYS * DAY_S
        known = [item for item in trace.jobs if item.job.submit_s < zero_s]
        to_come = replace(trace, jobs=tuple(item for item in trace.jobs if item.job.submit_s >= zero_s))
        memory = PairMemory()
        history = GivenPredictor("history", {}, to_come, HistoryPredictor())
        predictor = WithMemory(history, memory)
        predictor.learn([Ended(i.job, i.job.submit_s + i.duration_s, i.duration_s, "COMPLETED") for i in known])
        live = LivePolicy("lucid", settings.policy)
        policy = live.make(predictor)
        layout, lent = lend_profiling_nodes(_layout(), to_come, 2)
        self._cluster = SimulatedCluster(
            to_come,
            layout,
            policy.profiled,
            Parts(
                overheads=settings.overheads,
                profiling=settings.policy.profiling,
                profiling_nodes=lent,
                memory=memory,
                pooled=True,
            ),
        )
        self._token = self._lease(zero_s)
        self._modes = dict.fromkeys(settings.daemon.partitions, Mode.PACK)
        self._recorder = StoreRecorder(self._store, self._token, lambda: self._modes, policy=live.to_dict())
        self._starts = StartLog(self._store, live.make(predictor), predictor.pair_speed)
        self._counters = Counters()
        host = PolicyHost(lambda _: policy, predictor, took=self._counters.planned, clock_s=time.perf_counter)
        self._uses = _DemoUses(profiles_folder(settings))
        self._cycle = Cycle(self._cluster, predictor, host, settings.policy, self._recorder)
        self._wake_s: float | None = None
        self._cycles = 0
        self._began_s, self._used_s = 0.0, float("-inf")
        self._measured: dict[str, JobProfile] = {}
        self._ended: list[Ended] = []
        self._foresee_s = float("-inf")

    def run_past(self) -> None:
        """Replay the days before ``begun_s``."""
        often_s, self._recorder.view_every_s = self._recorder.view_every_s, float("inf")
        self.run_to(self.begun_s - _LATELY_S)
        self._recorder.view_every_s = often_s
        self.run_to(self.begun_s)
        self._tell(self.begun_s)

    def run_to(self, to_s: float) -> None:
        """Let everything up to ``to_s`` happen."""
        while True:
            times = [t for t in (self._cluster.next_event_s(), self._wake_s) if t is not None]
            if not times or min(times) > to_s:
                return
            self._cluster.advance(min(times))
            while True:
                self._began_s = time.perf_counter()
                result = self._cycle.run()
                self._took(result)
                if not (result.applied and self._cluster.moved):
                    break

    def follow(self, clock_s: float) -> None:
        """Go on up to ``clock_s``, and write the results as lucidd does after a turn."""
        self.run_to(clock_s)
        self._tell(clock_s)
        if clock_s - self._used_s >= _USES_EVERY_S:
            self._used_s = clock_s
            for part in self._last.partitions.values():
                for entry in part.running:
                    self._uses.write(entry.job, entry.start_s, clock_s)

    def _took(self, result: CycleResult) -> None:
        self._cycles += 1
        self._counters.cycle(result, self._cycle.memory, self._modes, time.perf_counter() - self._began_s)
        for action in (item.action for item in result.applied):  # what Slurm would have been asked
            now_s = result.plan.now_s
            done = row_of(now_s, action.job_id, action.partition, action.decision)
            number = self._store.begin_action(now_s, done.job_id, done.verb, done.placement, self._token)
            self._store.end_action(number, "done", self._token)
        for ended in result.snapshot.ended:
            self._uses.write(ended.job, ended.end_s - ended.ran_s, ended.end_s)
        self._wake_s = result.plan.wake_s
        self._last = result.snapshot
        self._foresee(result.snapshot, result.plan)
        for part in result.snapshot.partitions.values():
            for entry in part.running:
                profile = entry.profile
                if profile is not None and self._measured.get(entry.job.id) is not profile:
                    self._measured[entry.job.id] = profile
                    job, now_s = entry.job, result.snapshot.now_s
                    row = ProfileRow(job.id, job.user, job.name, job.gpus, profile, now_s)
                    self._store.put_profile(row, f"demo {job.id} {now_s}", self._token)

    def _foresee(self, snapshot: Snapshot, plan: Plan) -> None:
        self._ended += snapshot.ended
        if self.begun_s - _FORECAST_S < snapshot.now_s and self._foresee_s <= snapshot.now_s:
            self._foresee_s = min(snapshot.now_s + _FORECAST_EVERY_S, max(self.begun_s, snapshot.now_s))
            self._starts.observe(replace(snapshot, ended=tuple(self._ended)), plan)
            self._ended.clear()

    def _tell(self, now_s: float) -> None:
        self._lease(now_s)
        modes = {name: str(mode) for name, mode in self._modes.items()}
        status: dict[str, Any] = {
            **status_of(now_s, "a simulation", Breaker(time.monotonic), None, _NO_PROFILES),
            "cycles": self._cycles,
            "paused": False,
            "modes": modes,
            "configured": modes,
            "last_error": "",
            "failed_turns": 0,
            "left_out": {},
            "partitions": partitions_of(self._last),
            "aside": {},
            "private_data": [],
            "counts": self._counters.to_dict(),
        }
        self._store.put_view("demo", {"at_s": now_s, "real_s": time.time(), "speed": SPEED})
        self._store.put_view("status", status)
        write_heartbeat(self._heartbeat, Heartbeat(now_s, self._modes))

    def _lease(self, now_s: float) -> int:
        lease = self._store.take_lease(self._holder, now_s, 60.0 * SPEED)
        assert lease is not None
        return lease.token

    def close(self) -> None:
        """Release the store."""
        self._store.close()


class _DemoUses:
    """Writes a summary of each job into the folder that samplers write to. Every 17th job stops working half-way,
    every 19th does nothing at first, and every 13th of several GPUs leaves one of them alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, job: Job, begin_s: float, end_s: float) -> None:
        """One run of a job, up to ``end_s``."""
        ran_s, number = end_s - begin_s, job.rank
        if ran_s <= 0:
            return
        stretch: tuple[float, float] | None = None
        if ran_s >= _LEAST_S and number % 17 == 0:
            stretch = begin_s + 0.55 * ran_s, end_s
        elif ran_s >= _LEAST_S and number % 19 == 0:
            stretch = begin_s, begin_s + 0.4 * ran_s
        uses = []
        for gpu in range(job.gpus):
            idle = stretch
            if gpu == job.gpus - 1 > 0 and number % 13 == 0 and ran_s >= _LEAST_S:
                idle = begin_s, end_s
            idle_s = 0.0 if idle is None else idle[1] - idle[0]
            stretches = () if idle is None else (IdleStretch(*idle),)
            uses.append(GpuUse(f"GPU-{gpu}", begin_s, end_s, ran_s, _WORKS * (ran_s - idle_s), stretches))
        gpus = tuple(use.gpu for use in uses)
        write_summary(self._folder, Summary(job.id, "demo", gpus, begin_s, end_s, int(ran_s), use=tuple(uses)))


def _trace(begun_s: float) -> Trace:
    """The month, repeated, with times such that the past ends at ``begun_s``."""
    month = synthesise(preset(_PRESET), _SEED)
    span_s = preset(_PRESET).days * DAY_S
    zero_s = begun_s - (_KNOWN_DAYS + _PAST_DAYS) * DAY_S
    jobs: list[TraceJob] = []
    for again in range(_REPEATS):
        for item in month.jobs:
            number = _FIRST_JOB + len(jobs)
            submit_s = zero_s + again * span_s + item.job.submit_s
            jobs.append(replace(item, job=replace(item.job, id=str(number), rank=number, submit_s=submit_s)))
    return replace(month, jobs=tuple(jobs), epoch_s=0.0)


def _layout() -> Layout:
    layout = build_layout(VCS, NodeShape())
    first = next(iter(layout))
    nodes = list(layout[first])
    nodes[_DRAINED] = replace(nodes[_DRAINED], available=False, out="drained")
    return {**layout, first: nodes}


def main() -> None:
    """Run ``python -m lucid.web.demo FOLDER``: prints ``ready`` once there is something to see, and lives until stdin
    closes."""
    folder = Path(sys.argv[1])
    settings = load_settings(folder / "lucid.toml")
    demo = Demo(folder, settings, time.time())
    demo.run_past()
    print("ready", flush=True)
    began_s = time.time()
    parent = os.getppid()
    while os.getppid() == parent:
        demo.follow(demo.begun_s + SPEED * (time.time() - began_s))
        time.sleep(0.5)
    demo.close()


if __name__ == "__main__":
    main()
