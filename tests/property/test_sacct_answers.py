"""Logs as people have them: answers of sacct for any jobs, in any order of columns, joined, doubled and cut, with the
truth beside them. No job is lost and none counted twice, or the error names the line and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from examples import Dice, tried
from lucid.errors import TraceError
from lucid.models.duration.jobtable import read_jobs
from lucid.simulator.traces.read import read_trace
from lucid.simulator.traces.record import Trace

DAY = 1_700_000_000.0
NEEDED = ("JobID", "User", "Partition", "Submit", "Start", "Elapsed", "State", "NNodes", "AllocTRES", "Timelimit")
OTHERS = ["Account", "QOS", "End", "ElapsedRaw", "NCPUS", "ReqMem", "ReqTRES", "Cluster", "JobIDRaw", "ExitCode"]
TEXTS = ("JobName", "SubmitLine", "Comment", "WorkDir")
PIECES = ["|", "||", "\n", "a", "7", "8_1", "lr=0.1", "COMPLETED", "gpu", "00:10:00", " ", "é", "cpu=1"]
HARMLESS = ["|", "||", "\n", "a", "b c", "lr=0.1", "tee log"]


@dataclass(frozen=True)
class Run:
    """A run of a job as Slurm's database has it, with its texts."""

    id: str
    user: str
    submit_s: float
    waited_s: int
    run_s: int
    state: str
    nodes: int
    gpus: int
    texts: tuple[str, ...]

    @property
    def end_s(self) -> float:
        return self.submit_s + self.waited_s + self.run_s

    def cell(self, column: str, ended: bool) -> str:
        def date(at: float) -> str:
            return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")

        minutes, seconds = divmod(self.run_s, 60)
        tres = f"cpu=4,gres/gpu={self.gpus},node={self.nodes}"
        known = {
            "JobID": self.id, "User": self.user, "Partition": "gpu", "Submit": date(self.submit_s),
            "Start": date(self.submit_s + self.waited_s), "End": date(self.end_s) if ended else "Unknown",
            "Elapsed": f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}", "ElapsedRaw": str(self.run_s),
            "State": self.state if ended else "RUNNING", "NNodes": str(self.nodes), "NCPUS": "4", "ReqMem": "16G",
            "AllocTRES": tres, "ReqTRES": tres, "Timelimit": "1-00:00:00", "Account": "lab", "QOS": "normal",
            "JobIDRaw": "9", "ExitCode": "0:0", "Cluster": "big",
        }  # fmt: skip
        return known[column] if column in known else self.texts[TEXTS.index(column)]


def runs_of(rng: Dice, pieces: list[str]) -> tuple[list[Run], dict[tuple[str, float], Run]]:
    """Runs, and of them those of which a trace has a job: the last of each job."""
    runs, truth = [], {}
    for number in range(rng.randint(1, 6)):
        one = Run(
            rng.choice([f"{50 + number}", f"{50 + number}_{rng.randint(0, 3)}", f"{50 + number}+1"]),
            rng.choice(["ann", "bob"]),
            DAY + rng.randint(0, 400_000),
            rng.randint(0, 900),
            rng.randint(1, 90_000),
            rng.choice(["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED by 1000"]),
            rng.randint(1, 2),
            rng.randint(1, 16),
            tuple("".join(rng.choices(pieces, k=rng.randint(0, 6))) for _ in TEXTS),
        )
        runs.append(one)
        if rng.random() < 0.25:  # requeued: another record of the same job
            one = replace(one, submit_s=one.end_s + rng.choice([0, 0, 200]), run_s=rng.randint(1, 9000))
            runs.append(one)
        truth[one.id, one.submit_s] = one
        if rng.random() < 0.25:  # Slurm counts from the start again
            again = replace(one, user=rng.choice(["cyd", one.user]), submit_s=one.end_s + 9e6, gpus=rng.randint(1, 4))
            runs.append(again)
            truth[again.id, again.submit_s] = again
    return runs, truth


def answer(rng: Dice, runs: list[Run], columns: list[str], ended: bool) -> str:
    """One answer of sacct with these columns, with --parsable or --parsable2."""
    end = rng.choice(["", "|"])
    lines = ["|".join(columns) + end]
    for one in runs:
        cells = [one.cell(column, ended or rng.random() < 0.8) for column in columns]
        lines.append("|".join(cells) + end)
        if rng.random() < 0.3:  # its steps
            step = {"JobID": f"{one.id}.batch", "User": "", "Partition": "", "Timelimit": "", "JobName": "batch"}
            lines.append("|".join(step.get(column, cell) for column, cell in zip(columns, cells, strict=True)) + end)
    return "".join(f"{line}\n" for line in lines)


def log(rng: Dice, runs: list[Run], texts: list[str], in_order: float = 0.5) -> str:
    """Answers in one file: earlier ones may show a job while it ran, and each job stands in one or more of them.
    ``in_order``: the share of answers in which JobID is the first column and the texts are the last."""
    answers = []
    for last in (False, False, True):
        columns = [*NEEDED[1:], *rng.sample(OTHERS, rng.randint(0, len(OTHERS)))]
        if rng.random() < in_order:
            rng.shuffle(columns)
            columns = ["JobID", *columns, *texts]
        else:
            columns += ["JobID", *texts]
            rng.shuffle(columns)
        some = [one for one in runs if last or rng.random() < 0.5]
        rng.shuffle(some)
        answers.append(answer(rng, some, columns, last))
    if rng.random() < 0.3:
        answers.append(answers[-1])
    return "".join(answers)


def check(trace: Trace, truth: dict[tuple[str, float], Run]) -> None:
    assert trace.epoch_s is not None
    found = {
        (item.job.id.partition("#")[0], trace.epoch_s + item.job.submit_s): (item.job, item) for item in trace.jobs
    }
    assert (found.keys(), len(trace.jobs)) == (truth.keys(), len(truth))
    for key, (job, item) in found.items():
        run = truth[key]
        assert (job.gpus, job.user, item.duration_s, item.waited_s) == (run.gpus, run.user, run.run_s, run.waited_s)
        assert run.state.startswith(item.state)


def read_both(rng: Dice, folder: Path, text: str, truth: dict[tuple[str, float], Run]) -> None:
    path = folder / f"{rng.number}.txt"
    path.write_text(text)
    try:
        check(read_trace(path), truth)
        assert sorted(read_jobs(path).submit_s) == sorted(one.submit_s for one in truth.values())
    finally:
        path.unlink()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("answers")


@tried(500)
def test_each_job_of_joined_answers_counts_once(rng: Dice, folder: Path) -> None:
    """Also where one text, in the last column, holds anything ordinary."""
    pieces, most, in_order = rng.choice([(["a", "train"], 2, 0.5), (HARMLESS, 1, 1.0)])
    runs, truth = runs_of(rng, pieces)
    read_both(rng, folder, log(rng, runs, rng.sample(TEXTS, rng.randint(most == 1, most)), in_order), truth)


def test_the_line_feed_at_the_end_of_the_file_belongs_to_no_text(folder: Path) -> None:
    """As part of JobName it made the row one of two readings: which cell is QOS?"""
    one = Run("52", "bob", DAY, 9, 608, "TIMEOUT", 1, 5, ("train", "", "", "a"))
    columns = [*NEEDED[1:], "JobID", "WorkDir", "QOS", "JobName"]
    text = "".join("|".join(cells) + "|\n" for cells in (columns, [one.cell(column, True) for column in columns]))
    read_both(Dice(0), folder, text, {(one.id, one.submit_s): one})


@tried(600)
def test_no_text_hides_or_doubles_a_job(rng: Dice, folder: Path) -> None:
    """Texts that are like other columns' cells, anywhere: all jobs, or an error."""
    runs, truth = runs_of(rng, rng.choice([PIECES, HARMLESS]))
    refused = ""
    try:
        read_both(rng, folder, log(rng, runs, rng.sample(TEXTS, rng.randint(1, 3))), truth)
    except TraceError as error:
        refused = str(error)
    assert not refused or re.search(r"line \d+.*; .*(correct the row|delete the row)", refused), refused


@tried(300)
def test_a_file_that_was_cut_has_all_whole_rows_or_is_refused_at_the_cut(rng: Dice, folder: Path) -> None:
    runs, _ = runs_of(rng, ["train"])
    columns = [*NEEDED, *rng.sample(OTHERS, 3), "JobName"]
    rng.shuffle(columns)
    lines = ["|".join(columns), *("|".join(one.cell(column, True) for column in columns) for one in runs)]
    text = "\n".join(lines)
    cut = text[: rng.randint(len(lines[0]) + 1, len(text))]
    whole = runs[: cut.count("\n") - 1]
    path, refused, found = folder / "cut.txt", "", []
    path.write_text(cut)
    try:
        found = [str(one).partition("#")[0] for one in read_jobs(path).job_id]
    except TraceError as error:
        refused = str(error)
    assert f"line {len(whole) + 2}" in refused or {one.id for one in whole} <= set(found)
