"""What a lucidd leaves on disk: a store, a samplers' folder, public.json, plan records and a model library.

``python tests/golden/disk.py FILE.tar.xz`` writes such a folder with the code at hand. Those beside this file were
written by releases and commits that sites may come from; test_disk.py reads each.
"""

from __future__ import annotations

import random
import sys
import tarfile
import tempfile
from pathlib import Path

from click.testing import CliRunner

from lucid.cli.main import lucidctl
from lucid.simulator.traces.formats.own import write_trace
from lucid.simulator.traces.presets import preset
from lucid.simulator.traces.synth import synthesise
from lucid.store.plan_records import record_files

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from filled_site import filled_site

RECORDS = 120
NOW = "now_s.txt"


def write(folder: Path) -> None:
    """A crowded morning of 150 jobs, one model of each kind, and the time at which it ended."""
    site = filled_site(folder)
    chance = random.Random(7)
    for number in range(100, 250):
        gpus, run_s = chance.choice((1, 1, 1, 2, 2, 4)), chance.choice((60.0, 400.0, 2500.0, 9000.0))
        site.submit(str(number), gpus, user=chance.choice(("ada", "bob", "cyd")), run_s=run_s, time_limit_s=36_000.0)
        site.turns(chance.choice((20.0, 60.0, 150.0)), every_s=10.0)
    (folder / NOW).write_text(repr(site.slurm.now))
    site.store.close()
    records = record_files(folder / "plans")
    for path in set(records) - set(chance.sample(records, RECORDS)):
        path.unlink()
    trace = folder / "trace.csv"
    write_trace(synthesise(preset("month-small").resized(None, 50.0), 3), trace)
    library = str(folder / "models")
    for words in (["share", "pairs", "--synthetic"], ["duration", "throughput", "--jobs", str(trace)]):
        made = CliRunner().invoke(lucidctl, ["models", "train", *words, "--library", library], catch_exceptions=False)
        assert made.exit_code == 0, made.output
    trace.unlink()


def pack(folder: Path, file: Path) -> None:
    """Written so that equal folders give equal files."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
        return info

    with tarfile.open(file, "w:xz") as tar:
        for path in sorted(folder.rglob("*")):
            tar.add(path, str(path.relative_to(folder)), recursive=False, filter=plain)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_in:
        write(Path(made_in))
        pack(Path(made_in), Path(sys.argv[1]))
