"""What is built from source inside a cached tree: a Slurm of another version, and pyslurm."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from testbed.settings import Layout, TestbedError

__all__ = ["PYSLURM_PACKAGES", "PYTHON_PATH", "SLURM_PACKAGES", "compile_into", "install_needs"]

SLURM_PACKAGES = (
    "gcc",
    "libc6-dev",
    "make",
    "pkgconf",
    "python3",
    "libmunge-dev",
    "libmariadb-dev",
    "libjson-c-dev",
    "libyaml-dev",
    "liblua5.4-dev",
    "libreadline-dev",
)
"""Beside munge, MariaDB, Python and Lua: what Slurm's source needs."""
PYSLURM_PACKAGES = (
    "gcc",
    "libc6-dev",
    "python3-dev",
    "python3-setuptools",
    "python3-packaging",
    "cython3",
)
"""What pyslurm's source needs."""
PYTHON_PATH = "/usr/local/lib/lucid-testbed"
"""Inside the tree: where pyslurm is installed (PYTHONPATH)."""

_FLAGS = "-O1 -g0 -w"
_STEPS = (
    "./configure --prefix=/usr --sysconfdir=/etc/slurm --disable-static --enable-multiple-slurmd "
    "--with-munge --without-hwloc --without-pmix --without-bpf "
    "--without-freeipmi --without-rdkafka --without-hdf5",
    "make -j2 -C src",
    "make -C src install",
    "mkdir -p /usr/include/slurm && cp slurm/*.h /usr/include/slurm/",
)
"""Without the parts that the testbed does not run: contribs, documents, test programs."""


def compile_into(layout: Layout, root: Path, out: IO[str]) -> None:
    """Build and install what the layout wants from source. *root* is a tree with the packages above.

    Raises:
        TestbedError: a step failed; its output stands in *out*.
    """
    for source, steps in ((layout.source, _STEPS), (layout.pyslurm, _pyslurm_steps(layout))):
        if source is None:
            continue
        folder = root / "usr/src/lucid-testbed"
        shutil.copytree(source, folder, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        for step in steps:
            _run(root, step, out)
        shutil.rmtree(folder)
    if layout.source is not None:
        _as_debian_does(root, out)
    if layout.pyslurm is not None:
        install_needs(root, out)


def install_needs(root: Path, out: IO[str]) -> None:
    """What Lucid depends on, for the tree's own Python: a lucidd over pyslurm runs inside.

    Raises:
        TestbedError: pip failed; its output stands in *out*.
    """
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"]
    python = max(path.name.removeprefix("python") for path in (root / "usr/lib").glob("python3.*"))
    words = [sys.executable, "-m", "pip", "install", "-q", "--only-binary=:all:", "--python-version", python]
    words += ["--target", str(root / PYTHON_PATH.lstrip("/")), *wanted]
    out.write(f"+ {' '.join(words)}\n")
    out.flush()
    if subprocess.run(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False).returncode != 0:
        raise TestbedError(f"pip failed; {out.name} has its words")


def _pyslurm_steps(layout: Layout) -> tuple[str, ...]:
    library = "/usr/lib" if layout.source else "/usr/lib/x86_64-linux-gnu/slurm-wlm"
    build = f"SLURM_INCLUDE_DIR=/usr/include SLURM_LIB_DIR={library} python3 setup.py build -j 2"
    return (
        build,
        f"mkdir -p {PYTHON_PATH} && cp -a build/lib.*/pyslurm {PYTHON_PATH}/",
        f"cp -a COPYING.txt {PYTHON_PATH}/pyslurm/",
    )


def _as_debian_does(root: Path, out: IO[str]) -> None:
    """Slurm's user and its folder, which Debian's package makes."""
    (root / "etc/slurm").mkdir(parents=True, exist_ok=True)
    if "\nslurm:" not in (root / "etc/passwd").read_text():
        _run(root, "useradd --system --user-group --home-dir /nonexistent --no-create-home slurm", out, folder="/")


def _run(root: Path, step: str, out: IO[str], folder: str = "/usr/src/lucid-testbed") -> None:
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
        "HOME": "/root",
        "CFLAGS": _FLAGS,
        "TMPDIR": "/tmp",
    }
    words: Sequence[str] = ["nice", "chroot", str(root), "/bin/sh", "-ec", f"cd {folder}; {step}"]
    out.write(f"+ {step}\n")
    out.flush()
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, check=False)
    if done.returncode != 0:
        raise TestbedError(
            f"{step.split()[0]} failed with {done.returncode}; {getattr(out, 'name', '')} has its words"
        )
