"""Jobs of hostile users on a real Slurm: lucidd keeps turning, and serves the rest."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from box import Box
from daemon_box import Lucidd

NAMES = [
    b"\xff\xfe\x80",
    b"\xed\xa0\x80",
    b"a|b;c\td",
    b"[/]\x1b[31m",
    b'"}],"jobs":[',
    b"\\ud800\\x",
    b"$(touch /tmp/x)",
]
REQUESTS = [
    "gpu:99999999999999999999", "gpu:²", "gpu:1e400", "gpu:-1", "gpu:18446744073709551615", "gpu:4294967297",
    "gpu:1[", "gpu:1k", "gpu:100001", "shard:99999999999999999999",
]  # fmt: skip


def sbatch(box: Box, *options: bytes) -> str:
    """As bytes; the number of the job, empty where sbatch refused it."""
    words = [b"sbatch", b"--parsable", b"-D", b"/tmp", b"-o", b"/dev/null", b"-p", b"vc-a", *options]
    done = subprocess.run(
        [b"chroot", b"--userspec=alice", str(box.root).encode(), *words],
        cwd="/", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL,
        capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def attack(box: Box) -> list[str]:
    """All of it; returns the numbers of those that Slurm took."""
    sent = [sbatch(box, b"--gres=" + request.encode(), b"--wrap=sleep 2") for request in REQUESTS]
    sent += [sbatch(box, b"--gpus=" + REQUESTS[0].partition(":")[2].encode(), b"--wrap=sleep 2")]
    for name in NAMES:
        sent.append(sbatch(box, b"--gres=gpu:1", b"-J", name, b"--comment", name, b"--wrap=sleep 2"))
        sent.append(sbatch(box, b"--gres=gpu:1", b"-H", b"-J", name, b"--wrap=sleep 2"))
    sent.append(sbatch(box, b"--gres=gpu:1", b"-H", b"--comment", b"x\xff" * 50_000, b"--wrap=sleep 2"))
    sent.append(sbatch(box, b"--gres=gpu:1", b"-H", b"-t", b"99999999999999", b"--wrap=sleep 2"))
    return [number for number in sent if number]


@pytest.fixture
def lucidd(box: Box, tmp_path: Path) -> Iterator[Lucidd]:
    made = Lucidd(box, tmp_path / "lucid")
    yield made
    made.close()


def test_no_job_of_any_user_ends_or_blinds_lucidd(box: Box, lucidd: Lucidd) -> None:
    lucidd.start()
    sent = attack(box)
    assert len(sent) >= len(NAMES)
    innocent = box.sbatch("-p", "vc-b", "--gres=gpu:1", script="sleep 1", user="bob")
    assert box.tag(innocent).startswith("lucid:"), "held for Lucid, whose heartbeat is fresh"
    box.wait_ended(innocent)
    beat = box.root / "run/lucid/heartbeat"
    seen = beat.stat().st_mtime_ns
    box.wait("another heartbeat, with those jobs known", lambda: beat.stat().st_mtime_ns > seen)
    shown = lucidd.json("status")
    assert shown["alive"]
    assert shown["last_error"] == ""
    assert shown["failed_turns"] == 0
    assert lucidd.process is not None
    assert lucidd.process.poll() is None
    assert "Traceback" not in lucidd.log()
    let_go = Counter(
        json.loads(line)["event"].split(":")[0] for line in lucidd.log().splitlines() if "let go at its turn" in line
    )
    assert max(let_go.values(), default=0) <= 7, "each once, and what Slurm holds itself at growing pauses"
    box.run("scancel", *sent)
