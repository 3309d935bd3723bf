"""Records what a real Slurm says of reservations of every kind, for tests of their reading.

    python tests/assets/slurm/record_reservations.py OUT -- chroot DIR     # an idle testbed, as its root

Writes OUT/<version>/reservations.json as ``scontrol`` prints them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from record import put, run

from lucid.slurm.records.from_json import version_of

WHOLE = {
    "maint": "starttime=now+20minutes users=root flags=maint,ignore_jobs nodes=ALL",
    "force": "starttime=now users=root flags=maint,ignore_jobs,overlap nodes=n6",
    "bobs": "starttime=now users=bob nodes=n5 flags=overlap",
    "others": "starttime=now+5hours users=-bob nodes=n5",
    "flex": "starttime=now+4hours accounts=research nodes=n5,n6 flags=flex",
    "magnet": "starttime=now+6hours users=alice nodes=n5 flags=magnetic,purge_comp=00:02:00",
    "daily": "starttime=now+24hours users=bob nodes=n5 flags=daily",
    "weekly": "starttime=now+30hours users=bob nodes=n5 flags=weekly",
    "weekday": "starttime=now+32hours users=bob nodes=n6 flags=weekday",
    "weekend": "starttime=now+32hours users=bob nodes=n6 flags=weekend,overlap",
    "hourly": "starttime=now+3hours users=bob nodes=n4 flags=hourly",
    "float": "starttime=now+30minutes users=bob nodes=n4 flags=time_float,overlap",
    "licence": "starttime=now+10minutes users=bob licenses=matlab:1 flags=any_nodes",
    "part": "starttime=now+50hours users=bob partitionname=vc-a nodes=all flags=part_nodes",
}
PARTIAL = {
    "cores": "starttime=now+10hours users=bob nodes=n1 corecnt=4",
    "gres": "starttime=now+12hours users=bob nodes=n2 trespernode=gres/gpu=1",
}


def main() -> None:
    out, prefix = Path(sys.argv[1]), sys.argv[sys.argv.index("--") + 1 :]
    words = run(prefix, "scontrol", "--version").split()[1].split(".")
    version = int(words[0]), int(words[1])
    name = f"{words[0]}.{words[1]}"
    for kind, given in (WHOLE | PARTIAL).items():
        run(prefix, "scontrol", "create", f"reservation={kind}", "duration=15", *given.split())
    time.sleep(1)
    document = json.loads(run(prefix, "scontrol", "show", "reservation", "--json"))
    assert version_of(document) == version
    put(out / name, reservations=document)


if __name__ == "__main__":
    main()
