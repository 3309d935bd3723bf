"""Commands from a slow home folder whose files nobody has read yet: as root, ``python -m benchmarks.slow_home``.

Lucid is installed into a file system of its own, which is mounted from a new loop device for each command, so that
nothing of it is cached, and read at most ``_READS`` times and ``_BYTES`` a second (blkio of cgroup v1). Python itself
and the store lie elsewhere, as on a login node. File calls (strace) are what a network file system is asked."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.commands import COMMANDS
from benchmarks.stored import stored

_READS, _BYTES = 500, 20_000_000
_CGROUP = Path("/sys/fs/cgroup/blkio/lucid-slow-home")
_REPO = Path(__file__).resolve().parents[1]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="lucid-slow-home-") as name:
        folder = Path(name)
        home, image = folder / "home", folder / "image"
        home.mkdir()
        (folder / "site").mkdir()
        with image.open("wb") as file:
            file.truncate(900 * 2**20)
        _run("mkfs.ext4", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(home))
        try:
            _run(sys.executable, "-m", "venv", str(home / "venv"))
            _run(str(home / "venv/bin/pip"), "install", "--quiet", str(_REPO))
            _run("umount", str(home))
            waiting, _ = stored(folder / "site", 40, 40, 12, decisions=160, ended=40)
            config = ("--config", str(folder / "site/lucid.toml"))
            asked = {"--help": ("--help",)} | {
                command: (command, *(waiting if word == "WAITING" else word for word in rest), *config)
                for command, rest in COMMANDS.items()
            }
            print("| | cold, slow, s | warm, s | MB read | file calls |\n|---|---|---|---|---|")
            for command, words in asked.items():
                print(f"| {command} | {_row(home, image, words)} |", flush=True)
        finally:
            _run("umount", str(home), check=False)


def _row(home: Path, image: Path, words: Sequence[str]) -> str:
    """On a device of its own: where another mount namespace holds the last one, its cache lives on."""
    lucidctl = (str(home / "venv/bin/lucidctl"), *words)
    device = _run("losetup", "--read-only", "--find", "--show", str(image)).strip()
    _run("mount", "-o", "ro,noload", device, str(home))
    before = _read_bytes(device)
    cold_s = _timed(_throttled(device, lucidctl))
    read = _read_bytes(device) - before
    warm_s = min(_timed(lucidctl) for _ in range(3))
    calls = home.parent / "calls"
    _run("strace", "-f", "-qq", "-e", "trace=%file", "-o", str(calls), *lucidctl)
    _run("umount", str(home))
    _run("losetup", "--detach", device)
    there = sum(f'"{home}' in line for line in calls.read_text(errors="replace").splitlines())
    return f"{cold_s:.2f} | {warm_s:.2f} | {read / 1e6:.1f} | {there}"


def _throttled(device: str, words: Sequence[str]) -> tuple[str, ...]:
    _CGROUP.mkdir(exist_ok=True)
    number = Path("/sys/block", Path(device).name, "dev").read_text(encoding="ascii").strip()
    (_CGROUP / "blkio.throttle.read_iops_device").write_text(f"{number} {_READS}")
    (_CGROUP / "blkio.throttle.read_bps_device").write_text(f"{number} {_BYTES}")
    return ("sh", "-c", f'echo $$ > {_CGROUP}/cgroup.procs; exec "$@"', "sh", *words)


def _read_bytes(device: str) -> int:
    return 512 * int(Path("/sys/block", Path(device).name, "stat").read_text(encoding="ascii").split()[2])


def _timed(words: Sequence[str]) -> float:
    begin_s = time.perf_counter()
    _run(*words)
    return time.perf_counter() - begin_s


def _run(*words: str, check: bool = True) -> str:
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
