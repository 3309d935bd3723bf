"""A whole Python of this machine, with what is installed for it, in a testbed, whose own is a minimal one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from box import Box


@dataclass(frozen=True)
class MountedPython:
    """``environment``: what a batch script exports for ``program`` to work."""

    program: str
    environment: str


def copy(path: Path, to: Path) -> None:
    """A file or a folder, into a folder."""
    if path.is_dir():
        shutil.copytree(path, to / path.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(path, to)


@contextmanager
def python_in(box: Box, python: str, home: str) -> Iterator[MountedPython]:
    """``python``, an interpreter of a virtual environment, below the folder ``home`` of the testbed."""
    asked = "import sys, sysconfig; print(sys.base_prefix, sysconfig.get_path('purelib'), *sys.version_info[:2])"
    said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    base, site, version = said[0], said[1], ".".join(said[2:])
    mounts = []
    for name, source in (("python", base), ("site", site)):
        (box.root / home / name).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", "-o", "ro", source, str(box.root / home / name)], check=True)
        mounts.append(box.root / home / name)
    _copy_libraries(box, Path(base), box.root / home / "lib")
    libraries = f"LD_LIBRARY_PATH=/{home}/python/lib:/{home}/lib"
    try:
        yield MountedPython(f"/{home}/python/bin/python{version}", f"{libraries} PYTHONPATH=/{home}/site")
    finally:
        for mount in mounts:
            subprocess.run(["umount", "-l", str(mount)], check=True)


def _copy_libraries(box: Box, base: Path, to: Path) -> None:
    """Those of this machine that its Python's modules need and the testbed does not have."""
    to.mkdir(exist_ok=True)
    modules = [str(path) for path in base.glob("lib/python3*/lib-dynload/*.so")]
    told = subprocess.run(["ldd", *modules], capture_output=True, text=True, check=True).stdout
    theirs = {path.name for path in (box.root / "usr/lib").rglob("*.so*")}
    for word in told.split():
        if (
            word.startswith("/")
            and ".so" in word
            and Path(word).name not in theirs
            and base not in Path(word).parents
        ):
            shutil.copy(word, to)
