"""Records how a real Slurm says that it is set up, for tests of ``lucidctl doctor``.

    python tests/assets/slurm/record_site.py OUT -- chroot DIR     # a testbed as `make cluster` makes it, as its root

Writes OUT/<version>/config.txt (`scontrol show config`), site_nodes.json, and partitions.json, in which ``vc-b`` was
given every option that is in Lucid's way.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from record import put, run

from lucid.slurm.records.from_json import version_of

ODD = (
    "OverSubscribe=EXCLUSIVE", "AllowGroups=bob", "AllowAccounts=research", "DefMemPerNode=100", "MaxTime=10",
    "State=DOWN", "RootOnly=YES",
)  # fmt: skip


def main() -> None:
    out, prefix = Path(sys.argv[1]), sys.argv[sys.argv.index("--") + 1 :]
    config = run(prefix, "scontrol", "show", "config")
    version = version_of(json.loads(run(prefix, "squeue", "--json"))) or (0, 0)
    folder = out / f"{version[0]}.{version[1]:02}"
    put(folder, site_nodes=json.loads(run(prefix, "scontrol", "show", "nodes", "--json")))
    (folder / "config.txt").write_text(config)
    run(prefix, "scontrol", "update", "PartitionName=vc-b", *ODD)
    put(folder, partitions=json.loads(run(prefix, "scontrol", "show", "partitions", "--json")))


if __name__ == "__main__":
    main()
