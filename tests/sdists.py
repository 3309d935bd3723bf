"""The sdist of this checkout, made and unpacked."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]


def tracked() -> list[str]:
    """What git has, or is about to have."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name and (REPO / name).is_file()]


def copied(to: Path) -> Path:
    """A fresh clone."""
    for name in tracked():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPO / name, to / name)
    return to


def built(source: Path, kind: str, out: Path) -> Path:
    """By setuptools, as pip and uv call it; ``kind``: sdist or wheel."""
    out.mkdir(parents=True, exist_ok=True)
    call = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", call], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return next(out.iterdir())


def unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack, and trust no name of a member where this Python can check them (3.11.4 and later)."""
    tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))


def unpacked_sdist(folder: Path) -> Path:
    """The folder in which it lies."""
    archive = built(copied(folder / "clone"), "sdist", folder / "sdist")
    with tarfile.open(archive) as tar:
        unpack(tar, folder / "unpacked")
    return next((folder / "unpacked").iterdir())
