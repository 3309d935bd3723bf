"""Records what a real Slurm answers, for tests of the translation: jobs of every kind, in every state.

    python tests/assets/slurm/record.py OUT PARTITION -- chroot DIR     # an idle testbed, as its root

Writes OUT/<version>/jobs.json, nodes.json and sacct.json as the commands print them, from 26.05 on
OUT/<version>-v0.0.45/ with the form that tells less, and OUT/pyslurm-<version>.json where the testbed has a pyslurm.
Needs a partition of two nodes with four GPUs each, and slots. The recordings here were made on

    LUCID_TESTBED_NODES='n[1-3],p1:gpus=4,cpus=16,mem=64000,type=a100' LUCID_TESTBED_PLUGIN=0 \\
        LUCID_TESTBED_PARTITIONS='vc=n[1-2] other=n3 prof=p1' LUCID_TESTBED_PROFILING=prof make cluster
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lucid.slurm.records.from_json import reads_whole, version_of

BATCH = "#!/bin/sh\nsleep 600\n"
STUBBORN = "#!/bin/sh\ntrap '' TERM\nsleep 600\n"
"""Of the job that is requeued: it stays COMPLETING until it is killed, long enough for all looks."""
JOBS = (
    ["--gres=shard:g2:1,shard:g3:1", "-w", "n2", "-J", "slots"],
    ["--gres=shard:g2:1,shard:g3:1", "-w", "n2", "-J", "guest"],
    ["--gres=gpu:1", "-J", "cancelled"],
    ["--gres=gpu:1", "-J", "gres"],
    ["--gpus=2", "-c", "2", "-J", "gpus"],
    ["--gpus-per-node=4", "-N2", "-J", "distributed"],
    ["--gpus-per-task=1", "-n2", "-H", "-J", "per-task"],
    ["--gres=gpu:2", "-H", "--array=1-5%2", "-J", "array"],
    ["--gres=gpu:1", "--no-requeue", "-H", "-C", "a100", "-J", "stays"],
    ["--gres=gpu:1", "-H", "--exclusive", "-J", "exclusive"],
    ["--gres=gpu:1", "-H", "-x", "n1", "-J", "excludes"],
    ["-J", "no gpu; rm -rf \"$HOME\" 'ü' \\"],
)


def run(prefix: list[str], *command: str, text: str | None = None) -> str:
    done = subprocess.run([*prefix, *command], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def put(folder: Path, **documents: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n")


def only(document: Any, ids: dict[str, str]) -> Any:
    document["jobs"] = [job for job in document["jobs"] if str(job["job_id"]) in ids.values()]
    return document


def pyslurm_look(prefix: list[str]) -> Any:
    """What pyslurm tells, where the testbed has one."""
    library = "/usr/local/lib/lucid-testbed"
    if not Path(prefix[-1], library.lstrip("/"), "pyslurm").is_dir():
        return None
    program = (Path(__file__).parent / "pyslurm_dump.py").read_text()
    return json.loads(run(prefix, "env", f"PYTHONPATH={library}", "python3", "-", text=program))


def main() -> None:
    out, partition, prefix = Path(sys.argv[1]), sys.argv[2], sys.argv[sys.argv.index("--") + 1 :]
    ids = {}
    for options in JOBS:
        script = STUBBORN if options[-1] == "gres" else BATCH
        said = run(prefix, "sbatch", "--parsable", "-o", "/dev/null", "-p", partition, *options, text=script)
        ids[options[-1]] = said.strip()
    run(prefix, "scontrol", "update", f"JobId={ids['per-task']}", f"AdminComment=lucid:vc={partition};cold=1")
    time.sleep(5)
    run(prefix, "scancel", ids["cancelled"])
    time.sleep(8)  # until it has left COMPLETING
    run(prefix, "scontrol", "requeuehold", ids["gres"])
    jobs = json.loads(run(prefix, "squeue", "--json", "--states=all"))
    less = None if reads_whole(jobs) else jobs
    if less is not None:
        jobs = json.loads(run(prefix, "squeue", "--json=v0.0.44", "--states=all"))
    by_pyslurm = pyslurm_look(prefix)
    version = version_of(jobs) or (0, 0)
    release = f"{version[0]}.{version[1]:02}"
    nodes = json.loads(run(prefix, "scontrol", "show", "nodes", "--json"))
    put(out / release, jobs=only(jobs, ids), nodes=nodes)
    if less is not None:
        put(out / f"{release}-v0.0.45", jobs=only(less, ids), nodes=nodes)
    if by_pyslurm is not None:
        by_pyslurm["jobs"] = [job for job in by_pyslurm["jobs"] if str(job["id"]) in ids.values()]
        (out / f"pyslurm-{release}.json").write_text(json.dumps(by_pyslurm, separators=(",", ":")) + "\n")
    run(prefix, "scancel", *ids.values())
    time.sleep(8)
    past = json.loads(run(prefix, "sacct", "--json", "-X", "-a", "-S", "now-600seconds"))
    put(out / release, sacct=only(past, ids))


if __name__ == "__main__":
    main()
