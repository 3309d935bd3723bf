"""A cached tree with what Lucid needs in it, beside the suite's: ``lucidctl setup`` and lucidd run inside.

The tree is made once for each suite and each list of Lucid's dependencies. At each start ``put_in`` copies Lucid
itself into it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from box import Box
from plain_slurm import PATH, give_network

from testbed import tree
from testbed.settings import Layout

REPO = Path(__file__).resolve().parents[2]
BIN = "/opt/lucid/bin"


def with_lucids_needs(layout: Layout) -> Layout:
    """The layout over a tree that has a whole Python, and Lucid's dependencies for it."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *project["optional-dependencies"]["web"]]
    return grown(layout, "lucid", needs, ["python3"], lambda part: _make(part, needs))


def grown(
    layout: Layout, name: str, needs: Sequence[str], packages: Sequence[str], fill: Callable[[Path], None]
) -> Layout:
    """The layout over a copy of its tree with these Debian packages and what ``fill`` puts there. It is made once for
    these ``needs``; where it cannot be made, the test is skipped with the reason."""
    digest = hashlib.sha256("\n".join(needs).encode()).hexdigest()[:8]
    wanted = replace(layout, built=f"{layout.built}-{name}-{digest}")
    tree.build(layout, print)
    with tree.locked(layout.cache / f"{wanted.tree.name}.lock"):
        if not wanted.tree.is_dir():
            part = wanted.tree.with_name(f"{wanted.tree.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            print(f"{part.name}: what {name} needs beside Slurm (once; one to three minutes)", file=sys.stderr)
            subprocess.run(["cp", "-a", "--reflink=auto", layout.tree, part], check=True)
            give_network(Box(part))
            (part / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")  # a package starts no service here
            (part / "usr/sbin/policy-rc.d").chmod(0o755)
            _must("chroot", str(part), "apt-get", "install", "--yes", "-qq", "--no-install-recommends", *packages)
            _must("chroot", str(part), "apt-get", "clean")
            shutil.rmtree(part / "var/lib/apt/lists")
            fill(part)
            part.rename(wanted.tree)
    return wanted


def _make(part: Path, needs: list[str]) -> None:
    lib = "/opt/lucid/needs"
    version = max(path.name.removeprefix("python") for path in (part / "usr/lib").glob("python3.*"))
    _must(
        sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile",
        "--only-binary=:all:", "--python-version", version, "--target", f"{part}{lib}", *needs,
    )  # fmt: skip
    _must("chroot", str(part), "python3", "-m", "compileall", "-q", "-x", "/tests?/", lib)
    packages = part / f"opt/lucid/lib/python{version}/site-packages"
    packages.mkdir(parents=True)
    (packages / "lucid.pth").write_text(f"{lib}\n/opt/lucid/src\n")
    (part / "opt/lucid/pyvenv.cfg").write_text(f"home = /usr/bin\nversion = {version}\n")
    bin_ = part / BIN.lstrip("/")
    bin_.mkdir()
    (bin_ / "python3").symlink_to("/usr/bin/python3")


def _must(*words: str) -> None:
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd="/", stdin=subprocess.DEVNULL, timeout=1200,
        env={**os.environ, "PATH": f"{PATH}:{os.environ['PATH']}", "DEBIAN_FRONTEND": "noninteractive",
             "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"{' '.join(words[:6])} …: {(done.stderr or done.stdout)[-300:]}")


def put_in(box: Box) -> None:
    """Lucid of this checkout, in /opt/lucid/src, and its programs."""
    source = box.root / "opt/lucid/src"
    for name in ("lucid", "slurm"):
        shutil.copytree(REPO / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in source.rglob("*"):
        if path.is_dir():
            path.chmod(0o777)  # lucidd, too, keeps what it has compiled
    where = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["scripts"]
    for name in ("lucidctl", "lucidd", "lucid-web"):
        program, (module, _, function) = box.root / BIN.lstrip("/") / name, where[name].partition(":")
        program.write_text(f"#!{BIN}/python3\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        program.chmod(0o755)
