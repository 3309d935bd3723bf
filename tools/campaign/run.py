"""One campaign from the empty cluster to the verdict."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from campaign import told
from campaign.facts import Record, Task, runs_from
from campaign.fault import Fault, Host
from campaign.judge import Finding
from campaign.lanes import Lanes
from campaign.observer import Observer
from campaign.people import People
from campaign.plan import plan
from campaign.sabotage import sabotage
from campaign.site import Site
from campaign.stream import FOLDER, orders
from campaign.unit import ReleaseTimer, Unit
from campaign.verdict import ACCOUNTING, settle, verdict
from campaign.victims import claims_in, unchosen

_SAY_EVERY_S = 10.0
_JUDGE_EVERY_S = 30.0
_VANISHED_S = 45.0
_DRAIN_S = 1200.0
"""All that is left when the stream stops has ended by then, or is stuck."""


@dataclass(frozen=True)
class Wanted:
    """What was asked for on the command line."""

    seed: int
    minutes: float
    faults: Mapping[str, type[Fault]]
    out: Path
    quiet_s: float = 180.0
    """After the last fault: where no job has started or ended for so long, what has not ended is stuck."""
    sabotage: bool = False


class Timeline:
    """Lines with ``t``, seconds from the start, and ``at``, the time of day (UTC). Any thread may write."""

    def __init__(self, path: Path) -> None:
        self.began_s = time.time()
        self._lock = threading.Lock()
        self._file = path.open("w", encoding="utf-8")

    def note(self, what: str, **facts: Any) -> None:
        """One line, written at once."""
        now_s = time.time()
        at = time.strftime("%H:%M:%S", time.gmtime(now_s))
        line = json.dumps({"t": round(now_s - self.began_s, 2), "at": at, "what": what, **facts}, default=str)
        with self._lock:
            if not self._file.closed:
                self._file.write(line + "\n")
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Campaign:
    """``go`` does all of it. ``stop`` may be set at any time: the campaign then ends early, and tidily."""

    def __init__(self, site: Site, wanted: Wanted, say: Any) -> None:
        self.site, self.wanted, self._say = site, wanted, say
        self.stop = threading.Event()
        wanted.out.mkdir(parents=True, exist_ok=True)
        self.timeline = Timeline(wanted.out / "timeline.jsonl")
        self._findings: list[tuple[float, Finding]] = []
        self._states: dict[str, str] = {}
        self._moved_s = 0.0

    def go(self) -> dict[str, Any]:
        """Returns what came of it, as data.

        Raises:
            TestbedError: the testbed cannot be made.
        """
        wanted, note = self.wanted, self.timeline.note
        note("campaign", seed=wanted.seed, minutes=wanted.minutes, faults=sorted(wanted.faults))
        self.site.up(self._say)
        self.units = [
            Unit(self.site, name, wanted.out / f"lucidd.{name}.log", note) for name in self.site.layout.controllers
        ]
        timer = ReleaseTimer(self.site)
        try:
            self._until(lambda: self.site.heartbeat.exists(), 90, "lucidd's first heartbeat")
            self._timed()
        finally:
            timer.close()
            for unit in self.units:
                unit.close()
            self._keep()
        result = self._result()
        note("result", **{key: result[key] for key in ("totals", "jobs", "preempted", "standstill", "ended")})
        (wanted.out / "result.json").write_text(json.dumps(result, indent=1))
        self.timeline.close()
        return result

    # -- the parts -------------------------------------------------------------------------------------------

    def _timed(self) -> None:
        wanted, note = self.wanted, self.timeline.note
        length_s = wanted.minutes * 60
        due = plan(wanted.faults, wanted.seed, length_s)
        for item in due:
            note("planned", **asdict(item))
        self.began_s = time.time()
        self.people = People(self.site, orders(wanted.seed, length_s), note)
        self.lanes = Lanes(wanted.faults, due, Host(self.site, self.units, self.people), note)
        self.observer = Observer(self.site, self.people, self.lanes, note)
        harm = sabotage(self.site, self.people, self.observer, self.stop, note) if wanted.sabotage else None
        try:
            self._until(lambda: time.time() - self.began_s >= length_s, length_s + 5)
            self.ended = "early: it was told to stop" if self.stop.is_set() else "in time"
        finally:
            self._say("the stream stops; whatever is broken is mended")
            self.people.close()
            self.lanes.close()
            if harm is not None:
                harm.join(60)
            self._mend()
            if not self.stop.is_set():
                self._say("waiting until all is quiet")
                self._until(self._quiet, _DRAIN_S)
            self.observer.close()
            self._ask_accounting()
            self._judge(finished=not self.stop.is_set())

    def _mend(self) -> None:
        """Whatever a fault has left behind."""
        self.site.wound.unlink(missing_ok=True)
        self.site.jump.unlink(missing_ok=True)
        try:
            for what in self.site.mend():
                self.timeline.note("mended", left=what)
        except Exception as error:
            self.lanes.errors.append(f"mending: {type(error).__name__}: {error}")
        for unit in self.units:
            unit.let_up()
        for words in (("resume",), ("mode", "vc-a", "configured"), ("mode", "vc-b", "configured")):
            self.site.ctl(*words)

    def _until(self, done: Any, limit_s: float, what: str = "") -> None:
        """Wait, and say now and then how things stand."""
        began = time.monotonic()
        said = judged = began
        while not done() and not self.stop.is_set():
            now = time.monotonic()
            if now - began > limit_s:
                if what:
                    raise TimeoutError(f"{what}: not within {limit_s:g} s; see {self.wanted.out}/lucidd.*.log")
                return
            if hasattr(self, "observer"):
                if now - judged >= _JUDGE_EVERY_S:
                    judged = now
                    self._judge(finished=False)
                if now - said >= _SAY_EVERY_S:
                    said = now
                    self._progress()
            time.sleep(0.3)

    def _quiet(self) -> bool:
        """All has ended; or nothing has moved for so long that what is left is stuck."""
        records = dict(self.observer.watch.records)
        now_s, states = time.time(), {key: record.state for key, record in records.items()}
        if states != self._states:
            self._states, self._moved_s = states, now_s
        left = [
            task
            for key, task in list(self.people.tasks.items())
            if not (key in records and (records[key].over or records[key].reason == "BadConstraints"))
            # one that Slurm has not shown for so long will not end: it is lost
            and now_s - max(records[key].seen_s if key in records else 0.0, task.accepted_s) < _VANISHED_S
        ]
        return not left or now_s - self._moved_s > self.wanted.quiet_s

    def _progress(self) -> None:
        counts = self.observer.watch.counts
        found = told.totals([finding for _, finding in self._findings])
        over = sum(record.over for record in self.observer.watch.records.values())
        excused = sum(count for key, count in found.items() if key.startswith("excused"))
        in_force = ", ".join(b.name for b in self.lanes.in_force()) or "nothing"
        at_s = time.time() - self.began_s
        words = (
            f"{int(at_s) // 60:3d}:{int(at_s) % 60:02d}  {len(self.people.tasks)} submitted, {over} ended, "
            f"{counts.get('RUNNING', 0)} run, {counts.get('PENDING', 0)} wait ({counts.get('held', 0)} held); "
            f"lost {found['lost']} doubled {found['doubled']} stuck {found['stuck']} killed {found['killed']}"
            f" (told apart {excused}); {len(self.lanes.done)} faults; broken now: {in_force}"
        )
        self._say(words)
        self.timeline.note(
            "totals", submitted=len(self.people.tasks), ended=over, counts=counts, found=found,
            standstill_s=round(self.observer.watch.whole.longest_s),
            clear_s=round(self.observer.watch.clear.longest_s),
        )  # fmt: skip

    def _ask_accounting(self) -> None:
        """What slurmctld has forgotten meanwhile stands in the accounting, once that has heard of it."""
        records, tasks = self.observer.watch.records, self.people.tasks
        if all(key in records and records[key].over for key in tasks):
            return
        time.sleep(3)
        done = self.site.run(*ACCOUNTING, limit_s=60)
        jobs, until = self.site.jobs(), time.monotonic() + 60
        while jobs is None and time.monotonic() < until:
            jobs = self.site.jobs()
        if jobs is None:
            self.lanes.errors.append("Slurm does not answer at the end: jobs that it knows may count as lost")
        settle(tasks, records, self.people.by_token, FOLDER, jobs or [], done.stdout)

    def _judge(self, *, finished: bool) -> None:
        tasks, watch = dict(self.people.tasks), self.observer.watch
        for key, task in tasks.items():
            self._fill(task, watch.records.get(key))
        found = verdict(tasks.values(), self.site.log(), self.lanes.done, dict(watch.stuck), finished=finished)
        for at, finding in found:
            if finding not in [known for _, known in self._findings]:
                self.timeline.note("finding", **asdict(finding), about=at - self.timeline.began_s)
                if not finding.excuse:
                    self._say(f"  {finding.kind}: job {finding.job} ({finding.key}): {finding.why}")
        self._findings = found

    def _fill(self, task: Task, record: Record | None) -> None:
        try:
            task.runs = runs_from((self.site.root / FOLDER[1:] / "runs" / task.key).read_text())
        except OSError:
            task.runs = []
        task.record = record
        if record is not None and record.state == "FAILED" and not task.said:
            with suppress(OSError):
                out = self.site.root / FOLDER[1:] / "out" / task.order.token
                task.said = out.read_text(errors="replace")[-2000:]

    # -- what came of it -------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """What is needed to understand a finding, before the testbed goes."""
        out = self.wanted.out
        for path in (*self.site.root.glob("var/log/slurm/*.log"), *self.site.state.glob("lucid.db*")):
            shutil.copy(path, out / path.name)
        runs = self.site.root / FOLDER[1:] / "runs"
        if runs.exists():
            lines = [
                f"{path.name} {line}"
                for path in sorted(runs.iterdir())
                if path.suffix != ".lock"
                for line in path.read_text(errors="replace").splitlines()
            ]
            (out / "runs.txt").write_text("\n".join(lines) + "\n")

    def _result(self) -> dict[str, Any]:
        watch, people, lanes = self.observer.watch, self.people, self.lanes
        findings = [finding for _, finding in self._findings]
        records = [watch.records[key] for key in people.tasks if key in watch.records]
        bad = {f.key for f in findings}
        states = Counter(record.state for record in records)
        preempted, not_chosen = unchosen(self.site.log(), claims_in(self.wanted.out / "lucid.db"))
        begins = [run.began_s for task in people.tasks.values() for run in task.runs]
        return {
            "seed": self.wanted.seed,
            "minutes": self.wanted.minutes,
            "ended": self.ended,
            "jobs": {
                "submitted": len(people.tasks),
                "refused": len(people.refused),
                "unanswered": len(people.unsaid),
                "as_asked": sum(r.over for key, r in watch.records.items() if key in people.tasks and key not in bad),
                "states": ", ".join(f"{count} {state}" for state, count in sorted(states.items())),
            },
            "totals": told.totals(findings),
            "findings": [asdict(f) for f in findings],
            "preempted": {"by_slurm": preempted, "not_chosen": not_chosen},
            "standstill": {
                "whole": told.standstill(watch.whole, self.began_s),
                "clear": told.standstill(watch.clear, self.began_s),
            },
            "slurm_silent_s": round(self.observer.unseen_s),
            "faults_begun": len(lanes.done),
            "faults": told.per_fault(lanes.done, self.observer.back_s, begins, self._findings),
            "lucidd": {
                "starts": sum(unit.starts for unit in self.units),
                "ended_by_itself": [f"{unit.host} {said}" for unit in self.units for said in unit.died],
            },
            "nodes_resumed": self.observer.resumed,
            "trouble": lanes.errors,
            "out": str(self.wanted.out),
        }


def bad(result: Mapping[str, Any]) -> bool:
    """Did anything happen that must not?"""
    amiss = any(result["totals"][kind] for kind in ("lost", "doubled", "stuck", "killed"))
    return amiss or bool(result["preempted"]["not_chosen"])
