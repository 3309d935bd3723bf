"""The site's own prologs and epilogs beside pairs: what they see, and for which jobs they run."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from examples import examples
from lucid_hooks import site

SLURM = Path(__file__).parents[3] / "slurm"


class Node:
    """A node's /etc/slurm/lucid, and a slurmctld that answers from files: one a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etc = folder / "lucid"
        self.etc.mkdir()
        for name in ("site_scripts", "lucid_hooks"):
            (self.etc / name).symlink_to(SLURM / name)
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.jobs = folder / "known"
        self.jobs.mkdir()
        answers = f'for last; do :; done\ncat "{self.jobs}/$last" 2>/dev/null && exit\n'
        unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n"
        self.program("scontrol", f"test -e {folder}/down && exit 1\n{answers}{unknown}")
        self.log = folder / "log"
        self.steps: tuple[str, ...] = ()
        """Jobs with a step here, of which ``call`` is to know: this machine may have a testbed's."""

    def program(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}")
        path.chmod(0o755)
        return path

    def conf(self, *lines: str) -> None:
        path = f"path {self.bin}:{os.environ['PATH']}"
        text = "\n".join(["sampler /opt/x", path, f"site-dir {self.folder}/run", *lines]) + "\n"
        (self.etc / "node.conf").write_text(text)

    def runs(self, job: str, gres: str, state: str = "RUNNING", nodes: str = "n1") -> None:
        """What slurmctld says of a job from now on."""
        text = f"JobId={job} JobName=x\n   JobState={state} Reason=None\n"
        text += f"     Nodes={nodes} CPU_IDs=0 Mem=1 GRES={gres}\n"
        (self.jobs / job).write_text(text)

    def environ(self, context: str, job: str, told: str = "") -> dict[str, str]:
        gpus = {"SLURM_JOB_GPUS": told, "CUDA_VISIBLE_DEVICES": told} if told else {}
        return {"SLURM_SCRIPT_CONTEXT": f"{context}_slurmd", "SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1", **gpus}

    def shipped(self, context: str, job: str, told: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """As slurmd calls it."""
        environ = {**self.environ(context, job, told), **more}
        command = ["/bin/sh", str(self.etc / "site_scripts")]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    def call(self, context: str, job: str, told: str = "") -> int:
        """The same without the shell."""
        environ = {key.encode(): value.encode() for key, value in self.environ(context, job, told).items()}
        steps = [one for one in site.running() if one in self.steps]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(site, "_environ", lambda: environ)
            patch.setattr(site, "running", lambda: steps)
            return site.run_scripts(f"site-{context}", self.etc / "node.conf")

    def said(self) -> list[str]:
        """What the site's scripts noted since the last look."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    for name in ("pro", "epi"):
        made.program(name, f'echo "{name} $SLURM_JOB_ID $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES" >> {made.log}\n')
    return made


def with_choice(node: Node, choice: str) -> None:
    pro, epi = node.bin / "pro", node.bin / "epi"
    node.conf(f"site-prolog {pro}", f"site-epilog {epi}", f"site-run {choice} {pro}", f"site-run {choice} {epi}")


def test_a_script_sees_all_gpus_of_the_job_and_all_else_as_slurm_gave_it(node: Node) -> None:
    seen = node.folder / "environ"
    node.program("pro", f"cat /proc/$$/environ > {seen}\nexit 7\n")
    node.conf(f"site-prolog {node.bin}/pro")
    node.runs("7", "gpu:g0:1(IDX:0),gpu:g1:1(IDX:1),gpu:g3:1(IDX:3)")
    odd = {"SPANK_A": "b c\nd\t\xe4 ", "BASH_FUNC_f%%": "() { :; }", "N.M": "", "SLURM_JOB_EXTRA": "x=3"}
    assert node.shipped("prolog", "7", "3", **odd).returncode == 7
    given = dict(entry.split("=", 1) for entry in seen.read_text(encoding="utf-8").split("\0") if entry)
    assert given == {**node.environ("prolog", "7", "0,1,3"), **odd}


def test_not_for_guests(node: Node) -> None:
    with_choice(node, "not-guests")
    node.runs("7", "shard:g0:1(1/2,0/2),shard:g1:1(0/2,1/2)")
    node.runs("8", "shard:g1:1(0/2,1/2)")
    for context in ("prolog", "epilog"):
        assert [node.call(context, job, "1") for job in ("7", "8")] == [0, 0]
    assert node.said() == ["pro 7 0,1 0,1", "epi 7 0,1 0,1"]


def test_jobs_without_gpus_and_choices_by_pattern(node: Node) -> None:
    with_choice(node, "first-last")
    assert node.call("prolog", "5") == 0
    assert node.said() == ["pro 5  "]
    folder = node.bin / "d"
    folder.mkdir()
    for name in ("10-a", "20-b", "30-c"):
        node.program(f"d/{name}", f"echo {name} $SLURM_JOB_GPUS >> {node.log}\n[ $SLURM_JOB_ID != 66 ]\n")
    node.conf(f"site-prolog {folder}/*", f"site-run first-last {folder}/20-b")
    for job in ("66", "7"):
        node.runs(job, "gpu:g0:1(IDX:0)")
    assert node.call("prolog", "66", "0") == 1
    assert node.said() == ["30-c 0"], "as Slurm does: from the last to the first, until one fails"
    assert node.call("prolog", "7", "0") == 0
    assert node.said() == ["30-c 0", "10-a 0"]
    node.conf(f"site-prolog {folder}/none*")
    assert node.shipped("prolog", "7", "0").returncode == 1, "as for Slurm, which drains the node"


def test_what_is_left_of_a_job_that_is_gone_counts_no_more_and_one_that_completes_does(node: Node) -> None:
    with_choice(node, "first-last")
    node.runs("7", "shard:g0:1(1/2,0/2)")
    node.call("prolog", "7", "0")
    node.runs("8", "shard:g0:1(1/2,0/2)")
    node.runs("7", "", "COMPLETING")  # as Slurm answers until the epilog has ended
    node.call("prolog", "8", "0")
    assert node.said() == ["pro 7 0 0"]
    (node.jobs / "7").unlink()  # slurmd was killed: no epilog
    (node.jobs / "8").write_text("JobId=8 JobName=x\n   JobState=RUNNING\n     Nodes=n2 CPU_IDs=0 Mem=1 GRES=\n")
    node.runs("9", "shard:g0:1(1/2,0/2)", nodes="n[1-2]")
    (node.jobs / "n[1-2]").write_text("n1\nn2\n")
    node.call("prolog", "9", "0")
    assert node.said() == ["pro 9 0 0"]


def test_who_ran_before_the_wrapper_came_is_known_and_a_silent_slurmctld_ends_nothing(node: Node) -> None:
    with_choice(node, "first-last")
    node.runs("6", "gpu:g1:1(IDX:1)")
    node.runs("7", "shard:g0:1(1/2,0/2),shard:g1:1(0/2,1/2)")
    node.steps = ("6",)
    with subprocess.Popen(["slurmstepd: [6.batch]", "60"], executable=str(shutil.which("sleep"))) as step:
        while not Path(f"/proc/{step.pid}/cmdline").read_bytes().startswith(b"slurm"):  # Popen returns before
            time.sleep(0.01)
        node.call("prolog", "7", "1")
        step.kill()
    assert node.said() == ["pro 7 0 0"]
    (node.folder / "down").touch()
    node.call("prolog", "8", "1")
    assert node.said() == [], "what is noted counts, until slurmctld says otherwise"
    node.call("epilog", "7", "1")
    assert node.said() == ["epi 7 0 0"]


def test_without_python_the_scripts_run_as_without_lucid(node: Node) -> None:
    with_choice(node, "first-last")
    (node.folder / "no").mkdir()
    for name in ("sed", "tail", "ls", "dirname"):
        (node.folder / "no" / name).symlink_to(str(shutil.which(name)))
    conf = node.etc / "node.conf"
    conf.write_text(conf.read_text() + f"path {node.folder}/no\n")
    assert node.shipped("prolog", "7", "1").returncode == 0
    assert node.said() == ["pro 7 1 1"]
    node.program("pro", "exit 9\n")
    assert node.shipped("prolog", "7", "1").returncode == 9
    conf.unlink()
    done = node.shipped("prolog", "7", "1")
    assert (done.returncode, "node.conf cannot be read" in done.stderr) == (1, True)


class Site(RuleBasedStateMachine):
    """A prolog that fails where the GPU is busy, a file a GPU as jobstats has it, and an epilog that clears the GPU:
    whatever starts, ends and is lost, no start fails, and what they keep of a GPU is of a job that is on it."""

    @initialize()
    def begin(self) -> None:
        base = "/dev/shm" if Path("/dev/shm").is_dir() else "/tmp"
        self.folder = Path(f"{base}/lucid-site.{os.getpid()}")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.alive: dict[str, frozenset[int]] = {}
        self.completing = set[str]()
        self.files: dict[int, str] = {}
        self.silent = False
        self.next = 1

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "folder", "/nowhere"), ignore_errors=True)

    def ask(self, command: Sequence[str]) -> str | None:
        if self.silent:
            return None
        job = command[-1]
        if job not in self.alive:
            return ""
        gpus = ",".join(f"gpu:g{gpu}:1(IDX:{gpu})" for gpu in sorted(self.alive[job]))
        state, gres = ("COMPLETING", "") if job in self.completing else ("RUNNING", gpus)
        return f"JobId={job} JobName=x\n   JobState={state}\n     Nodes=n1 CPU_IDs=0 Mem=1 GRES={gres}\n"

    def call(self, verb: str, job: str) -> int:
        def run(env: Mapping[bytes, bytes] | None) -> int:
            for gpu in map(int, env[b"SLURM_JOB_GPUS"].decode().split(",") if env else ()):
                others = [one for one, gpus in self.alive.items() if gpu in gpus and one != job]
                assert not others, f"{verb} of {job} sees GPU {gpu}, which {others} holds"
                if verb == "site-prolog":
                    self.files[gpu] = job
                else:
                    del self.files[gpu]
            return 0

        environ = {b"SLURM_JOB_GPUS": b"%d" % max(self.alive[job])}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(site, "running", lambda: sorted(self.alive))
            node = site.Node("n1", self.folder / "n1", self.ask)
            return site.with_gpus(verb, job, environ, node, lambda given: run(given("first-last")))

    @rule(gpus=st.frozensets(st.integers(0, 3), min_size=1))
    def start(self, gpus: frozenset[int]) -> None:
        free = frozenset(g for g in gpus if sum(g in held for held in self.alive.values()) < 2)
        if free:
            job, self.next = str(self.next), self.next + 1
            self.alive[job] = free
            assert self.call("site-prolog", job) == 0

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), lost=st.booleans())
    def end(self, data: st.DataObject, lost: bool) -> None:
        """``lost``: slurmd is killed, and the epilog never runs."""
        job = data.draw(st.sampled_from(sorted(self.alive)))
        if not lost:
            self.silent = data.draw(st.booleans())
            assert self.call("site-epilog", job) == 0
            self.silent = False
        del self.alive[job]
        self.completing.discard(job)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def completes(self, data: st.DataObject) -> None:
        """Its epilog is yet to run, and others may start before that."""
        noted = {path.name for path in (self.folder / "n1/jobs").glob("*")}
        self.completing |= data.draw(st.frozensets(st.sampled_from(sorted(self.alive)))) & noted

    @precondition(lambda self: not self.completing)
    @rule()
    def boot(self) -> None:
        """The node boots: jobs and /run are gone; or only the folder is lost."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @invariant()
    def every_held_gpu_has_its_file(self) -> None:
        held = frozenset[int]().union(*getattr(self, "alive", {}).values())
        assert held <= getattr(self, "files", {}).keys(), "the file of a GPU in use is gone"


Site.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=12, deadline=None)
TestSite = Site.TestCase
