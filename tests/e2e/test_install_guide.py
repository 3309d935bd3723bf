"""The pages of installation, line by line, forwards and backwards, on a plain Slurm without anything of Lucid's.

docs/install.md, docs/uninstall.md, then docs/install-by-hand.md.

A block that fails, or a line in it (``sh -e``), fails the test with what it printed. What the chroot lacks is given
to it here, and only here: a name server and the machine's own certificates; systemd (``systemctl_stand_in.py``); and
the ports by which four nodes of one machine are told apart, in place of the guide's example of ``--node-extra``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from box import Box
from testbeds import PATH, plain_slurm, ports_of, slurms_own

pytestmark = pytest.mark.slow
REPO = Path(__file__).resolve().parents[2]
GUIDE = "".join((REPO / f"docs/{page}.md").read_text() for page in ("install", "uninstall", "install-by-hand"))


@dataclass(frozen=True)
class Block:
    """Lines that are typed together: below which heading, by whom."""

    heading: str
    user: str
    lines: str


def blocks(text: str) -> list[Block]:
    """Every block of the page that is fenced as ``sh``."""
    found, heading = [], ""
    for match in re.finditer(
        r"^## (?P<heading>.+)$|^```(?P<info>\S.*)\n(?P<lines>(?s:.*?))^```$", text, re.MULTILINE
    ):
        if match["heading"]:
            heading = match["heading"]
        else:
            language, _, rest = match["info"].partition(" ")
            assert language == "sh", f"a block that nothing runs: {match['info']}"
            found.append(Block(heading, rest.removeprefix("as=") or "root", match["lines"]))
    return found


class Host:
    """The machine on which it is typed."""

    def __init__(self, box: Box) -> None:
        self.box, self._ports = box, ports_of(box)
        self.said: dict[str, str] = {}

    def type(self, block: Block) -> None:
        script = block.lines.replace("n[1-4]=Weight=10", f"n[1-4]={self._ports}")
        done = subprocess.run(
            ["chroot", f"--userspec={block.user}", str(self.box.root), "sh", "-eux", "-c", script],
            capture_output=True, text=True, check=False, cwd="/", stdin=subprocess.DEVNULL, timeout=400,
            env={"PATH": PATH, "LC_ALL": "C.UTF-8", "HOME": "/tmp", "COLUMNS": "200"},
        )  # fmt: skip
        self.said[block.heading] = self.said.get(block.heading, "") + done.stdout
        log = self.box.root / "srv/stand-in/lucidd.log"
        tail = log.read_text()[-2000:] if log.exists() else ""
        assert done.returncode == 0, f"{block.heading}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{tail}"


def copy_checkout(box: Box) -> None:
    """/root/lucid, as ``git clone`` would make it."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "lucid", "slurm", "pyproject.toml", "README.md", "LICENSE"],
        cwd=REPO, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        target = box.root / "root/lucid" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, target)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with plain_slurm("guide") as box:
        copy_checkout(box)
        yield Host(box)


def commands(*headings: str) -> list[str]:
    """What is typed as root below these headings."""
    mine = [b for b in blocks(GUIDE) if b.heading.startswith(headings) and b.user == "root"]
    return "".join(block.lines for block in mine).splitlines()


def test_observe_mode_takes_three_commands_and_pack_mode_ten_lines() -> None:
    assert len(commands("1. ")) <= 3
    assert len(commands("1. ", "3. ", "4. ")) <= 10
    assert not [line for line in commands("1. ", "3. ", "4. ") if "&&" in line or ";" in line], "one command a line"


def test_every_line_of_the_install_guide_works_in_its_order(host: Host) -> None:
    box, part, jobs = host.box, "", dict[str, str]()
    before = slurms_own(box)
    typed = blocks(GUIDE)
    for block in typed:
        if block.heading != part:
            promised(part, host, jobs, before)
            part = block.heading
        if block.lines.startswith(("lucidctl pause", "lucidctl setup --undo")):
            jobs = {name: box.sbatch("--gres=gpu:1", *options) for name, options in (("held", ("-H",)), ("free", ()))}
        host.type(block)
    promised(part, host, jobs, before)


def promised(part: str, host: Host, jobs: dict[str, str], before: dict[str, bytes | str]) -> None:
    """What the guide says that one has at the end of a part."""
    box, said = host.box, host.said.get(part, "")
    levels = re.findall(r"^ *(ok|warn|bad|BAD) ", said, re.MULTILINE)
    number, _, heading = part.partition(". ")
    if number in ("1", "7"):
        assert set(levels) <= {"ok", "warn"}
        assert "ok" in levels
    elif number == "2":
        assert "lucidd runs (" in said
        assert "[would, in observe mode]" in said
    elif number == "6":
        assert re.search(r"lucidctl, version \d", said)
    elif heading.lower().endswith("order mode"):
        assert not {"bad", "BAD"} & set(levels), said
        told = box.run("/usr/local/bin/lucidctl", "mode").stdout
        assert re.search(r"vc-a\W+order\W.*\border\b", told), told
        assert slurms_own(box)["config"] == before["config"]
    elif heading.lower().endswith("pack mode"):
        assert not {"bad", "BAD"} & set(levels), said
        for gres in ("gpu:1", "gpu:a100:1"):
            job = box.sbatch(f"--gres={gres}", "-p", "vc-a")
            assert "held=1" in box.tag(job), "job_submit.lua is loaded and sees the heartbeat"
            box.wait_ended(job, limit_s=120)
            assert box.state(job) == "COMPLETED"
    elif number in ("5", "10"):
        assert not [line for line in said.splitlines() if line.startswith("/")], "find prints nothing"
        assert box.job(jobs["held"])["priority"]["number"] == 0, (
            "its own user holds it: that is nobody else's business"
        )
        plain = box.sbatch("--gres=gpu:2", script="echo $CUDA_VISIBLE_DEVICES")
        box.wait_ended(plain, jobs["free"])
        assert {box.state(plain), box.state(jobs["free"])} == {"COMPLETED"}
        assert box.tag(plain) == "", "a plain Slurm, as before"
        box.run("scancel", jobs["held"])
        assert slurms_own(box) == before, "byte for byte"
        assert box.run("id", "lucid", check=False).returncode, "its user is gone, too"
        assert not box.run("sacctmgr", "-nP", "show", "user", "lucid").stdout
    if number == "10":
        assert "Lucid holds and changes no job any more" in said
