"""lucid-run on a real Slurm: ranks over two nodes, requeued at another size, from the system's checkpoint folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from box import Box
from daemon_box import REPO
from elastic_box import REPORTS, Elastics, elastic_lucidd

CHECKPOINTS = "tmp/lucid-checkpoints"

TRAIN = r'''
"""Counts steps; rank 0 reports, and writes them down at SIGTERM. Arguments: STEPS SECONDS, of one GPU."""
import json, os, signal, sys, time
sys.path.insert(0, "/opt/elastic")
import lucid_report

rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
folder = os.environ["LUCID_CHECKPOINTS"]
path, stop, step = folder + "/state.json", [], 0
if os.path.exists(path):
    with open(path) as file:
        step = json.load(file)["step"]
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
shown = ("SLURM_JOB_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
         "MASTER_PORT", "LUCID_RESTART", "SLURMD_NODENAME", "SLURM_GPUS", "LUCID_CHECKPOINTS")
with open("/tmp/ranks-%s.%s.%s" % (os.environ["SLURM_JOB_ID"], os.environ["LUCID_RESTART"], rank), "w") as file:
    json.dump(dict({name: os.environ.get(name) for name in shown}, step=step), file)
while step < int(sys.argv[1]):
    time.sleep(float(sys.argv[2]) / int(world))
    step += 1
    if rank == "0" and step % 20 == 0 and "LUCID_REPORTS" in os.environ:
        lucid_report.report(step / 20, 20 * float(sys.argv[2]) / int(world))
    if stop:
        if rank == "0":
            with open(path, "w") as file:
                json.dump({"step": step, "world": world}, file)
        sys.exit(143)
'''


def ranks(box: Box, number: str, restart: int) -> list[dict[str, str]]:
    """Those of one start that have begun, in order."""
    found = [json.loads(path.read_text() or "{}") for path in (box.root / "tmp").glob(f"ranks-{number}.{restart}.*")]
    return sorted((one for one in found if one), key=lambda one: int(one["RANK"]))


def test_lucidd_resizes_a_job_over_nodes_and_each_world_is_right(box: Box, tmp_path: Path) -> None:
    Elastics(box)
    programs, reports = box.root / "opt/elastic", box.root / REPORTS
    shutil.copy(REPO / "slurm/lucid_run.py", programs)
    (programs / "ranks.py").write_text(TRAIN)
    box.open_folder(CHECKPOINTS)
    with elastic_lucidd(box, tmp_path / "state"):
        train = "python3 /opt/elastic/ranks.py 600 0.3"
        number = box.sbatch(
            "-p", "vc-a", "--gres=gpu:1", "--requeue", "--open-mode=append", "--comment=lucid:elastic=1-8,epochs=30",
            script=f"export LUCID_REPORTS=/{REPORTS}; "
            f"exec python3 /opt/elastic/lucid_run.py --checkpoints /{CHECKPOINTS} {train}",
        )  # fmt: skip
        box.wait_ended(number, limit_s=60)
        assert box.state(number) == "COMPLETED", box.output(number)
    starts = int(box.job(number)["restart_cnt"]) + 1
    worlds = [ranks(box, number, restart) for restart in range(starts)]
    print("worlds", [(len(one), sorted({rank["SLURMD_NODENAME"] for rank in one})) for one in worlds])
    assert starts >= 2
    assert max(len({one["SLURMD_NODENAME"] for one in found}) for found in worlds) == 2
    (folder,) = (box.root / CHECKPOINTS).glob(f"u*/{number}")
    assert folder.stat().st_mode & 0o777 == 0o700
    before = -1
    for found in worlds:
        assert [one["RANK"] for one in found] == [str(rank) for rank in range(len(found))]
        assert {one["WORLD_SIZE"] for one in found} == {str(len(found))}
        assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found}) == 1
        assert {one["LUCID_CHECKPOINTS"] for one in found} == {f"/{folder.relative_to(box.root)}"}
        assert {one["SLURM_GPUS"] for one in found} == {None}
        assert len({one["step"] for one in found}) == 1, "all ranks go on from the same checkpoint"
        assert before < int(found[0]["step"]), "it goes on, and does not begin anew"
        before = int(found[0]["step"])
    told = json.loads(next(reports.glob(f"u*/{number}.json")).read_text())
    assert told["epochs"] == 30.0
    assert {gpus for gpus, _ in told["epoch_s"]} <= {len(found) for found in worlds}
