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

ODD = (
    "OverSubscribe=EXCLUSIVE", "AllowGroups=bob", "AllowAccounts=research", "DefMemPerNode=100", "MaxTime=10",
    "State=DOWN", "RootOnly=YES",
)  # fmt: skip


def main() -> None:
    out, prefix = Path(sys.argv[1]), sys.argv[sys.argv.index("--") + 1 :]
    config = run(prefix, "scontrol", "show", "config")
    nodes = json.loads(run(prefix, "scontrol", "show", "nodes", "--json"))
    run(prefix, "scontrol", "update", "PartitionName=vc-b", *ODD)
    partitions = json.loads(run(prefix, "scontrol", "show", "partitions", "--json"))
    version = nodes["meta"]["slurm"]["version"]
    folder = out / f"{version['major']}.{version['minor']}"
    put(folder, site_nodes=nodes, partitions=partitions)
    (folder / "config.txt").write_text(config)


if __name__ == "__main__":
    main()
