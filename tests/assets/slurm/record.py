"""Records what a real Slurm answers, for tests of the translation: jobs of every kind, in every state.

    python tests/assets/slurm/record.py OUT PARTITION -- chroot DIR     # an idle testbed, as its root

Writes OUT/<version>/jobs.json and nodes.json. Needs a partition of two nodes with four GPUs each, and slots.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

BATCH = "#!/bin/sh\nsleep 600\n"
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


def main() -> None:
    out, partition, prefix = Path(sys.argv[1]), sys.argv[2], sys.argv[sys.argv.index("--") + 1 :]
    ids = {}
    for options in JOBS:
        said = run(prefix, "sbatch", "--parsable", "-o", "/dev/null", "-p", partition, *options, text=BATCH)
        ids[options[-1]] = said.strip()
    run(prefix, "scontrol", "update", f"JobId={ids['per-task']}", f"AdminComment=lucid:vc={partition};cold=1")
    time.sleep(5)
    run(prefix, "scancel", ids["cancelled"])
    run(prefix, "scontrol", "requeuehold", ids["gres"])
    jobs = json.loads(run(prefix, "squeue", "--json", "--states=all"))
    nodes = json.loads(run(prefix, "scontrol", "show", "nodes", "--json"))
    release = jobs["meta"]["slurm"]["version"]
    folder = out / f"{release['major']}.{release['minor']}"
    folder.mkdir(parents=True, exist_ok=True)
    jobs["jobs"] = [job for job in jobs["jobs"] if str(job["job_id"]) in ids.values()]
    for name, document in (("jobs", jobs), ("nodes", nodes)):
        (folder / f"{name}.json").write_text(json.dumps(document, separators=(",", ":"), sort_keys=True) + "\n")
    run(prefix, "scancel", *ids.values())


if __name__ == "__main__":
    main()
