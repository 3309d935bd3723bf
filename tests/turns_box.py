"""Jobs that take turns, as real processes; what each was in, and when, is read back from what they wrote.

A job runs PROGRAM with NAME and SPEC (JSON: stages in s, iterations, and what else it reads). It appends a line for
each stage to ``$LUCID_TURNS_LOG``: NAME, resource, begin, end, members.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
PYTHON = os.environ.get("LUCID_JOB_PYTHON", sys.executable)
RESOURCES = ("storage", "cpu", "gpu", "network")
HEAD = f"""
import json, os, resource, signal, sys, threading, time
sys.path.insert(0, {str(REPO / "slurm")!r})
import lucid_turns
from lucid_job import members

def rounds(turns, count):
    for _ in range(count):
        with turns.gpu():
            time.sleep(0.01)
        turns.step()
"""
PROGRAM = """
name, spec = sys.argv[1], json.loads(sys.argv[2])
log = os.open(os.environ["LUCID_TURNS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def tell(resource, began, count):
    line = json.dumps([name, resource, began, time.monotonic(), count]) + "\\n"
    os.write(log, line.encode())


def until(path):
    while not os.path.exists(path):
        time.sleep(0.005)


def by_group():
    # the rules alone: stage times are said, not measured
    group = members.Group(os.environ["LUCID_TURNS"], str(ord(name)), spec.get("patience_s", 30.0))
    group.join(tuple(spec["times"]))
    print("joined", flush=True)
    until(spec["go"])
    for _ in range(spec["iterations"]):
        for number, seconds in enumerate(spec["stages"]):
            if seconds:
                group.enter(number, 300.0)
                began = time.monotonic()
                time.sleep(seconds)
                tell(members.RESOURCES[number], began, group.count)
                group.exit()
        group.step()
    group.leave()


def by_turns():
    turns = lucid_turns.Turns(patience_s=spec.get("patience_s", 30.0))
    for iteration in range(spec["iterations"]):
        for number, seconds in enumerate(spec["stages"]):
            if not seconds or (iteration + number) % spec.get("every", 1):
                continue
            with getattr(turns, members.RESOURCES[number])():
                began, count = time.monotonic(), turns.members
                if [iteration, number] == spec.get("stuck_at"):
                    print("stuck", flush=True)
                    time.sleep(spec.get("stuck_s", 600))
                time.sleep(seconds)
                tell(members.RESOURCES[number], began, count)
        turns.step()
        if iteration == spec.get("tell_at"):
            print("there", turns.members, flush=True)
        if iteration == spec.get("wait_at"):
            until(spec["go"])
    print(json.dumps({"stages": turns.stages, "waited_s": turns.waited_s, "members": turns.members}), flush=True)


by_group() if "times" in spec else by_turns()
"""


@dataclass
class Box:
    """A folder of turns, and jobs in it; within ``with`` it is there, and the jobs end with that."""

    root: Path
    jobs: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.root / "g0-1"

    @property
    def log(self) -> Path:
        return self.root / "log"

    def __enter__(self) -> Box:
        self.folder.mkdir()
        self.folder.chmod(0o1777)
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs.values():
            job.kill()
            job.communicate()

    def run(
        self, program: str, *words: str, uid: int | None = None, python: str = PYTHON, **environ: str
    ) -> subprocess.Popen[str]:
        """A job of a program of its own. It needs nothing that site-packages hold."""
        env = {"PATH": os.environ["PATH"], "LUCID_TURNS": str(self.folder), "LUCID_TURNS_LOG": str(self.log)}
        return subprocess.Popen(
            [python, "-BS", "-c", HEAD + program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=env | environ, user=uid,
        )  # fmt: skip

    def start(
        self,
        name: str,
        stages: Sequence[float],
        iterations: int,
        uid: int | None = None,
        python: str = PYTHON,
        **spec: Any,
    ) -> None:
        words = json.dumps({"stages": list(stages), "iterations": iterations, "go": str(self.root / "go"), **spec})
        self.jobs[name] = self.run(PROGRAM, name, words, uid=uid, python=python)

    def line(self, name: str) -> str:
        out = self.jobs[name].stdout
        return out.readline().strip()

    def ends(self, name: str) -> tuple[Mapping[str, Any], str]:
        """What a job that ended well printed last, and its stderr."""
        out, err = self.jobs[name].communicate(timeout=600)
        assert self.jobs[name].returncode == 0, err
        return (json.loads(out.splitlines()[-1]) if out.strip().endswith("}") else {}), err

    def all_end(self, names: Sequence[str]) -> list[tuple[str, str, float, float, int]]:
        """They ended well, said nothing and were in no resource together; every stage, as ``used``."""
        assert [self.ends(name)[1] for name in names] == [""] * len(names)
        rows = self.used()
        assert overlaps(rows) == []
        return rows

    def members(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name.startswith("turn."))

    def wait_for_members(self, count: int) -> None:
        while len(self.members()) != count:
            time.sleep(0.01)

    def used(self) -> list[tuple[str, str, float, float, int]]:
        """Every stage: job, resource, begin, end, members; by begin."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return sorted((tuple(json.loads(line)) for line in lines), key=lambda row: row[2])


def overlaps(rows: Sequence[tuple[str, str, float, float, int]]) -> list[tuple[Any, Any]]:
    """Pairs of stages of two jobs, both in turns, that were in one resource at one time."""
    found = []
    for resource in RESOURCES:
        there = [row for row in rows if row[1] == resource and row[4] > 0]
        found += [(a, b) for a, b in itertools.pairwise(there) if a[0] != b[0] and b[2] < a[3]]
    return found


def sequences(rows: Sequence[tuple[str, str, float, float, int]]) -> Iterator[tuple[str, list[str]]]:
    for resource in RESOURCES:
        yield resource, [row[0] for row in rows if row[1] == resource]
