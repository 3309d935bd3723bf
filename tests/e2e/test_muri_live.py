"""Programs that take turns, on a real Slurm whose GPUs have four slots: a group of four is started together beside a
rigid job, and never stopped, though lucidd is."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

from daemon_box import Lucidd
from testbeds import running

REPORTS = "run/lucid-reports"
KINDS = ("storage", "cpu", "gpu", "network")
LOOP = """
import os, sys, time
sys.path.insert(0, "/etc/slurm/lucid")
import lucid_turns
kind, seconds = sys.argv[1], float(sys.argv[2])
turns, end = lucid_turns.Turns(), time.monotonic() + seconds
with open("/tmp/turns-%s.log" % os.environ["SLURM_JOB_ID"], "w") as log:
    while time.monotonic() < end:
        for name in ("storage", "cpu", "gpu", "network"):
            with getattr(turns, name)():
                began = time.monotonic()
                time.sleep(0.3 if name == kind else 0.01)
                log.write("%s %d %.6f %.6f\\n" % (name, turns.members, began, time.monotonic()))
        turns.step()
"""


def test_programs_that_call_turns_report_by_themselves_and_take_turns(tmp_path: Path) -> None:
    with running("turns", LUCID_TESTBED_SLOTS="4") as box:
        (box.root / "etc/slurm/lucid/node.conf").write_text("daemon lucid\nlimit 5\n")
        (box.root / "tmp/turns_loop.py").write_text(LOOP)
        folder = box.open_folder(REPORTS)
        more = ("lease_s = 6", 'policy = "muri-l"', "[daemon.elastic]", f'reports_dir = "{folder}"')

        def loops(kind: str, seconds: float, where: str) -> str:
            return box.sbatch(
                "-p", where, "--gres=gpu:1", f"--job-name=loop-{kind}", "--comment=lucid:turns",
                script=f"echo GPU $CUDA_VISIBLE_DEVICES TURNS $LUCID_TURNS; ls -ld $LUCID_TURNS; "
                f"export LUCID_REPORTS=/{REPORTS}; python3 /tmp/turns_loop.py {kind} {seconds} && echo DONE",
            )  # fmt: skip

        def run(*numbers: str) -> bool:
            return {box.state(number) for number in numbers} == {"RUNNING"}

        with Lucidd(box, tmp_path / "state", restarts="", more="\n".join(more)) as lucidd:
            # they run alone, to their end, and are measured: what they report counts for later ones
            for kind, number in {kind: loops(kind, 20, "vc-a") for kind in KINDS}.items():

                def told(number: str = number) -> bool:
                    return "its own report" in lucidd.ctl("explain", number)

                box.wait(f"lucidd has read {kind}", told, 60)
                box.wait("it is measured", (lucidd.profiles / f"{number}.json").exists, 30)
                box.wait_ended(number, limit_s=90)
            rigid = box.sbatch("-p", "vc-b", "--gres=gpu:3", script="sleep 70")
            box.wait("it runs", lambda: run(rigid))
            jobs = [loops(kind, 40, "vc-b") for kind in KINDS]
            box.wait("all four run at once", lambda: run(rigid, *jobs), 60)
            assert "takes turns in a group of" in lucidd.ctl("explain", jobs[-1])
            lucidd.kill()
            time.sleep(3)
            lucidd.start()
            box.wait_ended(*jobs, rigid, limit_s=150)
        numbers = (*jobs, rigid)
        assert [(box.state(n), box.job(n)["restart_cnt"]) for n in numbers] == [("COMPLETED", 0)] * 5
        said = [box.output(number) for number in jobs]
        assert len({re.findall(r"^GPU (\S*)", text, re.M)[-1] for text in said}) == 1
        (place,) = {re.findall(r"TURNS (\S+)", text)[0] for text in said}
        assert re.fullmatch(r"/run/lucid-turns/n3/g\d", place)
        assert all("drwxrwxrwt" in text and text.splitlines()[-1] == "DONE" for text in said)
        box.wait("the folder is gone", lambda: not (box.root / place[1:]).exists(), 20)
        held: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for number in jobs:
            lines = [line.split() for line in (box.root / f"tmp/turns-{number}.log").read_text().splitlines()]
            four = [line for line in lines if line[1] == "4"]
            print(number, len(lines), "stages,", len(four), "of them in a group of four")
            assert len(four) > 20
            for name, _, began, ended in four[4:-4]:  # who joins or leaves is seen by the others at their next stage
                held[name].append((float(began), float(ended)))
        for name, spans in held.items():
            late = [(one, other) for one, other in itertools.pairwise(sorted(spans)) if other[0] < one[1]]
            assert not late, f"two jobs in {name} at once"
