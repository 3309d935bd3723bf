"""A random walk: jobs are submitted, held, released, requeued, suspended, changed and cancelled, on plain Slurm and
under Lucid at once. Each job ends as on plain Slurm, and none waits for ever."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from box import OVER, Box

from sbatch_fuzz.compare import unnamed
from sbatch_fuzz.lines import NAME

_SUBMIT = ("", "", "", "--array=0-3%2", "--dependency=afterok:JOB", "--dependency=afterany:JOB",
           "--dependency=after:JOB", "--dependency=singleton", "-H", "--begin=now+6", "-N2", "-n2")  # fmt: skip
_TYPED = (
    "hold", "hold", "uhold", "release", "requeue", "requeue", "requeuehold", "requeuehold", "suspend", "top",
    "update JobId=JOB Nice=50", "update JobId=JOB TimeLimit=5",
    "update JobId=JOB NumNodes=1", "update JobId=JOB NumTasks=2", "update JobId=JOB Partition=vc-b",
    "cancel", "update JobId=JOB Comment=mine", "update JobId=JOB StartTime=now+4", "update JobId=JOB Dependency=",
)  # fmt: skip
_HOLDS = ("hold", "uhold", "requeuehold", "suspend")
_PATIENCE_S = 150.0
"""A requeued job waits for as long as a credential lives, 30 s here."""


@dataclass(frozen=True)
class Step:
    """One line, typed by ``who``: a submission, or an operation on the job that the ``job``-th line submitted."""

    who: str
    words: str
    job: int
    pause_s: float = 0.0

    def __str__(self) -> str:
        return f"{self.who}: {self.words}".replace("JOB", f"(job of line {self.job})")


@dataclass(frozen=True)
class Done:
    """What a step met and said: the job's state before it, its exit code and its words; the number of a new job."""

    state: str
    code: int
    said: str
    number: str = ""


def steps(count: int, seed: int) -> list[Step]:
    """As many, the same for the same seed, and what lifts their last holds."""
    dice, made, jobs = random.Random(seed), list[Step](), list[int]()
    held: set[int] = set()
    for at in range(count):
        pause_s = dice.choice([0.0, 0.0, 0.3, 1.0, 2.0])
        if not jobs or dice.random() < 0.33:
            more = dice.choice(_SUBMIT if jobs else _SUBMIT[:3])
            after = dice.choice(jobs) if "JOB" in more else at
            options = f"--gres=gpu:{dice.choice([1, 1, 2, 4])} {more}"
            name = NAME if dice.random() < 0.8 else "new"
            script = f"sleep {dice.choice([1, 3, 6])}; exit {dice.choice([0, 0, 0, 3])}"
            made.append(Step("alice", f"sbatch {options} --job-name={name} --wrap={script}", after, pause_s))
            held |= {at} if "-H" in options else set()
            jobs.append(at)
            continue
        job, typed = dice.choice(jobs), dice.choice(_TYPED)
        if typed == "release" and job not in held:
            typed = "hold"  # what nobody holds is refused its user where Lucid orders it (docs/differences.md)
        who = "root" if typed in ("uhold", "suspend") else dice.choice(["alice", "alice", "root"])
        made.append(Step(who, typed if "JOB" in typed else f"{typed} JOB", job, pause_s))
        held |= {job} if typed in _HOLDS else set()
    return made + [Step("root", f"{lift} JOB", job) for job in sorted(held) for lift in ("release", "resume")]


def judge(before: Sequence[Done], after: Sequence[Done], ends: tuple[str, str]) -> list[str]:
    """What differs for one job, in words: of the steps on it, on plain Slurm and under Lucid, and of its end. A step
    that met it in two states has no say, and nothing but a wait for ever has one after that."""
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        if one.state != other.state:
            break
        if one.code != other.code:
            words = [f"line {number} typed then: {other.code}, {other.said!r}; plain {one.code}, {one.said!r}"]
            return unnamed(words)
    else:
        if ends[0] != ends[1] and not ("PENDING" in ends[0] and "PENDING" in ends[1]):
            return [f"ends {ends[1]}; plain {ends[0]}"]
    return (
        [f"waits for ever: {ends[1]}; plain {ends[0]}"] if "PENDING" in ends[1] and "PENDING" not in ends[0] else []
    )


def walk(plain: Box, lucid: Box, wanted: Sequence[Step], say: Callable[[str], None]) -> list[str]:
    """Both sides at once, step by step; returns what differs, with the job's lines."""
    found: dict[int, tuple[list[Done], list[Done]]] = {}
    numbers: tuple[dict[int, str], dict[int, str]] = ({}, {})
    with ThreadPoolExecutor(2) as pool:
        for at, step in enumerate(wanted):
            sides = [
                pool.submit(_typed, box, step, known) for box, known in zip((plain, lucid), numbers, strict=True)
            ]
            done = [side.result() for side in sides]
            job = at if step.words.startswith("sbatch") else step.job
            for known, one, kept in zip(numbers, done, found.setdefault(job, ([], [])), strict=True):
                kept.append(one)
                if one.number:
                    known[at] = one.number
            time.sleep(step.pause_s)
            if at % 25 == 24:
                say(f"{at + 1} of {len(wanted)} steps")
        ends = [pool.submit(_ends, box, known) for box, known in zip((plain, lucid), numbers, strict=True)]
        before, after = (side.result() for side in ends)
    differs = []
    for job, (one, other) in sorted(found.items()):
        if words := judge(one, other, (before.get(job, "no job"), after.get(job, "no job"))):
            mine = [f"  {at} {step}" for at, step in enumerate(wanted) if at == job or step.job == job]
            named = f"job of line {job} ({numbers[0].get(job)}, {numbers[1].get(job)} under Lucid)"
            differs.append("\n".join([f"{named}: {'; '.join(words)}", *mine]))
    return differs


def _typed(box: Box, step: Step, numbers: Mapping[int, str]) -> Done:
    number = numbers.get(step.job, "")
    if step.words.startswith("sbatch"):
        options, _, script = step.words.replace("JOB", number).partition(" --wrap=")
        line = [*options.split(), "--parsable", "-D", "/tmp", "-o", "/dev/null", f"--wrap={script}"]
        done = box.run(*line, user=step.who, check=False)
        return Done("", done.returncode, done.stderr, done.stdout.strip())
    if not number:
        return Done("", 0, "")
    state = _state(box, number)
    line = step.words.replace("JOB", number).split()
    line = ["scancel", number] if line[0] == "cancel" else ["scontrol", *line]
    done = box.run(*line, user=step.who, check=False)
    return Done(state, done.returncode, (done.stderr + done.stdout).replace(number, "_").strip())


def _state(box: Box, number: str) -> str:
    """Of a job, or of its tasks: where it is, without why."""
    told = box.run("squeue", "-h", "-r", "-t", "all", "-j", number, "-o", "%T", check=False).stdout.split()
    return " ".join(sorted("ENDED" if state in OVER else state for state in told))


def _ends(box: Box, numbers: Mapping[int, str]) -> dict[int, str]:
    """Each job's end, by its line: states and exit codes of its tasks."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        mine: dict[int, list[str]] = {}
        waits = False
        jobs = box.jobs().values()
        for line, number in numbers.items():
            for job in jobs:
                if number in (str(job["job_id"]), str(job["array_job_id"]["number"])):
                    state, code = job["job_state"][0], job["exit_code"]["return_code"]["number"] or 0
                    waits |= state not in OVER and job["state_reason"] != "DependencyNeverSatisfied"
                    told = f"{state} {code}" if state in OVER else f"{state} ({job['state_reason']})"
                    mine.setdefault(line, []).append(told)
        if not waits or time.monotonic() > until:
            box.run("scancel", *numbers.values(), check=False)
            return {line: ", ".join(sorted(states)) for line, states in mine.items()}
        time.sleep(1.0)
