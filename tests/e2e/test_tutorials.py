"""Two tutorials (administrator, user) and docs/lending.md, line by line: the administrator's last part comes last.

What the administrator's page types as root is typed here as root, in this checkout, against a testbed of this
session's own name. A block of a user's finds Slurm's commands in its PATH, as users of a real cluster do.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_install_guide import Block, blocks
from testbeds import own_testbed

from testbed.settings import Layout

pytestmark = pytest.mark.slow
REPO = Path(__file__).resolve().parents[2]
PAGES = REPO / "docs" / "tutorials"


class Shell:
    """Types blocks as a reader does, each in a shell that knows what earlier ones have exported."""

    def __init__(self, layout: Layout, folder: Path) -> None:
        self.layout, self.folder = layout, folder
        self.environ = {**os.environ, "LUCID_TESTBED_NAME": layout.name, "COLUMNS": "100"}
        self.said: dict[str, str] = {}

    def type(self, block: Block) -> None:
        lines = block.lines.replace("/run/main/root", f"/run/{self.layout.name}/root")
        exported, printed = self.folder / "exported", self.folder / "printed"
        before = f"PATH={self.folder}/bin:$PATH\n" if block.user != "root" else ""
        with printed.open("w") as file:  # a file: lucidd goes on and would keep a pipe open
            done = subprocess.run(
                ["sh", "-eu", "-c", f"{before}{lines}\nexport -p > {exported}"],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False, cwd=REPO, timeout=300,
                env={**self.environ, "TYPED_BY": block.user},
            )  # fmt: skip
        said = printed.read_text()
        self.said[block.heading] = self.said.get(block.heading, "") + said
        assert done.returncode == 0, f"{block.heading}:\n{said[-3000:]}"
        named = re.findall(r"^export ([A-Z_]+)=", lines, re.MULTILINE)
        values = dict(re.findall(r"^export ([A-Z_]+)='(.*)'$", exported.read_text(), re.MULTILINE))
        self.environ.update({name: values[name] for name in named})


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with own_testbed("tutor") as layout:
        (tmp_path / "bin").mkdir()
        for name in ("sbatch", "squeue", "scancel", "scontrol"):
            command = tmp_path / "bin" / name
            command.write_text(f'#!/bin/sh\nexec chroot --userspec="$TYPED_BY" {layout.root} /usr/bin/{name} "$@"\n')
            command.chmod(0o755)
        pid = REPO / "out/tutorial/lucidd.pid"
        pid.unlink(missing_ok=True)
        try:
            yield Shell(layout, tmp_path)
        finally:
            if pid.exists():
                subprocess.run(["kill", pid.read_text().strip()], check=False, capture_output=True)


def test_every_line_of_the_tutorials_on_slurm_works_in_its_order(shell: Shell) -> None:
    administrator = blocks((PAGES / "administrator.md").read_text())
    last = [block for block in administrator if block.heading.startswith("6.")]
    others = [block for name in ("user.md", "../lending.md") for block in blocks((PAGES / name).read_text())]
    for block in [*administrator[: -len(last)], *others, *last]:
        shell.type(block)
    said = shell.said
    (shell.folder / "said.txt").write_text("\n".join(f"## {part}\n{text}" for part, text in said.items()))
    assert "lucidd runs (" in said["3. Observe"]
    assert "alice" in said["3. Observe"].partition("Submitted batch job")[2], "queue shows the jobs that wait"
    assert re.search(r"vc-a\W+observe\W+order\b", said["4. Order"].partition("partition")[2]), said["4. Order"]
    assert "small" in said["5. Pack"], "squeue: held, or started already"
    assert re.search(r"starts (its profiling run )?on|waits", said["2. Ask why"].partition("as it is:")[0])
    assert "with 1 GPU: " in said["2. Ask why"]
    assert "first" in said["5. Look back"]
    assert "borrows 4 GPUs of VC vc-b until it ends" in said["Try it on the testbed"]
    assert "it goes before all others" in said["Try it on the testbed"]
    assert "Lucid holds and changes no job any more" in said["6. Away with it"]
